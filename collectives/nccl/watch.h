// SPDX-License-Identifier: Apache-2.0
//
// Watch: the operations of a client's GPUs that NCCL has under way, and their end where they cannot
// continue.
//
//   issuing threads     begin() ... calls of NCCL ... given()     an operation is under way
//   reaping threads     check(), before work counts as done       has anything failed?
//   the watch's thread  polls operations under way; revokes, drains, frees
//
// A kernel of NCCL waits for its peers for as long as they take. These events end the wait:
//
//   a member is lost, or another one has failed     the communicator's verdict (communicator.h)
//   the network or the GPU failed                   Api::poll(), cuda::Api::query_event()
//   the deadline of an operation has passed         its stream has reached it, and it took so long
//
// Then all work under way on this client's GPUs fails, since later work in a stream may have used
// data that never arrived. In this order:
//   1. the communicators of all work under way get the verdict, which their members see;
//   2. all work that the streams have received ends with it (CudaStream::fail_given());
//   3. the communicators are revoked, so that their kernels end, and the streams drain. A
//      communicator whose last call is in progress, with nothing running, needs no revoke
//      (Api::comm_revoke());
//   4. when the other members have reached this step, or have had time to, the communicators are
//      aborted, which frees them: memory that a peer's kernel still reads is not freed before.
//
// To free memory CUDA waits for the GPU and its peers, so an abort may last as long as their work
// for other groups. The limit of the abort counts from the end of that work.
//
// Invariants:
//   1. an operation under way that is done, with no verdict on its communicator at that time, has
//      moved all of its bytes: a peer that failed earlier has published its verdict before it let
//      its stream continue;
//   2. calls for the communicators of one GPU are made by one thread at a time (Lane::calls);
//   3. no thread waits for the end of a communicator for ever: revokes, aborts and destroys run on
//      threads of their own. Where one does not return in time, the devices concerned are lost, and
//      everything on them fails at once. Each failure gets a thread that ends the failed
//      operations, so that the others are still watched; the thread leaves nothing when it ends. A
//      communicator whose issuing thread does not return from NCCL is tried again until it does;
//   4. no thread waits for a lane, another client or the coordinator while it holds mutex_: a call
//      of NCCL may last, or not return; the coordinator may be unreachable while a deadline passes.
//
// Thread-safe. Locks: mutex_, then the locks of lanes, which are then only tried.
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
  // How long to wait for the coordinator to say which verdict of several hosts was first.
  absl::Duration verdict_limit = OtherHosts::kVerdictLimit;
};

class Watch {
 public:
  // `devices` are the client's, and must outlive the watch. The watch sets the gates of their
  // streams.
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
    absl::Duration timeout = absl::InfiniteDuration();  // from the time when the stream reaches it
    absl::Time deadline = absl::InfiniteFuture();
  };
  // Before the first call of NCCL for the operation; the verdict where it cannot begin.
  StatusOr<uint64_t> begin(Flight flight);
  // To be called when the stream has received all of the operation.
  void given(uint64_t id, cuda::Event begun, cuda::Event ended);

  // Fails all operations under way if any of them has failed; returns that error.
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
  // Whether the operation is done; an error, which becomes the verdict, where it cannot continue.
  // Requires mutex_.
  StatusOr<bool> is_through(Entry& entry);
  // Steps 1 and 2, unless they ran since num_failures_ was `epoch`; returns the verdict on
  // `failed`.
  Status fail_all(Communicator& failed, uint64_t epoch);
  // Step 2, once all work under way has a verdict. Requires mutex_.
  void end_given(const Status& verdict);
  // Whether an operation of it is under way. Requires mutex_.
  bool is_under_way(const Communicator& communicator) const;
  // The first communicator under way that has a verdict, or null. Requires mutex_.
  std::shared_ptr<Communicator> find_failed() const;
  // Starts end() on a thread of its own, or runs it where there are no more threads.
  void start_end(Communicators communicators, std::unique_lock<std::mutex>& lock);
  // Steps 3 and 4.
  void end(Communicators communicators);
  // Waits for `done`, or until all operations that were under way at the call are over.
  void wait_until_through(const Completion& done);
  // Ends the communicators that have not failed.
  void finalize(Communicators communicators);
  void wait_until_left(absl::Span<const std::shared_ptr<Communicator>> communicators);
  // Waits until none of their calls is in progress; false at the deadline.
  bool settle(absl::Span<const std::shared_ptr<Communicator>> communicators, absl::Time deadline);
  bool drain(absl::Span<const std::shared_ptr<Communicator>> communicators, absl::Time deadline);
  // Calls of NCCL on a thread of their own. Null where no thread can be started.
  struct Calls;
  std::shared_ptr<Calls> start_calls(std::vector<Communicator::Released> communicators,
                                     Status (Api::*call)(CommHandle));
  // Revokes them. False, and the devices are lost, where NCCL does not return.
  bool revoke(const Communicators& communicators);
  // Starts to free the communicators by `call`; null where it cannot.
  std::shared_ptr<Calls> start_free(const Communicators& communicators,
                                    Status (Api::*call)(CommHandle));
  // Waits for start_free(), up to the limit, which counts from now or from the time when the work
  // of other groups is done; beyond the limit the devices are lost.
  enum class How { kAlone, kBesideOthers };
  void wait_free(const Communicators& communicators, const std::shared_ptr<Calls>& calls, How how);
  void lose(absl::Span<const std::shared_ptr<Communicator>> communicators, absl::Duration limit);

  const std::shared_ptr<Api> api_;
  const WatchOptions options_;
  std::vector<std::unique_ptr<Lane>> lanes_;

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::list<Entry> under_way_;
  uint64_t next_id_ = 1;
  uint64_t num_failures_ = 0;    // how often all work under way was ended
  Communicators communicators_;  // that are not freed
  Communicators failed_;         // of these, to be ended
  int num_ending_ = 0;           // threads that run end()
  std::atomic<bool> stopping_{false};
  Thread thread_;
};

}  // namespace tessera::nccl

#endif  // TESSERA_COLLECTIVES_NCCL_WATCH_H_
