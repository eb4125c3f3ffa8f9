// SPDX-License-Identifier: Apache-2.0
//
// The protocol of the control region in every order of the accesses to shared words. For two
// members in one operation all orders are tried. For more operations, deadlines, deaths, messages
// and three members all orders within a bound on preemptions are tried. In each order:
//   1. no member waits for good: a deadlock or a livelock ends the search;
//   2. all members of an operation get one verdict, or none gets one;
//   3. a member that returns OK has read the right bytes, whatever is reused meanwhile.
//
// Searches with a bound on preemptions are complete in CI. Environment variables (tools/soak):
//   TESSERA_STEPPER_MORE   preemptions beyond the bound that CI has
//   TESSERA_STEPPER_RUNS   how many schedules a search explores at most where it need not be
//   complete
#include "shm/testing/stepper.h"

#include <linux/futex.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/status.h"
#include "collectives/arguments.h"
#include "collectives/collective.h"
#include "collectives/group.h"
#include "collectives/group_backend.h"
#include "collectives/host/host_backend.h"
#include "collectives/host/op_record.h"
#include "collectives/host/record.h"
#include "collectives/host/rendezvous.h"
#include "collectives/host/verdicts.h"
#include "collectives/make_group.h"
#include "collectives/testing/start_operation.h"
#include "device/buffer.h"
#include "device/cpu/arena.h"
#include "device/device.h"
#include "device/stream.h"
#include "gtest/gtest.h"
#include "shm/activity.h"
#include "shm/control.h"
#include "shm/host_link.h"
#include "tests/support/coordinator/fake_coordinator.h"

namespace tessera::host {
namespace {

using From = Rendezvous::From;

constexpr int kMembers = 3;
constexpr Signature kSum = {.kind = OpKind::kAllReduce,
                            .dtype = DType::kFloat32,
                            .reduction = ReduceOp::kSum,
                            .root = 0,
                            .count = 8,
                            .detail_hash = 0};

int64_t most_runs(int64_t otherwise) {
  const char* const set = std::getenv("TESSERA_STEPPER_RUNS");
  return set == nullptr ? otherwise : std::atoll(set);
}

int with_more(int most_preemptions) {
  const char* const more = std::getenv("TESSERA_STEPPER_MORE");
  return most_preemptions + (more == nullptr ? 0 : std::atoi(more));
}

shm::Stepper::Options bounded(int most_preemptions) {
  return {.most_preemptions = with_more(most_preemptions), .most_runs = most_runs(1'000'000)};
}

constexpr absl::Time kNever = absl::InfiniteFuture();
constexpr absl::Time kSome = absl::UnixEpoch();  // passes when the stepper says so

// One record in plain memory, without clients and groups: members that arrive and finish, a settler
// that ends their operations at any time, and the settler's death.
class RecordSteps : public ::testing::Test {
 protected:
  static constexpr uint32_t kSeq = 1;
  static constexpr uint32_t kNext = 5;  // the operation that has the record next

  RecordSteps() { stepper_.map(&shared_, sizeof(shared_), 0); }

  void explore(shm::Stepper::Options options, size_t num_members, bool dies) {
    num_members_ = num_members;
    for (const bool is_inlined : {false, true}) {
      for (const auto& [kind, from] : {std::pair(VerdictKind::kTimedOut, Record::From::kOpen),
                                       std::pair(VerdictKind::kError, Record::From::kRunning)}) {
        const shm::Stepper::Result result = stepper_.explore(
            options,
            [&, kind = kind, from = from] {
              std::memset(static_cast<void*>(&shared_), 0, sizeof(shared_));
              ended_.clear();
              for (size_t m = 0; m < num_members; ++m) {
                stepper_.add(absl::StrCat(m),
                             [this, m, is_inlined] { ended_[m] = call(m, is_inlined); });
              }
              const int settler = stepper_.add("settler", [this, kind, from] {
                if (claim(kind, from)) record().settle(kSeq, error());
              });
              if (dies) add_death(settler);
            },
            [&] { return check(is_inlined); });
        EXPECT_EQ(result.failure, "");
        EXPECT_TRUE(result.complete);
        std::cout << result.num_runs << " runs, " << result.num_states << " states\n";
      }
    }
  }

 private:
  struct Shared {
    OpRecord record;
    MemberEntry entries[kMembers];
    shm::SharedWord<uint32_t> lost;
  };

  static Status error() { return absl::UnavailableError("ended"); }
  Record record() { return Record(shared_.record, num_members_, {}); }
  bool claim(VerdictKind kind, Record::From from) {
    return record()
               .claim(
                   kSeq, kind, from, /*client=*/0, [](uint32_t) { return true; }, [] { return 0u; })
               .result == Record::Claim::kMine;
  }
  Status call(size_t member, bool is_inlined) {
    const Record own = record();
    if (!own.arrive(kSeq, is_inlined, shared_.entries[member])) return verdict(member);
    own.sleep_while(kSeq, kNever, [](const State& state) { return state.phase == Phase::kOpen; });
    if (is_inlined && own.load().phase == Phase::kMet) return absl::OkStatus();
    if (!own.finish(kSeq, 1, Record::Then::kWait)) return verdict(member);
    own.sleep_while(kSeq, kNever, [&](const State& state) { return own.is_under_way(state); });
    return own.load().is_settled() ? verdict(member) : absl::OkStatus();
  }
  Status verdict(size_t member) {
    const Record own = record();
    while (own.is_being_settled(kSeq, [this](uint32_t) { return shared_.lost.load() != 0; })) {
      own.sleep_while(kSeq, kSome,
                      [](const State& state) { return state.phase == Phase::kSettling; });
    }
    const bool is_orphaned = own.load().phase == Phase::kOrphaned;
    const Status read =
        is_orphaned ? absl::AbortedError("orphaned") : own.read_verdict(kVerdictBytes);
    own.acknowledge(kSeq, static_cast<int>(member));
    return read;
  }
  // Others learn of the death, and settle the operations at which they have arrived: that wakes the
  // waiters.
  void add_death(int settler) {
    stepper_.add(
        "death",
        [this, settler] {
          shm::step();
          stepper_.kill(settler);
          shared_.lost.store(1);
          if (claim(VerdictKind::kError, Record::From::kRunning)) record().settle(kSeq, error());
        },
        shm::Stepper::Cost::kFree);
  }
  std::string check(bool is_inlined) {
    const State end = record().load();
    for (const auto& [member, status] : ended_) {
      if (status != ended_.at(0)) return absl::StrCat(member, ": ", status.ToString());
      const bool is_known = status.ok() || status == error() || absl::IsAborted(status);
      if (!is_known) return status.ToString();
    }
    if (ended_.at(0).ok() == end.is_settled()) return "the record says something else";
    if (is_inlined && ended_.at(0).ok() && end.phase != Phase::kMet) return "it has not met";
    const bool is_free = record().is_free(end, kNext, [](uint32_t) { return true; });
    return is_free ? "" : "the record is not free";
  }

  Shared shared_ = {};
  size_t num_members_ = 0;
  std::map<size_t, Status> ended_;
  shm::Stepper stepper_;
};

TEST_F(RecordSteps, TwoMembersAndASettler) { explore(bounded(3), 2, /*dies=*/false); }

TEST_F(RecordSteps, ThreeMembersAndASettler) { explore(bounded(2), 3, /*dies=*/false); }

TEST_F(RecordSteps, ASettlerThatDies) { explore(bounded(1), 2, /*dies=*/true); }

// The members of one group, each of its own client, and the state that they share beside the
// records.
class RendezvousSteps : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<std::thread> threads;
    for (int c = 0; c < kMembers; ++c) {
      threads.emplace_back([this, c] {
        auto link = shm::HostLink::create(job_.coordinator(c), ArenaPool::create(4096),
                                          steady_now() + absl::Seconds(20));
        if (link.ok()) links_[c] = *std::move(link);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& link : links_) {
      ASSERT_NE(link, nullptr);
      for (int c = 0; c < kMembers; ++c)
        stepper_.map(link->memory().control(c), shm::kControlBytes, c);
    }
  }

  void open(int num_members, uint32_t num_records = 2) {
    num_records_ = num_records;
    std::vector<shm::GroupMember> members;
    for (int m = 0; m < num_members; ++m) members.push_back({m, m, 0});
    for (int m = 0; m < num_members; ++m) {
      StatusOr<Rendezvous> opened = Rendezvous::open(*links_[m], members, num_records, /*salt=*/0);
      ASSERT_TRUE(opened.ok()) << opened.status();
      groups_.push_back(std::make_unique<Rendezvous>(*std::move(opened)));
    }
  }

  // Restores the state before the first operation.
  void reset() {
    Rendezvous& group = *groups_[0];
    const int n = group.records().size();
    for (uint32_t i = 0; i < num_records_; ++i) {
      std::memset(static_cast<void*>(reinterpret_cast<OpRecord*>(&group.records().entry(i, 0)) - 1),
                  0, sizeof(OpRecord) + n * sizeof(MemberEntry));
    }
    for (int m = 0; m < n; ++m) {
      group.records().leave(0, m);
      members_[m].data.store(0);
      members_[m].done.store(0);
      members_[m].next = 1;
      members_[m].ended.clear();
      life(m).fetch_and(~static_cast<uint32_t>(FUTEX_OWNER_DIED));
      bell(m).bell.store(0);
      bell(m).num_bell_sleepers.store(0);
    }
    stage_.store(kCannotBeGivenUp);
    lost_.store(0);
    wrong_.clear();
  }
  std::atomic<uint32_t>& life(int client) {
    return reinterpret_cast<shm::ControlHeader*>(links_[0]->memory().control(client))->life;
  }

  shm::DeviceActivity& bell(int member) {
    return shm::activity_slot(links_[member]->memory().control(member), 0);
  }

  Signature signature(uint32_t seq) const {
    Signature result = kSum;
    if (differ_by_number_) result.count = seq;
    return result;
  }

  Rendezvous::Op op(int member, uint32_t seq, absl::Time deadline) {
    return {.seq = seq,
            .member = member,
            .detail_field = "counts",
            .signature = signature(seq),
            .start = deadline,
            .deadline = deadline};
  }

  // One operation as HostGroup does it: its memory is `data`, which every other member reads.
  Status call(int member, absl::Time deadline) {
    Rendezvous& group = *groups_[member];
    Member& self = members_[member];
    const uint32_t seq = group.align(self.next, signature(self.next)).seq;
    if (seq != self.next) group.pass_over(self.next, seq);
    self.next = seq_after(seq);
    group.wait_free(seq, absl::InfiniteFuture());
    MemberEntry& own = group.records().entry(seq, member);
    own.seq.store(0);
    own.signature = signature(seq);
    self.data.store(seq);
    uint32_t queued = kQueued;
    const bool may_be_given_up = member == 0 && seq == kSecond;
    if (may_be_given_up) stage_.compare_exchange_strong(queued, kStarted);
    while (may_be_given_up && stage_.load() == kGivenUp) {
      sleep_while(stage_, kGivenUp, absl::InfiniteFuture());
    }
    Status status = may_be_given_up && queued >= kGivenUp
                        ? group.settle(seq, VerdictKind::kTimedOut, From::kOpen, late())
                        : move(member, op(member, seq, deadline));
    if (!status.ok()) group.acknowledge(seq, member);
    group.records().leave(seq, member);
    self.done.store(seq);
    self.ended[seq] = status;
    self.data.store(kReused);
    return status;
  }
  Status move(int member, const Rendezvous::Op& op) {
    Rendezvous& group = *groups_[member];
    TESSERA_RETURN_IF_ERROR(group.arrive(op));
    if (lost_.load() != 0) {
      TESSERA_RETURN_IF_ERROR(group.settle(op.seq, VerdictKind::kError, From::kRunning, loss()));
    }
    if (!group.records().all_arrived(op.seq)) TESSERA_RETURN_IF_ERROR(group.wait_arrived(op));
    bool right = true;
    for (int m = 0; m < group.records().size(); ++m) {
      right &= m == leaver_ || members_[m].data.load() == op.seq;
    }
    const bool leaves = op.member == leaver_;
    using Then = Rendezvous::Then;
    TESSERA_RETURN_IF_ERROR(group.finish(op.seq, 1, leaves ? Then::kLeave : Then::kWait));
    if (!leaves) TESSERA_RETURN_IF_ERROR(group.wait_finished(op, From::kRunning));
    if (!right) wrong_ = absl::StrCat("member ", member, " is OK with wrong bytes");
    return absl::OkStatus();
  }
  // One message of the pair {0, 1}, whose contents are `data` of the sender, and its number.
  void message(int member, absl::Time deadline) {
    Rendezvous& group = *groups_[member];
    Member& self = members_[member];
    const uint32_t seq = self.next;
    self.next = seq_after(seq);
    group.wait_free(seq, absl::InfiniteFuture());
    group.records().entry(seq, member).seq.store(0);
    if (member == 0) self.data.store(seq);
    const Rendezvous::Op message = op(member, seq, deadline);
    Status status = group.arrive(message);
    if (status.ok() && member == 1) {
      status = group.wait_arrived(message);
      const bool right = members_[0].data.load() == seq;
      if (status.ok()) status = group.finish(seq, 2);
      if (status.ok() && !right) wrong_ = "another message was received";
    } else if (status.ok()) {
      status = group.wait_finished(message, From::kRunning);
    }
    self.ended[seq] = status;
    if (!status.ok()) group.acknowledge(seq, member);
    group.records().leave(seq, member);
  }
  // One end of messages that waits as the MessagePump does: it looks, and sleeps until its bell is
  // rung.
  template <class Ready>
  void wait_for_bell(int member, absl::Time deadline, Ready ready) {
    while (true) {
      const uint32_t seen = bell(member).bell.load();
      if (ready()) return;
      shm::wait_for_ring(bell(member), seen, deadline);
      if (deadline != absl::InfiniteFuture()) return;
    }
  }
  // A sender waits for a free record alone; the receiver finishes for both.
  void pump_send() {
    Rendezvous& group = *groups_[0];
    const uint32_t seq = members_[0].next++;
    wait_for_bell(0, absl::InfiniteFuture(), [&] { return group.records().was_freed(seq); });
    group.records().entry(seq, 0).seq.store(0);
    members_[0].ended[seq] = group.arrive(op(0, seq, absl::InfiniteFuture()));
    if (!members_[0].ended[seq].ok()) group.acknowledge(seq, 0);
  }
  void pump_receive(absl::Time deadline) {
    Rendezvous& group = *groups_[1];
    const uint32_t seq = members_[1].next++;
    wait_for_bell(1, absl::InfiniteFuture(), [&] { return group.records().was_freed(seq); });
    group.records().entry(seq, 1).seq.store(0);
    const Rendezvous::Op message = op(1, seq, deadline);
    Status status = group.arrive(message);
    if (status.ok()) {
      wait_for_bell(1, deadline, [&] { return !group.records().is_open(seq); });
      status = group.wait_arrived(message);
    }
    if (status.ok()) status = group.finish(seq, 2);
    members_[1].ended[seq] = status;
    if (!status.ok()) group.acknowledge(seq, 1);
  }
  std::string check_messages() {
    for (const auto& [seq, sent] : members_[0].ended) {
      const Status& received = members_[1].ended[seq];
      // One end comes when the record has gone on.
      const bool is_late = absl::IsUnavailable(sent) != absl::IsUnavailable(received);
      if (sent.ok() != received.ok() || (sent != received && !is_late)) {
        return absl::StrCat("message ", seq, ": ", sent.ToString(), " and ", received.ToString());
      }
    }
    return wrong_;
  }

  static constexpr uint32_t kSecond = 2;
  static Status late() { return absl::DeadlineExceededError("given up in the queue"); }
  static Status loss() { return absl::UnavailableError("a client is lost"); }

  // Calls until one is OK.
  void call_until_ok(int member) {
    while (!call(member, absl::InfiniteFuture()).ok()) {
    }
  }

  // The client of `victim` is killed at any time; then the others are told, each on a thread of its
  // own, as the listeners of their links do.
  void add_death(int victim) {
    stepper_.add(
        "death",
        [this, victim] {
          shm::step();
          stepper_.kill(victim);
          life(victim).fetch_or(FUTEX_OWNER_DIED);
          lost_.store(1);
          for (int m = 0; m < groups_[0]->records().size(); ++m) {
            if (m == victim) continue;
            settle_arrived(groups_[m]->records(), m, members_[m].done.load(), From::kRunning,
                           loss());
          }
        },
        shm::Stepper::Cost::kFree);
  }

  // The first mistake after a run, or "". With a death some operations have no second member.
  std::string check(bool may_differ = false) {
    if (are_messages_) return check_messages();
    for (int m = 0; differ_by_number_ && m < groups_[0]->records().size(); ++m) {
      for (const auto& [seq, status] : members_[m].ended) {
        if (absl::IsInvalidArgument(status)) return status.ToString();
      }
    }
    if (!wrong_.empty() || may_differ) return wrong_;
    for (int m = 1; m < groups_[0]->records().size(); ++m) {
      for (const auto& [seq, status] : members_[m].ended) {
        const auto other = members_[0].ended.find(seq);
        if (other != members_[0].ended.end() && other->second != status) {
          return absl::StrCat("operation ", seq, ": ", other->second.ToString(), " and ",
                              status.ToString());
        }
      }
    }
    return "";
  }

  void explore(shm::Stepper::Options options, const std::function<void()>& begin,
               bool may_differ = false, bool must_be_complete = true) {
    // With more preemptions than in CI a search may end at its limit.
    must_be_complete = must_be_complete && with_more(0) == 0;
    if (must_be_complete) options.most_runs = INT64_MAX;
    const shm::Stepper::Result result = stepper_.explore(
        options,
        [&] {
          reset();
          begin();
        },
        [&] { return check(may_differ); });
    EXPECT_EQ(result.failure, "");
    EXPECT_TRUE(result.complete || !must_be_complete);
    std::cout << result.num_runs << " runs, " << result.num_states << " states"
              << (result.complete ? ", all" : "") << "\n";
  }

  static constexpr uint32_t kReused = 0xffffff;
  struct Member {
    shm::SharedWord<uint32_t> data;
    shm::SharedWord<uint32_t> done;
    uint32_t next = 1;
    std::map<uint32_t, Status> ended;
  };

  testing::FakeJob job_{std::vector<int>(kMembers, 1)};
  std::unique_ptr<shm::HostLink> links_[kMembers];
  std::vector<std::unique_ptr<Rendezvous>> groups_;
  Member members_[kMembers];
  shm::SharedWord<uint32_t> lost_;
  uint32_t num_records_ = 0;
  int leaver_ = -1;  // the member whose memory no other one reads, and that waits for none
  bool are_messages_ = false;
  bool differ_by_number_ = false;  // the signature has the number of the operation
  // The stage of member 0's second operation, where a waiter may give it up before its turn.
  enum Stage : uint32_t { kCannotBeGivenUp, kQueued, kStarted, kGivenUp, kTold };
  shm::SharedWord<uint32_t> stage_;
  std::string wrong_;
  shm::Stepper stepper_;
};

// Complete: some 160,000 states.
TEST_F(RendezvousSteps, TwoMembersMeetInAllOrders) {
  open(2);
  explore({.most_runs = most_runs(400'000)}, [&] {
    for (int m = 0; m < 2; ++m) {
      stepper_.add(absl::StrCat(m), [this, m] { call(m, kNever).IgnoreError(); });
    }
  });
}

TEST_F(RendezvousSteps, TwoMembersWithDeadlines) {
  open(2);
  for (const bool is_bounded : {true, false}) {
    explore(
        is_bounded ? bounded(3) : shm::Stepper::Options{.most_runs = most_runs(10'000)},
        [&] {
          for (int m = 0; m < 2; ++m) {
            stepper_.add(absl::StrCat(m), [this, m] {
              for (int i = 0; i < 2; ++i) call(m, kSome).IgnoreError();
            });
          }
        },
        /*may_differ=*/false, /*must_be_complete=*/is_bounded);
  }
}

// Member 1 gives up a lap of operations while member 0 is on its way to sleep in the first one.
TEST_F(RendezvousSteps, AWaiterThatIsHeldUpIsWoken) {
  open(2);
  explore(
      bounded(2),
      [&] {
        stepper_.add("0", [this] { call_until_ok(0); });
        stepper_.add("1", [this] {
          for (uint32_t seq = 1; seq <= num_records_; ++seq) {
            if (groups_[1]->settle_timed_out(op(1, seq, kSome), From::kOpen).ok()) return;
            groups_[1]->acknowledge(seq);
            groups_[1]->records().leave(seq, 1);
            members_[1].next = seq_after(seq);
          }
          call_until_ok(1);
        });
      },
      /*may_differ=*/false);
}

TEST_F(RendezvousSteps, ADeathEndsWhatTheOtherWaitsFor) {
  open(2);
  for (const absl::Time deadline : {kNever, kSome}) {
    for (const bool is_bounded : {true, false}) {
      explore(
          is_bounded ? bounded(1) : shm::Stepper::Options{.most_runs = most_runs(10'000)},
          [&] {
            stepper_.add("0", [this] {
              for (int i = 0; i < 2; ++i) call(0, kNever).IgnoreError();
            });
            const int victim = stepper_.add("1", [this, deadline] {
              for (int i = 0; i < 2; ++i) call(1, deadline).IgnoreError();
            });
            add_death(victim);
          },
          /*may_differ=*/true, /*must_be_complete=*/is_bounded);
    }
  }
}

TEST_F(RendezvousSteps, ThreeMembersWithDeadlines) {
  open(3);
  for (const int num_calls : {1, 2}) {
    explore(bounded(num_calls == 1 ? 2 : 1), [&] {
      for (int m = 0; m < 3; ++m) {
        stepper_.add(absl::StrCat(m), [this, m, num_calls] {
          for (int i = 0; i < num_calls; ++i) call(m, m == 0 ? kSome : kNever).IgnoreError();
        });
      }
    });
  }
}

TEST_F(RendezvousSteps, ThreeMembersWithADeath) {
  open(3);
  explore(
      bounded(1),
      [&] {
        int victim = 0;
        for (int m = 0; m < 3; ++m) {
          victim = stepper_.add(absl::StrCat(m),
                                [this, m] { call(m, m == 2 ? kSome : kNever).IgnoreError(); });
        }
        add_death(victim);
      },
      /*may_differ=*/true);
}

// Member 2 ends before the others do, and reads no verdict. The one record is free for the second
// operation all the same.
TEST_F(RendezvousSteps, AMemberThatLeavesKeepsNoRecord) {
  open(3, /*num_records=*/1);
  leaver_ = 2;
  explore(
      bounded(1),
      [&] {
        for (int m = 0; m < 3; ++m) {
          stepper_.add(absl::StrCat(m), [this, m] {
            for (int i = 0; i < 2; ++i) call(m, kSome).IgnoreError();
          });
        }
      },
      /*may_differ=*/true);
}

// Both ends give up at any moment. The k-th receive is of the k-th send, or neither is OK.
TEST_F(RendezvousSteps, MessagesArePaired) {
  are_messages_ = true;
  for (const uint32_t num_records : {1, 2}) {
    groups_.clear();
    open(2, num_records);
    for (const auto& group : groups_) group->ring_bells();
    explore(bounded(3), [&] {
      for (int m = 0; m < 2; ++m) {
        stepper_.add(absl::StrCat(m), [this, m] {
          for (int i = 0; i < 3; ++i) message(m, kSome);
        });
      }
    });
  }
}

// The ends wait for nothing but their bells, as the pump does where its longest sleep is left out:
// a ring that is missing is a deadlock.
TEST_F(RendezvousSteps, BellsOfMessagesAreRungInTime) {
  are_messages_ = true;
  for (const uint32_t num_records : {1, 2}) {
    groups_.clear();
    open(2, num_records);
    for (const auto& group : groups_) group->ring_bells();
    for (const absl::Time deadline : {kNever, kSome}) {
      explore(bounded(3), [&] {
        stepper_.add("sender", [this] {
          for (int i = 0; i < 3; ++i) pump_send();
        });
        stepper_.add("receiver", [this, deadline] {
          for (int i = 0; i < 3; ++i) pump_receive(deadline);
        });
      });
    }
  }
}

// A member looks for a mismatch in a record that the others reuse meanwhile for another call: what
// it finds is no verdict of its own operation, nor of the other one.
TEST_F(RendezvousSteps, AReusedRecordIsNoMismatch) {
  differ_by_number_ = true;
  open(3, /*num_records=*/1);
  explore(
      bounded(2),
      [&] {
        for (int m = 0; m < 3; ++m) {
          stepper_.add(absl::StrCat(m), [this, m] {
            for (int i = 0; i < 2; ++i) call(m, kSome).IgnoreError();
          });
        }
      },
      /*may_differ=*/true);
}

// A waiter gives up the second operation of member 0 before its turn. All members that have a
// verdict of it have the same one, and no member loses its place.
TEST_F(RendezvousSteps, WhatIsGivenUpBeforeItsTurnHasOneVerdict) {
  open(2);
  explore(bounded(2), [&] {
    stage_.store(kQueued);
    for (int m = 0; m < 2; ++m) {
      stepper_.add(absl::StrCat(m), [this, m] {
        for (int i = 0; i < 4; ++i) call(m, kNever).IgnoreError();
      });
    }
    stepper_.add("waiter", [this] {
      uint32_t queued = kQueued;
      if (!stage_.compare_exchange_strong(queued, kGivenUp)) return;
      Status told = late();
      if (groups_[0]->records().all_have_passed_before(kSecond)) {
        told = groups_[0]->settle(kSecond, VerdictKind::kTimedOut, From::kOpen, late());
      }
      if (told != late()) wrong_ = "given up with another verdict";
      stage_.store(kTold);
      shm::wake_all(stage_);
    });
  });
}

// ---- What one member lends another, by the code of HostGroup.

// Runs a task at once, on the fiber that enqueues it.
class InlineStream final : public Stream {
 public:
  using Stream::enqueue;
  void enqueue(std::string, Task task, const void*, Wake, Placed placed) override {
    placed();
    task().IgnoreError();
  }
  bool run_here(const void*) override { return false; }
  std::optional<absl::string_view> task_here() const override { return std::nullopt; }
  Status sync() override { return absl::OkStatus(); }
  Status stop_by(absl::Time) override { return absl::OkStatus(); }
};

// Client 0 broadcasts a buffer without other owners. It learns of the loss of client 2 at any time,
// calls the group again, and fills free memory with other bytes.
class LendingSteps {
 public:
  static constexpr int64_t kBytes = 2048;  // more than fits into the entries
  static constexpr int kSent = 0x11;
  static constexpr int kReused = 0x77;

  // New clients: a link does not forget a loss.
  void begin(shm::Stepper& stepper) {
    clients_.clear();
    job_ = std::make_unique<testing::FakeJob>(std::vector<int>(kMembers, 1));
    clients_.resize(kMembers);
    std::vector<std::thread> threads;
    for (int c = 0; c < kMembers; ++c) threads.emplace_back([this, c] { connect(c); });
    for (std::thread& thread : threads) thread.join();
    stepper.forget_maps();
    for (int c = 0; c < kMembers; ++c) {
      for (int k = 0; k < kMembers; ++k) {
        stepper.map(clients_[c].link->memory().control(k), shm::kControlBytes, k);
      }
      clients_[c].group = *clients_[c].backend->group(std::vector<int>{0, 1, 2});
      clients_[c].out = buffer(c, 0);
    }
    in_ = buffer(0, kSent);
    in_->mutable_ready().set(absl::OkStatus());
    lost_.store(0);
    for (int c = 0; c < kMembers; ++c) {
      stepper.add(absl::StrCat(c), [this, c] { c == 0 ? lend() : read(c); });
    }
    stepper.add(
        "loss",
        [this] {
          shm::step();
          clients_[0].link->liveness().report_lost(2, absl::UnavailableError("client 2 is lost"));
          lost_.store(1);
          shm::wake_all(lost_);
        },
        shm::Stepper::Cost::kFree);
  }

  std::string check() {
    for (int c = 1; c < kMembers; ++c) {
      const std::byte* const bytes = clients_[c].out->data();
      const bool right = std::all_of(bytes, bytes + kBytes,
                                     [](std::byte byte) { return byte == std::byte{kSent}; });
      if (clients_[c].status.ok() && !right) {
        return absl::StrCat("client ", c, " is OK with wrong bytes");
      }
    }
    return "";
  }

 private:
  struct Client {
    std::shared_ptr<ArenaPool> pool;
    std::unique_ptr<shm::HostLink> link;
    InlineStream stream;
    std::unique_ptr<HostBackend> backend;
    std::shared_ptr<GroupBackend> group;
    std::shared_ptr<Buffer> out;
    Status status;
  };

  void connect(int c) {
    Client& client = clients_[c];
    client.pool = ArenaPool::create(uint64_t{1} << 16);
    client.link =
        *shm::HostLink::create(job_->coordinator(c), client.pool, steady_now() + absl::Seconds(20));
    std::vector<Device> devices(kMembers);
    for (int d = 0; d < kMembers; ++d) devices[d].id = devices[d].client_id = d;
    client.backend =
        std::make_unique<HostBackend>(*client.link, client.pool, std::move(devices),
                                      std::vector<Stream*>{&client.stream}, absl::Seconds(60));
  }
  std::shared_ptr<Buffer> buffer(int client, int value) {
    std::shared_ptr<Buffer> made = *Buffer::allocate(clients_[client].pool, kBytes);
    std::memset(made->mutable_data(), value, kBytes);
    return made;
  }
  Status broadcast(int c, std::shared_ptr<const Buffer> in, std::shared_ptr<Buffer> out) {
    const int64_t in_count = in == nullptr ? 0 : kBytes;
    return internal::start_operation(internal::make_group(clients_[c].group, c),
                                     {.kind = OpKind::kBroadcast, .count = kBytes},
                                     {.in_count = in_count, .out_count = kBytes},
                                     {.in_buffer = std::move(in), .out_buffer = std::move(out)})
        .await();
  }
  void lend() {
    clients_[0].status = broadcast(0, in_, clients_[0].out);
    in_.reset();
    while (lost_.load() == 0) sleep_while(lost_, 0, absl::InfiniteFuture());
    broadcast(0, nullptr, clients_[0].out).IgnoreError();
    std::vector<std::shared_ptr<Buffer>> reused;
    for (int i = 0; i < 4; ++i) reused.push_back(buffer(0, kReused));
  }
  void read(int c) { clients_[c].status = broadcast(c, nullptr, clients_[c].out); }

  std::unique_ptr<testing::FakeJob> job_;
  std::vector<Client> clients_;
  std::shared_ptr<Buffer> in_;
  shm::SharedWord<uint32_t> lost_;
};

TEST(LendingStepsTest, AMemberThatIsOkHasReadTheRightBytes) {
  shm::Stepper stepper;
  LendingSteps lending;
  const shm::Stepper::Result result = stepper.explore(
      {.most_preemptions = 1, .most_runs = most_runs(600)}, [&] { lending.begin(stepper); },
      [&] { return lending.check(); });
  EXPECT_EQ(result.failure, "");
  std::cout << result.num_runs << " runs" << (result.complete ? ", all" : "") << "\n";
}

}  // namespace
}  // namespace tessera::host
