// SPDX-License-Identifier: Apache-2.0
#include "collectives/cuda/cuda_job.h"

#include <cstdio>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/cuda/cuda_mover.h"
#include "collectives/cuda/staged_group.h"
#include "device/device.h"
#include "device/stream.h"

namespace tessera::cuda {

CudaJob::CudaJob(int num_devices) : job_({num_devices}) {
  for (int id = 0; id < num_devices; ++id) {
    Device device;
    device.id = id;
    device.ordinal = id;
    device.type = DeviceType::kCuda;
    ids_.push_back(device);
  }
}

StatusOr<std::unique_ptr<CudaJob>> CudaJob::create(std::shared_ptr<Api> api, int num_gpus,
                                                   int num_devices) {
  std::unique_ptr<CudaJob> job(new CudaJob(num_devices));
  TESSERA_RETURN_IF_ERROR(job->connect(std::move(api), num_gpus));
  return job;
}

Status CudaJob::connect(std::shared_ptr<Api> api, int num_gpus) {
  pool_ = ArenaPool::create(uint64_t{1} << 16);
  TESSERA_ASSIGN_OR_RETURN(
      link_, host::HostLink::create(job_.coordinator(0), pool_, absl::Now() + absl::Seconds(10)));
  std::vector<int> gpus(num_gpus);
  std::iota(gpus.begin(), gpus.end(), 0);
  TESSERA_RETURN_IF_ERROR(enable_peers(*api, gpus));
  std::vector<Stream*> streams;
  for (const Device& device : ids_) {
    const int gpu = device.ordinal % num_gpus;
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<CudaDevice> on_gpu,
                             CudaDevice::create(api, gpu, link_->observer(device.ordinal)));
    TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Stage> stage, Stage::create(api, gpu));
    streams.push_back(&on_gpu->stream());
    devices_.push_back(std::move(on_gpu));
    stages_.push_back(std::move(stage));
  }
  const auto make_mover =
      [this](absl::Span<const int> device_ids) -> StatusOr<std::unique_ptr<host::DeviceMover>> {
    std::vector<CudaDevice*> members;
    for (const int id : device_ids) members.push_back(devices_[id].get());
    return CudaMover::create(std::move(members));
  };
  backend_ = std::make_unique<host::HostBackend>(*link_, pool_, ids_, std::move(streams),
                                                 absl::Seconds(6), make_mover);
  return absl::OkStatus();
}

CudaJob::~CudaJob() {
  for (const auto& device : devices_) device->stream().sync().IgnoreError();
  if (link_ != nullptr) link_->leave();
}

StatusOr<Group> CudaJob::group(int device, absl::Span<const int> device_ids) {
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<GroupBackend> group, backend_->group(device_ids));
  for (size_t position = 0; position < device_ids.size(); ++position) {
    if (device_ids[position] != device) continue;
    auto staged = std::make_shared<StagedGroup>(std::move(group), stages_[device]);
    std::lock_guard<std::mutex> lock(mutex_);
    groups_.push_back(staged);
    return Group(std::move(staged), static_cast<int>(position));
  }
  return absl::InvalidArgumentError(absl::StrCat("device ", device, " is no member"));
}

Status CudaJob::run(const conformance::MemberBody& body) {
  std::vector<int> all(ids_.size());
  std::iota(all.begin(), all.end(), 0);
  std::vector<Status> results(ids_.size());
  std::vector<std::thread> threads;
  for (size_t device = 0; device < ids_.size(); ++device) {
    threads.emplace_back([&, self = static_cast<int>(device)] {
      Status& result = results[self];
      StatusOr<Group> whole = group(self, all);
      result = whole.status();
      if (!result.ok()) return;
      const auto subgroup = [this, self](absl::Span<const int> positions) {
        return group(self, positions);
      };
      result = body({*std::move(whole), self, subgroup});
      // At once, for the others may be waiting for this member now.
      if (!result.ok()) std::fprintf(stderr, "device %d: %s\n", self, result.ToString().c_str());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t device = 0; device < results.size(); ++device) {
    if (!results[device].ok()) {
      return with_context(results[device], absl::StrCat("device ", device));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::cuda
