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
//   4. Each lost client is reported to every other client once, however many signs there are.
//   5. Every call returns by its deadline (half a second later where the service is silent), and
//      immediately when the service is known to be lost or over. Heartbeats run both ways from the
//      moment that a client has reached the service. Either side considers the other lost when more
//      than kMissedHeartbeats in a row are missed, counted and not timed: a process that was
//      stopped asks before it judges, and a pause of kMissedHeartbeats intervals ends nothing.
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
struct WaitsReport;  // see above

// The Unavailable of a client, named as "client 2 (host-b, pid 4711)", whose process or connections
// have ended. On the client's host the kernel reports the loss, elsewhere the coordinator, and
// where both do the first report counts. Both use this text, so that all survivors get one text.
Status loss_without_shutdown(absl::string_view client);

// A call of a client that waits for others.
struct AwaitedCall {
  enum Kind { kRegister, kGet, kCheckIn, kLeave };
  Kind kind = kRegister;
  std::string text = {};          // the key of a get, the value of a check-in
  int num_clients = 0;            // that take part, this one included
  std::vector<int> missing = {};  // clients that it waits for
  std::vector<int> silent = {};   // of `missing`: not lost, but heartbeats are missing
};

class Coordinator {
 public:
  // Called once for each lost client, with an Unavailable status that names the client and how the
  // loss was noticed. The calling thread has no other work: the callback may wait for other
  // clients, which only delays reports of later losses.
  // - Where client 0 hosts the service, a lost service is the loss of client 0.
  // - Where another process hosts it, a lost service is reported as the loss of this client itself,
  //   with a status that names the coordinator and its address: without the service a client cannot
  //   continue, and no other client is the cause.
  // - The end in order of such a service is reported in the same way, as Cancelled, to a client
  //   that has not left.
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

  // The value that the first client has proposed for this number of the series; `value`, if this
  // call is the first. Does not wait for other clients. DeadlineExceeded where the coordinator does
  // not answer by the deadline, without the half second of invariant 5. The coordinator keeps the
  // latest numbers of a series (proposals.h), whose numbers ascend; for a forgotten number every
  // caller gets its own value.
  virtual StatusOr<std::string> propose(absl::string_view series, uint32_t number,
                                        absl::string_view value, absl::Time deadline) = 0;
  // Waits until there is a value, as get() does. NotFound if it is forgotten.
  virtual StatusOr<std::string> get_proposal(absl::string_view series, uint32_t number, int setter,
                                             absl::Time deadline) = 0;

  // Waits until every participant has checked in under `name`, all with the same `value` and the
  // same participants (check_ins.h). A name may be used again and again.
  //   InvalidArgument   values or participants differ: names two clients that disagree, and both
  //   DeadlineExceeded  names every missing participant with host and pid
  //   Unavailable       a participant is lost, or has left before it checked in
  //   Cancelled         a participant, or the service, shut down in order while it waited
  virtual Status check_in(absl::string_view name, absl::string_view value,
                          absl::Span<const int> participants, absl::Time deadline) = 0;

  // Leaves the job in order: waits (up to its own deadline) until all live clients have called it.
  // From its start on this client cannot be lost any more. OK where the service is over.
  // Idempotent.
  // - DeadlineExceeded names the clients that had not called it. They may still leave, in order.
  //   For them this client is gone from now on: set_lost_callback() of each is called with "... has
  //   left the job".
  // - When it returns, calls under way in other threads and later calls fail: they are Cancelled
  //   where no other status is known.
  virtual Status leave(absl::Time deadline) = 0;

  // The calls of this client that wait here, with the clients for which they wait: for reports of
  // long waits. Empty where the answer does not arrive by the deadline.
  virtual std::vector<AwaitedCall> awaited(absl::Time /*deadline*/) { return {}; }

  // Reports the waits of this client's devices, and the result of its last step. Returns the next
  // step against a circle of such waits (circles.h): kNone at the deadline, and immediately where
  // this client reports again. One call at a time, and one more to end it.
  virtual StatusOr<CircleStep> report_waits(const WaitsReport& report, absl::Time deadline) = 0;

  // The error of a client that cannot start because of `status`. The loss of one client ends the
  // start of all clients, and the loss of client 0 may end the service. So where `status` is
  // Unavailable the result is the first loss that is reported to this client within half a second;
  // else it is `status`.
  virtual Status cause_of_failed_start(const Status& status) { return status; }
};

// How many heartbeats in a row may be missed, on either side.
inline constexpr int kMissedHeartbeats = 3;

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_COORDINATOR_H_
