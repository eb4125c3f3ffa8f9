// SPDX-License-Identifier: Apache-2.0
//
// Coordinator: one client's connection to the service that keeps the membership of a job.
//
// The service never sees tensor data. It keeps the members (client, host, pid, incarnation), a
// key-value space with blocking get, heartbeats, and check-ins with verdicts: named agreements that
// all participants pass together or fail with one and the same Status.
//
//   client 0   register ---+                       +--> members()
//   client 1   register ---+--> all registered ----+--> members()
//   client 2   register ---+                       +--> members()
//   ... session streams and heartbeats run until leave(); a broken one is a lost client ...
//
// Invariants:
//   1. connect_coordinator() returns only when all num_clients have registered.
//   2. All participants of one check-in get the same Status: code and message. A late participant
//      gets the stored verdict at once. The earliest deadline of the callers decides for all.
//   3. A client that was declared lost stays lost: its own later calls fail and say so.
//   4. Each lost client is reported to every other client once, however many signs there are.
//   5. Every call returns by its deadline (half a second later where the service is silent), and at
//      once when the service is known to be lost or over. Heartbeats run both ways from the moment
//      that a client has reached the service. Either side gives the other up when more than
//      kMissedHeartbeats in a row are missed, counted and not timed: a process that was stopped
//      asks before it judges, and a pause of kMissedHeartbeats intervals ends nothing.
//
// Thread-safe.
#ifndef TESSERA_JOB_COORDINATOR_COORDINATOR_H_
#define TESSERA_JOB_COORDINATOR_COORDINATOR_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "job/environment/member_info.h"

namespace tessera {

struct CircleStep;   // device_wait.h
struct WaitsReport;  // the same

// The Unavailable of a client, as "client 2 (host-b, pid 4711)", whose process or connections have
// ended. On the host of that client the kernel tells of it, elsewhere the coordinator, and where
// both do the first one counts: both say this, so that all survivors get one text.
Status loss_without_shutdown(absl::string_view client);

// A call of a client that waits for others.
struct AwaitedCall {
  enum Kind { kRegister, kGet, kCheckIn, kLeave };
  Kind kind = kRegister;
  std::string text = {};          // the key of a get, the value of a check-in
  int num_clients = 0;            // that take part, this one included
  std::vector<int> missing = {};  // those of them that it waits for
  std::vector<int> silent = {};  // those of these that have missed heartbeats, and are not lost yet
};

class Coordinator {
 public:
  // Called once for each client that is lost, with an Unavailable status that names the client and
  // says how the loss was noticed, from a thread that has no other work: it may wait for other
  // clients, and then only delays what is told of later losses. A lost service is the loss of
  // client 0 where that hosts it. Hosted elsewhere, it is reported as the loss of this
  // client itself, with a status that names the coordinator and its address: without the service a
  // client cannot go on, and no other client is to blame. So is its end in order, as Cancelled, to
  // a client that has not left.
  using LostCallback = std::function<void(int client_id, const Status& reason)>;

  virtual ~Coordinator() = default;

  virtual int client_id() const = 0;
  // All members, by client id. Equal on every client.
  virtual absl::Span<const MemberInfo> members() const = 0;
  int num_clients() const { return static_cast<int>(members().size()); }
  // The address of this host on its way to the service, as a number; empty where there is none.
  virtual std::string local_address() const { return ""; }

  // Sets the callback, and calls it at once for every client that is lost already.
  virtual void set_lost_callback(LostCallback callback) = 0;

  // Stores a value under a key. AlreadyExists if the key has another value.
  virtual Status put(absl::string_view key, absl::string_view value) = 0;
  // Waits until the key has a value, which client `setter` is to set. DeadlineExceeded names the
  // key; Unavailable where that client is lost or has left before.
  virtual StatusOr<std::string> get(absl::string_view key, int setter, absl::Time deadline) = 0;

  // The value that the first client has proposed for this number of the series: `value`, if that is
  // this one. The coordinator keeps the latest numbers of a series (proposals.h), whose numbers
  // ascend. For a forgotten number every caller gets its own value. Does not wait for other
  // clients; DeadlineExceeded where the coordinator does not answer by the deadline, without the
  // half second of invariant 5.
  virtual StatusOr<std::string> propose(absl::string_view series, uint32_t number,
                                        absl::string_view value, absl::Time deadline) = 0;
  // Waits until there is a value, as get() does. NotFound if it is forgotten.
  virtual StatusOr<std::string> get_proposal(absl::string_view series, uint32_t number, int setter,
                                             absl::Time deadline) = 0;

  // Waits until every participant has checked in under `name`, all with the same `value` and the
  // same participants (check_ins.h). A name may be used again and again.
  //   InvalidArgument   values or participants differ: names two clients that disagree, and both
  //   DeadlineExceeded  names every missing participant with host and pid
  //   Unavailable       a participant is lost, or has left before it came
  //   Cancelled         a participant, or the service, shut down in order while it waited
  virtual Status check_in(absl::string_view name, absl::string_view value,
                          absl::Span<const int> participants, absl::Time deadline) = 0;

  // Leaves the job in order: waits (up to its own deadline) until all live clients have called it.
  // From its start on this client is not lost, whatever becomes of it. DeadlineExceeded names the
  // clients that had not called it. They may still leave, in order; to them this client is gone
  // from now on: set_lost_callback() of each is called with "... has left the job". OK where the
  // service is over. Idempotent. When it returns, calls under way in other threads and later ones
  // fail: they are Cancelled where no other status is known.
  virtual Status leave(absl::Time deadline) = 0;

  // The calls of this client that wait here, and which clients they wait for: for reports of long
  // waits. Empty where that is not known by the deadline.
  virtual std::vector<AwaitedCall> awaited(absl::Time /*deadline*/) { return {}; }

  // Tells what devices of this client wait in, and what it has done for its last step. Returns the
  // next step against a circle of such waits (circles.h): kNone at the deadline, and at once where
  // this client reports again. One call at a time, and one more to end that.
  virtual StatusOr<CircleStep> report_waits(const WaitsReport& report, absl::Time deadline) = 0;

  // The error of a client that cannot start because of `status`. The loss of one client ends the
  // start of all clients, and the loss of client 0 may end the service. So where `status` is
  // Unavailable this is the first loss that this client is told within half a second; else it is
  // `status`.
  virtual Status cause_of_failed_start(const Status& status) { return status; }
};

// How many heartbeats in a row may be missed, on either side.
inline constexpr int kMissedHeartbeats = 3;

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_COORDINATOR_H_
