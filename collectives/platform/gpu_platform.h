// SPDX-License-Identifier: Apache-2.0
//
// GpuPlatform: devices on GPUs. The devices of a host's clients take its GPUs in turn. Bytes move
// among the GPUs of one client by copies and kernels, and among the GPUs of several clients by
// NCCL.
//
//   client 0   devices 0, 1   on GPUs 0, 1      each client has GPUs of its own (gpu_claims.h),
//   client 1   devices 2, 3   on GPUs 2, 3      unless clients are told to share them
//
// Threads: as for Platform. The members that start_devices() sets do not change until end();
// threads that make groups read them without a lock.
#ifndef TESSERA_COLLECTIVES_PLATFORM_GPU_PLATFORM_H_
#define TESSERA_COLLECTIVES_PLATFORM_GPU_PLATFORM_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "collectives/host/device_mover.h"
#include "collectives/nccl/watch.h"
#include "collectives/platform/platform.h"
#include "compute/cuda/math_api.h"  // NOTIDY(layers): devices get engines here
#include "device/cuda/cuda_device.h"
#include "device/local_device.h"
#include "job/coordinator/coordinator.h"
#include "job/environment/environment.h"
#include "shm/group_table.h"
#include "shm/host_link.h"

namespace tessera {

class GpuPlatform final : public Platform {
 public:
  static StatusOr<std::unique_ptr<Platform>> create(const PlatformOptions& options);

  int default_num_devices() const override { return num_gpus_; }
  Status prepare(const JobEnvironment& job) override;
  Status join(Coordinator& coordinator, absl::Time deadline) override;
  StatusOr<std::vector<std::unique_ptr<LocalDevice>>> start_devices(const Start& start) override;
  host::MakeDeviceMover make_mover(std::shared_ptr<span::Network> network) override;
  // Ends all work of NCCL that is under way.
  void end() override { watch_ = nullptr; }

 private:
  GpuPlatform(const PlatformOptions& options, const cuda::Libraries& libraries, int num_gpus)
      : options_(options), libraries_(libraries), num_gpus_(num_gpus) {}
  // Null where there is no NCCL; nccl_status_ says why.
  std::shared_ptr<nccl::Api> open_nccl();
  StatusOr<std::unique_ptr<host::DeviceMover>> new_mover(absl::Span<const shm::GroupMember> members,
                                                         std::shared_ptr<span::Network> network);

  const PlatformOptions options_;
  const cuda::Libraries libraries_;
  const int num_gpus_;           // of this machine
  bool may_share_gpus_ = false;  // with other clients, as $TESSERA_SHARE_GPUS says
  bool shares_gpus_ = false;     // GPUs are shared, and NCCL was told
  std::vector<int> used_gpus_;   // by local devices, in turn
  // The members below are set by start_devices().
  std::vector<cuda::CudaDevice*> gpus_;  // of this client, by ordinal
  shm::HostLink* link_ = nullptr;
  // Null in a job of one client, and where NCCL cannot be opened: nccl_status_ says why.
  std::unique_ptr<nccl::Watch> watch_;
  Status nccl_status_;
};

}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_PLATFORM_GPU_PLATFORM_H_
