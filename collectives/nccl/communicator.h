// SPDX-License-Identifier: Apache-2.0
//
// Communicator: one device's rank in one generation of a group's NCCL communicator.
//
//   generation 1   made by all members ... used ... a verdict: never used again
//   generation 2   made by all members ...
//
// The members agree on two facts of a generation (generations.h): that it is made, and its verdict.
// Any member may make the verdict; it ends the generation for all members, with one text.
//
// Thread-safe, except init() and issue(), which only the issuing thread calls.
#ifndef TESSERA_COLLECTIVES_NCCL_COMMUNICATOR_H_
#define TESSERA_COLLECTIVES_NCCL_COMMUNICATOR_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/nccl/api.h"
#include "collectives/nccl/generations.h"
#include "collectives/nccl/other_hosts.h"
#include "device/cuda/cuda_device.h"

namespace tessera::nccl {

// A device of this client, as NCCL sees it.
struct Lane {
  cuda::CudaDevice* device;
  // Held during calls of NCCL for the device by its issuing thread, and for short polls by others.
  // A call of NCCL may fail to return: only the issuing thread waits for it without a limit.
  std::mutex calls;

  // Why the device cannot be used any more; OK while it can.
  Status lost() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return lost_;
  }
  void lose(const Status& reason) {
    std::lock_guard<std::mutex> lock(mutex_);
    lost_.Update(reason);
  }

 private:
  mutable std::mutex mutex_;  // guards lost_
  Status lost_;
};

class Communicator {
 public:
  Communicator(Api& api, Lane& lane, const Generations& generations, uint32_t generation)
      : api_(api), lane_(lane), generations_(generations.view()), generation_(generation) {}

  Lane& lane() { return lane_; }
  uint32_t generation() const { return generation_; }
  // Whether the generation, at which all have arrived, has a verdict.
  bool is_failed() const { return generations_.is_failed(generation_); }
  // The verdict, once there is one. May wait for another client, as fail() does.
  Status verdict() { return generations_.verdict(generation_); }
  // Makes `error` the verdict, unless there is one; returns the verdict. `limit`: for the
  // coordinator.
  Status fail(const Status& error, absl::Time limit) {
    return generations_.fail(generation_, error, limit);
  }
  Status fail(const Status& error) { return fail(error, steady_now() + OtherHosts::kVerdictLimit); }
  // fail() for a caller that needs no verdict: waits only for the coordinator.
  void end(const Status& error, absl::Time limit) { generations_.end(generation_, error, limit); }
  // Records that the device is done with a generation that has its verdict: it reads no other
  // member's memory any more. Must be called once.
  void leave() { generations_.leave(generation_); }
  // Whether all members of this host have left it; members of other hosts read no memory of this
  // host.
  bool have_all_left() { return generations_.have_all_left(generation_); }
  void set_member_lost() { member_lost_ = true; }
  bool is_member_lost() const { return member_lost_; }

  // Makes the rank; returns when all have arrived, with the verdict where they do not.
  Status init(const UniqueId& id, int rank, absl::Time deadline);
  // Runs `calls` as one group that gives the stream work; returns when NCCL has accepted it.
  Status issue(absl::FunctionRef<Status(CommHandle)> calls, absl::Time deadline);
  // The error that NCCL has found, if it has. Waits for the issuing thread's call of NCCL, unless
  // there is a verdict, or the device is lost.
  Status async_error();
  // As async_error(), without waiting: OK while the issuing thread is in a call.
  Status try_async_error();

  // ---- For the end. After the first of these calls none of the functions above gives the stream
  // work.

  // How a communicator that failed is to end.
  enum class End {
    kNothing,  // there is none, or it has ended
    kRevoke,
    // Without a revoke: the last call is in progress or failed, with no earlier work in flight
    // (Api::comm_revoke()).
    kAbort,
    kStuck,  // the issuing thread's call of NCCL did not return by the deadline
  };
  End begin_end(absl::Time deadline);
  // Requires an idle stream.
  Status finalize();
  // Whether nothing is in progress. Must not be called while the issuing thread is in a call.
  StatusOr<bool> poll();
  // A handle and its owner; null where there is no handle any more.
  struct Released {
    CommHandle handle = nullptr;
    std::shared_ptr<cuda::Api> cuda;
    int gpu = 0;
  };
  // After kRevoke: the handle to revoke.
  Released to_revoke();
  // Removes the handle, which the caller frees; nothing where the issuing thread's call of NCCL did
  // not return by the deadline.
  std::optional<Released> release(absl::Time deadline);

 private:
  enum class State { kNone, kInUse, kEnding, kReleased };

  // Locks the lane for a thread that does not wait for ever.
  std::unique_lock<std::mutex> lock_until(absl::Time deadline);
  // The error of a call that began after the end.
  Status give_up() { return fail(absl::AbortedError("the communicator was given up")); }
  // Polls until NCCL has finished the last call.
  Status settle(absl::Time deadline);
  Api& api_;
  Lane& lane_;
  Generations generations_;  // a view of the mover's
  const uint32_t generation_;
  std::atomic<bool> member_lost_{false};
  // Guarded by the lane's lock.
  State state_ = State::kNone;
  CommHandle handle_ = nullptr;
  bool is_settled_ = false;      // NCCL has finished the last call without an error
  bool has_given_work_ = false;  // in a call that NCCL has finished
};

}  // namespace tessera::nccl

#endif  // TESSERA_COLLECTIVES_NCCL_COMMUNICATOR_H_
