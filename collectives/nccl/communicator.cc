// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/communicator.h"

#include <sched.h>

#include <algorithm>

#include "absl/time/clock.h"
#include "base/clock.h"

namespace tessera::nccl {
namespace {

// The pause between two tries to lock a lane, whose holder is in a call of NCCL.
constexpr absl::Duration kTryInterval = absl::Microseconds(100);
// How long an idle stream may take to say so.
constexpr absl::Duration kIdleLimit = absl::Milliseconds(100);

}  // namespace

Status Communicator::settle(absl::Time deadline) {
  const absl::Time begin = steady_now();
  while (true) {
    {
      std::lock_guard<std::mutex> lock(lane_.calls);
      if (state_ != State::kInUse) break;
      TESSERA_ASSIGN_OR_RETURN(const bool settled, api_.poll(handle_));
      if (settled) {
        is_settled_ = true;
        return absl::OkStatus();
      }
    }
    if (is_failed()) break;
    const absl::Time now = steady_now();
    if (now >= deadline) {
      return absl::DeadlineExceededError("NCCL had not taken the operation by then");
    }
    if (now - begin < absl::Milliseconds(1)) {
      sched_yield();
    } else {
      absl::SleepFor(absl::Microseconds(200));  // sleep: NCCL wakes no thread
    }
  }
  return give_up();
}

Status Communicator::init(const UniqueId& id, int rank, absl::Time deadline) {
  {
    std::unique_lock<std::mutex> lock(lane_.calls);
    TESSERA_RETURN_IF_ERROR(lane_.lost());
    if (state_ != State::kNone) {
      lock.unlock();
      return give_up();
    }
    TESSERA_ASSIGN_OR_RETURN(handle_, api_.comm_init_rank(generations_.num_members(), id, rank));
    state_ = State::kInUse;
  }
  return settle(deadline);
}

Status Communicator::issue(absl::FunctionRef<Status(CommHandle)> calls, absl::Time deadline) {
  {
    std::unique_lock<std::mutex> lock(lane_.calls);
    TESSERA_RETURN_IF_ERROR(lane_.lost());
    if (state_ != State::kInUse) {
      lock.unlock();
      return give_up();
    }
    is_settled_ = false;
    TESSERA_RETURN_IF_ERROR(api_.group_start());
    const Status called = calls(handle_);
    const Status ended = api_.group_end();
    TESSERA_RETURN_IF_ERROR(called);
    TESSERA_RETURN_IF_ERROR(ended);
  }
  TESSERA_RETURN_IF_ERROR(settle(deadline));
  std::lock_guard<std::mutex> lock(lane_.calls);
  has_given_work_ = true;
  return absl::OkStatus();
}

Status Communicator::async_error() {
  std::unique_lock<std::mutex> lock(lane_.calls, std::try_to_lock);
  while (!lock.owns_lock()) {
    if (is_failed()) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(lane_.lost());
    absl::SleepFor(kTryInterval);  // sleep: the holder is in a call of NCCL, which signals no event
    lock.try_lock();
  }
  return state_ == State::kInUse ? api_.poll(handle_).status() : absl::OkStatus();
}

Status Communicator::try_async_error() {
  const std::unique_lock<std::mutex> lock(lane_.calls, std::try_to_lock);
  if (!lock.owns_lock() || state_ != State::kInUse) return absl::OkStatus();
  return api_.poll(handle_).status();
}

std::unique_lock<std::mutex> Communicator::lock_until(absl::Time deadline) {
  std::unique_lock<std::mutex> lock(lane_.calls, std::try_to_lock);
  while (!lock.owns_lock() && steady_now() < deadline) {
    absl::SleepFor(kTryInterval);  // sleep: the holder is in a call of NCCL, which signals no event
    lock.try_lock();
  }
  return lock;
}

Communicator::End Communicator::begin_end(absl::Time deadline) {
  const std::unique_lock<std::mutex> lock = lock_until(deadline);
  if (!lock.owns_lock()) return End::kStuck;
  if (state_ != State::kInUse) {
    if (state_ == State::kNone) state_ = State::kReleased;
    return End::kNothing;
  }
  state_ = State::kEnding;
  if (is_settled_) return End::kRevoke;
  if (!has_given_work_) return End::kAbort;
  // Work that the stream still does may be of this communicator. Where the GPU failed it does
  // nothing.
  const Status idle = lane_.device->queue().wait_done(steady_now() + kIdleLimit);
  return absl::IsDeadlineExceeded(idle) ? End::kRevoke : End::kAbort;
}

Status Communicator::finalize() {
  std::lock_guard<std::mutex> lock(lane_.calls);
  if (state_ != State::kInUse) return absl::OkStatus();
  state_ = State::kEnding;
  return api_.comm_finalize(handle_);
}

StatusOr<bool> Communicator::poll() {
  const std::unique_lock<std::mutex> lock(lane_.calls, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  if (state_ != State::kEnding) return true;
  return api_.poll(handle_);
}

// In State::kEnding no other thread looks at the handle.
Communicator::Released Communicator::to_revoke() {
  const cuda::CudaQueue& queue = lane_.device->queue();
  return {handle_, queue.api(), queue.gpu()};
}

std::optional<Communicator::Released> Communicator::release(absl::Time deadline) {
  const std::unique_lock<std::mutex> lock = lock_until(deadline);
  if (!lock.owns_lock()) return std::nullopt;
  const Released released = to_revoke();
  state_ = State::kReleased;
  handle_ = nullptr;
  return released;
}

}  // namespace tessera::nccl
