// SPDX-License-Identifier: Apache-2.0
#include "tests/support/members.h"

#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/types/span.h"
#include "dtensor/runtime.h"

namespace tessera::testing {
namespace {

Status run_member(const Client& client, const Device& device, const std::vector<int>& device_ids,
                  const conformance::MemberBody& body) {
  TESSERA_ASSIGN_OR_RETURN(const Group group, client.group(device_ids, device.ordinal));
  const auto subgroup = [&](absl::Span<const int> positions) {
    std::vector<int> ids;
    for (const int position : positions) ids.push_back(device_ids[position]);
    return client.group(std::move(ids), device.ordinal);
  };
  return body({group, group.position(), subgroup, client.runtime()->shared_pool()});
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
