// SPDX-License-Identifier: Apache-2.0
//
// What reports of long waits say of a run of a group that spans hosts.
#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "collectives/network/span_runs.h"

namespace tessera::network {

GroupWait SpanRuns::awaited_in(uint32_t seq) {
  GroupWait wait = {all_members(), std::vector<bool>(num_members()), false};
  const std::vector<bool> here = meetings_.rendezvous().arrivals(seq);
  std::lock_guard<std::mutex> lock(mutex_);
  const Board* const board = boards_.find(seq);
  if (board == nullptr || board->verdict.has_value()) return wait;
  for (int m = 0; m < num_members(); ++m) {
    wait.awaited[m] = !has_come(m, here, *board);
  }
  wait.all_arrived =
      std::find(wait.awaited.begin(), wait.awaited.end(), true) == wait.awaited.end();
  if (!wait.all_arrived) return wait;
  for (const auto& [_, waiting] : waiting_) {
    if (waiting.run->op.seq != seq) continue;
    const std::map<int, int>& senders = waiting.run->transfers.awaited();
    for (int m = 0; m < num_members(); ++m) {
      if (senders.count(all_members()[m].client_id) > 0) wait.awaited[m] = true;
    }
  }
  return wait;
}

}  // namespace tessera::network
