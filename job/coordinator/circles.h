// SPDX-License-Identifier: Apache-2.0
//
// Circles: finds devices that wait for each other in a circle that spans several hosts, and ends
// their waits.
//
//   client 0   report{device 0 waits in run a for device 1}   open  <-- kConfirm
//   client 1   report{device 1 waits in run b for device 0}   open  <-- kConfirm
//   client 0   report{the same; confirmed}                    open  <-- kEnd run a, hold device 0
//   client 1   report{the same; confirmed}                    open
//   client 0   report{ended}                                  open
//   client 1                                                        <-- kEnd run b
//   client 1   report{ended}                                        <-- kRelease, to both
//
// A client reports while its devices have waited for long. A report is valid here while its call is
// open. A run waits for the members that have not arrived, and each of these may wait in a run of
// another group: the search follows runs from one to the next until one leads back.
//
// Two barriers of one name, on groups that overlap, are treated as a circle of two.
//
// Invariants:
//   1. The waits of a circle that is ended all existed at one moment: each was reported before the
//      clients were asked to confirm, and confirmed after. A device waits in one run at a time, and
//      a missing member does not arrive while it waits elsewhere.
//   2. A circle that stays is found kSearchPause after the last of its clients has reported, or
//      reports again.
//   3. Every run of a circle ends; none succeeds because a device of another run became free to
//      join it. A run ends after the run that waits for its device, and the first device is held
//      until the last run has ended. This does not hold where a client takes longer than
//      kStepLimit, or is lost.
//   4. A client is in one circle at a time. A circle is given up where a wait of it has ended, a
//      client is gone, or a step takes longer than kStepLimit.
//   5. A circle that was not confirmed is searched again only after a client's next plain report.
//   6. A report takes O(log n) for each device of it. A search follows each run once, from one wait
//      of the run, however many clients have reported since the last search. A step has only the
//      waits of its client, and names kMostNamed of a circle. The state is the open reports and one
//      step per client.
//
// The waits follow Chandy, Misra and Haas, "Distributed Deadlock Detection" (1983): waits for all,
// with runs in the place of processes, gathered in one place instead of by probes.
//
// Not thread-safe.
#ifndef TESSERA_JOB_COORDINATOR_CIRCLES_H_
#define TESSERA_JOB_COORDINATOR_CIRCLES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "job/coordinator/deadline_queue.h"
#include "job/coordinator/device_wait.h"

namespace tessera {

class Circles {
 public:
  using Done = std::function<void(const StatusOr<CircleStep>&)>;
  static constexpr absl::Duration kStepLimit = absl::Seconds(5);
  // The pause after the first report that has not been searched: the other reports of a circle
  // arrive in about this time.
  static constexpr absl::Duration kSearchPause = absl::Milliseconds(100);
  static constexpr size_t kMostNamed = 16;

  // Answers are appended to `callbacks`.
  Circles(DeadlineQueue& deadlines, std::vector<std::function<void()>>& callbacks)
      : deadlines_(deadlines), callbacks_(callbacks) {}
  ~Circles();
  Circles(const Circles&) = delete;
  Circles& operator=(const Circles&) = delete;

  // Answers with the client's next step. The answer is kNone at the deadline, when the client
  // reports again or is gone, and immediately where it reports no wait and is in no circle.
  void report(int client, WaitsReport report, absl::Time now, absl::Time deadline, Done done);
  void client_gone(int client);
  // Fails the open calls.
  void stop(const Status& reason);

 private:
  struct Open {
    WaitsReport report;
    Done done;
    DeadlineQueue::Handle expiry;
  };
  struct Waiting {
    int client;
    const DeviceWait* wait;  // in its Open
  };
  struct Circle {
    std::vector<DeviceWait> waits;
    std::vector<int> clients;   // by wait
    std::set<int> unconfirmed;  // clients
    size_t at = 0;              // the step: 0: all confirm; k: the k-th wait is being ended
    DeadlineQueue::Handle expiry;
  };

  void close(int client, const StatusOr<CircleStep>& answer);
  // Handles a client's reply to its step.
  void take_reply(int client, const WaitsReport& report, absl::Time now);
  void search(absl::Time now);
  // The runs of a search, and the path of runs to the present one.
  struct Path;
  // Extends the path from its last run, and returns the circle that it closes; empty: none.
  std::vector<Waiting> follow(Path& path) const;
  void begin(const std::vector<Waiting>& waits, absl::Time now);
  void set_limit(uint64_t number, Circle& circle, absl::Time now);
  // Answers the client's open call, or its next one.
  void give(int client, uint64_t number, CircleStep::Kind kind);
  // The step of a client in a circle, in its phase.
  CircleStep step_for(int client, uint64_t number, CircleStep::Kind kind) const;
  void drop(uint64_t number);

  DeadlineQueue& deadlines_;
  std::vector<std::function<void()>>& callbacks_;
  std::map<int, Open> open_;                     // by client
  std::map<int, Waiting> waiting_;               // by device
  std::optional<DeadlineQueue::Handle> search_;  // the next search, if one is due
  uint64_t last_number_ = 0;
  std::map<uint64_t, Circle> circles_;  // by number
  std::map<int, uint64_t> circle_of_;   // by client
  std::map<int, CircleStep> steps_;     // of clients whose call is not open
};

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_CIRCLES_H_
