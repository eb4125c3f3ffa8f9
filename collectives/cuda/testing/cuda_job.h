// SPDX-License-Identifier: Apache-2.0
//
// CudaJob: clients with devices on GPUs as threads of one process, for tests.
//
//   CudaJob::create(api, nullptr, 2, {4})   one client; devices 0 and 2 share GPU 0, 1 and 3 GPU 1
//   CudaJob::create(api, nccl, 4, {2, 2})   two clients, each device on a GPU of its own
//
// Its groups are for memory of the host (staged_group.h).
#ifndef TESSERA_COLLECTIVES_CUDA_TESTING_CUDA_JOB_H_
#define TESSERA_COLLECTIVES_CUDA_TESTING_CUDA_JOB_H_

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "collectives/group.h"
#include "collectives/host/host_backend.h"
#include "collectives/nccl/api.h"
#include "collectives/nccl/schedule.h"
#include "collectives/nccl/watch.h"
#include "collectives/testing/conformance.h"
#include "device/cpu/arena.h"
#include "device/cuda/api.h"
#include "device/cuda/cuda_device.h"
#include "shm/host_link.h"
#include "tests/support/coordinator/fake_coordinator.h"

namespace tessera::cuda {

class Stage;
class StagedGroup;

class CudaJob {
 public:
  struct Client {
    std::shared_ptr<ArenaPool> pool;
    std::unique_ptr<shm::HostLink> link;
    std::vector<std::unique_ptr<CudaDevice>> devices;
    std::unique_ptr<nccl::Watch> watch;
    std::unique_ptr<host::HostBackend> backend;
  };
  struct Options {
    absl::Duration collective_timeout = absl::Seconds(6);
    nccl::WatchOptions watch = {};
    // For groups of several clients.
    nccl::Sums sums = nccl::Sums::kOrdered;
    // Replaces `sums` for the clients named here.
    std::map<int, nccl::Sums> sums_of_client = {};
  };

  // `nccl` may be null for one client.
  static StatusOr<std::unique_ptr<CudaJob>> create(std::shared_ptr<Api> api,
                                                   std::shared_ptr<nccl::Api> nccl, int num_gpus,
                                                   absl::Span<const int> devices_by_client);
  static StatusOr<std::unique_ptr<CudaJob>> create(std::shared_ptr<Api> api,
                                                   std::shared_ptr<nccl::Api> nccl, int num_gpus,
                                                   absl::Span<const int> devices_by_client,
                                                   const Options& options);
  ~CudaJob();

  testing::FakeJob& job() { return job_; }
  Client& client(int id) { return clients_[id]; }
  CudaDevice& device(int id);
  StatusOr<Group> group(int device, absl::Span<const int> device_ids);
  // As group(), for memory of the GPU.
  StatusOr<Group> raw_group(int device, absl::Span<const int> device_ids);
  // Runs `body` on a thread for each device, as a member of the group of all devices; the first
  // error, with the device that had it.
  Status run(const conformance::MemberBody& body);

 private:
  CudaJob(absl::Span<const int> devices_by_client, const Options& options);
  Status connect(int client, const std::shared_ptr<Api>& api,
                 const std::shared_ptr<nccl::Api>& nccl, int num_gpus);
  // Makes the movers of the client's groups.
  host::MakeDeviceMover make_mover(int client);

  const Options options_;
  testing::FakeJob job_;
  std::vector<Device> ids_;
  std::vector<Client> clients_;
  std::vector<std::shared_ptr<Stage>> stages_;  // by device
  std::mutex mutex_;                            // guards groups_
  std::vector<std::shared_ptr<StagedGroup>> groups_;
};

}  // namespace tessera::cuda

#endif  // TESSERA_COLLECTIVES_CUDA_TESTING_CUDA_JOB_H_
