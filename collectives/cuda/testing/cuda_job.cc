// SPDX-License-Identifier: Apache-2.0
#include "collectives/cuda/testing/cuda_job.h"

#include <cstdint>
#include <cstdio>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "collectives/cuda/cuda_mover.h"
#include "collectives/cuda/testing/staged_group.h"
#include "collectives/make_group.h"
#include "collectives/nccl/nccl_mover.h"
#include "collectives/nccl/slab_source.h"
#include "device/device.h"
#include "device/stream.h"

namespace tessera::cuda {

CudaJob::CudaJob(absl::Span<const int> devices_by_client, const Options& options)
    : options_(options), job_(devices_by_client), clients_(devices_by_client.size()) {
  for (size_t client = 0; client < devices_by_client.size(); ++client) {
    for (int ordinal = 0; ordinal < devices_by_client[client]; ++ordinal) {
      Device device;
      device.id = static_cast<int>(ids_.size());
      device.client_id = static_cast<int>(client);
      device.ordinal = ordinal;
      device.type = DeviceType::kCuda;
      ids_.push_back(device);
    }
  }
  stages_.resize(ids_.size());
}

StatusOr<std::unique_ptr<CudaJob>> CudaJob::create(std::shared_ptr<Api> api,
                                                   std::shared_ptr<nccl::Api> nccl, int num_gpus,
                                                   absl::Span<const int> devices_by_client) {
  return create(std::move(api), std::move(nccl), num_gpus, devices_by_client, Options());
}

StatusOr<std::unique_ptr<CudaJob>> CudaJob::create(std::shared_ptr<Api> api,
                                                   std::shared_ptr<nccl::Api> nccl, int num_gpus,
                                                   absl::Span<const int> devices_by_client,
                                                   const Options& options) {
  std::unique_ptr<CudaJob> job(new CudaJob(devices_by_client, options));
  std::vector<Status> results(devices_by_client.size());
  std::vector<std::thread> threads;
  for (size_t client = 0; client < results.size(); ++client) {
    threads.emplace_back([&, client] {
      results[client] = job->connect(static_cast<int>(client), api, nccl, num_gpus);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& result : results) TESSERA_RETURN_IF_ERROR(result);
  return job;
}

Status CudaJob::connect(int client_id, const std::shared_ptr<Api>& api,
                        const std::shared_ptr<nccl::Api>& nccl, int num_gpus) {
  Client& client = clients_[client_id];
  client.pool = ArenaPool::create(uint64_t{1} << 16);
  TESSERA_ASSIGN_OR_RETURN(client.link,
                           shm::HostLink::create(job_.coordinator(client_id), client.pool,
                                                 steady_now() + absl::Seconds(10)));
  std::vector<int> gpus;
  for (const Device& device : ids_) {
    const int gpu = device.id % num_gpus;
    if (device.client_id == client_id && device.ordinal < num_gpus) gpus.push_back(gpu);
  }
  TESSERA_RETURN_IF_ERROR(enable_peers(*api, gpus));
  std::vector<Stream*> streams;
  std::vector<CudaDevice*> devices;
  for (const Device& device : ids_) {
    if (device.client_id != client_id) continue;
    const int gpu = device.id % num_gpus;
    TESSERA_ASSIGN_OR_RETURN(
        std::unique_ptr<CudaDevice> on_gpu,
        CudaDevice::create(api, gpu, client.link->own_control().observer(device.ordinal),
                           nccl == nullptr ? SlabSource() : nccl::slab_source(nccl)));
    TESSERA_ASSIGN_OR_RETURN(stages_[device.id], Stage::create(api, gpu));
    streams.push_back(&on_gpu->stream());
    devices.push_back(on_gpu.get());
    client.devices.push_back(std::move(on_gpu));
  }
  if (nccl != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(client.watch, nccl::Watch::create(nccl, devices, options_.watch));
  }
  client.backend =
      std::make_unique<host::HostBackend>(*client.link, client.pool, ids_, std::move(streams),
                                          options_.collective_timeout, make_mover(client_id));
  return absl::OkStatus();
}

host::MakeDeviceMover CudaJob::make_mover(int client_id) {
  return [this, client_id](absl::Span<const shm::GroupMember> members)
             -> StatusOr<std::unique_ptr<host::DeviceMover>> {
    Client& client = clients_[client_id];
    std::vector<CudaDevice*> devices;
    bool spans_clients = false;
    for (const shm::GroupMember& member : members) {
      const bool is_own = member.client_id == client_id;
      devices.push_back(is_own ? client.devices[member.ordinal].get() : nullptr);
      spans_clients |= !is_own;
    }
    if (!spans_clients) return CudaMover::create(std::move(devices));
    const auto sums = options_.sums_of_client.find(client_id);
    return nccl::NcclMover::create(
        client.watch.get(), *client.link, {members.begin(), members.end()}, std::move(devices),
        {.sums = sums == options_.sums_of_client.end() ? options_.sums : sums->second,
         .timeout = options_.collective_timeout});
  };
}

CudaJob::~CudaJob() {
  for (Client& client : clients_) {
    for (const auto& device : client.devices) device->stream().sync().IgnoreError();
  }
  for (Client& client : clients_) {
    if (client.link != nullptr) client.link->leave();
    for (const auto& device : client.devices) device->stream().stop();
    if (client.backend != nullptr) client.backend->stop();
  }
  // Together, as the processes of a job would.
  std::vector<std::thread> threads;
  for (Client& client : clients_) threads.emplace_back([&client] { client.watch = nullptr; });
  for (std::thread& thread : threads) thread.join();
}

CudaDevice& CudaJob::device(int id) {
  return *clients_[ids_[id].client_id].devices[ids_[id].ordinal];
}

StatusOr<Group> CudaJob::raw_group(int device, absl::Span<const int> device_ids) {
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<GroupBackend> group,
                           clients_[ids_[device].client_id].backend->group(device_ids));
  for (size_t position = 0; position < device_ids.size(); ++position) {
    if (device_ids[position] != device) continue;
    return internal::make_group(group, static_cast<int>(position));
  }
  return absl::InvalidArgumentError(absl::StrCat("device ", device, " is not a member"));
}

StatusOr<Group> CudaJob::group(int device, absl::Span<const int> device_ids) {
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<GroupBackend> group,
                           clients_[ids_[device].client_id].backend->group(device_ids));
  for (size_t position = 0; position < device_ids.size(); ++position) {
    if (device_ids[position] != device) continue;
    auto staged = std::make_shared<StagedGroup>(std::move(group), stages_[device]);
    std::lock_guard<std::mutex> lock(mutex_);
    groups_.push_back(staged);
    return internal::make_group(std::move(staged), static_cast<int>(position));
  }
  return absl::InvalidArgumentError(absl::StrCat("device ", device, " is not a member"));
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
