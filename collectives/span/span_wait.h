// SPDX-License-Identifier: Apache-2.0
//
// SpanWait: a run of a group over several hosts, as far as it waits: what it tells other hosts, how
// it waits for their answers and for the members of its host, and what ends a wait.
//
//   wait(is_ready)            for letters
//   wait_here(wait_until)         for the members of this host
//   wait_for_posted(is_ready)     for what another client of this host posts
//     | now and then: check()     a verdict, a loss, a broken connection, a deadline, a circle
//     v
//   OK, or the verdict of the run
//
// Deadlines. A member whose deadline has passed asks the missing members what they are doing. A
// member that has not arrived by then is late: it does not go on, but waits for the verdict. A
// member that has arrived says that its entry is on the way, and both go on. So the earliest
// deadline decides, without a clock that hosts have in common; a member that does not answer in
// time may still pass alone.
//
// Failure. A member that cannot go on (its deadline, a loss, the shutdown) proposes a verdict to
// the coordinator, where the first proposal for a run stands, and tells the other hosts. So all
// members that fail get one Status. A member that has its result keeps it: a later failure is told
// to the others alone.
//
// Invariant: a member reports a deadline only after each missing member has learned the signature
// of the run. A missing member learns it from a question, which it answers or leaves unanswered for
// kAnswerLimit, or from the settled record of its host.
//
// Threads: as of JointRun; other threads use news() alone.
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

  // Whether the member's device moves the bytes and tells the other members so. A message goes
  // through memory of the host.
  bool is_moved_by_device() const { return is_on_device() && !span_.is_for_messages; }

  // Blocks until `is_ready`, as of SpanState::wait_for(). An error is the verdict of the run.
  Status wait(absl::FunctionRef<bool(Board&)> is_ready);
  // Makes `error` the verdict of the run, unless it has one, on this host before other hosts are
  // told. Returns the verdict.
  Status fail(const Status& error);
  // The verdict on this host alone.
  Status settle_here(const Status& verdict);
  // Memory for a box, which is kept as long as the run: the engine may use it after a failure. An
  // error is the verdict of the run.
  StatusOr<std::byte*> stage(const Box& box);
  // A transfer begins; what is to be called at its end.
  transport::Engine::Done begin_transfer(Transfers::Kind kind, int client);

 protected:
  // When it has waited for so long a run looks for a circle of waits on this host; after kLongWait,
  // and then each second, it is told to the coordinator.
  static constexpr absl::Duration kFirstLook = absl::Milliseconds(5);

  // As wait(), for members of this host: `wait_until` blocks until a time, or until the run has
  // news, and says whether the wait is over.
  Status wait_here(absl::FunctionRef<bool(absl::Time)> wait_until);
  // As wait(), for the entries of a run that reads what another client posts.
  Status wait_for_posted(absl::FunctionRef<bool(Board&)> is_ready);
  // For a member that arrives after the deadline of another one.
  Status wait_for_verdict();
  // As fail(), for a run that may not have begun. `deadline`: of a caller that waits, where that is
  // earlier than the run's.
  Status propose(const Status& error, absl::Time deadline = absl::InfiniteFuture());
  // The error of a deadline. Asks the members that are missing what they do.
  Status missing(absl::Time start, absl::Time deadline);
  void send_entry(int client, Letter::Kind kind, int to, const std::vector<std::byte>& body);
  // In one letter to each other host.
  void send_to_receivers(const std::vector<std::byte>& entries);
  // Tells other hosts of the members that have arrived here and that they were not told of.
  void send_arrivals();

  bool has_looked = false;  // for circles of waits
  absl::Time next_look = absl::InfinitePast();
  uint64_t num_breaks = 0;  // of connections, when it began (Links)
  // Its entry goes to each client of the other hosts: its input is not in it, so that members send
  // each other letters in any case, or it has no room in the record.
  bool is_sent_apart = false;
  bool is_told = false;  // its arrival, to other hosts, now or with those of others

 private:
  // OK while the run can go on; else its verdict.
  Status check();
  // The result of a run that another member has ended.
  std::optional<Status> failure();
  // When a wait has to check conditions for which nothing wakes it. Requires the mutex.
  absl::Time next_check();
  // At a deadline: OK where all turn out to have arrived in time.
  Status end_at_deadline(absl::Time start, absl::Time deadline);
  // Asks the members on other hosts that have not arrived what they do. Waits for a moment.
  std::map<int, std::string> ask_missing(const std::vector<bool>& arrived);
  // The clients whose connections the run still needs. Requires the mutex.
  absl::Span<const int> needed_clients() const;
  // The clients that the run waits for, as far as is known here; all others where that is nothing.
  std::vector<int> awaited_clients() const;
  // Ends a circle of waits on this host that the arrived member is in. Has the coordinator look for
  // others once the member has waited for kLongWait.
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
