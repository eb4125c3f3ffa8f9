// SPDX-License-Identifier: Apache-2.0
//
// Check-ins at the coordinator's state machine, with time passed in: verdicts, deadlines, and the
// effects of the loss of a client. Tests named after a test of XLA's coordination service check the
// same.
#include <cstdint>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "job/coordinator/check_ins.h"
#include "job/coordinator/deadline_queue.h"
#include "job/coordinator/id_ranges.h"
#include "job/coordinator/testing/coordinator_state_service.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using testing::AnswerPtr;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::kInterval;
using testing::member;
using ::testing::Pair;
using testing::Says;
using ::testing::SizeIs;
using testing::StateService;
using testing::StatusIs;
using testing::Waits;

TEST(CheckInTest, Barrier) {
  const auto service = StateService::complete(3);
  const AnswerPtr a = service->check_in(0, "b", "v");
  const AnswerPtr b = service->check_in(1, "b", "v");
  EXPECT_THAT((std::vector{a, b}), Each(Waits()));
  const AnswerPtr c = service->check_in(2, "b", "v");
  EXPECT_THAT((std::vector{a, b, c}), Each(Says(IsOk())));
}

TEST(CheckInTest, BarrierWithSubsetOfTasks) {
  const auto service = StateService::complete(3);
  const AnswerPtr a = service->check_in(0, "b", "v", absl::Seconds(5), {0, 2});
  const AnswerPtr c = service->check_in(2, "b", "v", absl::Seconds(5), {0, 2});
  EXPECT_THAT((std::vector{a, c}), Each(Says(IsOk())));
}

// Clients that wait for each other with different participants: the verdict names both lists.
TEST(CheckInTest, BarrierWithMismatchedTasks) {
  // The longer list first and second.
  const std::vector<std::pair<std::vector<int>, std::vector<int>>> cases = {
      {{0, 1}, {0, 1, 2}}, {{0, 1, 2}, {0, 1}}, {{0, 1, 3}, {0, 1, 2}}};
  for (const auto& [first, second] : cases) {
    const auto service = StateService::complete(4);
    const AnswerPtr a = service->check_in(0, "b", "v", absl::Seconds(60), first);
    const AnswerPtr b = service->check_in(1, "b", "w", absl::Seconds(60), second);
    const std::string text = absl::StrCat(
        "b: clients disagree: client 0 (host-0, pid 100) has v with clients ",
        IdRanges::of(first).to_string(), ", client 1 (host-1, pid 101) has w ", "with clients ",
        IdRanges::of(second).to_string(), "; make the same call on every client");
    EXPECT_THAT((std::vector{a, b}), Each(Says(StatusIs(StatusCode::kInvalidArgument, Eq(text)))));
  }
}

// 0 waits for 1, 1 for 2 and 2 for 0; the fourth client is not concerned.
TEST(CheckInTest, CircleOfThreeFailsAtOnce) {
  const auto service = StateService::complete(4);
  const AnswerPtr other = service->check_in(3, "b", "v", absl::Seconds(60), {0, 3});
  const AnswerPtr a = service->check_in(0, "b", "v", absl::Seconds(60), {0, 1});
  const AnswerPtr b = service->check_in(1, "b", "v", absl::Seconds(60), {1, 2});
  EXPECT_THAT((std::vector{a, b}), Each(Waits()));
  const AnswerPtr c = service->check_in(2, "b", "v", absl::Seconds(60), {0, 2});
  EXPECT_THAT((std::vector{a, b, c}),
              Each(Says(StatusIs(StatusCode::kInvalidArgument, HasSubstr("clients disagree")))));
  EXPECT_THAT(a->status, StatusIs(b->status.code(), Eq(std::string(c->status.message()))));
  EXPECT_THAT(other, Waits());
  EXPECT_THAT(service->check_in(0, "b", "v", absl::Seconds(60), {0, 3}), Says(IsOk()));
}

// Every client makes its calls in one order, and is not in all of them: a client may be early.
TEST(CheckInTest, OverlappingParticipantsInOneOrderPass) {
  for (const bool early : {false, true}) {
    const auto service = StateService::complete(3);
    const auto call = [&](int client, const std::vector<int>& participants) {
      return service->check_in(client, "b", "v", absl::Seconds(60), participants);
    };
    std::vector<AnswerPtr> all;
    if (early) all.push_back(call(2, {1, 2}));
    all.push_back(call(1, {0, 1}));
    EXPECT_THAT(all, Each(Waits()));
    all.push_back(call(0, {0, 1}));
    if (!early) all.push_back(call(2, {1, 2}));
    all.push_back(call(1, {1, 2}));
    EXPECT_THAT(all, Each(Says(IsOk())));
  }
}

// Random clients, each with a program of its own over random participants: whatever waits at the
// end waits for a client that has ended. A wait in a circle would have no such client.
TEST(CheckInTest, NoCircleIsLeftWaiting) {
  constexpr int kClients = 5;
  for (uint32_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto service = StateService::complete(kClients);
    struct Waiting {
      AnswerPtr answer;
      std::vector<int> participants;
    };
    std::vector<Waiting> waiting(kClients);
    std::vector<int> num_left(kClients, 6);  // calls of each client
    for (int step = 0; step < 200; ++step) {
      const int client = static_cast<int>(random() % kClients);
      const bool is_waiting = waiting[client].answer != nullptr && !waiting[client].answer->came();
      if (is_waiting || num_left[client]-- <= 0) continue;
      std::vector<int> participants = {client};
      for (int other = 0; other < kClients; ++other) {
        if (other != client && random() % 3 == 0) participants.push_back(other);
      }
      const std::vector<int> sorted = participants;
      waiting[client] = {service->check_in(client, "b", "v", absl::Hours(1), participants), sorted};
    }
    for (const Waiting& one : waiting) {
      if (one.answer == nullptr || one.answer->came()) continue;
      bool can_reach_the_end = false;
      std::set<int> reached;
      std::vector<int> next = one.participants;
      while (!next.empty() && !can_reach_the_end) {
        const int client = next.back();
        next.pop_back();
        if (!reached.insert(client).second) continue;
        const bool is_waiting =
            waiting[client].answer != nullptr && !waiting[client].answer->came();
        can_reach_the_end = !is_waiting;
        if (is_waiting)
          next.insert(next.end(), waiting[client].participants.begin(),
                      waiting[client].participants.end());
      }
      EXPECT_TRUE(can_reach_the_end);
    }
  }
}

TEST(CheckInTest, MismatchedValuesFailAtOnce) {
  const auto service = StateService::complete(3);
  const AnswerPtr a = service->check_in(0, "b", "ckpt");
  const AnswerPtr b = service->check_in(1, "b", "step");
  const auto both =
      StatusIs(StatusCode::kInvalidArgument,
               Eq("b: clients disagree: client 0 (host-0, pid 100) has ckpt, client 1 (host-1, pid "
                  "101) has step; make the same call on every client"));
  EXPECT_THAT((std::vector{a, b}), Each(Says(both)));
  EXPECT_THAT(service->check_in(2, "b", "ckpt"), Says(both));
}

TEST(CheckInTest, BarrierByNonParticipatingTask) {
  const auto service = StateService::complete(3);
  const AnswerPtr a = service->check_in(0, "b", "v", absl::Seconds(60), {0, 1});
  EXPECT_THAT(service->check_in(2, "b", "v", absl::Seconds(60), {0, 1}),
              Says(StatusIs(StatusCode::kInvalidArgument,
                            Eq("b: participants [0, 1] of client 2 (host-2, pid 102) must be "
                               "clients from 0 to 2 with client 2 among them"))));
  EXPECT_THAT(a, Waits());
  const AnswerPtr b = service->check_in(1, "b", "v", absl::Seconds(60), {0, 1});
  EXPECT_THAT((std::vector{a, b}), Each(Says(IsOk())));
}

TEST(CheckInTest, BarrierByNonClusterTask) {
  const auto service = StateService::complete(2);
  for (const std::vector<int>& wrong : {std::vector{0, 2}, {-1, 0}, {1}}) {
    EXPECT_THAT(
        service->check_in(0, "b", "v", absl::Seconds(60), wrong),
        Says(StatusIs(StatusCode::kInvalidArgument, HasSubstr("must be clients from 0 to 1"))));
  }
}

TEST(CheckInTest, ATimeoutOfZeroIsNamed) {
  const auto service = StateService::complete(2);
  const AnswerPtr a = service->check_in(0, "b", "v", absl::ZeroDuration());
  service->pass(absl::Milliseconds(1));
  EXPECT_THAT(a, Says(StatusIs(StatusCode::kDeadlineExceeded,
                               Eq("b: the timeout is 0 or had already passed: 1 of 2 clients "
                                  "arrived; missing client 1 (host-1, pid 101)"))));
}

TEST(CheckInTest, BarrierTimeout) {
  const auto service = StateService::complete(3);
  const AnswerPtr a = service->check_in(0, "b", "v", absl::Milliseconds(500));
  const AnswerPtr c = service->check_in(2, "b", "v", absl::Milliseconds(500));
  service->pass(absl::Milliseconds(499));
  EXPECT_THAT((std::vector{a, c}), Each(Waits()));
  service->pass(absl::Milliseconds(1));
  EXPECT_THAT(
      (std::vector{a, c}),
      Each(Says(StatusIs(StatusCode::kDeadlineExceeded,
                         Eq("b: 2 of 3 clients arrived in 500 ms; missing client 1 (host-1, "
                            "pid 101)")))));
}

TEST(CheckInTest, AllMissingAreNamed) {
  const auto service = StateService::complete(8);
  const AnswerPtr answer = service->check_in(0, "b", "v", absl::Milliseconds(500));
  service->pass(absl::Milliseconds(500));
  for (int i = 1; i < 8; ++i) {
    EXPECT_THAT(std::string(answer->status.message()), HasSubstr(member(i).to_string()));
  }
}

// The text is sent to every client: it is short in a job of any size.
TEST(CheckInTest, ManyMissingAreRanges) {
  const auto service = StateService::complete(1000);
  const AnswerPtr first = service->check_in(0, "b", "v", absl::Milliseconds(500));
  for (int i = 10; i < 988; ++i) service->check_in(i, "b", "v");
  service->check_in(999, "b", "v");
  service->pass(absl::Milliseconds(500));
  std::vector<std::string> named;
  for (int i = 1; i < 10; ++i) named.push_back(member(i).to_string());
  for (int i = 988; i < 995; ++i) named.push_back(member(i).to_string());
  EXPECT_THAT(
      first,
      Says(StatusIs(StatusCode::kDeadlineExceeded,
                    Eq(absl::StrCat("b: 980 of 1000 clients arrived in 500 ms; missing clients "
                                    "1-9, 988-998 of 1000, the first are ",
                                    absl::StrJoin(named, ", "))))));
  const AnswerPtr leaves = service->leave(4, absl::Milliseconds(500));
  service->pass(absl::Milliseconds(500));
  EXPECT_THAT(leaves, Says(StatusIs(StatusCode::kDeadlineExceeded,
                                    HasSubstr("shutdown: 1 of 1000 clients arrived in 500 ms; "
                                              "missing clients 0-3, 5-999 of 1000, the first are "
                                              "client 0 (host-0, pid 100), client 1 "))));
}

TEST(CheckInTest, EarliestDeadlineDecides) {
  const auto service = StateService::complete(3);
  const AnswerPtr patient = service->check_in(0, "b", "v", absl::Seconds(60));
  service->pass(absl::Milliseconds(100));
  const AnswerPtr hasty = service->check_in(1, "b", "v", absl::Milliseconds(300));
  EXPECT_EQ(service->state.next_event(), service->now + absl::Milliseconds(300));
  service->pass(absl::Milliseconds(300));
  EXPECT_THAT((std::vector{patient, hasty}),
              Each(Says(StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("arrived in 400 ms")))));
}

TEST(CheckInTest, BarrierReturnsPreviousError) {
  const auto service = StateService::complete(2);
  const AnswerPtr early = service->check_in(0, "b", "v", absl::Milliseconds(500));
  service->pass(absl::Milliseconds(500));
  const AnswerPtr late = service->check_in(1, "b", "v");
  EXPECT_THAT(late, Says(StatusIs(StatusCode::kDeadlineExceeded)));
  EXPECT_EQ(late->status, early->status);
}

TEST(CheckInTest, UsableAfterATimeout) {
  const auto service = StateService::complete(2);
  service->check_in(0, "b", "v", absl::Milliseconds(500));
  service->pass(absl::Milliseconds(500));
  // Client 0 is at its second instance, which waits for client 1 to take the verdict of the first.
  const AnswerPtr second = service->check_in(0, "b", "w");
  service->check_in(1, "b", "v");
  EXPECT_THAT(second, Waits());
  EXPECT_THAT(service->check_in(1, "b", "w"), Says(IsOk()));
  EXPECT_THAT(second, Says(IsOk()));
}

TEST(CheckInTest, TwoConsecutiveBarriers_Succeed) {
  const auto service = StateService::complete(2);
  for (int i = 0; i < 2; ++i) {
    const std::string value = absl::StrCat("v", i);
    const AnswerPtr a = service->check_in(0, "b", value);
    EXPECT_THAT(a, Waits()) << i;
    EXPECT_THAT(service->check_in(1, "b", value), Says(IsOk())) << i;
    EXPECT_THAT(a, Says(IsOk())) << i;
  }
}

TEST(CheckInTest, OneClientTwiceDoesNotPass) {
  const auto service = StateService::complete(2);
  const AnswerPtr first = service->check_in(0, "b", "v");
  const AnswerPtr again = service->check_in(0, "b", "v");
  EXPECT_THAT((std::vector{first, again}), Each(Waits()));
}

TEST(CheckInTest, NamesDoNotMix) {
  const auto service = StateService::complete(2);
  const AnswerPtr a = service->check_in(0, "a", "v");
  const AnswerPtr b = service->check_in(1, "b", "v");
  EXPECT_THAT((std::vector{a, b}), Each(Waits()));
}

TEST(LossTest, BarrierFailsUponTaskError) {
  const auto service = StateService::complete(3);
  const AnswerPtr a = service->check_in(0, "b", "v");
  const AnswerPtr b = service->check_in(1, "b", "v");
  service->lose(2);
  const auto lost = StatusIs(StatusCode::kUnavailable,
                             Eq("b: client 2 (host-2, pid 102) is lost: its process has ended "
                                "without shutdown, or its connections broke off"));
  EXPECT_THAT((std::vector{a, b}), Each(Says(lost)));
}

TEST(LossTest, BarrierFailsIfTaskIsAlreadyInError) {
  const auto service = StateService::complete(3);
  service->lose(2);
  EXPECT_THAT(service->check_in(0, "b", "v"),
              Says(StatusIs(StatusCode::kUnavailable, HasSubstr("client 2 (host-2, pid 102)"))));
  EXPECT_THAT(service->check_in(1, "b", "v"), Says(StatusIs(StatusCode::kUnavailable)));
}

TEST(LossTest, OutsiderDoesNotMatter) {
  const auto service = StateService::complete(3);
  const AnswerPtr a = service->check_in(0, "b", "v", absl::Seconds(5), {0, 1});
  service->lose(2);
  EXPECT_THAT(a, Waits());
  EXPECT_THAT(service->check_in(1, "b", "v", absl::Seconds(5), {0, 1}), Says(IsOk()));
  EXPECT_THAT(a, Says(IsOk()));
}

TEST(LossTest, MissedHeartbeats) {
  const auto service = StateService::complete(3);
  const AnswerPtr a = service->check_in(0, "b", "v");
  for (int i = 0; i < kMissedHeartbeats; ++i) {
    EXPECT_EQ(service->state.next_event(), service->now + kInterval);
    service->pass(kInterval);
    service->heartbeat({0, 1});
    EXPECT_THAT(service->losses, IsEmpty());
  }
  service->pass(kInterval);
  const std::string reason =
      "client 2 (host-2, pid 102) was declared lost: it missed more than 3 heartbeats of 500 ms";
  EXPECT_THAT(service->losses, ElementsAre(Pair(2, reason)));
  EXPECT_THAT(a, Says(StatusIs(StatusCode::kUnavailable, Eq("b: " + reason))));
}

// Clients 0 and 1 are on host a, 2 to 4 on b, 5 on c; the service is on a.
TEST(LossTest, AHostThatFallsSilent) {
  const auto alone = [](int client, char host) {
    return absl::StrCat("client ", client, " (host-", std::string(1, host), ", pid ", 100 + client,
                        ") was declared lost: it missed more than 3 heartbeats of 500 ms");
  };
  const std::string host_b =
      "host-b is unreachable: clients 2-4 missed more than 3 heartbeats of 500 ms";
  const struct {
    const char* name;
    // After how many intervals each client falls silent; 9: never.
    std::vector<int> silent_after;
    std::vector<std::pair<int, std::string>> losses;
    int num_events;
  } rows[] = {
      {"all at once", {9, 9, 0, 0, 0, 9}, {{2, host_b}, {3, host_b}, {4, host_b}}, 1},
      {"heartbeats of one interval",
       {9, 9, 1, 0, 1, 9},
       {{2, host_b}, {3, host_b}, {4, host_b}},
       1},
      {"one of its clients", {9, 9, 9, 0, 9, 9}, {{3, alone(3, 'b')}}, 1},
      {"one of its clients before the others",
       {9, 9, 3, 0, 3, 9},
       {{3, alone(3, 'b')},
        {2, "host-b is unreachable: clients 2, 4 missed more than 3 heartbeats of 500 ms"},
        {4, "host-b is unreachable: clients 2, 4 missed more than 3 heartbeats of 500 ms"}},
       2},
      {"a host of one client", {9, 9, 9, 9, 9, 0}, {{5, alone(5, 'c')}}, 1},
      {"the service's own host", {0, 0, 9, 9, 9, 9}, {{0, alone(0, 'a')}, {1, alone(1, 'a')}}, 1},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    StateService service(6, "a");
    for (int i = 0; i < 6; ++i) {
      MemberInfo info = testing::member(i);
      info.host_id = i < 2 ? "a" : i < 5 ? "b" : "c";
      info.host = absl::StrCat("host-", info.host_id);
      service.register_as(StateService::connection_of(i), {info, 6});
    }
    for (int interval = 0; interval <= kMissedHeartbeats + 3; ++interval) {
      std::vector<int> alive;
      for (int i = 0; i < 6; ++i) {
        if (row.silent_after[i] > interval) alive.push_back(i);
      }
      service.heartbeat(alive);
      service.pass(kInterval);
    }
    EXPECT_EQ(service.losses, row.losses);
    EXPECT_EQ(service.num_loss_events, row.num_events);
  }
}

TEST(LossTest, LossesOfOneTickAreOneEvent) {
  const auto service = StateService::complete(4);
  for (int i = 0; i <= kMissedHeartbeats; ++i) {
    service->pass(kInterval);
    service->heartbeat({0});
  }
  EXPECT_THAT(service->losses,
              ElementsAre(Pair(1, HasSubstr("client 1 (")), Pair(2, HasSubstr("client 2 (")),
                          Pair(3, HasSubstr("client 3 ("))));
  EXPECT_EQ(service->num_loss_events, 1);
}

// The process of the service was stopped, or its clock of choice went forward: it counts one
// heartbeat as missed, and looks again after reading the heartbeats that wait.
TEST(LossTest, ServiceThatWakesLateAsksBeforeItJudges) {
  for (const absl::Duration pause : {4 * kInterval, absl::Seconds(30), absl::Hours(10)}) {
    const auto service = StateService::complete(3);
    for (int i = 0; i < 10; ++i) {
      service->pass(pause);
      EXPECT_THAT(service->losses, IsEmpty());
      service->heartbeat({0, 1, 2});
    }
    // It still finds a client that is gone.
    for (int i = 0; i <= kMissedHeartbeats; ++i) {
      service->pass(kInterval);
      service->heartbeat({0, 2});
    }
    EXPECT_THAT(service->losses, ElementsAre(Pair(1, HasSubstr("client 1"))));
  }
}

TEST(LossTest, ClientsMayAskForShorterIntervals) {
  StateService service(2);
  service.register_as(1000, {member(0), 2, "", absl::Milliseconds(40)});
  service.register_as(1001, {member(1), 2, "", absl::Hours(1)});
  EXPECT_EQ(service.state.registrations().heartbeat_interval(), absl::Milliseconds(40));
  for (int i = 0; i <= kMissedHeartbeats; ++i) {
    service.pass(absl::Milliseconds(40));
    service.heartbeat({1});
  }
  EXPECT_THAT(service.losses,
              ElementsAre(Pair(0, HasSubstr("it missed more than 3 heartbeats of 40 ms"))));
}

TEST(LossTest, ReportedOnce) {
  const auto service = StateService::complete(2);
  for (int i = 0; i <= kMissedHeartbeats; ++i) {
    service->pass(kInterval);
    service->heartbeat({0});
  }
  service->lose(1);
  service->heartbeat({1});
  service->pass(kInterval);
  service->lose(1);
  EXPECT_THAT(service->losses, SizeIs(1));
  // A lost client leaves no event behind that would always be due.
  EXPECT_GT(service->state.next_event(), service->now);
}

TEST(LossTest, LostClientStaysLost) {
  const auto service = StateService::complete(2);
  const auto client_of = [&](int client) {
    return service->state.client_of(StateService::connection_of(client)).status();
  };
  EXPECT_THAT(client_of(1), IsOk());
  service->lose(1);
  service->heartbeat({1});
  EXPECT_THAT(client_of(0), IsOk());
  EXPECT_THAT(
      client_of(1),
      StatusIs(StatusCode::kFailedPrecondition,
               Eq("this client was declared lost, and the others went on without it: client 1 "
                  "(host-1, pid 101) is lost: its process has ended without shutdown, or its "
                  "connections broke off")));
}

// Another connection cannot speak for a client, nor lose it.
TEST(LossTest, ConnectionsThatHaveNotRegisteredAreNoClients) {
  const auto service = StateService::complete(2);
  EXPECT_THAT(service->state.client_of(7),
              StatusIs(StatusCode::kFailedPrecondition,
                       Eq("this connection has not registered as a client")));
  service->state.heartbeat(7);
  service->state.disconnected(7);
  service->run();
  EXPECT_THAT(service->losses, IsEmpty());
}

TEST(LeftTest, CheckInsWithAClientThatLeftFailAtOnce) {
  const auto service = StateService::complete(3);
  const AnswerPtr before = service->check_in(0, "b", "v");
  service->leave(2);
  const auto left =
      StatusIs(StatusCode::kUnavailable, Eq("b: client 2 (host-2, pid 102) has left the job"));
  EXPECT_THAT(before, Says(left));
  EXPECT_THAT(service->check_in(1, "b", "v"), Says(left));
  EXPECT_THAT(service->check_in(0, "b", "v"), Says(left));
  const AnswerPtr rest = service->check_in(0, "b", "v", absl::Seconds(60), {0, 1});
  EXPECT_THAT(service->check_in(1, "b", "v", absl::Seconds(60), {0, 1}), Says(IsOk()));
  EXPECT_THAT(rest, Says(IsOk()));
}

// The others are told once the client does not wait for them any more: until then it serves them.
TEST(LeftTest, AClientThatLeavesWithoutTheOthersIsLostToThem) {
  const auto service = StateService::complete(3);
  const AnswerPtr alone = service->leave(2, absl::Seconds(1));
  EXPECT_THAT(service->losses, IsEmpty());
  service->pass(absl::Seconds(1));
  EXPECT_THAT(alone, Says(StatusIs(StatusCode::kDeadlineExceeded)));
  EXPECT_THAT(service->losses, ElementsAre(Pair(2, "client 2 (host-2, pid 102) has left the job")));
  service->leave(0);
  EXPECT_THAT(service->leave(1), Says(IsOk()));
  EXPECT_THAT(service->losses, SizeIs(1));
}

TEST(LeftTest, AClientThatLeavesWhileItWaitsCancels) {
  const auto service = StateService::complete(3);
  const AnswerPtr a = service->check_in(0, "b", "v");
  const AnswerPtr b = service->check_in(1, "b", "v");
  service->leave(1);
  EXPECT_THAT((std::vector{a, b}),
              Each(Says(StatusIs(StatusCode::kCancelled,
                                 Eq("b: client 1 (host-1, pid 101) is shutting down")))));
}

// Client 2 leaves out a call: it is not one behind for ever.
TEST(SkippedTest, AClientThatLeftOutACallJoinsTheNext) {
  const auto service = StateService::complete(3);
  for (int round = 0; round < 3; ++round) {
    service->check_in(0, "b", "v", absl::Milliseconds(500));
    service->check_in(1, "b", "v", absl::Milliseconds(500));
    service->pass(absl::Milliseconds(500));
    const AnswerPtr a = service->check_in(0, "b", "v");
    const AnswerPtr b = service->check_in(1, "b", "v");
    const AnswerPtr c = service->check_in(2, "b", "v");
    EXPECT_THAT((std::vector{a, b, c}), Each(Says(IsOk()))) << round;
  }
}

TEST(SkippedTest, AnotherValueIsThatOfALaterCall) {
  const auto service = StateService::complete(2);
  service->check_in(0, "b", "v", absl::Milliseconds(500));
  service->pass(absl::Milliseconds(500));
  const AnswerPtr b = service->check_in(1, "b", "w");
  EXPECT_THAT(b, Waits());
  EXPECT_THAT(service->check_in(0, "b", "w"), Says(IsOk()));
  EXPECT_THAT(b, Says(IsOk()));
}

// Client 1 comes so late that the others have given up its next calls too.
TEST(SkippedTest, EachFailureIsToldToTheLateInTheirOrder) {
  for (const bool is_one_value : {false, true}) {
    const auto service = StateService::complete(2);
    const auto value = [&](int call) { return absl::StrCat("v", is_one_value ? 0 : call); };
    std::vector<AnswerPtr> early;
    for (int call = 0; call < 3; ++call) {
      const absl::Duration timeout = absl::Milliseconds(500 + 100 * call);
      early.push_back(service->check_in(0, "b", value(call), timeout));
      service->pass(timeout);
    }
    for (int call = 0; call < 3; ++call) {
      const AnswerPtr late = service->check_in(1, "b", value(call));
      EXPECT_THAT(late, Says(StatusIs(StatusCode::kDeadlineExceeded))) << call;
      EXPECT_EQ(late->status, early[call]->status) << call;
    }
    const AnswerPtr a = service->check_in(0, "b", value(3));
    EXPECT_THAT(service->check_in(1, "b", value(3)), Says(IsOk()));
    EXPECT_THAT(a, Says(IsOk()));
  }
}

// A client is not told of check-ins that it has left out when it comes again.
TEST(SkippedTest, FailuresBeforeTheOneThatIsToldAreLeftOut) {
  const auto service = StateService::complete(2);
  std::vector<AnswerPtr> early;
  for (const char* const value : {"u", "v", "w"}) {
    early.push_back(service->check_in(0, "b", value, absl::Milliseconds(500)));
    service->pass(absl::Milliseconds(500));
  }
  const AnswerPtr late = service->check_in(1, "b", "v");
  EXPECT_THAT(late, Says(StatusIs(StatusCode::kDeadlineExceeded)));
  EXPECT_EQ(late->status, early[1]->status);
  const AnswerPtr next = service->check_in(1, "b", "u");
  EXPECT_THAT(next, Waits());
  EXPECT_THAT(service->check_in(0, "b", "u"), Says(IsOk()));
  EXPECT_THAT(next, Says(IsOk()));
}

TEST(SkippedTest, VerdictsThatAreNotTakenAreForgotten) {
  const auto service = StateService::complete(2);
  DeadlineQueue deadlines;
  std::vector<std::function<void()>> callbacks;
  CheckIns check_ins(
      2, [](int client) { return absl::StrCat("client ", client); }, deadlines, callbacks);
  const auto call = [&](int client, const std::string& name) {
    check_ins.check_in({client, name, "v", IdRanges::of({0, 1}), absl::UnixEpoch()},
                       absl::UnixEpoch(), [](const Status&) {});
    deadlines.advance(absl::UnixEpoch());
  };
  for (int i = 0; i < 1000; ++i) call(0, absl::StrCat("b", i));
  EXPECT_EQ(check_ins.num_open(), 0u);
  EXPECT_EQ(check_ins.num_stored(), CheckIns::kMostStored);
  // A verdict that all have been told is forgotten at once.
  call(1, "b999");
  EXPECT_EQ(check_ins.num_stored(), CheckIns::kMostStored - 1);
}

TEST(IdRangesTest, EqualSetsAreEqual) {
  EXPECT_EQ(IdRanges::of({3, 1, 2, 1}), IdRanges::of({1, 2, 3}));
  EXPECT_EQ(IdRanges::of({0, 1, 2, 4, 6, 7}).to_string(), "[0-2, 4, 6, 7]");
  EXPECT_EQ(IdRanges::of({0, 1, 2, 4, 6, 7}).size(), 6);
  const IdRanges some = IdRanges::of({1, 2, 5});
  for (int i = -1; i < 8; ++i) EXPECT_EQ(some.contains(i), i == 1 || i == 2 || i == 5) << i;
  EXPECT_EQ(IdRanges::of_ranges(some.ranges()), some);
  using Range = IdRanges::Range;
  for (const std::vector<Range>& wrong :
       {std::vector<Range>{{-1, 2}}, {{2, 2}}, {{3, 2}}, {{4, 5}, {1, 2}}, {{1, 3}, {3, 4}}}) {
    EXPECT_TRUE(IdRanges::of_ranges(wrong).empty());
  }
  std::vector<int> even(100);
  for (int i = 0; i < 100; ++i) even[i] = 2 * i;
  EXPECT_EQ(IdRanges::of(even).to_string(), "[0, 2, 4, 6, 8, 10, 12, 14, ...]");
}

}  // namespace
}  // namespace tessera
