// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/run.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/wait_reports.h"
#include "collectives/host/last_seen.h"
#include "collectives/pending_work.h"

namespace tessera::host {
namespace {

// A call at most this old counts as called now. More than a tick, which is 10 ms at most.
constexpr absl::Duration kMoment = absl::Milliseconds(20);

bool is_recent(absl::Time called) { return coarse_steady_now() - called < kMoment; }

}  // namespace

CallTime::CallTime(Clock clock)
    : is_exact_(clock == Clock::kExact), time_(is_exact_ ? steady_now() : coarse_steady_now()) {}

absl::Time CallTime::exactly() const {
  return !is_exact_ && is_recent(time_) ? steady_now() : time_;
}

absl::Time CallTime::begun(absl::Duration timeout) const {
  if (timeout < absl::Seconds(1) || !is_recent(time_)) return steady_now();
  return time_ + coarse_tick();
}

RunStage::Stage RunStage::give_up() {
  Stage stage = Stage::kQueued;
  if (!stage_.compare_exchange_strong(stage, Stage::kGivenUp) && stage == Stage::kStarted) {
    is_given_up_.store(true, std::memory_order_relaxed);
  }
  return stage;
}

Run::Run(std::shared_ptr<HostGroup> group, int member, Collective::Ptr collective,
         Arguments&& arguments, Clock clock)
    : group_(std::move(group)),
      member_(member),
      collective_(std::move(collective)),
      arguments_(std::move(arguments)),
      key_(arguments_.out_buffer != nullptr ? static_cast<const void*>(arguments_.out_buffer.get())
                                            : this),
      called_(clock) {
  // The errors of a DeviceMover need the label.
  if (group_->device_mover() != nullptr) arguments_.label = label();
}

Work Run::enqueue(std::shared_ptr<Run> run) {
  using Wake = Stream::Wake;
  const Wake wake = run->arguments_.caller_waits ? Wake::kByCaller : Wake::kNow;
  run->executor_ref_ = run;
  run->group_->stream(run->member_).enqueue(*run, run->key_, wake);
  return internal::make_work(std::move(run));
}

Status Run::labelled(const Status& status) const {
  return status.ok() ? status : with_context(status, label());
}

Status Run::find_input() {
  if (arguments_.in_buffer == nullptr) return absl::OkStatus();
  // The error of a tensor is returned unchanged: it names the op that failed first.
  TESSERA_RETURN_IF_ERROR(arguments_.in_buffer->wait_issued());
  arguments_.in = arguments_.in_buffer->data();
  return absl::OkStatus();
}

Status Run::take_output() {
  if (arguments_.out_buffer == nullptr) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(labelled(arguments_.out_buffer->take_memory()));
  arguments_.out = arguments_.out_buffer->mutable_data();
  return absl::OkStatus();
}

Status Run::wait_for_device(absl::Time deadline) const {
  constexpr absl::Duration kCheckInterval = absl::Milliseconds(5);
  DeviceMover* const mover = group_->device_mover();
  if (mover == nullptr || is_on_device()) return absl::OkStatus();
  const auto is_over = [this] {
    return group_->is_closing() || stage_.is_given_up().load(std::memory_order_relaxed);
  };
  Status status;
  do {
    status = mover->wait_done(member_, std::min(deadline, steady_now() + kCheckInterval));
  } while (absl::IsDeadlineExceeded(status) && steady_now() < deadline && !is_over());
  return status;
}

Status Run::move(uint32_t seq, absl::Span<const MemberMemory> members) {
  has_moved_ = true;
  if (!is_on_device()) return labelled(move_bytes(*collective_, members));
  // The errors of a device have the label.
  return group_->device_mover()->move(*collective_, arguments_, seq, member_, members);
}

// Two waiters may have the verdict of one message. The record may be reused once the first of them
// has completed the run; the values that the other one has read of the record then mean nothing.
void Run::complete(const Status& status) {
  if (completion_.done()) return;
  group_->complete_output(arguments_, status);
  completion_.set(status);
}

void Run::finish(const Status& status) {
  const bool may_be_later = status.ok() || (has_moved_ && arguments_.out_buffer == nullptr);
  if (!is_on_device() || !may_be_later) return complete(status);
  std::shared_ptr<Completion> ready;
  if (arguments_.out_buffer != nullptr) {
    arguments_.out_buffer->mutable_issued().set(absl::OkStatus());
    ready = arguments_.out_buffer->share_ready();
  }
  // Later work of the stream may reuse the memory.
  arguments_.in_buffer = nullptr;
  arguments_.out_buffer = nullptr;
  // The memory of Buffers is the device's; other memory is the caller's again after the Work.
  const auto on_failure =
      ready != nullptr ? Stream::OnFailure::kAtOnce : Stream::OnFailure::kWhenDone;
  group_->stream(member_).when_done(
      [self = executor_ref_, ready, status](const Status& done) {
        const Status verdict = status.ok() ? self->labelled(done) : status;
        if (ready != nullptr) ready->set(verdict);
        self->completion_.set(verdict);
      },
      on_failure);
}

Status Run::end_task(Status status) {
  const std::shared_ptr<Run> keep = std::move(executor_ref_);
  return collective_->kind() == OpKind::kBarrier ? absl::OkStatus() : status;
}

bool Run::done() const {
  if (completion_.done()) return true;
  // A thread that polls without a pause would keep the core from the thread that runs the
  // operation, and from the other members: each of their yields would last as long as its time
  // slice.
  sched_yield();
  return completion_.done();
}

Status Run::wait_until(absl::Time deadline) {
  if (completion_.done()) return completion_.status();
  const HostGroup::Caller caller(*group_, member_);
  // After forget_runs() all runs have ended, or are about to.
  if (caller.is_too_late()) return completion_.wait();
  TESSERA_RETURN_IF_ERROR(group_->resources().check_may_wait("Work::wait"));
  // Read the clock before run_here(), which takes time itself: otherwise a wait of 1 ms would be
  // reported as 0.
  const absl::Time called = deadline == absl::InfiniteFuture() ? deadline : called_.exactly();
  // Any thread may execute the run: it ends by its own deadline.
  if (may_run_here() && deadline >= arguments_.deadline.value_or(absl::InfiniteFuture())) {
    group_->stream(member_).run_here(key_);
  }
  if (completion_.done()) return completion_.status();
  if (wait_in_time(deadline)) return completion_.status();
  // Read before the run is given up: it is not yet this run that the device executes.
  const shm::DeviceActivity::Kind device = shm::read_kind(group_->activity(member_));
  const RunStage::Stage before = stage_.give_up();
  if (before == RunStage::Stage::kQueued) {
    complete(give_up(device, called, deadline));
  } else if (before == RunStage::Stage::kStarted) {
    end_late(device, called, deadline);
  }
  // Where another waiter has just given it up, that one completes it.
  return completion_.wait();
}

bool Run::wait_in_time(absl::Time deadline) {
  const auto wait = [this](absl::Time until) { return completion_.wait_until(until); };
  return collective_->kind() == OpKind::kSendRecv ? wait_for_message(deadline, wait)
                                                  : wait(deadline);
}

bool Run::wait_for_message(absl::Time deadline, absl::FunctionRef<bool(absl::Time until)> wait) {
  const HostResources& resources = group_->resources();
  WaitReports* const reports = resources.wait_reports();
  if (reports == nullptr) return wait(deadline);
  // Most messages come soon: these are not registered.
  const absl::Time soon = steady_now() + reports->shortest() / 2;
  if (deadline <= soon) return wait(deadline);
  if (wait(soon)) return true;
  const int peer = group_->all_members()[1 - collective_->place().position].client_id;
  const auto missing = [describe = resources.describe_client(), peer] {
    WaitReports::Missing missing = describe(peer);
    missing.text = absl::StrCat("missing ", missing.text);
    return missing;
  };
  const ReportedWait reported(reports, label(), missing, called_.roughly());
  return wait(deadline);
}

shm::Activity activity_of(const Collective& collective, shm::DeviceActivity::Kind kind) {
  const Signature& agreed = collective.signature();
  shm::Activity activity;
  activity.kind = kind;
  activity.code = activity_code(agreed.kind, agreed.dtype, agreed.reduction);
  activity.count = agreed.count;
  return activity;
}

}  // namespace tessera::host
