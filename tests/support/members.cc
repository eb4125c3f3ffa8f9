// SPDX-License-Identifier: Apache-2.0
#include "tests/support/members.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/types/span.h"
#include "collectives/cuda/testing/staged_group.h"
#include "collectives/group.h"
#include "collectives/make_group.h"
#include "device/cpu/arena.h"
#include "device/cuda/cuda_device.h"
#include "device/stream.h"
#include "dtensor/client_hooks.h"
#include "dtensor/runtime.h"

namespace tessera::testing {
namespace {

// A member whose device is a GPU.
Status run_on_gpu(const Client& client, const Device& device, const std::vector<int>& device_ids,
                  const conformance::MemberBody& body) {
  const auto& gpu =
      dynamic_cast<cuda::CudaDevice&>(internal::runtime_of(client)->device(device.ordinal));
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<cuda::Stage> stage,
                           cuda::Stage::create(gpu.queue().api(), gpu.gpu()));
  // Work that was started and dropped still needs its group.
  std::vector<std::shared_ptr<cuda::StagedGroup>> groups;
  const auto staged = [&](const std::vector<int>& ids) -> StatusOr<Group> {
    TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<GroupBackend> group,
                             internal::runtime_of(client)->programs().group(ids));
    groups.push_back(std::make_shared<cuda::StagedGroup>(std::move(group), stage));
    const auto own = std::find(ids.begin(), ids.end(), device.id);
    return internal::make_group(groups.back(), static_cast<int>(own - ids.begin()));
  };
  TESSERA_ASSIGN_OR_RETURN(const Group group, staged(device_ids));
  const auto subgroup = [&](absl::Span<const int> positions) {
    std::vector<int> ids;
    for (const int position : positions) ids.push_back(device_ids[position]);
    return staged(ids);
  };
  const Status status = body({group, group.position(), subgroup});
  // The operations report its errors.
  internal::runtime_of(client)->device(device.ordinal).stream().sync().IgnoreError();
  return status;
}

Status run_member(const Client& client, const Device& device, const std::vector<int>& device_ids,
                  const conformance::MemberBody& body) {
  if (device.type == DeviceType::kCuda) return run_on_gpu(client, device, device_ids, body);
  TESSERA_ASSIGN_OR_RETURN(const Group group, client.group(device_ids, device.ordinal));
  const auto subgroup = [&](absl::Span<const int> positions) {
    std::vector<int> ids;
    for (const int position : positions) ids.push_back(device_ids[position]);
    return client.group(std::move(ids), device.ordinal);
  };
  return body(
      {group, group.position(), subgroup, internal::runtime_of(client)->devices().host_memory()});
}

}  // namespace

std::vector<int> all_devices(const Client& client) {
  std::vector<int> all(client.devices().size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

Status run_members(const Client& client, const std::vector<int>& device_ids,
                   const conformance::MemberBody& body) {
  std::vector<Status> statuses(client.local_devices().size());
  std::vector<std::thread> threads;
  for (const Device& device : client.local_devices()) {
    if (std::find(device_ids.begin(), device_ids.end(), device.id) == device_ids.end()) continue;
    threads.emplace_back(
        [&, device] { statuses[device.ordinal] = run_member(client, device, device_ids, body); });
  }
  for (std::thread& thread : threads) thread.join();
  Status first;
  for (const Status& status : statuses) first.Update(status);
  return first;
}

}  // namespace tessera::testing
