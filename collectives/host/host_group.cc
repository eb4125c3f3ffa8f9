// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/host_group.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/format.h"
#include "base/kept_allocator.h"
#include "collectives/host/activity.h"
#include "device/cpu/kernels.h"
#include "job/status_channel.h"

namespace tessera::host {
namespace {

// Whether inputs are exchanged in the entries of the shared record.
bool is_inlined(const Collective& collective) {
  // Every member reads all inputs. With more members than this, reading one chunk of each is less.
  constexpr int kMostMembers = 64;
  const int num_members = collective.place().num_members;
  if (num_members < 2 || num_members > kMostMembers || !collective.replicas().empty()) return false;
  const std::optional<int64_t> elements = collective.most_elements();
  return elements.has_value() && *elements <= kInlineBytes / dtype_size(collective.dtype());
}

// A call at most this old counts as called now. More than a tick, which is 10 ms at most.
constexpr absl::Duration kMoment = absl::Milliseconds(20);

}  // namespace

HostOp::HostOp(std::shared_ptr<HostGroup> group, int member, Collective::Ptr collective,
               Arguments&& arguments)
    : group_(std::move(group)),
      collective_(std::move(collective)),
      arguments_(std::move(arguments)) {
  meeting_.member = member;
  meeting_.label = &arguments_.label;
  meeting_.detail_field =
      arguments_.detail_field.empty() ? absl::string_view("counts") : arguments_.detail_field;
  meeting_.is_given_up = &is_given_up_;
  meeting_.signature = collective_->signature();
  if (!arguments_.detail.empty()) meeting_.signature.detail_hash = arguments_.detail.hash();
  meeting_.holds_device = !is_message();
  // The name is quoted: an empty one has two characters.
  const bool is_named = is_barrier() && arguments_.detail.view().size() > 2;
  if (is_named) meeting_.name_hash = meeting_.signature.detail_hash;
  inlined_ = is_inlined(*collective_) && !group_->is_on_device(*this);
  meeting_.ends_at_arrival = meeting_.signature.inlined = inlined_;
  called_ = is_message() ? steady_now() : coarse_steady_now();
  const Buffer* const out = arguments_.out_buffer.get();
  key_ = out != nullptr ? static_cast<const void*>(out) : this;
}

absl::Time HostOp::start_of(absl::Time deadline) const {
  return arguments_.timeout.has_value() ? deadline - *arguments_.timeout : called();
}

absl::Time HostOp::called() const {
  const bool is_exact = is_message();
  if (!is_exact && coarse_steady_now() - called_ < kMoment) return steady_now();
  return called_;
}

absl::Time HostOp::begun(absl::Duration timeout) const {
  if (timeout < absl::Seconds(1) || coarse_steady_now() - called_ >= kMoment) return steady_now();
  return called_ + coarse_tick();
}

void HostOp::placed() { group_->number(*this); }

Status HostOp::run() {
  Status status = group_->run(*this);
  const std::shared_ptr<HostOp> keep = std::move(of_task_);
  // A barrier reports to its caller alone; other errors also wait for sync_devices().
  return is_barrier() ? absl::OkStatus() : status;
}

void HostOp::complete(const Status& status) {
  // Before the caller can act on it: the launcher then knows that what this client does next is a
  // consequence of a loss, however and by whichever client the loss was noticed.
  if (absl::IsUnavailable(status)) report_fatal_status(status);
  if (arguments_.out_buffer != nullptr) {
    if (group_->mover_ != nullptr) arguments_.out_buffer->mutable_issued().set(status);
    arguments_.out_buffer->mutable_ready().set(status);
  }
  completion_.set(status);
}

std::string HostOp::label() const {
  if (!arguments_.label.empty()) return arguments_.label.to_string();
  const Signature& agreed = collective_->signature();
  return default_label(agreed.kind, agreed.dtype, agreed.reduction, agreed.count,
                       group_->device_ids_);
}

Status HostOp::labelled(const Status& status) const {
  return status.ok() ? status : with_context(status, label());
}

bool HostOp::done() const {
  if (is_send_ && published_.done()) group_->reap_sent();
  if (completion_.done()) return true;
  // A thread that polls without a pause would keep the core from the thread that runs the
  // operation, and from the other members: each of their yields would last as long as its time
  // slice.
  sched_yield();
  return completion_.done();
}

Status HostOp::wait_until(absl::Time deadline) {
  if (completion_.done()) return completion_.status();
  const HostGroup::Caller caller(*group_, meeting_.member);
  // After forget_ops() all operations have ended, or are about to.
  if (caller.is_too_late()) return completion_.wait();
  TESSERA_RETURN_IF_ERROR(group_->backend_.check_may_wait("Work::wait"));
  if (is_send_ && published_.wait_until(deadline)) {
    if (!completion_.done()) {
      const Status received = group_->wait_received(*this, std::min(deadline, receive_deadline_));
      // In this order: the record may be reused after the acknowledgement, and another waiter then
      // finds the Work done.
      complete(received);
      group_->acknowledge(*this);
    }
    group_->reap_sent();
    return completion_.wait();
  }
  // Any thread may run the operation: it ends by its own deadline.
  if (!completion_.done() && deadline >= arguments_.deadline.value_or(absl::InfiniteFuture())) {
    group_->run_here(*this);
  }
  if (completion_.done()) return completion_.status();
  const absl::Time called = deadline == absl::InfiniteFuture() ? deadline : this->called();
  if (completion_.wait_until(deadline)) return completion_.status();
  // Read before the operation is given up: it is not yet this operation that the device runs.
  const DeviceActivity::Kind device = group_->device_kind(meeting_.member);
  Stage stage = Stage::kQueued;
  const bool not_started = stage_.compare_exchange_strong(stage, Stage::kGivenUp);
  // Another waiter has just given it up, and completes it.
  if (stage == Stage::kGivenUp) return completion_.wait();
  if (!not_started) is_given_up_.store(true, std::memory_order_relaxed);
  // A receive that is about to arrive does so first: the record waits for those that have. A send
  // whose GPU has not reached it yet is published as failed.
  if (!not_started && is_message()) {
    if (is_send_ && !group_->shares_addresses(*this)) {
      group_->mover_->fail(meeting_.seq, meeting_.member,
                           absl::DeadlineExceededError(
                               absl::StrCat("not done in ", format_duration(deadline - called),
                                            "; the device is busy with earlier work")));
    }
    published_.wait().IgnoreError();
  }
  if (!not_started && is_send_) return wait_until(deadline);
  const Status verdict = group_->give_up(*this, not_started, device, called, deadline);
  if (not_started) {
    complete(verdict);
    return completion_.status();
  }
  // The stream runs the operation: it sees the verdict, or all had arrived and it goes on. A wait
  // for the GPUs of other clients is ended here.
  if (group_->is_on_device(*this) && !group_->shares_addresses(*this)) {
    group_->mover_->fail(
        meeting_.seq, meeting_.member,
        absl::DeadlineExceededError(absl::StrCat("not done in ", format_duration(deadline - called),
                                                 ", though all members had arrived")));
  }
  return completion_.wait();
}

HostGroup::HostGroup(HostBackend& backend, std::vector<GroupMember> members,
                     std::optional<Rendezvous> rendezvous, std::unique_ptr<DeviceMover> mover)
    : backend_(backend),
      members_(std::move(members)),
      rendezvous_(std::move(rendezvous)),
      mover_(std::move(mover)),
      progress_(members_.size()) {
  for (const GroupMember& member : members_) {
    device_ids_.push_back(member.device_id);
    spans_clients_ |= member.client_id != members_[0].client_id;
  }
  for (size_t m = 0; rendezvous_.has_value() && m < members_.size(); ++m) {
    if (members_[m].client_id != backend_.link_.client_id()) continue;
    // Continues the numbers of an earlier group of the same devices.
    const uint32_t next = rendezvous_->next_seq(static_cast<int>(m));
    if (next == 0) continue;
    progress_[m].next_seq = next;
    progress_[m].done.store(next - 1, std::memory_order_relaxed);
  }
}

HostGroup::~HostGroup() { close_rendezvous(); }

void HostGroup::close_rendezvous() {
  if (!rendezvous_.has_value() || !rendezvous_->is_open()) return;
  for (size_t m = 0; m < members_.size(); ++m) {
    if (members_[m].client_id != backend_.link_.client_id()) continue;
    rendezvous_->set_next_seq(static_cast<int>(m), progress_[m].next_seq);
  }
  rendezvous_->close();
}

HostGroup::Caller::Caller(HostGroup& group, int member)
    : count_(group.progress_[member].num_callers) {
  // Counted before the test: either this thread sees forgotten_, or forget_ops() sees the count.
  count_.fetch_add(1, std::memory_order_seq_cst);
  is_too_late_ = group.forgotten_.load(std::memory_order_seq_cst);
}

Status HostGroup::too_late() { return absl::CancelledError("the client is shutting down"); }

std::shared_ptr<HostOp> HostGroup::make_op(int member, Collective::Ptr collective,
                                           Arguments&& arguments) {
  // Relaxed: an operation that another thread lends just now is reaped by a later call.
  if (lent_.load(std::memory_order_relaxed) != nullptr) reap_lent();
  if (has_quarantine_.load(std::memory_order_relaxed)) reap_quarantine();
  auto op = std::allocate_shared<HostOp>(KeptAllocator<HostOp>(), shared_from_this(), member,
                                         std::move(collective), std::move(arguments));
  // The mover's errors need the label.
  if (mover_ != nullptr) op->arguments_.label = op->label();
  return op;
}

void HostGroup::number(HostOp& op) {
  if (!rendezvous_.has_value()) return;
  uint32_t& next_seq = progress_[op.meeting_.member].next_seq;
  const uint32_t seq = next_seq;
  rendezvous_->fetch_lines(seq, op.meeting_.member);
  op.meeting_.seq = seq;
  next_seq = seq_after(seq);
  // The k-th receive is for the k-th send, whether or not earlier ones failed.
  if (!op.meeting_.holds_device) return;
  const Rendezvous::Place place = rendezvous_->align(seq, op.meeting_.signature);
  if (place.seq == seq) return;
  rendezvous_->pass_over(seq, place.seq);
  // A member that is left behind must not give its bytes to a different call of the others: this
  // call fails as given up, and the member continues with the next one. A barrier has no bytes.
  const bool is_told = place.is_left_behind && !op.is_barrier();
  if (!is_told) op.meeting_.seq = place.seq;
  next_seq = is_told ? place.seq : seq_after(place.seq);
}

void HostGroup::retire(HostOp& op) {
  if (!rendezvous_.has_value()) return;
  rendezvous_->leave(op.meeting_.seq, op.meeting_.member);
  // Pairs with fail_pending().
  progress_[op.meeting_.member].done.store(op.meeting_.seq, std::memory_order_release);
  if (op.lends_ && others_read_input(op)) lend(op);
}

Work HostGroup::start(Collective::Ptr collective, Arguments arguments) {
  if (collective->kind() == OpKind::kSendRecv) {
    return start_message(std::move(collective), std::move(arguments));
  }
  const int member = collective->place().position;
  const Caller caller(*this, member);
  if (caller.is_too_late()) {
    return failed(make_op(member, std::move(collective), std::move(arguments)), too_late());
  }
  const Status process = backend_.check_process();
  if (!process.ok()) return refused(member, std::move(collective), std::move(arguments), process);
  Stream& stream = *backend_.streams_[members_[member].ordinal];
  std::shared_ptr<HostOp> op = make_op(member, std::move(collective), std::move(arguments));
  op->of_task_ = op;
  using Wake = Stream::Wake;
  stream.enqueue(*op, op->key(), op->arguments_.caller_waits ? Wake::kByCaller : Wake::kNow);
  return Work(std::move(op));
}

void HostGroup::run_here(const HostOp& op) {
  backend_.streams_[members_[op.meeting_.member].ordinal]->run_here(op.key());
}

// Runs the operation to its end for this member: begins it, or reports it as timed out if a waiter
// has given it up; completes it with the Status of all; acknowledges a failure; retires it.
Status HostGroup::run(HostOp& op) {
  HostOp::Stage stage = HostOp::Stage::kQueued;
  Status status;
  if (op.has_joined_ || op.stage_.compare_exchange_strong(stage, HostOp::Stage::kStarted)) {
    // Without a mover publish_waiting() follows soon enough.
    if (mover_ != nullptr || !rendezvous_.has_value()) publish_running(op);
    status = rendezvous_.has_value() ? meet_and_move(op) : run_alone(op);
    // The receiver of a message has waited for its device.
    const bool is_later = is_on_device(op) && !op.is_message();
    if (is_later && (status.ok() || (op.moved_ && op.arguments_.out_buffer == nullptr))) {
      complete_on_device(op, status);
    } else {
      op.complete(status);
    }
  } else {
    status = op.completion_.wait();
    if (rendezvous_.has_value()) {
      const absl::Time deadline = steady_now() + backend_.collective_timeout_;
      fail(op, describe(op, op.called(), deadline), VerdictKind::kTimedOut, status).IgnoreError();
    }
  }
  if (rendezvous_.has_value() && !status.ok()) acknowledge(op);
  retire(op);
  return status;
}

bool HostGroup::is_on_device(const HostOp& op) const {
  return mover_ != nullptr && !op.is_barrier();
}

void HostGroup::complete_on_device(HostOp& op, const Status& error) {
  std::shared_ptr<Completion> ready;
  if (op.arguments_.out_buffer != nullptr) {
    op.arguments_.out_buffer->mutable_issued().set(absl::OkStatus());
    ready = op.arguments_.out_buffer->share_ready();
  }
  // Later work of the stream may reuse the memory.
  op.arguments_.in_buffer = nullptr;
  op.arguments_.out_buffer = nullptr;
  // The memory of Buffers is the device's; other memory is the caller's again after the Work.
  const auto on_failure =
      ready != nullptr ? Stream::OnFailure::kAtOnce : Stream::OnFailure::kWhenDone;
  backend_.streams_[members_[op.meeting_.member].ordinal]->when_done(
      [self = op.of_task_, ready, error](const Status& done) {
        const Status status = error.ok() ? self->labelled(done) : error;
        if (ready != nullptr) ready->set(status);
        self->completion_.set(status);
      },
      on_failure);
}

Status HostGroup::wait_for_device(const HostOp& op, absl::Time deadline) {
  if (mover_ == nullptr || !op.is_barrier()) return absl::OkStatus();
  Status status;
  do {
    status = mover_->wait_done(op.meeting_.member,
                               std::min(deadline, steady_now() + kLossCheckInterval));
  } while (absl::IsDeadlineExceeded(status) && steady_now() < deadline && !closing_);
  return op.labelled(status);
}

Status HostGroup::move(const HostOp& op, absl::Span<const MemberMemory> members) {
  if (!is_on_device(op)) return op.labelled(move_bytes(*op.collective_, members));
  return mover_->move(*op.collective_, op.arguments_, op.meeting_.seq, op.meeting_.member, members);
}

void HostGroup::acknowledge(HostOp& op) {
  if (op.acknowledged_.exchange(true)) return;
  rendezvous_->acknowledge(op.meeting_.seq, op.meeting_.member);
}

Rendezvous::From HostGroup::give_up_from() const {
  return spans_clients_ ? Rendezvous::From::kRunning : Rendezvous::From::kOpen;
}

Status HostGroup::run_alone(HostOp& op) {
  const Collective& collective = *op.collective_;
  const Arguments& arguments = op.arguments_;
  TESSERA_RETURN_IF_ERROR(op.labelled(collective.error()));
  TESSERA_RETURN_IF_ERROR(find_memory(op));
  TESSERA_RETURN_IF_ERROR(wait_for_device(op, arguments.deadline.value_or(absl::InfiniteFuture())));
  if (collective.needs_peer_counts()) op.peer_counts_ = collective.own_counts();
  const MemberMemory own = {arguments.in, op.in_count(), arguments.out, op.peer_counts_.data()};
  return move(op, absl::MakeConstSpan(&own, 1));
}

// The lender of a set of replicas makes the memory of all.
Status HostGroup::lend_replica(HostOp& op) {
  std::vector<int> holders;
  for (const int member : op.collective_->replicas().subspan(1)) {
    holders.push_back(members_[member].client_id);
  }
  StatusOr<ReplicaLoans::Replica> replica =
      backend_.loans_->lend(op.arguments_.out_buffer->size_bytes(), std::move(holders));
  if (!replica.ok()) return op.labelled(replica.status());
  op.arguments_.out = replica->contents;
  op.replica_ = *std::move(replica);
  return absl::OkStatus();
}

// Makes this member a holder of the memory that the lender has allocated. Not for the lender.
void HostGroup::hold_replica(HostOp& op, std::byte* contents) {
  const absl::Span<const int> replicas = op.collective_->replicas();
  const auto place =
      std::find(replicas.begin(), replicas.end(), op.meeting_.member) - replicas.begin();
  if (place == 0) return;
  op.replica_ = ReplicaLoans::hold(contents, op.arguments_.out_buffer->size_bytes(),
                                   static_cast<int>(place) - 1, backend_.link_.keeper(contents));
}

Status HostGroup::local_error(HostOp& op) {
  const Collective& collective = *op.collective_;
  const Arguments& arguments = op.arguments_;
  if (!collective.error().ok()) return op.labelled(collective.error());
  if (may_be_interrupted()) TESSERA_RETURN_IF_ERROR(interruption(op));
  if (is_on_device(op)) TESSERA_RETURN_IF_ERROR(op.labelled(mover_->check(collective)));
  const bool has_buffers = arguments.in_buffer != nullptr || arguments.out_buffer != nullptr;
  return has_buffers ? find_memory(op) : absl::OkStatus();
}

Status HostGroup::interruption(const HostOp& op) const {
  if (closing_) {
    return absl::CancelledError(absl::StrCat(op.label(), ": the client is shutting down"));
  }
  return op.labelled(lost_member());
}

Status HostGroup::lost_member() const {
  if (!backend_.link_.any_lost()) return absl::OkStatus();
  for (const GroupMember& member : members_) {
    TESSERA_RETURN_IF_ERROR(backend_.link_.client_status(member.client_id));
  }
  return absl::OkStatus();
}

// An interruption between local_error() and the arrival is not seen by fail_pending(), which
// settles only what has arrived.
Status HostGroup::interrupted_meanwhile(const HostOp& op) {
  const Status why = interruption(op);
  if (why.ok()) return why;
  return rendezvous_->settle(op.meeting_.seq, VerdictKind::kError, give_up_from(), why,
                             &op.meeting_);
}

Status HostGroup::find_memory(HostOp& op) {
  Arguments& arguments = op.arguments_;
  if (arguments.in_buffer != nullptr) {
    // The error of a tensor is returned unchanged: it names the op that failed first.
    TESSERA_RETURN_IF_ERROR(arguments.in_buffer->wait_issued());
    arguments.in = arguments.in_buffer->data();
  }
  const absl::Span<const int> replicas = op.collective_->replicas();
  if (!replicas.empty()) {
    if (replicas[0] == op.meeting_.member) TESSERA_RETURN_IF_ERROR(lend_replica(op));
  } else if (arguments.out_buffer != nullptr) {
    const Status taken = arguments.out_buffer->take_memory();
    if (!taken.ok()) return op.labelled(taken);
    arguments.out = arguments.out_buffer->mutable_data();
  }
  return absl::OkStatus();
}

Status HostGroup::reserve(HostOp& op, const Rendezvous::Op& meeting) {
  // A member is done with an operation before it arrives at the next one.
  const uint32_t all_came = progress_[op.meeting_.member].all_came;
  if (op.meeting_.seq - all_came < rendezvous_->num_records() && all_came != 0) {
    return absl::OkStatus();
  }
  if (rendezvous_->was_freed(op.meeting_.seq)) return absl::OkStatus();
  publish_running(op);
  while (true) {
    const absl::Time deadline = std::min(meeting.deadline, steady_now() + kLossCheckInterval);
    if (rendezvous_->wait_free(op.meeting_.seq, deadline)) return absl::OkStatus();
    // Errors of the call itself are not returned here: the others must read them in the record.
    TESSERA_RETURN_IF_ERROR(interruption(op));
    if (steady_now() < meeting.deadline) continue;
    Rendezvous::Op oldest = meeting;
    oldest.seq = seq_before(op.meeting_.seq, rendezvous_->num_records());
    return rendezvous_->describe_missing(oldest);
  }
}

Status HostGroup::fail(HostOp& op, const Rendezvous::Op& meeting, VerdictKind kind,
                       const Status& error) {
  publish_running(op);
  // With a lost member the record may never be free again, and the others detect the loss
  // themselves: there is nothing to wait for.
  if (lost_member().ok() && !reserve(op, meeting).ok()) return error;
  const Status verdict =
      rendezvous_->settle(op.meeting_.seq, kind, Rendezvous::From::kOpen, error, &meeting);
  return verdict.ok() ? error : verdict;
}

Status HostGroup::join(HostOp& op, const Rendezvous::Op& meeting) {
  Status status = prepare_and_arrive(op, meeting);
  if (!meeting.holds_device) op.published_.set(absl::OkStatus());
  return status;
}

Status HostGroup::prepare_and_arrive(HostOp& op, const Rendezvous::Op& meeting) {
  // Errors that only this member can detect become the verdict of all, before it arrives.
  Status local = local_error(op);
  if (local.ok() && mover_ != nullptr) {
    local = wait_for_device(op, meeting.deadline);
    if (absl::IsDeadlineExceeded(local)) {
      // This member itself is late.
      TESSERA_RETURN_IF_ERROR(reserve(op, meeting));
      return rendezvous_->settle_timed_out(meeting, Rendezvous::From::kOpen);
    }
  }
  if (!local.ok()) return fail(op, meeting, VerdictKind::kError, local);
  TESSERA_RETURN_IF_ERROR(reserve(op, meeting));
  const Status filled = fill_entry(op);
  if (!filled.ok()) return fail(op, meeting, VerdictKind::kError, filled);
  publish_waiting(op);
  TESSERA_RETURN_IF_ERROR(rendezvous_->arrive(meeting));
  if (may_be_interrupted()) TESSERA_RETURN_IF_ERROR(interrupted_meanwhile(op));
  return absl::OkStatus();
}

Status HostGroup::meet(HostOp& op, const Rendezvous::Op& meeting) {
  TESSERA_RETURN_IF_ERROR(op.has_joined_ ? op.join_status_ : join(op, meeting));
  if (!rendezvous_->all_arrived(meeting.seq)) {
    TESSERA_RETURN_IF_ERROR(rendezvous_->wait_arrived(meeting));
  }
  // Not for messages: a sender reads the verdict of one that failed later.
  if (meeting.holds_device) progress_[meeting.member].all_came = meeting.seq;
  return rendezvous_->check_signatures(meeting);
}

void HostGroup::start_clock(HostOp& op) const {
  const Arguments& arguments = op.arguments_;
  Rendezvous::Op& meeting = op.meeting_;
  const absl::Duration timeout = arguments.timeout.value_or(backend_.collective_timeout_);
  meeting.start = op.begun(timeout);
  meeting.deadline = meeting.start + timeout;
  if (arguments.deadline.has_value()) {
    meeting.start = op.start_of(*arguments.deadline);
    meeting.deadline = *arguments.deadline;
  }
}

// The states that one member's operation passes:
//
//   meet             all members arrive with equal signatures
//   member_memory    the addresses of all members' memory, as this process has them mapped
//   move             this member moves its part of the bytes, straight between the members' memory
//   finish           counts its part as done
//   wait_finished    all parts are done: outputs are complete, and inputs are not read any more.
//                    Skipped where the others may read the input later (lends_input())
//
// A failure in any state is settled, so that all members return the same Status, with one
// exception: own_error is wrong in this member's call alone, and the operation ends in order.
Status HostGroup::meet_and_move(HostOp& op) {
  const bool has_replicas = !op.collective_->replicas().empty();
  Rendezvous::Op& meeting = op.meeting_;
  if (!op.is_timed_) start_clock(op);
  if (op.inlined_) return meet_inlined(op, meeting);
  const auto settle = [&](VerdictKind kind, const Status& error) {
    return rendezvous_->settle(meeting.seq, kind, Rendezvous::From::kRunning, error, &meeting);
  };
  Status status = meet(op, meeting);
  Status own_error;  // of this member alone: it ends the operation in order all the same
  bool found_mismatch = false;
  if (status.ok()) {
    const StatusOr<MemberMemories> memory = member_memory(op);
    if (!memory.ok()) {
      status = settle(VerdictKind::kError, memory.status());
    } else {
      // All members detect wrong counts, before any of them moves a byte.
      step();  // a member may be held up before it moves any bytes
      const Status result = move(op, *memory);
      op.moved_ = true;
      // Before finish(): the lender keeps the block until then. Not after a mismatch: a lender that
      // detected it first has released the block.
      if (result.ok() && has_replicas) {
        hold_replica(op, (*memory)[op.meeting_.member].out);
      }
      const bool found_by_all = op.collective_->needs_peer_counts() || has_replicas;
      // The sender is told "received" only when the bytes have reached the receiver's GPU.
      const bool is_lost_message = op.is_message() && is_on_device(op);
      if (!result.ok() && is_lost_message) {
        status = settle(VerdictKind::kError, result);
      } else if (!result.ok() && !found_by_all) {
        own_error = result;
      }
      if (!result.ok() && found_by_all) {
        found_mismatch = true;
        status = settle(VerdictKind::kMismatch, result);
      }
    }
  }
  const int share_of_work = op.is_message() ? 2 : 1;
  const bool lends = status.ok() && lends_input(op);
  using Then = Rendezvous::Then;
  if (status.ok()) {
    status = rendezvous_->finish(meeting.seq, share_of_work, lends ? Then::kLeave : Then::kWait,
                                 &meeting);
  }
  op.lends_ = status.ok() && lends;
  // The other members run in this process and write this memory: the operation cannot be abandoned.
  if (!spans_clients_) meeting.deadline = absl::InfiniteFuture();
  if (status.ok() && !op.lends_) {
    status = rendezvous_->wait_finished(meeting, give_up_from());
  }
  if (!status.ok()) {
    if (op.moved_ && is_on_device(op)) mover_->fail(op.meeting_.seq, op.meeting_.member, status);
    const bool on_the_move = spans_clients_ && rendezvous_->failed_on_the_move(op.meeting_.seq);
    if (on_the_move) withhold_output(op);
    // Members that have not detected the mismatch yet still read what this one has published.
    if (on_the_move || found_mismatch) quarantine(op);
    return status;
  }
  if (is_on_device(op)) own_error.Update(mover_->leave(op.meeting_.seq, op.meeting_.member));
  TESSERA_RETURN_IF_ERROR(own_error);
  if (has_replicas) {
    op.arguments_.out_buffer->share_memory(op.replica_->contents, std::move(op.replica_->owner));
  }
  if (const std::byte* out = op.copy(&HostOp::Copies::out)) {
    std::memcpy(op.arguments_.out, out, op.out_bytes());
  }
  return absl::OkStatus();
}

// A peer that was held up may go on writing after this member has given up. The group cannot keep
// memory that is the caller's, so the pool must not reuse it.
void HostGroup::withhold_output(const HostOp& op) {
  const Arguments& arguments = op.arguments_;
  const bool has_copy = op.copy(&HostOp::Copies::out) != nullptr;
  const bool is_callers = arguments.out_buffer == nullptr && !has_copy;
  if (is_callers && shares_addresses(op) && op.collective_->do_peers_write_output()) {
    backend_.pool_->withhold(arguments.out, op.out_bytes());
  }
}

void HostGroup::quarantine(HostOp& op) {
  std::lock_guard<std::mutex> lock(mutex_);
  quarantine_.push_back(op.of_task_);
  has_quarantine_.store(true, std::memory_order_relaxed);
}

void HostGroup::reap_quarantine() {
  std::vector<std::shared_ptr<HostOp>> gone;  // destroyed without the lock
  std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(quarantine_, [&](std::shared_ptr<HostOp>& op) {
    // A GPU may still run work that it was given.
    if (is_on_device(*op) || !rendezvous_->all_are_done_with(op->meeting_.seq)) return false;
    gone.push_back(std::move(op));
    return true;
  });
  has_quarantine_.store(!quarantine_.empty(), std::memory_order_relaxed);
}

Status HostGroup::meet_inlined(HostOp& op, const Rendezvous::Op& meeting) {
  TESSERA_RETURN_IF_ERROR(meet(op, meeting));
  const Collective& collective = *op.collective_;
  if (collective.kind() == OpKind::kAllReduce || collective.kind() == OpKind::kReduce ||
      collective.kind() == OpKind::kBarrier) {
    if (op.arguments_.out != nullptr) reduce_inlined(op);
    return absl::OkStatus();
  }
  absl::InlinedVector<MemberMemory, kInlineMembers> members;
  for (int m = 0; m < rendezvous_->size(); ++m) {
    const MemberEntry& entry = rendezvous_->entry(op.meeting_.seq, m);
    members.push_back({entry.inlined, entry.in_count});
  }
  members[op.meeting_.member].out = op.arguments_.out;
  return op.labelled(move_bytes(collective, members));
}

// Each member reduces all elements, not a chunk.
void HostGroup::reduce_inlined(const HostOp& op) {
  const Collective& collective = *op.collective_;
  if (collective.kind() == OpKind::kReduce && op.meeting_.member != collective.root()) return;
  absl::InlinedVector<const std::byte*, kInlineMembers> terms;
  for (int m = 0; m < rendezvous_->size(); ++m) {
    terms.push_back(rendezvous_->entry(op.meeting_.seq, m).inlined);
  }
  cpu::reduce(collective.dtype(), collective.op(), terms,
              absl::MakeConstSpan(&op.arguments_.out, 1), collective.count());
}

Status HostGroup::give_up(HostOp& op, bool is_queued, DeviceActivity::Kind device,
                          absl::Time called, absl::Time deadline) {
  const bool is_early = is_queued && is_behind(op);
  if (rendezvous_.has_value() && !is_early && rendezvous_->is_next(op.meeting_.seq)) {
    return rendezvous_->settle_timed_out(describe(op, called, deadline), give_up_from());
  }
  const Status error = absl::DeadlineExceededError(absl::StrCat(op.label(), ": not done in ",
                                                                format_duration(deadline - called),
                                                                "; ", holdup_of(op, device)));
  // A verdict before the operation's turn, so that all members that give it up get one text. Where
  // a member has fallen behind it would take the operation for the one to join: run() settles this
  // one in its turn.
  if (!is_early || !rendezvous_->all_have_passed_before(op.meeting_.seq)) return error;
  const Rendezvous::Op late = describe(op, called, deadline);
  const Status verdict = rendezvous_->settle(op.meeting_.seq, VerdictKind::kTimedOut,
                                             Rendezvous::From::kOpen, error, &late);
  return verdict.ok() ? error : verdict;
}

DeviceActivity::Kind HostGroup::device_kind(int member) const {
  return read_kind(backend_.link_.activity(members_[member].ordinal));
}

bool HostGroup::is_behind(const HostOp& op) const {
  if (!rendezvous_.has_value() || !op.meeting_.holds_device) return false;
  const uint32_t done = progress_[op.meeting_.member].done.load(std::memory_order_acquire);
  return seq_after(done) != op.meeting_.seq;
}

std::string HostGroup::holdup_of(const HostOp& op, DeviceActivity::Kind device) const {
  if (!op.meeting_.holds_device) {
    return absl::StrCat("earlier messages from device ", device_ids_[0], " to device ",
                        device_ids_[1], " have not been received yet");
  }
  const int id = device_ids_[op.meeting_.member];
  if (device == DeviceActivity::kNothing || device == DeviceActivity::kFinished) {
    return absl::StrCat("device ", id, " had not begun it");
  }
  std::string text = absl::StrCat("device ", id, " is busy with earlier work");
  if (!rendezvous_.has_value()) return text;
  const std::string wait = rendezvous_->describe_wait(op.meeting_.member);
  if (!wait.empty()) absl::StrAppend(&text, ": ", wait);
  return text;
}

Work HostGroup::failed(std::shared_ptr<HostOp> op, const Status& error) {
  op->complete(op->labelled(error));
  return Work(std::move(op));
}

// Accesses nothing that the parent process uses.
Work HostGroup::refused(int member, Collective::Ptr collective, Arguments&& arguments,
                        const Status& error) {
  const auto op = std::make_shared<HostOp>(shared_from_this(), member, std::move(collective),
                                           std::move(arguments));
  op->complete(error);
  return Work(op);
}

void HostGroup::on_lost(int client, const Status& reason) {
  const bool concerned =
      std::any_of(members_.begin(), members_.end(),
                  [&](const GroupMember& member) { return member.client_id == client; });
  if (!concerned) return;
  fail_pending(reason);
  if (mover_ != nullptr) mover_->lose(reason);
}

void HostGroup::fail_pending(const Status& reason) {
  if (!rendezvous_.has_value()) return;
  // A member that has not arrived yet checks for the interruption itself, before and after its
  // arrival; the flag or the loss was set before this call. So each operation that a member of this
  // client arrives at is ended, here or by the member.
  for (int m = 0; m < rendezvous_->size(); ++m) {
    if (members_[m].client_id != backend_.link_.client_id()) continue;
    // Pairs with retire().
    const uint32_t done = progress_[m].done.load(std::memory_order_acquire);
    rendezvous_->settle_arrived(m, done, give_up_from(), reason);
  }
}

void HostGroup::close() {
  closing_ = true;
  fail_pending(too_late());
  if (mover_ != nullptr) mover_->close(too_late());
}

void HostGroup::forget_ops() {
  forgotten_.store(true, std::memory_order_seq_cst);
  // Pairs with Caller. What a caller waits for has ended, or close() ends it.
  for (Progress& progress : progress_) {
    while (progress.num_callers.load(std::memory_order_acquire) > 0) sched_yield();
  }
  forget_lent();
  std::vector<std::shared_ptr<HostOp>> sent;
  std::vector<std::shared_ptr<HostOp>> quarantine;
  std::lock_guard<std::mutex> lock(mutex_);
  sent_.swap(sent);
  quarantine_.swap(quarantine);
  num_unread_ = 0;
  for (const std::shared_ptr<HostOp>& op : sent) op->complete(op->labelled(too_late()));
  close_rendezvous();
}

}  // namespace tessera::host
