// SPDX-License-Identifier: Apache-2.0
//
// Watch: what a client's GPUs have under way by NCCL, and how it ends where it cannot go on.
//
//   issuing threads     begin() ... calls of NCCL ... given()     an operation is under way
//   reaping threads     check(), before work counts as done       has anything failed?
//   the watch's thread  polls what is under way; revokes, drains, frees
//
// A kernel of NCCL waits for its peers for as long as they take. These events end the wait:
//
//   a member is lost, or another one has failed     the communicator's verdict (communicator.h)
//   the network or the GPU failed                   Api::poll(), cuda::Api::query_event()
//   the deadline of an operation has passed         its stream has reached it, and it took so long
//
// Then all work under way on this client's GPUs fails, since later work in a stream may have used
// data that never arrived. In this order:
//   1. the communicators of all that is under way get the verdict, which their members see;
//   2. whatever the streams were given ends with it (CudaStream::fail_given());
//   3. the communicators are revoked, so that their kernels end, and the streams drain; one whose
//      last call is in progress, with nothing running, needs no revoke (Api::comm_revoke());
//   4. when the other members have got as far, or have had time to, they are aborted, which frees
//      them: what a peer's kernel still reads is not freed before.
//
// To free memory CUDA waits for the GPU and its peers, so an abort may last as long as what they
// do for other groups. Its limit counts from when that is through.
//
// Invariants:
//   1. an operation under way that is done, with no verdict on its communicator at that time, has
//      moved what it should: a peer that failed earlier has told its verdict before it let its
//      stream go on;
//   2. calls for the communicators of one GPU come from one thread at a time (Lane::calls);
//   3. no thread waits for the end of a communicator for ever: revokes, aborts and destroys run on
//      threads of their own, and where one does not return in time, the devices concerned are lost,
//      and everything on them fails at once. A thread that ends what failed is made for each
//      failure, so that the rest is still watched; it leaves nothing when it ends. A communicator
//      whose issuing thread does not return from NCCL is tried again until it does;
//   4. no thread waits for a lane, another client or the coordinator while it holds mutex_: a call
//   of NCCL may last, or not return; the coordinator may not be reached, while a deadline passes.
//
// Thread-safe. Locks: mutex_, then those of lanes, which are then only tried.
#ifndef TESSERA_COLLECTIVES_NCCL_WATCH_H_
#define TESSERA_COLLECTIVES_NCCL_WATCH_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "base/thread.h"
#include "collectives/nccl/api.h"
#include "collectives/nccl/communicator.h"
#include "collectives/nccl/other_hosts.h"
#include "device/completion.h"
#include "device/cuda/cuda_device.h"

namespace tessera::nccl {

struct WatchOptions {
  // How long the steps of an end may take before the next, rougher one.
  absl::Duration revoke_limit = absl::Seconds(10);
  // As revoke_limit, where a member is lost and will not arrive.
  absl::Duration lost_limit = absl::Seconds(1);
  absl::Duration abort_limit = absl::Seconds(20);
  // How long the coordinator may take to say which verdict of several hosts was first.
  absl::Duration verdict_limit = OtherHosts::kVerdictLimit;
};

class Watch {
 public:
  // `devices` are the client's, and must outlive the watch. Sets the gates of their streams.
  // ResourceExhausted where the thread cannot be started.
  static StatusOr<std::unique_ptr<Watch>> create(std::shared_ptr<Api> api,
                                                 absl::Span<cuda::CudaDevice* const> devices,
                                                 const WatchOptions& options = {});
  // Ends all communicators. The streams must have stopped.
  ~Watch();

  Api& api() { return *api_; }
  Lane& lane(const cuda::CudaDevice* device);

  // Takes a communicator that is being made, until it is freed.
  void add(std::shared_ptr<Communicator> communicator);

  // One operation of one device.
  struct Flight {
    std::shared_ptr<Communicator> communicator;
    std::string label;
    cuda::Event begun;  // null: nothing was given to the stream yet
    cuda::Event ended;
    absl::Duration timeout = absl::InfiniteDuration();  // from when the stream reaches it
    absl::Time deadline = absl::InfiniteFuture();
  };
  // Before the first call of NCCL for the operation; the verdict where it cannot begin.
  StatusOr<uint64_t> begin(Flight flight);
  // When the stream was given all of it.
  void given(uint64_t id, cuda::Event begun, cuda::Event ended);

  // Fails what is under way if anything of it has failed; that error.
  Status check();

 private:
  using Communicators = std::vector<std::shared_ptr<Communicator>>;

  Watch(std::shared_ptr<Api> api, const WatchOptions& options);

  struct Entry {
    uint64_t id;
    Flight flight;
  };

  void run();
  // One round of run(). `lock` holds mutex_ and is released while verdicts are made.
  void look(std::unique_lock<std::mutex>& lock);
  Communicators communicators_under_way();
  // Whether it is through; an error where it cannot go on, which is to be the verdict. Requires
  // mutex_.
  StatusOr<bool> is_through(Entry& entry);
  // Steps 1 and 2, unless they were taken since num_failures_ was `epoch`; the verdict on `failed`.
  Status fail_all(Communicator& failed, uint64_t epoch);
  // Step 2, once all that is under way has a verdict. Requires mutex_.
  void end_given(const Status& verdict);
  // Whether an operation of it is under way. Requires mutex_.
  bool is_under_way(const Communicator& communicator) const;
  // The first communicator under way that has a verdict, or null. Requires mutex_.
  std::shared_ptr<Communicator> find_failed() const;
  // Starts end() on a thread of its own, or runs it where there are no more threads.
  void start_end(Communicators communicators, std::unique_lock<std::mutex>& lock);
  // Steps 3 and 4.
  void end(Communicators communicators);
  // Until `done`, or nothing is under way of what was when it was called.
  void wait_until_through(const Completion& done);
  // The end of what has not failed.
  void finalize(Communicators communicators);
  void wait_until_left(absl::Span<const std::shared_ptr<Communicator>> communicators);
  // Waits until nothing of them is in progress; false where that did not come in time.
  bool settle(absl::Span<const std::shared_ptr<Communicator>> communicators, absl::Time deadline);
  bool drain(absl::Span<const std::shared_ptr<Communicator>> communicators, absl::Time deadline);
  // Calls on a thread of their own. Null where no thread can be started.
  struct Calls;
  std::shared_ptr<Calls> start_calls(std::vector<Communicator::Released> communicators,
                                     Status (Api::*call)(CommHandle));
  // Revokes them; false, and the devices are lost, where it does not return.
  bool revoke(const Communicators& communicators);
  // Starts to free what the calls name; null where it cannot.
  std::shared_ptr<Calls> start_free(const Communicators& communicators,
                                    Status (Api::*call)(CommHandle));
  // Waits for that, up to the limit, which counts from now or from when all is through that others
  // have under way; beyond it the devices are lost.
  enum class How { kAlone, kBesideOthers };
  void wait_free(const Communicators& communicators, const std::shared_ptr<Calls>& calls, How how);
  void lose(absl::Span<const std::shared_ptr<Communicator>> communicators, absl::Duration limit);

  const std::shared_ptr<Api> api_;
  const WatchOptions options_;
  std::vector<std::unique_ptr<Lane>> lanes_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::list<Entry> under_way_;
  uint64_t next_id_ = 1;
  uint64_t num_failures_ = 0;    // how often all that was under way was ended
  Communicators communicators_;  // that are not freed
  Communicators failed_;         // of these, to be ended
  int num_ending_ = 0;           // threads that run end()
  std::atomic<bool> stopping_{false};
  Thread thread_;
};

}  // namespace tessera::nccl

#endif  // TESSERA_COLLECTIVES_NCCL_WATCH_H_
