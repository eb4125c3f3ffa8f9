// SPDX-License-Identifier: Apache-2.0
//
// The coordinator's state machine, with time passed in: verdicts, losses, deadlines, and that each
// callback runs exactly once. Tests named after one of XLA's coordination service say the same.
#include "job/coordinator_state.h"

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using ::testing::Pair;
using ::testing::SizeIs;
using testing::StatusIs;

constexpr absl::Duration kInterval = absl::Milliseconds(500);

MemberInfo member(int client_id) {
  MemberInfo info;
  info.client_id = client_id;
  info.host = absl::StrCat("host-", client_id);
  info.pid = 100 + client_id;
  return info;
}

// What one call was told.
struct Answer {
  int count = 0;
  Status status;
  bool came() const { return count > 0; }
};
using AnswerPtr = std::shared_ptr<Answer>;

// A state of a job of `num_clients`, which runs its callbacks after each call.
class Service {
 public:
  explicit Service(int num_clients)
      : state(num_clients, "host-0:1234", kInterval), size_(num_clients) {
    state.set_loss_listener([this](int client, const Status& reason) {
      losses.emplace_back(client, std::string(reason.message()));
    });
  }

  // With all clients registered and their sessions open.
  static std::unique_ptr<Service> complete(int num_clients) {
    auto service = std::make_unique<Service>(num_clients);
    for (int i = 0; i < num_clients; ++i) service->register_client(i);
    for (int i = 0; i < num_clients; ++i) service->state.session_started(i, service->now);
    return service;
  }

  AnswerPtr register_client(int client_id, absl::Duration timeout = absl::Seconds(60)) {
    return register_member(member(client_id), -1, timeout);
  }
  AnswerPtr register_member(const MemberInfo& info, int num_clients = -1,
                            absl::Duration timeout = absl::Seconds(60)) {
    if (num_clients < 0) num_clients = size();
    return ask([&](CoordinatorState::Done done) {
      state.register_client(info, num_clients, now, now + timeout, std::move(done));
    });
  }
  AnswerPtr check_in(int client, const std::string& name, const std::string& value,
                     absl::Duration timeout = absl::Seconds(60),
                     std::vector<int> participants = {}) {
    if (participants.empty()) participants = everyone();
    return ask([&](CoordinatorState::Done done) {
      state.check_in(client, name, value, participants, now, now + timeout, std::move(done));
    });
  }
  AnswerPtr leave(int client, absl::Duration timeout = absl::Seconds(60)) {
    return ask([&](CoordinatorState::Done done) {
      state.leave(client, now, now + timeout, std::move(done));
    });
  }
  // What was found is in last_found.
  AnswerPtr get(const std::string& key, absl::Duration timeout = absl::Seconds(60)) {
    auto answer = std::make_shared<Answer>();
    state.get(key, now + timeout, [this, answer](const StatusOr<std::string>& found) {
      ++answer->count;
      answer->status = found.status();
      if (found.ok()) last_found = *found;
    });
    run();
    return answer;
  }
  void lose(int client) {
    state.session_ended(client);
    run();
  }
  void heartbeat(const std::vector<int>& clients) {
    for (const int client : clients) state.heartbeat(client, now);
  }
  void pass(absl::Duration time) {
    now += time;
    state.advance(now);
    run();
  }
  void stop() {
    state.stop();
    run();
  }
  void run() {
    for (const auto& callback : state.take_callbacks()) callback();
  }
  std::vector<int> everyone() const {
    std::vector<int> all;
    for (int i = 0; i < size(); ++i) all.push_back(i);
    return all;
  }
  int size() const { return size_; }

  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  CoordinatorState state;
  std::vector<std::pair<int, std::string>> losses;
  std::string last_found;

 private:
  template <class Call>
  AnswerPtr ask(const Call& call) {
    auto answer = std::make_shared<Answer>();
    call([answer](const Status& status) {
      ++answer->count;
      answer->status = status;
    });
    run();
    return answer;
  }

  const int size_;
};

MATCHER(Waits, "has no answer yet") { return arg->count == 0; }
template <class StatusMatcher>
auto Says(StatusMatcher matcher) {
  return ::testing::AllOf(
      ::testing::ResultOf([](const AnswerPtr& a) { return a->count; }, Eq(1)),
      ::testing::ResultOf([](const AnswerPtr& a) { return a->status; }, matcher));
}

TEST(RegistrationTest, AnsweredWhenAllHaveCome) {
  Service service(3);
  const AnswerPtr second = service.register_client(1);
  const AnswerPtr first = service.register_client(0);
  EXPECT_THAT(first, Waits());
  const AnswerPtr third = service.register_client(2);
  EXPECT_THAT((std::vector{first, second, third}), Each(Says(IsOk())));
  ASSERT_THAT(service.state.members(), SizeIs(3));
  EXPECT_EQ(service.state.members()[2].to_string(), "client 2 (host-2, pid 102)");
}

TEST(RegistrationTest, MissingClientsAreNamedAtTheDeadline) {
  Service service(4);
  const AnswerPtr patient = service.register_client(0, absl::Seconds(60));
  const AnswerPtr hasty = service.register_client(2, absl::Seconds(2));
  EXPECT_EQ(service.state.next_event(), service.now + absl::Seconds(2));
  service.pass(absl::Milliseconds(1999));
  EXPECT_THAT(hasty, Waits());
  service.pass(absl::Milliseconds(1));
  const auto names_them =
      StatusIs(StatusCode::kDeadlineExceeded,
               Eq("job of 4 clients at host-0:1234: clients 1, 3 did not connect within 2 s; see "
                  "whether they were started, and with this address"));
  EXPECT_THAT((std::vector{patient, hasty}), Each(Says(names_them)));
  // One that comes too late hears the same, at once.
  EXPECT_THAT(service.register_client(1), Says(names_them));
  EXPECT_EQ(service.state.next_event(), absl::InfiniteFuture());
}

TEST(RegistrationTest, OneMissingClient) {
  Service service(2);
  const AnswerPtr answer = service.register_client(0, absl::Milliseconds(300));
  service.pass(absl::Seconds(1));
  EXPECT_THAT(answer, Says(StatusIs(StatusCode::kDeadlineExceeded,
                                    HasSubstr("client 1 did not connect within 300 ms"))));
}

TEST(RegistrationTest, TwoClientsOfOneId) {
  Service service(3);
  const AnswerPtr first = service.register_client(1);
  MemberInfo twin = member(1);
  twin.host = "host-b";
  twin.pid = 4711;
  const AnswerPtr second = service.register_member(twin);
  const auto both = StatusIs(StatusCode::kInvalidArgument,
                             Eq("two clients have the id 1: client 1 (host-1, pid 101) and client "
                                "1 (host-b, pid 4711); give each client an id of its own"));
  EXPECT_THAT((std::vector{first, second}), Each(Says(both)));
  EXPECT_THAT(service.register_client(0), Says(both));
}

TEST(RegistrationTest, RestartedClientDoesNotDisturbACompleteJob) {
  const auto service = Service::complete(2);
  EXPECT_THAT(service->register_client(1), Says(StatusIs(StatusCode::kInvalidArgument)));
  const AnswerPtr first = service->check_in(0, "a", "v");
  const AnswerPtr second = service->check_in(1, "a", "v");
  EXPECT_THAT((std::vector{first, second}), Each(Says(IsOk())));
}

TEST(RegistrationTest, DifferentNumberOfClients) {
  Service service(2);
  const AnswerPtr first = service.register_client(0);
  const AnswerPtr second = service.register_member(member(1), 3);
  const auto both =
      StatusIs(StatusCode::kInvalidArgument,
               Eq("client 1 (host-1, pid 101) was started for a job of 3 clients, and client 0 at "
                  "host-0:1234 for one of 2; give all clients the same number"));
  EXPECT_THAT((std::vector{first, second}), Each(Says(both)));
}

TEST(RegistrationTest, IdOutOfRange) {
  for (const int id : {-1, 2}) {
    Service service(2);
    const AnswerPtr first = service.register_client(0);
    const AnswerPtr second = service.register_client(id);
    EXPECT_THAT((std::vector{first, second}),
                Each(Says(StatusIs(StatusCode::kInvalidArgument,
                                   Eq(absl::StrCat("client id ", id,
                                                   " is out of range; a job of 2 "
                                                   "clients has ids 0 to 1"))))));
  }
}

TEST(CheckInTest, Barrier) {
  const auto service = Service::complete(3);
  const AnswerPtr a = service->check_in(0, "b", "v");
  const AnswerPtr b = service->check_in(1, "b", "v");
  EXPECT_THAT((std::vector{a, b}), Each(Waits()));
  const AnswerPtr c = service->check_in(2, "b", "v");
  EXPECT_THAT((std::vector{a, b, c}), Each(Says(IsOk())));
}

TEST(CheckInTest, BarrierWithSubsetOfTasks) {
  const auto service = Service::complete(3);
  const AnswerPtr a = service->check_in(0, "b", "v", absl::Seconds(5), {0, 2});
  const AnswerPtr c = service->check_in(2, "b", "v", absl::Seconds(5), {0, 2});
  EXPECT_THAT((std::vector{a, c}), Each(Says(IsOk())));
}

TEST(CheckInTest, BarrierWithMismatchedTasks) {
  // The longer list first and second: neither may be read past its end.
  const std::vector<std::pair<std::vector<int>, std::vector<int>>> cases = {
      {{0, 1}, {0, 1, 2}}, {{0, 1, 2}, {0, 1}}, {{0, 1}, {1, 2}}};
  for (const auto& [first, second] : cases) {
    const auto service = Service::complete(3);
    const AnswerPtr a = service->check_in(0, "b", "v", absl::Seconds(60), first);
    const AnswerPtr b = service->check_in(1, "b", "v", absl::Seconds(60), second);
    EXPECT_THAT(
        (std::vector{a, b}),
        Each(Says(StatusIs(StatusCode::kInvalidArgument,
                           AllOf(HasSubstr("b: clients disagree: client 0 (host-0, pid "
                                           "100) has participants [0, 1"),
                                 HasSubstr("client 1 (host-1, pid 101) has participants ["))))));
  }
}

TEST(CheckInTest, MismatchedValuesFailAtOnce) {
  const auto service = Service::complete(3);
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
  const auto service = Service::complete(3);
  const AnswerPtr a = service->check_in(0, "b", "v", absl::Seconds(60), {0, 1});
  EXPECT_THAT(service->check_in(2, "b", "v", absl::Seconds(60), {0, 1}),
              Says(StatusIs(StatusCode::kInvalidArgument,
                            Eq("b: participants [0, 1] of client 2 (host-2, pid 102) must be "
                               "different clients from 0 to 2 with client 2 among them"))));
  EXPECT_THAT(a, Waits());
  const AnswerPtr b = service->check_in(1, "b", "v", absl::Seconds(60), {0, 1});
  EXPECT_THAT((std::vector{a, b}), Each(Says(IsOk())));
}

TEST(CheckInTest, BarrierByNonClusterTask) {
  const auto service = Service::complete(2);
  for (const std::vector<int>& wrong : {std::vector{0, 2}, {-1, 0}, {0, 0}}) {
    EXPECT_THAT(service->check_in(0, "b", "v", absl::Seconds(60), wrong),
                Says(StatusIs(StatusCode::kInvalidArgument, HasSubstr("must be different"))));
  }
}

TEST(CheckInTest, BarrierTimeout) {
  const auto service = Service::complete(3);
  const AnswerPtr a = service->check_in(0, "b", "v", absl::Milliseconds(500));
  const AnswerPtr c = service->check_in(2, "b", "v", absl::Milliseconds(500));
  service->pass(absl::Milliseconds(499));
  EXPECT_THAT((std::vector{a, c}), Each(Waits()));
  service->pass(absl::Milliseconds(1));
  EXPECT_THAT((std::vector{a, c}),
              Each(Says(StatusIs(StatusCode::kDeadlineExceeded,
                                 Eq("b: 2 of 3 clients came in 500 ms; missing client 1 (host-1, "
                                    "pid 101)")))));
}

TEST(CheckInTest, AllMissingAreNamed) {
  const auto service = Service::complete(8);
  const AnswerPtr answer = service->check_in(0, "b", "v", absl::Milliseconds(500));
  service->pass(absl::Milliseconds(500));
  for (int i = 1; i < 8; ++i) {
    EXPECT_THAT(std::string(answer->status.message()), HasSubstr(member(i).to_string()));
  }
}

TEST(CheckInTest, EarliestDeadlineDecides) {
  const auto service = Service::complete(3);
  const AnswerPtr patient = service->check_in(0, "b", "v", absl::Seconds(60));
  service->pass(absl::Milliseconds(100));
  const AnswerPtr hasty = service->check_in(1, "b", "v", absl::Milliseconds(500));
  EXPECT_EQ(service->state.next_event(), service->now + absl::Milliseconds(500));
  service->pass(absl::Milliseconds(500));
  EXPECT_THAT((std::vector{patient, hasty}),
              Each(Says(StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("came in 600 ms")))));
}

TEST(CheckInTest, BarrierReturnsPreviousError) {
  const auto service = Service::complete(2);
  const AnswerPtr early = service->check_in(0, "b", "v", absl::Milliseconds(500));
  service->pass(absl::Milliseconds(500));
  const AnswerPtr late = service->check_in(1, "b", "v");
  EXPECT_THAT(late, Says(StatusIs(StatusCode::kDeadlineExceeded)));
  EXPECT_EQ(late->status, early->status);
}

TEST(CheckInTest, UsableAfterATimeout) {
  const auto service = Service::complete(2);
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
  const auto service = Service::complete(2);
  for (int i = 0; i < 2; ++i) {
    const std::string value = absl::StrCat("v", i);
    const AnswerPtr a = service->check_in(0, "b", value);
    EXPECT_THAT(a, Waits()) << i;
    EXPECT_THAT(service->check_in(1, "b", value), Says(IsOk())) << i;
    EXPECT_THAT(a, Says(IsOk())) << i;
  }
}

TEST(CheckInTest, OneClientTwiceDoesNotPass) {
  const auto service = Service::complete(2);
  const AnswerPtr first = service->check_in(0, "b", "v");
  const AnswerPtr again = service->check_in(0, "b", "v");
  EXPECT_THAT((std::vector{first, again}), Each(Waits()));
}

TEST(CheckInTest, NamesDoNotMix) {
  const auto service = Service::complete(2);
  const AnswerPtr a = service->check_in(0, "a", "v");
  const AnswerPtr b = service->check_in(1, "b", "v");
  EXPECT_THAT((std::vector{a, b}), Each(Waits()));
}

TEST(LossTest, BarrierFailsUponTaskError) {
  const auto service = Service::complete(3);
  const AnswerPtr a = service->check_in(0, "b", "v");
  const AnswerPtr b = service->check_in(1, "b", "v");
  service->lose(2);
  const auto lost = StatusIs(StatusCode::kUnavailable,
                             Eq("b: client 2 (host-2, pid 102) is lost: its connection to the "
                                "coordinator broke off"));
  EXPECT_THAT((std::vector{a, b}), Each(Says(lost)));
}

TEST(LossTest, BarrierFailsIfTaskIsAlreadyInError) {
  const auto service = Service::complete(3);
  service->lose(2);
  EXPECT_THAT(service->check_in(0, "b", "v"),
              Says(StatusIs(StatusCode::kUnavailable, HasSubstr("client 2 (host-2, pid 102)"))));
  EXPECT_THAT(service->check_in(1, "b", "v"), Says(StatusIs(StatusCode::kUnavailable)));
}

TEST(LossTest, OutsiderDoesNotMatter) {
  const auto service = Service::complete(3);
  const AnswerPtr a = service->check_in(0, "b", "v", absl::Seconds(5), {0, 1});
  service->lose(2);
  EXPECT_THAT(a, Waits());
  EXPECT_THAT(service->check_in(1, "b", "v", absl::Seconds(5), {0, 1}), Says(IsOk()));
  EXPECT_THAT(a, Says(IsOk()));
}

TEST(LossTest, MissedHeartbeats) {
  const auto service = Service::complete(3);
  const AnswerPtr a = service->check_in(0, "b", "v");
  for (int i = 0; i < 2; ++i) {
    service->pass(kInterval);
    service->heartbeat({0, 1});
    EXPECT_THAT(service->losses, IsEmpty());
  }
  EXPECT_EQ(service->state.next_event(), service->now + kInterval);
  service->pass(kInterval);
  const std::string reason =
      "client 2 (host-2, pid 102) was declared lost: it missed 3 heartbeats of 500 ms";
  EXPECT_THAT(service->losses, ElementsAre(Pair(2, reason)));
  EXPECT_THAT(a, Says(StatusIs(StatusCode::kUnavailable, Eq("b: " + reason))));
}

TEST(LossTest, ReportedOnce) {
  const auto service = Service::complete(2);
  service->pass(3 * kInterval - absl::Milliseconds(1));
  service->heartbeat({0});
  service->pass(absl::Milliseconds(1));
  service->lose(1);
  service->state.heartbeat(1, service->now);
  service->state.session_started(1, service->now);
  service->pass(kInterval);
  service->lose(1);
  EXPECT_THAT(service->losses, SizeIs(1));
  // A lost client leaves no event behind that would always be due.
  EXPECT_GT(service->state.next_event(), service->now);
}

TEST(LossTest, LostClientStaysLost) {
  const auto service = Service::complete(2);
  EXPECT_THAT(service->state.check_alive(1), IsOk());
  service->lose(1);
  service->state.session_started(1, service->now);
  service->heartbeat({1});
  EXPECT_THAT(service->state.check_alive(0), IsOk());
  const auto refused =
      StatusIs(StatusCode::kFailedPrecondition,
               Eq("this client was declared lost, and the others went on without it: client 1 "
                  "(host-1, pid 101) is lost: its connection to the coordinator broke off"));
  EXPECT_THAT(service->state.check_alive(1), refused);
  EXPECT_THAT(service->leave(1), Says(refused));
}

TEST(LossTest, ClientThatDiedBeforeItsSessionIsNoticed) {
  Service service(2);
  service.register_client(0);
  service.register_client(1);
  service.state.session_started(0, service.now);
  for (int i = 0; i < 20; ++i) {
    service.pass(kInterval);
    service.heartbeat({0});
  }
  EXPECT_THAT(service.losses, ElementsAre(Pair(1, HasSubstr("client 1"))));
  EXPECT_THAT(service.state.lost(), SizeIs(1));
}

TEST(LossTest, UnknownSessionsAreNotMissed) {
  Service service(2);
  service.state.session_started(7, service.now);
  service.lose(7);
  service.pass(absl::Hours(1));
  EXPECT_THAT(service.losses, IsEmpty());
}

TEST(KeyValueTest, GetAfterPut) {
  const auto service = Service::complete(1);
  EXPECT_THAT(service->state.put("k", "v"), IsOk());
  EXPECT_THAT(service->get("k"), Says(IsOk()));
  EXPECT_EQ(service->last_found, "v");
}

TEST(KeyValueTest, GetIsAnsweredByPut) {
  const auto service = Service::complete(1);
  const AnswerPtr waiting = service->get("k");
  const AnswerPtr other = service->get("other");
  EXPECT_THAT(service->state.put("k", std::string("a\0b", 3)), IsOk());
  service->run();
  EXPECT_THAT(waiting, Says(IsOk()));
  EXPECT_EQ(service->last_found, std::string("a\0b", 3));
  EXPECT_THAT(other, Waits());
}

TEST(KeyValueTest, PutTwice) {
  const auto service = Service::complete(1);
  EXPECT_THAT(service->state.put("k", "v"), IsOk());
  EXPECT_THAT(service->state.put("k", "v"), IsOk());
  EXPECT_THAT(service->state.put("k", "w"),
              StatusIs(StatusCode::kAlreadyExists,
                       Eq("key \"k\" has another value already; use a new key")));
}

TEST(KeyValueTest, GetTimesOut) {
  const auto service = Service::complete(1);
  const AnswerPtr waiting = service->get("k", absl::Milliseconds(500));
  EXPECT_EQ(service->state.next_event(), service->now + absl::Milliseconds(500));
  service->pass(absl::Milliseconds(500));
  EXPECT_THAT(waiting,
              Says(StatusIs(StatusCode::kDeadlineExceeded,
                            Eq("key \"k\" was not set in time; see whether the client that sets it "
                               "has come so far"))));
  EXPECT_THAT(service->state.put("k", "v"), IsOk());
  service->run();
  EXPECT_EQ(waiting->count, 1);
}

TEST(LeaveTest, WaitsForAll) {
  const auto service = Service::complete(3);
  const AnswerPtr a = service->leave(0);
  const AnswerPtr b = service->leave(1);
  EXPECT_THAT((std::vector{a, b}), Each(Waits()));
  const AnswerPtr c = service->leave(2);
  EXPECT_THAT((std::vector{a, b, c}), Each(Says(IsOk())));
}

TEST(LeaveTest, ThoseThatLeaveAreNotLost) {
  const auto service = Service::complete(2);
  service->leave(1);
  service->lose(1);
  service->heartbeat({0});
  EXPECT_THAT(service->losses, IsEmpty());
  EXPECT_THAT(service->leave(0), Says(IsOk()));
  service->pass(absl::Hours(1));
  EXPECT_THAT(service->losses, IsEmpty());
}

TEST(LeaveTest, WaitsForTheLivingOnly) {
  const auto service = Service::complete(3);
  const AnswerPtr a = service->leave(0);
  service->lose(2);
  EXPECT_THAT(a, Waits());
  EXPECT_THAT(service->leave(1), Says(IsOk()));
  EXPECT_THAT(a, Says(IsOk()));
}

TEST(LeaveTest, LossOfTheLastOneLetsTheOthersGo) {
  const auto service = Service::complete(2);
  const AnswerPtr a = service->leave(0);
  service->lose(1);
  EXPECT_THAT(a, Says(IsOk()));
}

TEST(LeaveTest, DeadlineNamesTheMissing) {
  const auto service = Service::complete(3);
  const AnswerPtr a = service->leave(0, absl::Seconds(60));
  const AnswerPtr b = service->leave(1, absl::Milliseconds(500));
  service->pass(absl::Milliseconds(500));
  const auto missing =
      StatusIs(StatusCode::kDeadlineExceeded,
               Eq("shutdown: 2 of 3 clients came in 500 ms; missing client 2 (host-2, pid 102)"));
  EXPECT_THAT((std::vector{a, b}), Each(Says(missing)));
  EXPECT_THAT(service->leave(2), Says(missing));
}

TEST(StopTest, Shutdown_FailsOngoingBarrier) {
  const auto service = Service::complete(2);
  const AnswerPtr check_in = service->check_in(0, "b", "v");
  const AnswerPtr get = service->get("k");
  const AnswerPtr leave = service->leave(0);
  service->stop();
  EXPECT_THAT(check_in, Says(StatusIs(StatusCode::kCancelled,
                                      Eq("b: the coordinator at host-0:1234 is shutting down"))));
  EXPECT_THAT(get, Says(StatusIs(StatusCode::kCancelled,
                                 Eq("the coordinator at host-0:1234 is shutting down"))));
  EXPECT_THAT(leave, Says(IsOk()));
}

TEST(StopTest, CancelsRegistration) {
  Service service(2);
  const AnswerPtr waiting = service.register_client(0);
  service.stop();
  EXPECT_THAT(waiting, Says(StatusIs(StatusCode::kCancelled)));
}

TEST(StopTest, NothingWaitsAfterwards) {
  const auto service = Service::complete(2);
  service->stop();
  EXPECT_THAT(service->check_in(0, "b", "v"), Says(StatusIs(StatusCode::kCancelled)));
  EXPECT_THAT(service->get("k"), Says(StatusIs(StatusCode::kCancelled)));
  EXPECT_THAT(service->register_client(1), Says(StatusIs(StatusCode::kCancelled)));
  EXPECT_TRUE(service->leave(0)->came());
}

// A random mix of everything: each call is answered once by the end, all participants of a
// check-in agree, and nobody is reported lost twice.
class RandomJob {
 public:
  explicit RandomJob(uint32_t seed) : random_(seed), service_(4) {
    service_.now += absl::Seconds(static_cast<int>(random_() % 100));
  }

  void run() {
    for (int i = 0; i < 300; ++i) step();
    service_.stop();
    for (const AnswerPtr& answer : answers_) EXPECT_EQ(answer->count, 1);
    std::set<int> lost;
    for (const auto& [client, reason] : service_.losses) EXPECT_TRUE(lost.insert(client).second);
    for (const auto& [instance, told] : verdicts_) {
      for (const AnswerPtr& answer : told) {
        EXPECT_EQ(answer->status, told[0]->status) << instance.first << " #" << instance.second;
      }
    }
  }

 private:
  void step() {
    const int client = static_cast<int>(random_() % 4);
    const absl::Duration timeout = absl::Milliseconds(static_cast<int>(random_() % 2000));
    const std::string name(1, static_cast<char>('a' + random_() % 2));
    switch (random_() % 20) {
      case 0:
      case 1:
        if (!registered_.insert(client).second) return;
        answers_.push_back(service_.register_client(client));
        service_.state.session_started(client, service_.now);
        return;
      case 2:
        if (random_() % 8 == 0) service_.lose(client);
        return;
      case 3:
        if (random_() % 8 == 0) answers_.push_back(service_.leave(client, timeout));
        return;
      case 4:
        answers_.push_back(service_.get(name, timeout));
        return;
      case 5:
        service_.state.put(name, std::string(1, static_cast<char>('0' + random_() % 2)))
            .IgnoreError();
        service_.run();
        return;
      case 6:
      case 7:
        service_.pass(absl::Milliseconds(static_cast<int>(random_() % 400)));
        return;
      case 8:
      case 9:
      case 10:
        for (int i = 0; i < 4; ++i) {
          if (random_() % 16 != 0) service_.heartbeat({i});
        }
        return;
      default: {
        if (!service_.state.check_alive(client).ok()) return;
        const std::string value(1, random_() % 16 == 0 ? 'w' : 'v');
        const AnswerPtr answer = service_.check_in(client, name, value, timeout);
        answers_.push_back(answer);
        verdicts_[{name, ++calls_[{name, client}]}].push_back(answer);
      }
    }
  }

  std::mt19937 random_;
  Service service_;
  std::set<int> registered_;
  std::vector<AnswerPtr> answers_;
  std::map<std::pair<std::string, int>, int> calls_;
  std::map<std::pair<std::string, int>, std::vector<AnswerPtr>> verdicts_;
};

TEST(CoordinatorStateTest, RandomOperationsAreAnsweredExactlyOnce) {
  const char* text = std::getenv("TESSERA_TEST_SEED");
  const uint32_t first = text == nullptr ? 1 : static_cast<uint32_t>(std::atoi(text));
  for (uint32_t seed = first; seed < first + 200; ++seed) {
    SCOPED_TRACE(absl::StrCat("TESSERA_TEST_SEED=", seed));
    RandomJob(seed).run();
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace tessera
