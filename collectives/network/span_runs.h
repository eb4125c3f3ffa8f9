// SPDX-License-Identifier: Apache-2.0
//
// SpanRuns: the collectives of a group whose members are on several hosts, or the messages from one
// device to another, by the machinery of one host (collectives/host) among the members here, and by
// letters and an Engine between hosts.
//
//   placed(): numbered
//     | fills its entry, arrives on its host; the last member there sends the entries of all to one
//     | client of each other host, which posts them for the others of its host (Postings)
//     | the entries of all members are here, and agree; small inputs are in them: then the
//     | run needs nothing else of other hosts, and no loss there can fail it
//   first step    asks for the boxes or terms it lacks, and serves the requests of the others
//     | copies, or adds all terms in ascending order
//   second step   the same for sums that members make for others
//     | all members on this host have finished
//   retired
//
// A message is a run of the group {sender, receiver}. It does not occupy the stream of its device:
// each end has a thread of its own (HostResources::message_stream), in which messages are run in
// order. The sender's part is over when the receiver has told it so, in the second step.
//
// Devices whose memory is not the host's meet in the same way: the board that their DeviceMover
// fills is in the entry, in the place of an input. Then the mover moves the bytes, in place of both
// steps. A message of theirs goes through memory of the host, and then by the steps.
//
// Deadlines. A member whose deadline has passed asks the missing members what they are doing. A
// member that has not arrived by then is late: it does not go on, but waits for the verdict. A
// member that has arrived says that its entry is on the way, and both go on. So the earliest
// deadline decides, without a clock that hosts have in common; a member that does not answer in
// time may still pass alone.
//
// Numbers. A call takes its member's next number when it is enqueued, without waiting. It skips the
// number of a run that the others have given up where that was another call, as its signature says:
// so a member that left out a call does not take its verdict for that of the next call. The verdict
// itself may still be on its way, so the member also looks at the record of its host, and at the
// questions that it was asked.
//
// Failure. A member that cannot go on (its deadline, a loss, the shutdown) proposes a verdict to
// the coordinator, where the first proposal for a run stands, and tells the other hosts. So all
// members that fail get one Status. A member that has its result keeps it: a later failure is told
// to the others alone.
//
// Connections. A connection that breaks while both of its clients live fails the runs that were
// under way, at either end, and is made again (Links). Runs that begin meanwhile wait for it.
// Verdicts that did not reach the other end are sent again when it is up.
//
// Invariants:
//   1. no byte of a tensor moves before the member has the entries of all members;
//   2. a member is served by the member that holds the memory, while that is in the same run;
//   3. memory that a peer may still write or read is kept: by the run, which the engine's calls
//   own;
//   4. a member reports a deadline only after each missing member has learned the signature of the
//      run. A missing member learns it from a question, which it answers or leaves unanswered for
//      kAnswerLimit, or from the settled record of its host.
//
// Threads: as CollectiveRuns. Letters come where the engine calls; mutex_ guards what they bring.
#ifndef TESSERA_COLLECTIVES_NETWORK_SPAN_RUNS_H_
#define TESSERA_COLLECTIVES_NETWORK_SPAN_RUNS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "collectives/host/device_mover.h"
#include "collectives/host/host_group.h"
#include "collectives/host/joint_run.h"
#include "collectives/host/meetings.h"
#include "collectives/host/member_texts.h"
#include "collectives/network/boards.h"
#include "collectives/network/letters.h"
#include "collectives/network/long_waits.h"
#include "collectives/network/network.h"
#include "collectives/network/postings.h"
#include "collectives/network/span_exchange.h"
#include "collectives/network/transfers.h"
#include "collectives/network/verdicts.h"
#include "collectives/network/wants.h"
#include "device/cpu/arena.h"
#include "job/coordinator/coordinator.h"
#include "job/coordinator/device_wait.h"
#include "transport/engine.h"

namespace tessera::network {

class SpanRuns;

class SpanRun final : public host::JointRun {
 public:
  SpanRun(SpanRuns& runs, int member, Collective::Ptr collective, Arguments&& arguments);

  void placed() override;
  Status run() override;
  int position() const { return collective().place().position; }
  // Whether the inputs of all members are in their entries. Equal on all members.
  bool is_inlined() const;

  // Used by the running thread alone, until the run has ended.
  std::vector<ArenaPool::Block> staged;
  absl::Time next_look = absl::InfinitePast();  // for circles of waits
  bool has_looked = false;
  absl::Time next_ping = absl::InfinitePast();
  uint64_t num_breaks = 0;  // of connections, when it began (Links)
  // Its entry goes to each client of the other hosts: its input is not in it, so that members send
  // each other letters in any case, or it has no room in the record.
  bool is_sent_apart = false;
  bool is_told = false;  // its arrival, to other hosts, now or with those of others
  // Guarded by SpanRuns::mutex_.
  Transfers transfers;
  // The entries that it has sent for its host, until they are received.
  std::vector<std::byte> sent;
  // Guarded by SpanRuns::mutex_: from when to when a waiter has waited in vain.
  struct Waited {
    absl::Time called;
    absl::Time deadline;
  };
  std::optional<Waited> waited;
  bool is_waited_new = false;  // until check() has seen it
  bool differs_here = false;   // from another member of this host, all of which have arrived
  // Guarded by SpanRuns::mutex_: the end of a circle of waits that the run is in. The function that
  // takes it calls `next`.
  struct Ending {
    Status error;
    bool is_held = false;  // until is_released
    std::function<void()> next;
  };
  std::optional<Ending> ending;
  bool is_released = false;
  // Set under SpanRuns::mutex_ by what ends a wait for the members of this host.
  std::atomic<bool> has_news{false};

 private:
  void run_here(absl::Time deadline) override;
  Status give_up(host::DeviceActivity::Kind device, absl::Time called,
                 absl::Time deadline) override;
  void end_late(host::DeviceActivity::Kind, absl::Time called, absl::Time deadline) override;

  SpanRuns& runs_;
};

class SpanRuns final : public host::HostGroup, public WaitingGroup {
 public:
  // `members`: of all hosts, one at least a device of this client. Requires that the network is
  // connected to the clients of the other hosts. `device_mover`: of this group, for devices whose
  // memory is not the host's. Errors as of Rendezvous::open().
  static StatusOr<std::shared_ptr<HostGroup>> create(
      host::HostResources& resources, std::shared_ptr<Network> network,
      std::vector<host::GroupMember> members, bool is_for_messages,
      std::unique_ptr<host::DeviceMover> device_mover);
  // `rendezvous`: of those on this host, in the same order.
  SpanRuns(host::HostResources& resources, std::shared_ptr<Network> network,
           std::vector<host::GroupMember> members, bool is_for_messages,
           std::unique_ptr<host::DeviceMover> device_mover, host::Rendezvous rendezvous);
  ~SpanRuns() override;

  Work start(Collective::Ptr collective, Arguments arguments) override;
  void reap() override { meetings_.reap_quarantine(); }

  // Called by a run; see above.
  bool is_for_messages() const { return is_for_messages_; }
  // Whether the members of this host fetch a part each, and write it to all of them.
  bool divides(const Collective& collective) const;
  void number(SpanRun& run);
  Status execute(SpanRun& run);
  Status give_up(SpanRun& run, host::DeviceActivity::Kind device, absl::Time called,
                 absl::Time deadline);
  void end_late(SpanRun& run, const SpanRun::Waited& waited);

  std::optional<LocalWait> wait_of(int device) override;
  bool has_arrived(int device, uint32_t seq) override;
  bool has_part(const host::Rendezvous& on_host) const override {
    return meetings_.rendezvous().is_of_same_group(on_host);
  }
  void end(const DeviceWait& wait, const Status& error, bool is_held,
           std::function<void()>& next) override;
  void release(const DeviceWait& wait) override;
  void connection_broke(int client, uint64_t number) override;
  void connection_is_up(int client) override;
  GroupWait awaited_in(uint32_t seq) override;

 private:
  using Entry = Board::Entry;
  using Asked = Board::Asked;
  // The head of a letter with a verdict; its text follows.
  struct VerdictHead {
    Signature signature;
    int32_t code;
  };
  // When it has waited for so long a run looks for a circle of waits on this host; after kLongWait,
  // and then each second, it is told to the coordinator.
  static constexpr absl::Duration kFirstLook = absl::Milliseconds(5);
  // How long after its deadline a member has to say so, before a late member says it.
  static constexpr absl::Duration kVerdictLimit = absl::Seconds(1);
  // The interval of a wait's checks after the deadline.
  static constexpr absl::Duration kLateCheckInterval = absl::Milliseconds(5);
  // A waiter is woken once its condition holds, not for every letter.
  struct Waiter {
    absl::FunctionRef<bool()> is_ready;
    Engine::Wait wait = {};
  };
  using Members = std::vector<MemberMemory>;

  Work start_message_run(std::shared_ptr<SpanRun> run);
  // Whether others have given up the run with this number, as another call than `run`. Requires
  // mutex_.
  bool is_given_up(uint32_t seq, const SpanRun& run) const;
  Status meet_and_move(SpanRun& run);
  // Up to the entries of all. The error is not settled yet.
  Status meet(SpanRun& run, Status own);
  // Waits for the entries of the other hosts, or for a difference among those that have arrived.
  Status wait_for_entries(SpanRun& run);
  // What the member tells other hosts.
  std::vector<std::byte> encode_entry(const SpanRun& run, const Status& own) const;
  // Tells other hosts of a member that has arrived, now or with those that come within kFirstLook,
  // and the other clients of this host of what has come.
  Status tell_arrival(SpanRun& run, const std::vector<std::byte>& encoded);
  // Tells other hosts of the members that have arrived here and that they were not told of.
  void send_arrivals(SpanRun& run);
  // In one letter to each other host.
  void send_to_receivers(SpanRun& run, const std::vector<std::byte>& entries);
  void send_entry(SpanRun& run, int client, Letter::Kind kind, int to,
                  const std::vector<std::byte>& body);
  // Sends entries to the other clients of a host whose receiver has not shown them.
  void send_again(const Letter& not_yet);
  // Notes what another client of this host has posted. Requires mutex_.
  void read_posted(uint32_t seq);
  // The clients whose connections the run still needs. Requires mutex_.
  absl::Span<const int> needed_clients(const SpanRun& run);
  // For a member that arrives after the deadline of another one.
  Status wait_for_verdict(SpanRun& run);
  bool all_came(const SpanRun& run);
  // Whether the entries of all members on other hosts are here.
  bool have_all_come(const Board& board) const {
    return board.entries.size() == static_cast<size_t>(num_members() - size());
  }
  // `here`: arrivals() of the record. Requires mutex_.
  bool has_come(int member, const std::vector<bool>& here, const Board& board) const;
  // At a deadline: OK where all turn out to have arrived in time.
  Status end_at_deadline(SpanRun& run, absl::Time start, absl::Time deadline);
  // Whether all members of this host have arrived, and one has called something else.
  bool differ_here(const SpanRun& run) const;
  // Whether all members, which must have arrived, bring the same call and no error.
  bool agree(const SpanRun& run);
  // The error of the arrived members: an error that a member brings, or a disagreement.
  Status compare_entries(const SpanRun& run);
  Status move(SpanRun& run, Status& own_error);
  // Waits for the wants of a step and serves the others.
  Status exchange(SpanRun& run, const SpanExchange::Step& step);
  // A transfer begins; what is to be called at its end.
  Engine::Done begin_transfer(Transfers::Kind kind, SpanRun& run, int client);
  // For devices whose memory is not the host's.
  Status move_on_device(SpanRun& run, const Members& members, Status& own_error);
  Status pull(SpanRun& run, Members members, Status& own_error);
  Status reduce(SpanRun& run, const Members& members, Status& own_error);
  Status fetch_sums(SpanRun& run, const Members& members, const std::byte* own_sum);
  StatusOr<std::byte*> stage(SpanRun& run, const Box& box);
  // Blocks until `is_ready`, which is called under mutex_, by other threads too, and changes
  // nothing of theirs. An error is the verdict of the run.
  Status wait(SpanRun& run, absl::FunctionRef<bool(Board&)> is_ready);
  // As wait(), until `limit` has passed, with the lock of mutex_. Says whether it is ready. Does
  // the engine's work meanwhile.
  bool wait_for(std::unique_lock<std::mutex>& lock, absl::Duration limit,
                absl::FunctionRef<bool()> is_ready);
  // Wakes the threads whose condition now holds. Requires mutex_.
  void wake_waiters();
  // Wakes all threads, which then check conditions that no letter reports. Requires mutex_.
  void wake_all();
  // Ends the wait of a run for the members of this host, for a look. Requires mutex_.
  void tell(SpanRun& run);
  // tell() for all runs with this number.
  void tell_runs(uint32_t seq);
  // Waits for the members of this host: `wait_until` blocks until a time, or until the run has
  // news, and says whether it is so.
  Status wait_here(SpanRun& run, absl::FunctionRef<bool(absl::Time)> wait_until);
  // Whether the entries of other hosts come by what another client of this host posts. In a run
  // whose inputs are not in them members wait for letters in any case.
  bool waits_for_posted(const SpanRun& run) const { return postings_.reads() && run.is_inlined(); }
  // As wait(), for the entries of such a run.
  Status wait_for_posted(SpanRun& run, absl::FunctionRef<bool(Board&)> is_ready);
  // When a wait of the run has to check conditions for which nothing wakes it. Requires mutex_.
  absl::Time next_check(const SpanRun& run);
  // Ends a circle of waits on this host that the arrived member is in. Has the coordinator look for
  // others once the member has waited for kLongWait.
  void look_for_circles(SpanRun& run);
  void end_same_name(SpanRun& run);
  Status end_in_circle(SpanRun& run, const SpanRun::Ending& ending);
  // The result of a run that another member has ended.
  std::optional<Status> failure(SpanRun& run);
  // OK while the run can go on; else its verdict.
  Status check(SpanRun& run);
  // Makes `error` the verdict of the run, unless it has one. Returns the verdict. `deadline`: of a
  // caller that waits, where that is earlier than the run's.
  Status propose(const SpanRun& run, const Status& error,
                 absl::Time deadline = absl::InfiniteFuture());
  // As propose(), for a run that has begun. Before other hosts are told, the record of this host is
  // settled (invariant 4).
  Status fail(const SpanRun& run, const Status& error);
  // The two parts of these: the coordinator decides, by a moment after the deadline, and letters
  // tell the other hosts of a verdict that this client had not kept before.
  struct Verdict {
    Status status;
    bool is_new;
  };
  Verdict decide(const SpanRun& run, const Status& error, absl::Time deadline);
  void tell(const SpanRun& run, const Status& verdict);
  // The letter with a verdict, from a member of this client.
  Letter letter_of(uint32_t seq, const Signature& call, const Status& verdict) const;
  Status settle_here(const SpanRun& run, const Status& verdict);
  // Keeps the verdict of a run, also for members that come late. Requires mutex_.
  void keep_failure(uint32_t seq, const Signature& call, const Status& verdict);
  // The clients that the run waits for, as far as is known here; all others where that is nothing.
  std::vector<int> awaited_clients(const SpanRun& run);
  Status missing(const SpanRun& run, absl::Time start, absl::Time deadline);
  // Asks the members on other hosts that have not arrived what they do. Waits for a moment.
  std::map<int, std::string> ask_missing(const SpanRun& run, const std::vector<bool>& arrived);
  void retire(SpanRun& run);
  void read(Letter letter);
  void answer(const Letter& ask);
  void send_to_others(const Letter& letter);
  void fail_pending(const Status& reason) override;
  void forget() override;
  int num_members() const { return static_cast<int>(all_members().size()); }
  std::string name_of(int member) const;

  const std::shared_ptr<Network> network_;
  const bool is_for_messages_;
  const uint64_t name_;
  const Verdicts verdicts_;
  const Places places_;
  std::vector<int> others_;  // the clients of the group on other hosts
  host::Meetings meetings_;
  Postings postings_;  // put() and take(); mutex_ guards the rest

  std::mutex mutex_;  // guards what follows
  std::vector<Waiter*> waiters_;
  std::vector<SpanRun*> running_;  // by member of this host, from its arrival on; null: none
  // The run that looks often at what nothing wakes it for; the others are told what it finds.
  const SpanRun* checker_ = nullptr;
  // Runs that have waited for a while, with their labels, by device.
  struct Waiting {
    SpanRun* run;
    std::string label;
    absl::Time since;
  };
  std::map<int, Waiting> waiting_;
  Boards boards_;
};

}  // namespace tessera::network

#endif  // TESSERA_COLLECTIVES_NETWORK_SPAN_RUNS_H_
