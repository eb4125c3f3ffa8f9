// SPDX-License-Identifier: Apache-2.0
//
// Engine: moves bytes between one client and clients of the job on other hosts.
//
//   client 0                                        client 4 (host b)
//   connect({4}, deadline)   <- both ends call ->   connect({0}, deadline)
//                                                   receive(0, tag, bytes, keeper, done)
//   ... agreed through the coordinator, or by a small message: client 4 has posted ...
//   send(4, tag, bytes, keeper, done)
//
// An engine knows nothing of groups, of the order of additions or of signatures: the levels above
// add those. UCX, MPI and Gloo implement this interface, and one suite tests them
// (testing/engine_conformance.h).
//
// Invariants:
//   1. The k-th send of client a to client b with a tag is received by the k-th receive that b
//      posts for a with that tag. Tags are independent of each other: a message may overtake
//      messages of other tags. A message has the size of its receive; else the receive ends as
//      Internal, its memory has any content, and later messages are not affected.
//   2. `done` is called exactly once, also for operations submitted while a client is cut or the
//      engine is stopped. It runs on the engine's thread or on a thread in wait(), never inside the
//      call that submits. The exception is after stop(): there is no thread then, and the
//      submitting call runs it. Operations complete without further calls.
//   3. `done` of a send says that its bytes may be changed, not that they have arrived. `done` of a
//      receive with OK says that all bytes have arrived.
//   4. The engine does not touch the memory of an operation after `done(OK)`. After `done(error)` a
//      library may still own the memory: `keeper` is held until the library releases it, which may
//      last until stop(). Memory without a keeper must stay mapped until stop() has returned, or
//      until `done(OK)`.
//   5. After cut() of a client no operation with it ends OK, and no byte of an older connection
//      reaches an operation that is submitted after the next connect().
//   6. The library below is not loaded or initialized before the first connect() with a client that
//      is not connected.
//
// Flow: the engine stores what arrives before its receive is posted, without bound. So a send of
// more than kMostUnannounced bytes is submitted only when the caller knows that the peer has posted
// the receive. To fill a link both ways, cut large messages in blocks of 256 KiB and keep four in
// flight each way.
//
// Threads:
// - Thread-safe. One thread at a time works with the library's objects: the engine's thread, or a
//   thread in wait().
// - Submissions are processed in their order.
// - `done` may submit, cut, and destroy its captures. It must not block, and must not call
//   connect(), wait() or stop().
// - After a fork() the child must not use the engine. If the child exits, or destroys the engine,
//   the parent's engine is not affected.
#ifndef TESSERA_TRANSPORT_ENGINE_H_
#define TESSERA_TRANSPORT_ENGINE_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"

namespace tessera::transport {

// A number below kNumTags that the two ends of a message agree on.
using Tag = uint64_t;
inline constexpr Tag kNumTags = Tag{1} << 40;
// Letters have tag 0, link_measurement.h the tags from here on, and the runs of groups the rest.
inline constexpr Tag kFirstMeasurementTag = 1;
inline constexpr Tag kFirstTagOfRuns = 4;

// The size in bytes up to which a message may be sent before its receive is posted.
inline constexpr int64_t kMostUnannounced = 4096;

class Engine {
 public:
  // How an operation ended: OK, Unavailable (the client is lost or was cut, with that reason),
  // Cancelled (stop()), FailedPrecondition (never connected), Internal (sizes differ).
  using Done = absl::AnyInvocable<void(const Status&)>;
  using LostListener = std::function<void(int client, const Status& reason)>;
  // Keeps memory mapped and unused by others.
  using Keeper = std::shared_ptr<const void>;

  // Calls stop().
  virtual ~Engine() = default;

  // Connects to the clients; returns at once for clients that are connected.
  // - Collective over the two ends of each pair: the n-th connection of one end is made with the
  //   n-th of the other. So after a cut at one end only, connect() waits until the other end has
  //   seen the cut (the engine tells it where the process lives), or until the deadline.
  // - One call may serve many clients, and calls of several threads may overlap.
  //   InvalidArgument     a client that is not of the job, or this client itself
  //   DeadlineExceeded, Unavailable
  //                       names the first client that failed, and both addresses where known
  //   Unimplemented       the library is missing: what to install
  //   Cancelled           stop() has been called
  // Clients that were reached before the error are connected. `deadline` is of steady_now().
  virtual Status connect(absl::Span<const int> clients, absl::Time deadline) = 0;

  // As connect() to the clients of other hosts, at the start of a job. Collective over all clients
  // of the job: each calls it once, before connect(). Client 0 collects the offers of all clients,
  // so a client makes a few calls of the coordinator instead of two for each other client.
  virtual Status connect_all(absl::Span<const int> clients, absl::Time deadline) = 0;

  // Submits a message to a client, or a receive of a message from it. A message may have zero
  // bytes. Until `done` other threads must not write `bytes`, and in a receive must not read them.
  // CHECKs the client and the tag.
  virtual void send(int client, Tag tag, absl::Span<const std::byte> bytes, Keeper keeper,
                    Done done) = 0;
  virtual void receive(int client, Tag tag, absl::Span<std::byte> bytes, Keeper keeper,
                       Done done) = 0;

  // Ends the connection, without regard to the peer, which may have stopped or be unreachable. Does
  // not wait. `reason` is an error; the first of several reasons counts.
  // - All operations with the client that were submitted before end soon, as Unavailable with
  //   `reason`. Later operations end so too, until the next connect().
  // - A connect() under way with the client fails with `reason`, or at its deadline where the peer
  //   has not called it yet.
  virtual void cut(int client, const Status& reason) = 0;

  // One wait() of a thread. Its fields are the engine's, which sets them under its mutex.
  struct Wait {
    std::atomic<bool> is_over{false};
    std::condition_variable woken;
  };
  // Blocks until wake(wait), or for at most `limit`. A waiting thread does the engine's work, so
  // that `done` wakes that thread directly and no other thread has to be scheduled.
  virtual void wait(Wait& wait, absl::Duration limit) = 0;
  // Ends wait(wait), which may not have begun. Any thread; `wait` must live.
  virtual void wake(Wait& wait) = 0;

  // Sets the listener for broken connections. It is called in the same places as `done`, when the
  // library reports that the connection to a client is broken, after the client was cut with that
  // reason.
  // - No engine finds all losses, and some find none. Heartbeats and deadlines above find a stopped
  //   peer and a network that fails under load.
  // - It is also called for a peer that stopped its engine in order.
  // - When this returns the previous listener is not running, unless it is the caller, and is not
  //   called again.
  virtual void set_lost_listener(LostListener listener) = 0;

  // Ends all operations as Cancelled and all connections, and waits until no callback runs. Bytes
  // of a completed send that the peer has not received may be lost: agree first. Idempotent.
  virtual void stop() = 0;
};

}  // namespace tessera::transport

#endif  // TESSERA_TRANSPORT_ENGINE_H_
