// SPDX-License-Identifier: Apache-2.0
//
// CudaJob: one client with devices on GPUs, for tests.
//
//   CudaJob::create(api, 2, 4)     devices 0 and 2 share GPU 0, devices 1 and 3 share GPU 1
//
// Its groups are for memory of the host (staged_group.h).
#ifndef TESSERA_COLLECTIVES_CUDA_CUDA_JOB_H_
#define TESSERA_COLLECTIVES_CUDA_CUDA_JOB_H_

#include <memory>
#include <mutex>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "collectives/conformance.h"
#include "collectives/group.h"
#include "collectives/host/host_backend.h"
#include "collectives/host/host_link.h"
#include "device/cpu/arena.h"
#include "device/cuda/api.h"
#include "device/cuda/cuda_device.h"
// NOTIDY(layers): this library is for the tests of this folder alone.
#include "tests/support/fake_coordinator.h"

namespace tessera::cuda {

class Stage;
class StagedGroup;

class CudaJob {
 public:
  static StatusOr<std::unique_ptr<CudaJob>> create(std::shared_ptr<Api> api, int num_gpus,
                                                   int num_devices);
  ~CudaJob();

  StatusOr<Group> group(int device, absl::Span<const int> device_ids);
  // Runs `body` on a thread for each device, as a member of the group of all devices; the first
  // error, with the device that had it.
  Status run(const conformance::MemberBody& body);

 private:
  explicit CudaJob(int num_devices);
  Status connect(std::shared_ptr<Api> api, int num_gpus);

  testing::FakeJob job_;
  std::vector<Device> ids_;
  std::shared_ptr<ArenaPool> pool_;
  std::unique_ptr<host::HostLink> link_;
  std::vector<std::unique_ptr<CudaDevice>> devices_;
  std::vector<std::shared_ptr<Stage>> stages_;
  std::mutex mutex_;  // guards groups_
  std::vector<std::shared_ptr<StagedGroup>> groups_;
  std::unique_ptr<host::HostBackend> backend_;
};

}  // namespace tessera::cuda

#endif  // TESSERA_COLLECTIVES_CUDA_CUDA_JOB_H_
