// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/message_runs.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/format.h"
#include "collectives/pending_work.h"

namespace tessera::host {

MessageRun::MessageRun(MessageRuns& runs, int member, Collective::Ptr collective,
                       Arguments&& run_arguments)
    : JointRun(runs.meetings(), member, std::move(collective), std::move(run_arguments),
               Clock::kExact),
      runs_(runs) {
  op.holds_device = false;
}

void MessageRun::placed() { runs_.number(*this); }

Status MessageRun::give_up(shm::DeviceActivity::Kind, absl::Time called, absl::Time deadline) {
  return runs_.give_up(*this, called, deadline);
}

Status SendRun::run() { return runs_.publish(*this); }

absl::Time SendRun::ready_at() { return runs_.send_ready_at(*this); }

bool SendRun::done() const {
  if (published.done()) runs_.reap_sent();
  return Run::done();
}

bool SendRun::wait_in_time(absl::Time deadline) {
  return wait_for_message(deadline, [this, deadline](absl::Time until) {
    if (!published.wait_until(until)) return false;
    // The deadline alone ends the message.
    if (until < deadline && !runs_.wait_until_received(*this, until)) return false;
    runs_.wait_received(*this, deadline);
    completion().wait().IgnoreError();
    return true;
  });
}

void SendRun::end_late(shm::DeviceActivity::Kind, absl::Time called, absl::Time deadline) {
  // A message whose device has not reached it yet is published as failed.
  fail_on_devices(deadline - called, "; the device is busy with earlier work");
  published.wait().IgnoreError();
  runs_.wait_received(*this, deadline);
}

Status ReceiveRun::run() { return end_task(runs_.execute(*this)); }

absl::Time ReceiveRun::ready_at() { return runs_.receive_ready_at(*this); }

void ReceiveRun::end_late(shm::DeviceActivity::Kind, absl::Time called, absl::Time deadline) {
  // A receive that is about to arrive does so first: the record waits for members that have
  // arrived.
  published.wait().IgnoreError();
  runs_.give_up(*this, called, deadline).IgnoreError();
  fail_on_devices(deadline - called, ", though all members had arrived");
}

MessageRuns::MessageRuns(HostResources& resources, std::vector<shm::GroupMember> members,
                         Rendezvous rendezvous, std::unique_ptr<DeviceMover> device_mover)
    : HostGroup(resources, std::move(members), std::move(device_mover)),
      meetings_(*this, std::move(rendezvous)) {
  meetings_.rendezvous().ring_bells();
}

// ---- The sender.

Work MessageRuns::send(Collective::Ptr collective, Arguments&& arguments) {
  const Caller caller(*this, 0);
  if (caller.is_too_late()) {
    return failed(arguments, with_context(too_late(), label_of(*collective, arguments)));
  }
  auto run = std::make_shared<SendRun>(*this, 0, std::move(collective), std::move(arguments));
  if (const Status status = expect_send(*run); !status.ok()) {
    run->complete(status);
    return internal::make_work(std::move(run));
  }
  run->executor_ref() = run;
  const auto task = [this, run] { return publish_or_queue(run); };
  stream(0).enqueue(run->label(), task, nullptr, Stream::Wake::kNow, [&] { number(*run); });
  return internal::make_work(std::move(run));
}

Status MessageRuns::expect_send(const SendRun& run) {
  reap_sent();
  meetings_.reap_quarantine();
  std::unique_lock<std::mutex> lock(mutex_);
  if (!run.shares_addresses() || has_failed_ ||
      num_unread_ >= meetings_.rendezvous().records().num_records()) {
    lock.unlock();
    TESSERA_RETURN_IF_ERROR(prepare_queue(/*member=*/0));
    lock.lock();
  }
  ++num_unread_;
  return absl::OkStatus();
}

Status MessageRuns::publish_or_queue(const std::shared_ptr<SendRun>& run) {
  // A GPU's message to another client goes through the host. It is ordered after the work that the
  // GPU has received so far; the stream does not wait for it.
  const bool is_fetched = !run->shares_addresses();
  if (is_fetched) {
    device_mover()->arrive(run->collective(), run->arguments(), run->op.seq, 0, {}).IgnoreError();
  }
  if (!is_fetched && meetings_.rendezvous().records().is_next(run->op.seq)) return publish(*run);
  // Every record holds a message that was not read yet. The device does not wait for that.
  // expect_send() has made what does.
  if (add_to_queue(run, [] {}).ok()) return absl::OkStatus();
  return publish(*run);
}

absl::Time MessageRuns::send_ready_at(SendRun& run) {
  const Rendezvous& rendezvous = meetings_.rendezvous();
  // The receiver may have failed a message; its record is free once this side has read the verdict.
  if (!rendezvous.records().was_freed(run.op.seq)) reap_sent();
  const bool is_ready = rendezvous.records().was_freed(run.op.seq) || !interruption().ok();
  return is_ready ? absl::InfinitePast() : absl::InfiniteFuture();
}

Status MessageRuns::publish(SendRun& run) {
  Rendezvous& rendezvous = meetings_.rendezvous();
  const Rendezvous::Op op = run.describe(run.called().exactly(), absl::InfiniteFuture());
  // No deadline: waits until the receiver frees the record. A waiter may give the message up.
  Status status = run.reserve(op);
  if (run.run_stage().begin()) {
    if (status.ok()) status = run.local_error();
    if (status.ok()) status = run.fill();
    status = status.ok() ? rendezvous.arrive(op) : run.fail(op, VerdictKind::kError, status);
    if (status.ok()) status = run.interrupted_meanwhile();
  } else {
    status = run.completion().wait();
    run.fail(op, VerdictKind::kTimedOut, status).IgnoreError();
  }
  // The caller has a reference too.
  const auto keep = std::static_pointer_cast<SendRun>(std::move(run.executor_ref()));
  if (status.ok()) {
    std::lock_guard<std::mutex> lock(mutex_);
    sent_.push_back(keep);
  } else {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      --num_unread_;
      has_failed_ = true;
    }
    run.complete(status);
    run.acknowledge();
  }
  meetings_.set_done(0, seq_before(op.seq, rendezvous.records().num_records()));
  const Arguments& arguments = run.arguments();
  run.receive_deadline = arguments.deadline.value_or(
      steady_now() + arguments.timeout.value_or(resources().collective_timeout()));
  run.published.set(absl::OkStatus());
  return status;
}

void MessageRuns::wait_received(SendRun& run, absl::Time deadline) {
  if (!run.completion().done()) {
    const Status received = meetings_.rendezvous().wait_finished(
        run.describe(run.called().exactly(), std::min(deadline, run.receive_deadline)),
        meetings_.give_up_from());
    // In this order: the record may be reused after the acknowledgement, and another waiter then
    // finds the Work done.
    run.complete(received);
    run.acknowledge();
  }
  reap_sent();
}

bool MessageRuns::wait_until_received(const SendRun& run, absl::Time until) {
  if (run.completion().done()) return true;
  return meetings_.rendezvous().wait_left(run.op.seq, std::min(until, run.receive_deadline)) ||
         until >= run.receive_deadline;
}

void MessageRuns::reap_sent() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(sent_, [this](const std::shared_ptr<SendRun>& run) {
    if (!meetings_.rendezvous().records().has_result(run->op.seq)) return false;
    const Status received = meetings_.rendezvous().wait_finished(
        run->describe(run->called().exactly(), absl::InfinitePast()), meetings_.give_up_from());
    run->complete(received);
    run->acknowledge();
    --num_unread_;
    return true;
  });
}

// ---- The receiver.

Work MessageRuns::receive(Collective::Ptr collective, Arguments&& arguments) {
  const Caller caller(*this, 1);
  Status error;
  if (caller.is_too_late()) error = too_late();
  if (error.ok()) error = prepare_queue(/*member=*/1);
  if (!error.ok()) return failed(arguments, with_context(error, label_of(*collective, arguments)));
  meetings_.reap_quarantine();
  auto run = std::make_shared<ReceiveRun>(*this, 1, std::move(collective), std::move(arguments));
  run->executor_ref() = run;
  const Status queued = add_to_queue(run, [&] { number(*run); });
  if (!queued.ok()) {
    run->complete(run->labelled(queued));
    run->executor_ref() = nullptr;
  }
  return internal::make_work(std::move(run));
}

absl::Time MessageRuns::receive_ready_at(ReceiveRun& run) {
  const Rendezvous& rendezvous = meetings_.rendezvous();
  const uint32_t seq = run.op.seq;
  if (!run.is_timed) {
    run.start_clock();
    run.is_timed = true;
  }
  if (!run.has_joined && rendezvous.records().was_freed(seq)) join(run);
  if (!run.has_joined) {
    const bool is_ready = rendezvous.records().was_freed(seq) || !interruption().ok();
    if (is_ready) return absl::InfinitePast();
    return run.run_stage().was_given_up() ? absl::InfiniteFuture() : run.op.deadline;
  }
  const bool waits = run.join_status.ok() && rendezvous.records().is_open(seq);
  return waits ? run.op.deadline : absl::InfinitePast();
}

void MessageRuns::join(ReceiveRun& run) {
  if (!run.run_stage().begin()) return;
  run.join_status = run.join();
  run.published.set(absl::OkStatus());
  run.has_joined = true;
}

Status MessageRuns::execute(ReceiveRun& run) {
  Status status;
  if (!run.is_timed) run.start_clock();
  if (!run.has_joined) join(run);
  if (run.has_joined) {
    status = meet_and_move(run);
    run.complete(status);
  } else {
    status = run.completion().wait();
    const absl::Time deadline = steady_now() + resources().collective_timeout();
    run.fail(run.describe(run.called().exactly(), deadline), VerdictKind::kTimedOut, status)
        .IgnoreError();
  }
  if (!status.ok()) run.acknowledge();
  meetings_.rendezvous().records().leave(run.op.seq, run.member());
  // Pairs with fail_pending().
  meetings_.set_done(run.member(), run.op.seq);
  return status;
}

// The steps of a collective (collective_runs.cc), except that the receiver finishes for both ends,
// so that it need not wait.
Status MessageRuns::meet_and_move(ReceiveRun& run) {
  Status own_error;  // of this member alone: the message is received anyway
  Status status = run.join_status;
  if (status.ok()) status = run.meet();
  if (status.ok()) {
    const StatusOr<JointRun::Memories> memory = run.memory();
    if (memory.ok()) shm::step();  // a member may be held up before it moves any bytes
    const Status moved = memory.ok() ? run.move(run.op.seq, *memory) : memory.status();
    // The sender is told "received" only when the bytes have reached the receiver's GPU.
    if (!memory.ok() || (!moved.ok() && run.is_on_device())) {
      status = run.settle_running(VerdictKind::kError, moved);
    } else {
      own_error = moved;
    }
  }
  if (status.ok()) {
    status = meetings_.rendezvous().finish(run.op.seq, /*num_members=*/2, Rendezvous::Then::kWait,
                                           &run.op);
  }
  if (!status.ok()) {
    run.abandon(status, /*found_mismatch=*/false);
    return status;
  }
  own_error.Update(run.leave_device());
  return own_error;
}

// ---- Both.

Work MessageRuns::start(Collective::Ptr collective, Arguments arguments) {
  const bool sends = collective->place().position == 0;
  return sends ? send(std::move(collective), std::move(arguments))
               : receive(std::move(collective), std::move(arguments));
}

void MessageRuns::number(MessageRun& run) {
  uint32_t& next_seq = meetings_.next_seq(run.member());
  meetings_.rendezvous().records().fetch_lines(next_seq, run.member());
  run.op.seq = std::exchange(next_seq, seq_after(next_seq));
}

Status MessageRuns::give_up(MessageRun& run, absl::Time called, absl::Time deadline) {
  if (meetings_.rendezvous().records().is_next(run.op.seq)) {
    return meetings_.rendezvous().settle_timed_out(run.describe(called, deadline),
                                                   meetings_.give_up_from());
  }
  return absl::DeadlineExceededError(
      absl::StrCat(run.label(), ": ", not_in_time("not done", deadline - called),
                   "; earlier messages from device ", device_ids()[0], " to device ",
                   device_ids()[1], " have not been received yet"));
}

Status MessageRuns::prepare_queue(int member) {
  if (device_mover() != nullptr) {
    return resources().message_stream(device_ids()[0], device_ids()[1], member == 0).status();
  }
  return resources().message_pump(members()[member].ordinal).status();
}

Status MessageRuns::add_to_queue(std::shared_ptr<MessageRun> run, Stream::Placed placed) {
  const int member = run->member();
  const bool sends = member == 0;
  if (device_mover() == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(MessagePump * pump,
                             resources().message_pump(members()[member].ordinal));
    pump->add({device_ids()[1 - member], sends}, std::move(run), placed);
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(Stream * stream,
                           resources().message_stream(device_ids()[0], device_ids()[1], sends));
  std::string label = run->label();
  auto task = [run = std::move(run)] {
    run->run_message();
    return absl::OkStatus();
  };
  stream->enqueue(std::move(label), std::move(task), nullptr, Stream::Wake::kNow, placed);
  return absl::OkStatus();
}

void MessageRuns::reap() {
  const Caller caller(*this, 0);
  if (caller.is_too_late()) return;
  reap_sent();
  meetings_.reap_quarantine();
}

void MessageRuns::forget() {
  // Messages that have been received are OK for both.
  reap_sent();
  std::vector<std::shared_ptr<SendRun>> sent;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    sent_.swap(sent);
    num_unread_ = 0;
    for (const std::shared_ptr<SendRun>& run : sent) run->complete(run->labelled(too_late()));
  }
  meetings_.close();
}

}  // namespace tessera::host
