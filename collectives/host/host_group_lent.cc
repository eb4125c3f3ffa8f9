// SPDX-License-Identifier: Apache-2.0
//
// What a HostGroup keeps of operations that are done here, for others to read.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "base/clock.h"
#include "collectives/host/host_group.h"

namespace tessera::host {

bool HostGroup::others_read_input(const HostOp& op) const {
  return op.in_count() > 0 && op.collective_->do_peers_read_input();
}

bool HostGroup::lends_input(const HostOp& op) const {
  if (op.collective_->ends_together() || is_on_device(op)) return false;
  if (!others_read_input(op)) return true;
  const std::shared_ptr<const Buffer>& input = op.arguments_.in_buffer;
  return input != nullptr && input.use_count() > 1;
}

// Invariant 6 of control.h: the run is finished or failed where this is true.
bool HostGroup::end_reading(const HostOp& op, const Status& reason) {
  if (rendezvous_->is_finished(op.meeting_.seq)) return true;
  // Members of one process that have arrived finish their part, whatever is lost.
  if (reason.ok() || !spans_clients_) return false;
  // A reader that has not counted itself out yet gets this verdict, even if it has read all.
  rendezvous_->settle_at_once(op.meeting_.seq, Rendezvous::From::kRunning, op.labelled(reason));
  return true;
}

void HostGroup::lend(HostOp& op) {
  // The result is its tensor's alone.
  op.arguments_.out_buffer = nullptr;
  op.of_lent_ = op.of_task_;
  num_lent_.fetch_add(1, std::memory_order_relaxed);
  push_lent(op);
}

void HostGroup::push_lent(HostOp& op) {
  op.next_lent_ = lent_.load(std::memory_order_relaxed);
  while (!lent_.compare_exchange_weak(op.next_lent_, &op, std::memory_order_release,
                                      std::memory_order_relaxed)) {
  }
}

uint32_t HostGroup::reap_lent() {
  uint32_t oldest = 0;
  const Status lost = lost_member();
  HostOp* op = lent_.exchange(nullptr, std::memory_order_acquire);
  while (op != nullptr) {
    HostOp* const next = op->next_lent_;
    const uint32_t seq = op->meeting_.seq;
    if (end_reading(*op, lost)) {
      // One that has failed meanwhile is no concern of this client, which left when it finished.
      std::exchange(op->of_lent_, nullptr).reset();
      num_lent_.fetch_sub(1, std::memory_order_release);
    } else {
      if (oldest == 0 || static_cast<int32_t>(seq - oldest) < 0) oldest = seq;
      push_lent(*op);
    }
    op = next;
  }
  return oldest;
}

void HostGroup::reap() {
  const Caller caller(*this, 0);
  if (caller.is_too_late() || !rendezvous_.has_value()) return;
  reap_lent();
  reap_sent();
  reap_quarantine();
}

void HostGroup::wait_until_read(absl::Time deadline) {
  if (has_quarantine_.load(std::memory_order_relaxed)) reap_quarantine();
  while (true) {
    const uint32_t oldest = reap_lent();
    if (num_lent_.load(std::memory_order_acquire) == 0 || steady_now() >= deadline) return;
    // 0: another thread looks at them just now.
    if (oldest == 0) {
      sched_yield();
    } else {
      rendezvous_->wait_left(oldest, std::min(deadline, steady_now() + kLossCheckInterval));
    }
  }
}

void HostGroup::forget_lent() {
  const Status reason = absl::CancelledError("the client is shutting down");
  HostOp* op = lent_.exchange(nullptr, std::memory_order_acquire);
  while (op != nullptr) {
    end_reading(*op, reason);
    const std::shared_ptr<HostOp> last = std::move(op->of_lent_);
    op = op->next_lent_;
  }
}

}  // namespace tessera::host
