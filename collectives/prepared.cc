// SPDX-License-Identifier: Apache-2.0
#include "collectives/prepared.h"

#include <utility>

namespace tessera {
namespace {

// More members have long lists of pulls.
constexpr int kMostMembers = 64;

// Those with boxes are told apart by their boxes, which takes as long as to prepare them.
bool is_kept(const CollectiveCall& call) {
  return call.kind != OpKind::kExchange && call.kind != OpKind::kReduceBoxes &&
         call.replicas.empty();
}

// Whether it is what prepare() would make of the call. Of counts by member the count is the sum,
// which the check of the sizes finds wrong where it is.
bool is_of(const Collective& c, const CollectiveCall& call, GroupPlace place) {
  const bool has_count = call.counts.size() == 0 || call.kind == OpKind::kAllToAll;
  return c.kind() == call.kind && c.dtype() == call.dtype && c.op() == call.reduction &&
         c.root() == call.root && c.place() == place && (!has_count || c.count() == call.count) &&
         c.counts() == call.counts && c.received_counts() == call.recv_counts;
}

}  // namespace

Collective::Ptr PreparedCollectives::find(const CollectiveCall& call, GroupPlace place) {
  if (!is_kept(call) || busy_.exchange(true, std::memory_order_acquire)) return nullptr;
  Collective::Ptr found;
  for (const Collective::Ptr& kept : kept_) {
    if (kept == nullptr || !is_of(*kept, call, place)) continue;
    found = kept;
    break;
  }
  busy_.store(false, std::memory_order_release);
  return found;
}

void PreparedCollectives::keep(const CollectiveCall& call) {
  if (call.collective == nullptr || !is_kept(call)) return;
  if (call.collective->place().num_members > kMostMembers) return;
  if (busy_.exchange(true, std::memory_order_acquire)) return;
  Collective::Ptr last = std::exchange(kept_[next_], call.collective);
  next_ = (next_ + 1) % kept_.size();
  busy_.store(false, std::memory_order_release);
}

}  // namespace tessera
