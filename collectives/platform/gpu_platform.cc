// SPDX-License-Identifier: Apache-2.0
#include "collectives/platform/gpu_platform.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/cuda/cuda_mover.h"
#include "collectives/nccl/api.h"
#include "collectives/nccl/gpu_sharing.h"
#include "collectives/nccl/interface.h"
#include "collectives/nccl/nccl_mover.h"
#include "collectives/nccl/open_api.h"
#include "collectives/nccl/slab_source.h"
#include "collectives/platform/gpu_claims.h"
#include "compute/cuda/cuda_engine.h"     // NOTIDY(layers): devices get engines here
#include "compute/cuda/open_libraries.h"  // NOTIDY(layers): devices get engines here
#include "job/environment/host.h"

namespace tessera {
namespace {

// NCCL distinguishes the ranks of one GPU by their processes.
Status check_processes(absl::Span<const MemberInfo> members) {
  for (const MemberInfo& a : members) {
    for (const MemberInfo& b : members.subspan(static_cast<size_t>(a.client_id) + 1)) {
      if (!are_on_one_host(a, b) || a.pid != b.pid) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "TESSERA_SHARE_GPUS: clients ", a.client_id, " and ", b.client_id,
          " are in one process (pid ", a.pid, "); clients that share GPUs need a process each"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<std::unique_ptr<Platform>> GpuPlatform::create(const PlatformOptions& options) {
  std::shared_ptr<const cuda::Libraries> libraries = options.cuda;
  if (libraries == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(libraries, cuda::open_libraries());
  }
  TESSERA_ASSIGN_OR_RETURN(const int num_gpus, libraries->cuda->device_count());
  return std::unique_ptr<Platform>(new GpuPlatform(options, *libraries, num_gpus));
}

Status GpuPlatform::prepare(const JobEnvironment& job) {
  may_share_gpus_ = job.share_gpus;
  if (job.num_clients == 1) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(nccl::check_allocator(std::min(num_gpus_, job.num_local_devices)));
  // Before NCCL is loaded; another one than this machine's has its own ways.
  if (options_.nccl == nullptr) nccl::choose_interface();
  shares_gpus_ = job.share_gpus && options_.nccl == nullptr;
  if (shares_gpus_) nccl::share_gpus_among_processes();
  return absl::OkStatus();
}

Status GpuPlatform::join(Coordinator& coordinator, absl::Time deadline) {
  TESSERA_RETURN_IF_ERROR(check_device_types(coordinator.members()));
  if (shares_gpus_) TESSERA_RETURN_IF_ERROR(check_processes(coordinator.members()));
  const MemberInfo& self = coordinator.members()[coordinator.client_id()];
  int64_t first = 0;
  for (const MemberInfo& member : coordinator.members().first(coordinator.client_id())) {
    if (are_on_one_host(member, self)) first += member.num_local_devices;
  }
  std::vector<std::string> bus_ids;
  for (int64_t i = 0; i < std::min(num_gpus_, self.num_local_devices); ++i) {
    used_gpus_.push_back(static_cast<int>((first + i) % num_gpus_));
    if (may_share_gpus_) continue;
    TESSERA_ASSIGN_OR_RETURN(std::string id, libraries_.cuda->bus_id(used_gpus_.back()));
    bus_ids.push_back(std::move(id));
  }
  if (coordinator.num_clients() == 1) return absl::OkStatus();
  return claim_gpus(coordinator, bus_ids, deadline);
}

StatusOr<std::vector<std::unique_ptr<LocalDevice>>> GpuPlatform::start_devices(const Start& start) {
  link_ = &start.link;
  TESSERA_RETURN_IF_ERROR(cuda::enable_peers(*libraries_.cuda, used_gpus_));
  const std::shared_ptr<nccl::Api> nccl =
      link_->members().num_clients() == 1 ? nullptr : open_nccl();
  std::vector<std::unique_ptr<LocalDevice>> devices;
  for (const Device& device : start.devices) {
    TESSERA_ASSIGN_OR_RETURN(
        std::unique_ptr<cuda::CudaDevice> gpu,
        cuda::CudaDevice::create(libraries_.cuda, used_gpus_[device.ordinal % used_gpus_.size()],
                                 link_->own_control().observer(device.ordinal),
                                 nccl == nullptr ? cuda::SlabSource() : nccl::slab_source(nccl)));
    TESSERA_RETURN_IF_ERROR(cuda::CudaEngine::add_to(*gpu, libraries_.math));
    gpus_.push_back(gpu.get());
    devices.push_back(std::move(gpu));
  }
  if (nccl != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(watch_, nccl::Watch::create(nccl, gpus_));
  }
  return devices;
}

std::shared_ptr<nccl::Api> GpuPlatform::open_nccl() {
  if (options_.nccl != nullptr) return options_.nccl;
  // Without NCCL clients still meet at barriers, and use their own GPUs.
  StatusOr<std::shared_ptr<nccl::Api>> opened = nccl::open_api();
  nccl_status_ = opened.status();
  return opened.ok() ? *std::move(opened) : nullptr;
}

host::MakeDeviceMover GpuPlatform::make_mover(std::shared_ptr<span::Network> network) {
  return [this, network = std::move(network)](absl::Span<const shm::GroupMember> members) {
    return new_mover(members, network);
  };
}

StatusOr<std::unique_ptr<host::DeviceMover>> GpuPlatform::new_mover(
    absl::Span<const shm::GroupMember> members, std::shared_ptr<span::Network> network) {
  std::vector<cuda::CudaDevice*> gpus;
  bool spans_clients = false;
  for (const shm::GroupMember& member : members) {
    const bool is_local = member.client_id == link_->members().client_id();
    gpus.push_back(is_local ? gpus_[member.ordinal] : nullptr);
    spans_clients |= !is_local;
  }
  if (!spans_clients) return cuda::CudaMover::create(std::move(gpus));
  const StatusOr<nccl::Watch*> watch =
      nccl_status_.ok() ? StatusOr<nccl::Watch*>(watch_.get()) : nccl_status_;
  const nccl::Sums sums = options_.nccl_adds ? nccl::Sums::kNccl : nccl::Sums::kOrdered;
  return nccl::NcclMover::create(watch, *link_, {members.begin(), members.end()}, std::move(gpus),
                                 {.sums = sums, .timeout = options_.collective_timeout},
                                 std::move(network));
}

}  // namespace tessera
