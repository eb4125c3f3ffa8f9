// SPDX-License-Identifier: Apache-2.0
//
// How a member of a group sleeps, and the wake-up that ends the sleep.
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "collectives/host/activity.h"
#include "collectives/host/conflicts.h"
#include "collectives/host/rendezvous.h"

namespace tessera::host {
void Rendezvous::ring_bells() {
  for (const GroupMember& member : members_) {
    bells_.push_back(&activity_slot(link_->control(member.client_id), member.ordinal));
  }
}

void Rendezvous::wake(OpRecord& record, Ring ring) const {
  if (is_for_messages() && ring != Ring::kReceiver) host::ring(*bells_[0]);
  if (is_for_messages() && ring != Ring::kSender) host::ring(*bells_[1]);
  if (record.num_sleepers.load(std::memory_order_seq_cst) == 0) return;
  record.num_wakes.fetch_add(1, std::memory_order_seq_cst);
  wake_all(record.num_wakes);
}

bool Rendezvous::sleep_while(uint32_t seq, absl::Time deadline, const Op* check,
                             absl::FunctionRef<bool(const State&)> waiting) {
  OpRecord& op_record = record(seq);
  const auto still = [&](uint64_t word) {
    const State state = State::unpack(word);
    return state.seq == seq && waiting(state);
  };
  if (check != nullptr) check_conflicts(*this, *check);
  // Invariant 7 of control.h.
  op_record.num_sleepers.fetch_add(1, std::memory_order_seq_cst);
  // In the test of all orders a wait without a deadline has no end in time.
  absl::Time noted =
      check != nullptr && !kStepped ? steady_now() + kLongWait : absl::InfiniteFuture();
  bool in_time = true;
  while (in_time) {
    const uint32_t num_wakes = op_record.num_wakes.load(std::memory_order_seq_cst);
    if (!still(op_record.state.load(std::memory_order_seq_cst))) break;
    in_time = host::sleep_while(op_record.num_wakes, num_wakes, std::min(deadline, noted));
    if (in_time || deadline <= noted) continue;
    link_->note_long_wait();
    noted = absl::InfiniteFuture();
    in_time = true;
  }
  op_record.num_sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return in_time;
}

}  // namespace tessera::host
