// SPDX-License-Identifier: Apache-2.0
#include "collectives/prepared.h"

#include <utility>

namespace tessera {
namespace {

// Larger groups have long lists of pulls.
constexpr int kMostMembers = 64;

// To compare the boxes of two operations takes as long as to prepare one.
bool has_boxes(OpKind kind) { return kind == OpKind::kExchange || kind == OpKind::kReduceBoxes; }

// With counts by member the count is their sum and not compared: the check of the sizes finds a
// wrong one.
bool is_of(const Collective& c, GroupPlace place, const CollectiveSpec& spec) {
  const bool has_count = spec.counts.size() == 0 || spec.kind == OpKind::kAllToAll;
  return c.kind() == spec.kind && c.dtype() == spec.dtype && c.op() == spec.op &&
         c.root() == spec.root && c.place() == place && (!has_count || c.count() == spec.count) &&
         c.ends() == spec.ends && c.counts() == spec.counts &&
         c.received_counts() == spec.received_counts;
}

}  // namespace

Collective::Ptr PreparedCollectives::find(GroupPlace place, const CollectiveSpec& spec) {
  if (has_boxes(spec.kind) || busy_.exchange(true, std::memory_order_acquire)) return nullptr;
  Collective::Ptr found;
  for (const Collective::Ptr& kept : kept_) {
    if (kept == nullptr || !is_of(*kept, place, spec)) continue;
    found = kept;
    break;
  }
  busy_.store(false, std::memory_order_release);
  return found;
}

void PreparedCollectives::keep(const Collective::Ptr& collective) {
  if (has_boxes(collective->kind()) || !collective->replicas().empty()) return;
  if (collective->place().num_members > kMostMembers) return;
  if (busy_.exchange(true, std::memory_order_acquire)) return;
  Collective::Ptr last = std::exchange(kept_[next_], collective);
  next_ = (next_ + 1) % kept_.size();
  busy_.store(false, std::memory_order_release);
}

}  // namespace tessera
