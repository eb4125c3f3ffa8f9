// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/communicator.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace tessera::nccl {

Status Communicator::settle(absl::Time deadline) {
  const absl::Time begin = absl::Now();
  while (true) {
    {
      std::lock_guard<std::mutex> lock(lane_.calls);
      if (state_ != State::kInUse) break;
      TESSERA_ASSIGN_OR_RETURN(const bool settled, api_.poll(handle_));
      if (settled) return absl::OkStatus();
    }
    if (is_failed()) break;
    const absl::Time now = absl::Now();
    if (now >= deadline) {
      return absl::DeadlineExceededError("NCCL had not taken the operation by then");
    }
    if (now - begin < absl::Milliseconds(1)) {
      sched_yield();
    } else {
      absl::SleepFor(absl::Microseconds(200));  // sleep: NCCL wakes nobody
    }
  }
  return fail(absl::AbortedError("the communicator was given up"));
}

Status Communicator::init(const UniqueId& id, int rank, absl::Time deadline) {
  {
    std::lock_guard<std::mutex> lock(lane_.calls);
    TESSERA_RETURN_IF_ERROR(lane_.lost);
    if (state_ != State::kNone) return fail(absl::AbortedError("the communicator was given up"));
    TESSERA_ASSIGN_OR_RETURN(handle_, api_.comm_init_rank(generations_.size(), id, rank));
    state_ = State::kInUse;
  }
  return settle(deadline);
}

Status Communicator::issue(absl::FunctionRef<Status(CommHandle)> calls, absl::Time deadline) {
  {
    std::lock_guard<std::mutex> lock(lane_.calls);
    TESSERA_RETURN_IF_ERROR(lane_.lost);
    if (state_ != State::kInUse) return fail(absl::AbortedError("the communicator was given up"));
    TESSERA_RETURN_IF_ERROR(api_.group_start());
    const Status called = calls(handle_);
    const Status ended = api_.group_end();
    TESSERA_RETURN_IF_ERROR(called);
    TESSERA_RETURN_IF_ERROR(ended);
  }
  return settle(deadline);
}

Status Communicator::async_error() {
  std::lock_guard<std::mutex> lock(lane_.calls);
  return state_ == State::kInUse ? api_.poll(handle_).status() : absl::OkStatus();
}

Status Communicator::revoke() {
  std::lock_guard<std::mutex> lock(lane_.calls);
  if (state_ != State::kInUse) {
    if (state_ == State::kNone) state_ = State::kReleased;
    return absl::OkStatus();
  }
  state_ = State::kEnding;
  return api_.comm_revoke(handle_);
}

Status Communicator::finalize() {
  std::lock_guard<std::mutex> lock(lane_.calls);
  if (state_ != State::kInUse) return absl::OkStatus();
  state_ = State::kEnding;
  return api_.comm_finalize(handle_);
}

StatusOr<bool> Communicator::poll() {
  std::lock_guard<std::mutex> lock(lane_.calls);
  if (state_ != State::kEnding) return true;
  return api_.poll(handle_);
}

bool Communicator::is_there() {
  std::lock_guard<std::mutex> lock(lane_.calls);
  return state_ == State::kInUse || state_ == State::kEnding;
}

CommHandle Communicator::release() {
  std::lock_guard<std::mutex> lock(lane_.calls);
  state_ = State::kReleased;
  return std::exchange(handle_, nullptr);
}

}  // namespace tessera::nccl
