// SPDX-License-Identifier: Apache-2.0
//
// SpanWait: the waits of a run of a group over several hosts: its messages to other hosts, its
// waits for their answers and for the members of its host, and the events that end a wait.
//
//   wait(is_ready)            for letters
//   wait_here(wait_until)         for the members of this host
//   wait_for_posted(is_ready)     for postings of another client of this host
//     | now and then: check()     a verdict, a loss, a broken connection, a deadline, a circle
//     v
//   OK, or the verdict of the run
//
// Deadlines. A member whose deadline has passed asks the missing members for their activities.
// - A member that has not arrived by then is late: it does not continue, but waits for the verdict.
// - A member that has arrived says that its entry is on the way, and both continue.
// - So the earliest deadline decides, without a clock that hosts share. A member that does not
//   answer in time may still pass alone.
//
// Failure. A member that cannot continue (its deadline, a loss, the shutdown) proposes a verdict to
// the coordinator, where the first proposal for a run stands, and tells the other hosts. So all
// members that fail get one Status. A member that has its result keeps it: a later failure is an
// error of the others only.
//
// Invariant: a member reports a deadline only after each missing member has learned the signature
// of the run. A missing member learns it from a question, which it answers or leaves unanswered for
// kAnswerLimit, or from the settled record of its host.
//
// Threads: as JointRun; other threads use only news().
#ifndef TESSERA_COLLECTIVES_SPAN_SPAN_WAIT_H_
#define TESSERA_COLLECTIVES_SPAN_SPAN_WAIT_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/shape.h"
#include "base/status.h"
#include "collectives/arguments.h"
#include "collectives/collective.h"
#include "collectives/host/joint_run.h"
#include "collectives/span/boards.h"
#include "collectives/span/letters.h"
#include "collectives/span/span_state.h"
#include "collectives/span/transfers.h"
#include "device/cpu/arena.h"
#include "transport/engine.h"

namespace tessera::span {

class SpanWait : public host::JointRun {
 public:
  // `state`: of the group.
  SpanWait(SpanState& state, int member, Collective::Ptr collective, Arguments&& arguments)
      : JointRun(state.meetings, member, std::move(collective), std::move(arguments), Clock::kTick),
        span_(state) {}

  SpanState& span() const { return span_; }
  RunNews& news() { return news_; }
  int position() const { return collective().place().position; }
  // Whether the inputs of all members are in their entries. Equal on all members.
  bool is_inlined() const { return span::is_inlined(collective()) && !is_on_device(); }

  // Whether the member's device moves the bytes and publishes that to the other members. A message
  // goes through memory of the host.
  bool is_moved_by_device() const { return is_on_device() && !span_.is_for_messages; }

  // Blocks until `is_ready`, which is as for SpanState::wait_for(). An error is the verdict of the
  // run.
  Status wait(absl::FunctionRef<bool(Board&)> is_ready);
  // Makes `error` the verdict of the run, unless it has one, on this host before other hosts are
  // told. Returns the verdict.
  Status fail(const Status& error);
  // The verdict on this host alone.
  Status settle_here(const Status& verdict);
  // Memory for a box, which is kept as long as the run: the engine may use it after a failure. An
  // error is the verdict of the run.
  StatusOr<std::byte*> stage(const Box& box);
  // Notes the begin of a transfer; returns the callback for its end.
  transport::Engine::Done begin_transfer(Transfers::Kind kind, int client);

 protected:
  // The first time at which a waiting run looks for a circle of waits on this host. After
  // kLongWait, and then each second, the run is reported to the coordinator.
  static constexpr absl::Duration kFirstLook = absl::Milliseconds(5);

  // As wait(), for members of this host: `wait_until` blocks until a time, or until the run has
  // news, and returns whether the wait is over.
  Status wait_here(absl::FunctionRef<bool(absl::Time)> wait_until);
  // As wait(), for the entries of a run that reads another client's postings.
  Status wait_for_posted(absl::FunctionRef<bool(Board&)> is_ready);
  // For a member that arrives after the deadline of another member.
  Status wait_for_verdict();
  // As fail(), for a run that may not have begun. `deadline`: of a caller that waits, where that is
  // earlier than the run's deadline.
  Status propose(const Status& error, absl::Time deadline = absl::InfiniteFuture());
  // The error of a deadline. Asks the missing members for their activities.
  Status missing(absl::Time start, absl::Time deadline);
  void send_entry(int client, Letter::Kind kind, int to, const std::vector<std::byte>& body);
  // Sends the entries in one letter to each other host.
  void send_to_receivers(const std::vector<std::byte>& entries);
  // Tells other hosts of the members here that have arrived and of which they do not know yet.
  void send_arrivals();

  bool has_looked = false;  // for circles of waits
  absl::Time next_look = absl::InfinitePast();
  uint64_t num_breaks = 0;  // of connections, when it began (Links)
  // Its entry is sent to each client of the other hosts. Either its input is not in the entry, so
  // that members send each other letters in any case, or the entry has no room in the record.
  bool is_sent_apart = false;
  bool is_told = false;  // other hosts know of its arrival, or will by a letter of others

 private:
  // OK while the run can continue; else its verdict.
  Status check();
  // The result of a run that another member has ended.
  std::optional<Status> failure();
  // The time at which a wait has to check the conditions for which nothing wakes it. Requires the
  // mutex.
  absl::Time next_check();
  // At a deadline: OK if all members have arrived in time after all.
  Status end_at_deadline(absl::Time start, absl::Time deadline);
  // Asks the members on other hosts that have not arrived for their activities. Waits for a moment.
  std::map<int, std::string> ask_missing(const std::vector<bool>& arrived);
  // The clients whose connections the run still needs. Requires the mutex.
  absl::Span<const int> needed_clients() const;
  // The clients for which the run waits, as far as this client knows; all others where it knows
  // none.
  std::vector<int> awaited_clients() const;
  // Ends a circle of waits on this host that includes the arrived member. Makes the coordinator
  // look for others once the member has waited for kLongWait.
  void look_for_circles();
  void end_same_name();
  Status end_in_circle(const RunNews::Ending& ending);
  SpanState::Verdict decide(const Status& error, absl::Time deadline) const;

  SpanState& span_;
  RunNews news_;
  std::vector<ArenaPool::Block> staged_;
  absl::Time next_ping_ = absl::InfinitePast();
};

}  // namespace tessera::span

#endif  // TESSERA_COLLECTIVES_SPAN_SPAN_WAIT_H_
