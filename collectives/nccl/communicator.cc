// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/communicator.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"

namespace tessera::nccl {

Status Communicator::settle(absl::Time deadline) {
  const absl::Time begin = steady_now();
  while (true) {
    {
      std::lock_guard<std::mutex> lock(lane_.calls);
      if (state_ != State::kInUse) break;
      TESSERA_ASSIGN_OR_RETURN(const bool settled, api_.poll(handle_));
      if (settled) return absl::OkStatus();
    }
    if (is_failed()) break;
    const absl::Time now = steady_now();
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

bool Communicator::register_memory() {
  const std::shared_ptr<cuda::SlabPool>& pool = lane_.device->memory();
  std::lock_guard<std::mutex> lock(lane_.calls);
  if (state_ != State::kInUse || !lane_.lost.ok()) return false;
  may_register_ &= pool->has_source();
  if (!may_register_) return false;
  for (const cuda::Slab& slab : pool->slabs(registrations_.size())) {
    const StatusOr<RegisterHandle> registered =
        api_.comm_register(handle_, slab.begin, static_cast<uint64_t>(slab.size_bytes));
    may_register_ = registered.ok() && *registered != nullptr;
    if (!may_register_) return false;
    pool_ = pool;
    registrations_.push_back(*registered);
  }
  return true;
}

Status Communicator::stop_registering(absl::Time deadline) {
  {
    std::lock_guard<std::mutex> lock(lane_.calls);
    may_register_ = false;
    if (registrations_.empty()) return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(lane_.device->queue().wait_done(deadline));
  std::lock_guard<std::mutex> lock(lane_.calls);
  if (state_ == State::kInUse) deregister_all();
  return absl::OkStatus();
}

// What NCCL says to it changes nothing: the memory is kept for as long as it may look there.
void Communicator::deregister_all() {
  for (const RegisterHandle registration : registrations_) {
    api_.comm_deregister(handle_, registration).IgnoreError();
  }
  registrations_.clear();
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
  deregister_all();
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

Communicator::Released Communicator::release() {
  std::lock_guard<std::mutex> lock(lane_.calls);
  state_ = State::kReleased;
  registrations_.clear();
  return {std::exchange(handle_, nullptr), std::exchange(pool_, nullptr)};
}

}  // namespace tessera::nccl
