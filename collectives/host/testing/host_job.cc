// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/testing/host_job.h"

#include <cstdint>
#include <cstdio>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "collectives/make_group.h"

namespace tessera::host {

HostJob::HostJob(absl::Span<const int> devices_by_client)
    : job_(devices_by_client), clients_(devices_by_client.size()) {
  for (size_t c = 0; c < devices_by_client.size(); ++c) {
    for (int ordinal = 0; ordinal < devices_by_client[c]; ++ordinal) {
      Device device;
      device.id = num_devices();
      device.client_id = static_cast<int>(c);
      device.ordinal = ordinal;
      devices_.push_back(device);
    }
  }
}

StatusOr<std::unique_ptr<HostJob>> HostJob::create(absl::Span<const int> devices_by_client,
                                                   absl::Duration collective_timeout) {
  std::unique_ptr<HostJob> job(new HostJob(devices_by_client));
  std::vector<Status> results(job->clients_.size());
  std::vector<std::thread> threads;
  for (size_t c = 0; c < results.size(); ++c) {
    threads.emplace_back(
        [&, c] { results[c] = job->connect(static_cast<int>(c), collective_timeout); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& result : results) TESSERA_RETURN_IF_ERROR(result);
  return job;
}

Status HostJob::connect(int client_id, absl::Duration collective_timeout) {
  Client& client = clients_[client_id];
  client.pool = ArenaPool::create(uint64_t{1} << 16);
  TESSERA_ASSIGN_OR_RETURN(client.link,
                           shm::HostLink::create(job_.coordinator(client_id), client.pool,
                                                 steady_now() + absl::Seconds(10)));
  std::vector<Stream*> streams;
  for (const Device& device : devices_) {
    if (device.client_id != client_id) continue;
    TESSERA_ASSIGN_OR_RETURN(
        std::unique_ptr<CpuStream> stream,
        CpuStream::create(absl::StrCat("device ", device.id),
                          client.link->own_control().observer(device.ordinal)));
    streams.push_back(stream.get());
    client.streams.push_back(std::move(stream));
  }
  client.backend = std::make_unique<HostBackend>(*client.link, client.pool, devices_,
                                                 std::move(streams), collective_timeout);
  return absl::OkStatus();
}

HostJob::~HostJob() {
  for (Client& client : clients_) {
    for (const auto& stream : client.streams) stream->sync().IgnoreError();
    if (client.link != nullptr) client.link->leave();
  }
}

StatusOr<Group> HostJob::group(int device, absl::Span<const int> device_ids) {
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<GroupBackend> group,
                           clients_[devices_[device].client_id].backend->group(device_ids));
  for (size_t position = 0; position < device_ids.size(); ++position) {
    if (device_ids[position] != device) continue;
    return internal::make_group(group, static_cast<int>(position));
  }
  return absl::InvalidArgumentError(absl::StrCat("device ", device, " is not a member"));
}

Status HostJob::run(const conformance::MemberBody& body) {
  std::vector<int> all(devices_.size());
  std::iota(all.begin(), all.end(), 0);
  std::vector<Status> results(devices_.size());
  std::vector<std::thread> threads;
  for (int device = 0; device < num_devices(); ++device) {
    threads.emplace_back([&, device] {
      StatusOr<Group> whole = group(device, all);
      if (!whole.ok()) {
        results[device] = whole.status();
        return;
      }
      const auto subgroup = [this, device](absl::Span<const int> positions) {
        return group(device, positions);
      };
      const auto& pool = clients_[devices_[device].client_id].pool;
      results[device] = body({*std::move(whole), device, subgroup, pool});
      // Immediately, because the others may wait for this member now.
      if (!results[device].ok()) {
        std::fprintf(stderr, "device %d: %s\n", device, results[device].ToString().c_str());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int device = 0; device < num_devices(); ++device) {
    if (!results[device].ok()) {
      return with_context(results[device], absl::StrCat("device ", device));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::host
