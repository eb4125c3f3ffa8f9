// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/meetings.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "collectives/host/rendezvous_texts.h"

namespace tessera::host {

Meetings::Meetings(HostGroup& group, Rendezvous rendezvous)
    : group_(group),
      rendezvous_(std::move(rendezvous)),
      entries_(group, rendezvous_),
      progress_(rendezvous_.size()) {
  for (int m = 0; m < rendezvous_.size(); ++m) {
    // Continues the numbers of an earlier group of the same devices.
    const uint32_t next = group_.is_local(m) ? rendezvous_.next_seq(m) : 0;
    if (next == 0) continue;
    progress_[m].next_seq = next;
    set_done(m, next - 1);
  }
}

void Meetings::close() {
  if (!rendezvous_.is_open()) return;
  for (int m = 0; m < rendezvous_.size(); ++m) {
    if (group_.is_local(m)) rendezvous_.set_next_seq(m, progress_[m].next_seq);
  }
  rendezvous_.close();
}

void Meetings::start_clock(JointRun& run) const {
  const Arguments& arguments = run.arguments();
  Rendezvous::Op& op = run.op;
  const absl::Duration timeout =
      arguments.timeout.value_or(group_.resources().collective_timeout());
  op.start = run.begun(timeout);
  op.deadline = op.start + timeout;
  if (arguments.deadline.has_value()) {
    op.start = run.start_of(*arguments.deadline);
    op.deadline = *arguments.deadline;
  }
}

Rendezvous::Op Meetings::describe(const JointRun& run, absl::Time start,
                                  absl::Time deadline) const {
  const Arguments& arguments = run.arguments();
  if (arguments.deadline.has_value() && arguments.timeout.has_value()) {
    deadline = *arguments.deadline;
    start = run.start_of(deadline);
  }
  // Field by field: the running thread may be setting start and deadline of run.op.
  const Rendezvous::Op& own = run.op;
  return {.seq = own.seq,
          .member = own.member,
          .label = own.label,
          .detail_field = own.detail_field,
          .signature = own.signature,
          .name_hash = own.name_hash,
          .holds_device = own.holds_device,
          .start = start,
          .deadline = deadline};
}

Status Meetings::reserve(JointRun& run, const Rendezvous::Op& op) {
  // A member is done with an operation before it arrives at the next one.
  const uint32_t all_came = progress_[op.member].all_came;
  if (op.seq - all_came < rendezvous_.num_records() && all_came != 0) return absl::OkStatus();
  if (rendezvous_.was_freed(op.seq)) return absl::OkStatus();
  entries_.publish_running(run);
  while (true) {
    // First: a member that is gone never frees its record. Errors of the call itself are not
    // returned here: the others must read them in the record.
    TESSERA_RETURN_IF_ERROR(interruption(run));
    const absl::Time deadline = std::min(op.deadline, steady_now() + kLossCheckInterval);
    if (rendezvous_.wait_free(op.seq, deadline)) return absl::OkStatus();
    if (steady_now() >= op.deadline) return describe_behind(rendezvous_, op);
  }
}

Status Meetings::fail(JointRun& run, const Rendezvous::Op& op, VerdictKind kind,
                      const Status& error) {
  entries_.publish_running(run);
  // With a lost member the record may never be free again, and the others detect the loss
  // themselves: there is nothing to wait for.
  if (group_.lost_member().ok() && !reserve(run, op).ok()) return error;
  const Status verdict = rendezvous_.settle(op.seq, kind, Rendezvous::From::kOpen, error, &op);
  return verdict.ok() ? error : verdict;
}

Status Meetings::settle_running(const JointRun& run, VerdictKind kind, const Status& error) {
  return rendezvous_.settle(run.op.seq, kind, Rendezvous::From::kRunning, error, &run.op);
}

Status Meetings::local_error(JointRun& run) {
  const Collective& collective = run.collective();
  if (!collective.error().ok()) return run.labelled(collective.error());
  if (group_.may_be_interrupted()) TESSERA_RETURN_IF_ERROR(interruption(run));
  if (run.is_on_device()) {
    TESSERA_RETURN_IF_ERROR(run.labelled(group_.mover().check(collective)));
  }
  const Arguments& arguments = run.arguments();
  if (arguments.in_buffer == nullptr && arguments.out_buffer == nullptr) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(run.find_input());
  return run.take_output();
}

// Errors that only this member can detect become the verdict of all, before it arrives.
Status Meetings::join(JointRun& run) {
  const Rendezvous::Op& op = run.op;
  Status local = local_error(run);
  if (local.ok() && group_.mover().has_device()) {
    const Status waited = group_.mover().wait_for_device(
        run.collective(), op.member, op.deadline,
        [&] { return group_.is_closing() || run.is_given_up().load(std::memory_order_relaxed); });
    if (absl::IsDeadlineExceeded(waited)) {
      // This member itself is late.
      TESSERA_RETURN_IF_ERROR(reserve(run, op));
      Rendezvous::Op late = op;
      late.deadline = std::min(op.deadline, steady_now());
      return rendezvous_.settle_timed_out(late, Rendezvous::From::kOpen);
    }
    local = run.labelled(waited);
  }
  if (!local.ok()) return fail(run, op, VerdictKind::kError, local);
  TESSERA_RETURN_IF_ERROR(reserve(run, op));
  const Status filled = entries_.fill(run);
  if (!filled.ok()) return fail(run, op, VerdictKind::kError, filled);
  entries_.publish_waiting(run);
  TESSERA_RETURN_IF_ERROR(rendezvous_.arrive(op));
  return group_.may_be_interrupted() ? interrupted_meanwhile(run) : absl::OkStatus();
}

// An interruption between local_error() and the arrival is not seen by fail_pending(), which
// settles only what has arrived.
Status Meetings::interrupted_meanwhile(const JointRun& run) {
  const Status why = interruption(run);
  if (why.ok()) return why;
  return rendezvous_.settle(run.op.seq, VerdictKind::kError, give_up_from(), why, &run.op);
}

Status Meetings::meet(const JointRun& run) {
  const Rendezvous::Op& op = run.op;
  if (!rendezvous_.all_arrived(op.seq)) TESSERA_RETURN_IF_ERROR(rendezvous_.wait_arrived(op));
  // Not for messages: a sender reads the verdict of a message that fails later.
  if (op.holds_device) progress_[op.member].all_came = op.seq;
  return rendezvous_.check_signatures(op);
}

Status Meetings::move(JointRun& run, const Entries::Memories& memory) {
  step();  // a member may be held up before it moves any bytes
  return run.move(run.op.seq, memory);
}

// A peer that was held up may go on writing after this member has given up. The group cannot keep
// memory that is the caller's, so the pool must not reuse it.
void Meetings::abandon(JointRun& run, const Status& error, bool found_mismatch) {
  const Collective& collective = run.collective();
  const Arguments& arguments = run.arguments();
  if (run.has_moved()) group_.mover().fail(collective, run.op.seq, run.op.member, error);
  const bool on_the_move = group_.spans_clients() && rendezvous_.failed_on_the_move(run.op.seq);
  const bool has_copy = run.copy(&JointRun::Copies::out) != nullptr;
  const bool is_callers = arguments.out_buffer == nullptr && !has_copy;
  if (on_the_move && is_callers && group_.mover().shares_addresses(collective) &&
      run.do_peers_write_output) {
    group_.resources().pool().withhold(arguments.out, run.out_bytes());
  }
  // Members that have not detected the mismatch yet still read what this one has published.
  if (!on_the_move && !found_mismatch) return;
  using Until = Quarantine::Until;
  // A GPU may still run work that it was given.
  quarantine_.keep(run.executor_ref(), run.op.seq,
                   run.is_on_device() ? Until::kShutdown : Until::kOthersAreDone);
}

void Meetings::acknowledge(JointRun& run) {
  if (run.is_acknowledged.exchange(true)) return;
  rendezvous_.acknowledge(run.op.seq, run.op.member);
}

void Meetings::fail_pending(const Status& reason) {
  for (int m = 0; m < rendezvous_.size(); ++m) {
    if (group_.is_local(m)) rendezvous_.settle_arrived(m, done(m), give_up_from(), reason);
  }
}

}  // namespace tessera::host
