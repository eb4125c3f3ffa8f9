// SPDX-License-Identifier: Apache-2.0
//
// The messages of HostGroup: sends and receives between two of its members.
#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "collectives/host/host_group.h"

namespace tessera::host {

Status HostGroup::publish_message(HostOp& op) {
  HostOp::Stage stage = HostOp::Stage::kQueued;
  const Rendezvous::Op meeting = describe(op, op.called(), absl::InfiniteFuture());
  // Waits as long as the receiver takes; a waiter for the message may give it up meanwhile.
  Status status = reserve(op, meeting);
  if (op.stage_.compare_exchange_strong(stage, HostOp::Stage::kStarted)) {
    if (status.ok()) status = local_error(op);
    if (status.ok()) status = fill_entry(op);
    status =
        status.ok() ? rendezvous_->arrive(meeting) : fail(op, meeting, VerdictKind::kError, status);
    if (status.ok()) status = interrupted_meanwhile(op);
  } else {
    status = op.completion_.wait();
    fail(op, meeting, VerdictKind::kTimedOut, status).IgnoreError();
  }
  if (status.ok()) {
    std::lock_guard<std::mutex> lock(mutex_);
    sent_.push_back(std::move(op.of_task_));
  } else {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      --num_unread_;
    }
    op.complete(status);
    acknowledge(op);
    op.of_task_ = nullptr;
  }
  progress_[op.meeting_.member].done.store(seq_before(op.meeting_.seq, rendezvous_->num_records()),
                                           std::memory_order_release);
  const Arguments& arguments = op.arguments_;
  op.receive_deadline_ = arguments.deadline.value_or(
      steady_now() + arguments.timeout.value_or(backend_.collective_timeout_));
  op.published_.set(absl::OkStatus());
  return status;
}

absl::Time HostOp::ready_at() {
  return is_send_ ? group_->send_ready_at(*this) : group_->receive_ready_at(*this);
}

void HostOp::run_message() {
  // The Work has the error.
  (is_send_ ? group_->publish_message(*this) : run()).IgnoreError();
}

absl::Time HostGroup::send_ready_at(HostOp& op) {
  // The receiver may have failed a message; its record is free once this side has read the verdict.
  if (!rendezvous_->was_freed(op.meeting_.seq)) reap_sent();
  const bool is_ready = rendezvous_->was_freed(op.meeting_.seq) || !interruption(op).ok();
  return is_ready ? absl::InfinitePast() : absl::InfiniteFuture();
}

absl::Time HostGroup::receive_ready_at(HostOp& op) {
  if (!op.is_timed_) {
    start_clock(op);
    op.is_timed_ = true;
  }
  if (!op.has_joined_ && rendezvous_->was_freed(op.meeting_.seq)) join_receive(op);
  const bool was_given_up = op.stage_.load() == HostOp::Stage::kGivenUp;
  if (!op.has_joined_) {
    const bool is_ready = rendezvous_->was_freed(op.meeting_.seq) || !interruption(op).ok();
    if (is_ready) return absl::InfinitePast();
    return was_given_up ? absl::InfiniteFuture() : op.meeting_.deadline;
  }
  const bool waits = op.join_status_.ok() && rendezvous_->is_open(op.meeting_.seq);
  return waits ? op.meeting_.deadline : absl::InfinitePast();
}

void HostGroup::join_receive(HostOp& op) {
  HostOp::Stage stage = HostOp::Stage::kQueued;
  if (!op.stage_.compare_exchange_strong(stage, HostOp::Stage::kStarted)) return;
  op.join_status_ = join(op, op.meeting_);
  op.has_joined_ = true;
}

Status HostGroup::wait_received(HostOp& op, absl::Time deadline) {
  return rendezvous_->wait_finished(describe(op, op.called(), deadline), give_up_from());
}

void HostGroup::reap_sent() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(sent_, [this](const std::shared_ptr<HostOp>& op) {
    if (!rendezvous_->has_result(op->meeting_.seq)) return false;
    const Status received = wait_received(*op, absl::InfinitePast());
    op->complete(received);
    acknowledge(*op);
    --num_unread_;
    return true;
  });
}

Work HostGroup::start_message(Collective::Ptr collective, Arguments&& arguments) {
  const MessageEnds ends = collective->ends();
  const bool sends = collective->place().position == 0;
  const int member = sends ? ends.sender : ends.receiver;
  const int peer = sends ? ends.receiver : ends.sender;
  const Status process = backend_.check_process();
  if (!process.ok()) return refused(member, std::move(collective), std::move(arguments), process);
  StatusOr<std::shared_ptr<HostGroup>> group = message_group(member, peer, sends);
  if (!group.ok()) {
    return failed(make_op(member, std::move(collective), std::move(arguments)), group.status());
  }
  return sends ? (*group)->enqueue_send(std::move(collective), std::move(arguments))
               : (*group)->enqueue_recv(std::move(collective), std::move(arguments));
}

Status HostGroup::prepare_to_wait(int member) {
  const bool sends = member == 0;
  if (mover_ != nullptr) {
    return backend_.message_stream(device_ids_[0], device_ids_[1], sends).status();
  }
  return backend_.message_pump(members_[member].ordinal).status();
}

Status HostGroup::wait_aside(std::shared_ptr<HostOp> op, Stream::Placed placed) {
  const int member = op->meeting_.member;
  const bool sends = member == 0;
  if (mover_ == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(MessagePump * pump, backend_.message_pump(members_[member].ordinal));
    pump->add({device_ids_[1 - member], sends}, std::move(op), placed);
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(Stream * stream,
                           backend_.message_stream(device_ids_[0], device_ids_[1], sends));
  std::string label = op->label();
  auto task = [op = std::move(op)] {
    op->run_message();
    return absl::OkStatus();
  };
  stream->enqueue(std::move(label), std::move(task), nullptr, Stream::Wake::kNow, placed);
  return absl::OkStatus();
}

Status HostGroup::expect_send(const HostOp& op) {
  reap_sent();
  std::unique_lock<std::mutex> lock(mutex_);
  // While fewer messages are unread than there are records, the device's stream publishes the next
  // one without waiting.
  if (!shares_addresses(op) || num_unread_ >= rendezvous_->num_records()) {
    lock.unlock();
    TESSERA_RETURN_IF_ERROR(prepare_to_wait(/*member=*/0));
    lock.lock();
  }
  ++num_unread_;
  return absl::OkStatus();
}

Work HostGroup::enqueue_send(Collective::Ptr collective, Arguments&& arguments) {
  const Caller caller(*this, 0);
  std::shared_ptr<HostOp> op = make_op(0, std::move(collective), std::move(arguments));
  if (caller.is_too_late()) return failed(op, too_late());
  Stream& stream = *backend_.streams_[members_[0].ordinal];
  if (const Status status = expect_send(*op); !status.ok()) {
    op->complete(status);
    return Work(op);
  }
  op->is_send_ = true;
  op->of_task_ = op;
  auto task = [op]() -> Status {
    HostGroup& group = *op->group_;
    // The bytes of a GPU's message to another client go through the host: after what the GPU was
    // given so far, for which its stream does not wait.
    const bool is_fetched = !group.shares_addresses(*op);
    if (is_fetched) {
      group.mover_->arrive(*op->collective_, op->arguments_, op->meeting_.seq, 0, {}).IgnoreError();
    }
    if (!is_fetched && group.rendezvous_->is_next(op->meeting_.seq))
      return group.publish_message(*op);
    // Every record holds a message that was not read yet. The device does not wait for that.
    // expect_send() has made what does.
    if (group.wait_aside(op, [] {}).ok()) return absl::OkStatus();
    return group.publish_message(*op);
  };
  stream.enqueue(op->label(), std::move(task), nullptr, Stream::Wake::kNow, [&] { number(*op); });
  return Work(op);
}

Work HostGroup::enqueue_recv(Collective::Ptr collective, Arguments&& arguments) {
  const Caller caller(*this, 1);
  std::shared_ptr<HostOp> op = make_op(1, std::move(collective), std::move(arguments));
  if (caller.is_too_late()) return failed(op, too_late());
  if (const Status status = prepare_to_wait(/*member=*/1); !status.ok()) return failed(op, status);
  op->of_task_ = op;
  const Status waits = wait_aside(op, [&] { number(*op); });
  if (!waits.ok()) return failed(op, waits);
  return Work(op);
}

StatusOr<std::shared_ptr<HostGroup>> HostGroup::message_group(int position, int peer, bool sends) {
  if (peer < 0 || peer >= static_cast<int>(members_.size()) || peer == position) {
    return absl::InvalidArgumentError(
        absl::StrCat("member ", position, " cannot ", sends ? "send to" : "receive from",
                     " member ", peer, "; name another member, 0 to ", members_.size() - 1));
  }
  const int own = device_ids_[position];
  const int other = device_ids_[peer];
  return sends ? backend_.message_group(own, other) : backend_.message_group(other, own);
}

}  // namespace tessera::host
