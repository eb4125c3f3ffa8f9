// SPDX-License-Identifier: Apache-2.0
//
// The coordinator's state machine, with time passed in: clients that register and leave, values by
// key, and each callback runs exactly once. Check-ins and losses are in
// coordinator_check_in_test.cc, of the same program. Tests named after a test of XLA's coordination
// service check the same.
#include "job/coordinator/coordinator_state.h"

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "job/coordinator/testing/coordinator_state_service.h"
#include "tests/support/matchers.h"
#include "tests/support/seed.h"

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
using testing::IsOkAndHolds;
using testing::member;
using ::testing::Pair;
using testing::Says;
using ::testing::SizeIs;
using testing::StateService;
using testing::StatusIs;
using testing::Waits;

TEST(RegistrationTest, AnsweredWhenAllHaveCome) {
  StateService service(3);
  const AnswerPtr second = service.register_client(1);
  const AnswerPtr first = service.register_client(0);
  EXPECT_THAT(first, Waits());
  const AnswerPtr third = service.register_client(2);
  EXPECT_THAT((std::vector{first, second, third}), Each(Says(IsOk())));
  ASSERT_THAT(service.state.registrations().members(), SizeIs(3));
  EXPECT_EQ(service.state.registrations().members()[2].to_string(), "client 2 (host-2, pid 102)");
}

TEST(RegistrationTest, MissingClientsAreNamedAtTheDeadline) {
  StateService service(4);
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
  // A client that registers too late gets the same answer, at once.
  EXPECT_THAT(service.register_client(1), Says(names_them));
  EXPECT_EQ(service.state.next_event(), absl::InfiniteFuture());
}

TEST(RegistrationTest, OneMissingClient) {
  StateService service(2);
  const AnswerPtr answer = service.register_client(0, absl::Milliseconds(300));
  service.pass(absl::Seconds(1));
  EXPECT_THAT(answer, Says(StatusIs(StatusCode::kDeadlineExceeded,
                                    HasSubstr("client 1 did not connect within 300 ms"))));
}

TEST(RegistrationTest, TwoClientsOfOneId) {
  StateService service(3);
  const AnswerPtr first = service.register_client(1);
  MemberInfo twin = member(1);
  twin.host = "host-b";
  twin.pid = 4711;
  const AnswerPtr second = service.register_as(7, {twin, 3});
  // The first one may have died, and this may be its restart: its heartbeat says that it lives.
  EXPECT_THAT((std::vector{first, second}), Each(Waits()));
  service.heartbeat({1});
  const auto both = StatusIs(StatusCode::kInvalidArgument,
                             Eq("two clients have the id 1: client 1 (host-1, pid 101) and client "
                                "1 (host-b, pid 4711); give each client an id, and each job an "
                                "address or a TESSERA_JOB, of its own"));
  EXPECT_THAT((std::vector{first, second}), Each(Says(both)));
  EXPECT_THAT(service.register_client(0), Says(both));
}

TEST(RegistrationTest, RestartTakesThePlaceOfAClientThatDied) {
  StateService service(3);
  const AnswerPtr waiting = service.register_client(0);
  const AnswerPtr dead = service.register_client(1);
  service.lose(1);
  EXPECT_THAT(dead, Says(StatusIs(StatusCode::kCancelled)));
  MemberInfo restarted = member(1);
  restarted.pid = 4711;
  const AnswerPtr again = service.register_as(7, {restarted, 3});
  const AnswerPtr last = service.register_client(2);
  EXPECT_THAT((std::vector{waiting, again, last}), Each(Says(IsOk())));
  EXPECT_EQ(service.state.registrations().members()[1].pid, 4711);
  EXPECT_THAT(service.losses, IsEmpty());
}

TEST(RegistrationTest, RestartMayComeBeforeTheEndOfItsPredecessorIsKnown) {
  StateService service(2);
  const AnswerPtr dead = service.register_client(1);
  MemberInfo restarted = member(1);
  restarted.pid = 4711;
  const AnswerPtr again = service.register_as(7, {restarted, 2});
  const AnswerPtr other = service.register_client(0);
  EXPECT_THAT((std::vector{again, other}), Each(Waits()));
  service.lose(1);
  EXPECT_THAT(dead, Says(StatusIs(StatusCode::kCancelled)));
  EXPECT_THAT((std::vector{again, other}), Each(Says(IsOk())));
  EXPECT_EQ(service.state.registrations().members()[1].pid, 4711);
  // The new connection is the client's.
  service.state.disconnected(7);
  service.run();
  EXPECT_THAT(service.losses, SizeIs(1));
}

TEST(RegistrationTest, TwinThatIsGoneIsForgotten) {
  StateService service(2);
  const AnswerPtr first = service.register_client(1);
  const AnswerPtr twin = service.register_as(7, {member(1), 2});
  const AnswerPtr other = service.register_client(0);
  service.state.disconnected(7);
  service.run();
  EXPECT_THAT(twin, Says(StatusIs(StatusCode::kCancelled)));
  EXPECT_THAT((std::vector{first, other}), Each(Says(IsOk())));
}

// Long after the start. No client of the start comes then.
TEST(RegistrationTest, SecondClientOfAnIdDoesNotDisturbARunningJob) {
  const auto service = StateService::complete(2);
  service->pass(absl::Seconds(61));
  EXPECT_THAT(service->register_as(7, {member(1), 2}),
              Says(StatusIs(StatusCode::kInvalidArgument)));
  service->heartbeat({0, 1});
  EXPECT_THAT(service->losses, IsEmpty());
  const AnswerPtr first = service->check_in(0, "a", "v");
  const AnswerPtr second = service->check_in(1, "a", "v");
  EXPECT_THAT((std::vector{first, second}), Each(Says(IsOk())));
}

// R5, A3. Two jobs with one address and one token, and without a name: client 1 of job B registered
// first and became a member of job A. When client 1 of A registers, all clients get an error that
// names both processes.
TEST(RegistrationTest, MixOfTwoJobsIsFoundWhenTheOtherClientComes) {
  StateService service(3);
  MemberInfo of_b = member(1);
  of_b.pid = 4711;
  service.register_client(0);
  EXPECT_THAT(service.register_as(7, {of_b, 3}), Waits());
  service.register_client(2);
  ASSERT_THAT(service.state.registrations().members(), SizeIs(3));
  const AnswerPtr waits = service.check_in(0, "a", "v");
  const AnswerPtr of_a = service.register_client(1);
  EXPECT_THAT(of_a, Waits());
  service.state.heartbeat(7);
  service.run();
  EXPECT_THAT(of_a, Says(StatusIs(StatusCode::kInvalidArgument,
                                  Eq("two clients have the id 1: client 1 (host-1, pid 4711) and "
                                     "client 1 (host-1, pid 101); give each client an id, and each "
                                     "job an address or a TESSERA_JOB, of its own"))));
  const std::string lost =
      "client 1 (host-1, pid 4711) is lost: client 1 (host-1, pid 101) came with the same id and "
      "token, and nothing tells which of them belongs to this job; give each job an address or a "
      "TESSERA_JOB of its own";
  EXPECT_THAT(service.losses, ::testing::ElementsAre(::testing::Pair(1, lost)));
  EXPECT_THAT(waits, Says(StatusIs(StatusCode::kUnavailable, HasSubstr(lost))));
  EXPECT_THAT(service.state.client_of(7),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("was declared lost")));
}

// The restart of a member that has just died is no second client: only the loss is reported.
TEST(RegistrationTest, RestartOfAMemberIsRefusedAlone) {
  const auto service = StateService::complete(2);
  const AnswerPtr restart = service->register_as(7, {member(1), 2});
  EXPECT_THAT(restart, Waits());
  service->lose(1);
  EXPECT_THAT(restart, Says(StatusIs(StatusCode::kInvalidArgument)));
  ASSERT_THAT(service->losses, SizeIs(1));
  EXPECT_THAT(service->losses[0].second, HasSubstr("its connections broke off"));
  EXPECT_THAT(service->register_as(8, {member(1), 2}),
              Says(StatusIs(StatusCode::kInvalidArgument)));
}

TEST(RegistrationTest, SecondClientOfAMemberThatIsSilentIsRefusedAtItsDeadline) {
  const auto service = StateService::complete(2);
  const AnswerPtr claim = service->register_as(7, {member(1), 2}, absl::Milliseconds(100));
  service->pass(absl::Milliseconds(100));
  EXPECT_THAT(claim, Says(StatusIs(StatusCode::kInvalidArgument, HasSubstr("have the id 1"))));
  service->heartbeat({0, 1});
  EXPECT_THAT(service->losses, IsEmpty());
  const AnswerPtr gone = service->register_as(8, {member(1), 2});
  service->state.disconnected(8);
  service->run();
  EXPECT_THAT(gone, Says(StatusIs(StatusCode::kCancelled)));
  service->heartbeat({0, 1});
  EXPECT_THAT(service->losses, IsEmpty());
}

// tessera_coordinator continues after a start that failed: the next start does not get its error.
TEST(RegistrationTest, FailedStartIsForgottenByTheNextOne) {
  StateService service(2);
  service.register_as(7, {member(1), 3});
  const auto failed =
      StatusIs(StatusCode::kInvalidArgument, HasSubstr("was started for a job of 3 clients"));
  const AnswerPtr late = service.register_client(0);
  EXPECT_THAT(late, Says(failed));
  // Its client is still there: this is a second one.
  EXPECT_THAT(service.register_as(8, {member(0), 2}), Says(failed));
  for (const CoordinatorState::Connection connection : {7, 8}) {
    service.state.disconnected(connection);
  }
  service.lose(0);
  const AnswerPtr first = service.register_as(9, {member(1), 2});
  EXPECT_THAT(first, Waits());
  const AnswerPtr second = service.register_as(10, {member(0), 2});
  EXPECT_THAT((std::vector{first, second}), Each(Says(IsOk())));
}

// The first client of the next start did not take part in the failed one.
TEST(RegistrationTest, FailedStartIsForgottenWhenAllOfItAreGone) {
  StateService service(2);
  const AnswerPtr alone = service.register_client(0, absl::Seconds(1));
  service.pass(absl::Seconds(1));
  EXPECT_THAT(alone, Says(StatusIs(StatusCode::kDeadlineExceeded)));
  EXPECT_THAT(service.register_as(7, {member(1), 2}),
              Says(StatusIs(StatusCode::kDeadlineExceeded)));
  service.state.disconnected(7);
  service.lose(0);
  const AnswerPtr first = service.register_as(8, {member(1), 2});
  const AnswerPtr second = service.register_as(9, {member(0), 2});
  EXPECT_THAT((std::vector{first, second}), Each(Says(IsOk())));
}

// A program that connects again under one launcher, and the service of tessera_coordinator.
TEST(RegistrationTest, JobThatIsOverIsFollowedByTheNextOne) {
  StateService service(2);
  CoordinatorState::Connection connection = 100;
  for (int job = 1; job <= 3; ++job) {
    SCOPED_TRACE(job);
    const AnswerPtr first = service.register_as(++connection, {member(0), 2});
    EXPECT_THAT(first, Waits());
    EXPECT_THAT(service.register_as(++connection, {member(1), 2}), Says(IsOk()));
    EXPECT_THAT(first, Says(IsOk()));
    EXPECT_EQ(service.state.registrations().num_jobs(), job);
    // Keys and check-ins of an earlier job are gone.
    EXPECT_THAT(service.state.key_values().put("key", std::to_string(job)), IsOk());
    const AnswerPtr waits = service.check_in(0, "mesh", std::to_string(job));
    EXPECT_THAT(service.check_in(1, "mesh", std::to_string(job)), Says(IsOk()));
    EXPECT_THAT(waits, Says(IsOk()));
    const AnswerPtr leaves = service.leave(0);
    EXPECT_THAT(leaves, Waits());
    // The job is not over yet: a client that registers again is refused.
    EXPECT_THAT(service.register_as(++connection, {member(0), 2}),
                Says(StatusIs(StatusCode::kInvalidArgument, HasSubstr("two clients"))));
    EXPECT_THAT(service.leave(1), Says(IsOk()));
    EXPECT_THAT(leaves, Says(IsOk()));
  }
}

// mpirun gives each launch a name of its own.
TEST(RegistrationTest, FailedStartIsForgottenByAJobOfAnotherName) {
  StateService service(2);
  service.register_as(7, {member(1), 3, "mpirun 1"});
  EXPECT_THAT(service.register_as(8, {member(0), 2, "mpirun 1"}),
              Says(StatusIs(StatusCode::kInvalidArgument)));
  const AnswerPtr first = service.register_as(9, {member(0), 2, "mpirun 2"});
  EXPECT_THAT(first, Waits());
  EXPECT_THAT(service.register_as(10, {member(1), 2, "mpirun 1"}),
              Says(StatusIs(StatusCode::kInvalidArgument, HasSubstr("belongs to job"))));
  EXPECT_THAT(service.register_as(11, {member(1), 2, "mpirun 2"}), Says(IsOk()));
  EXPECT_THAT(first, Says(IsOk()));
}

TEST(RegistrationTest, DifferentNumberOfClients) {
  StateService service(2);
  const AnswerPtr first = service.register_client(0);
  const AnswerPtr second = service.register_as(7, {member(1), 3});
  const auto both = StatusIs(
      StatusCode::kInvalidArgument,
      Eq("client 1 (host-1, pid 101) was started for a job of 3 clients, and the coordinator "
         "at host-0:1234 for one of 2; give all clients the same number"));
  EXPECT_THAT((std::vector{first, second}), Each(Says(both)));
}

TEST(RegistrationTest, OtherBuild) {
  CoordinatorState state({.num_clients = 2, .address = "host-0:1234", .build = "Tessera 2"});
  Status told;
  state.register_client(1, {member(1), 2}, absl::UnixEpoch(), absl::InfiniteFuture(),
                        [&](const Status& status) { told = status; });
  for (const auto& callback : state.take_callbacks()) callback();
  EXPECT_THAT(told, StatusIs(StatusCode::kInvalidArgument,
                             Eq("client 1 (host-1, pid 101) has a Tessera that does not say its "
                                "version, and the coordinator at host-0:1234 has Tessera 2; build "
                                "all programs of a job, and tessera_run, from one Tessera")));
}

TEST(RegistrationTest, IdOutOfRange) {
  for (const int id : {-1, 2}) {
    StateService service(2);
    const AnswerPtr first = service.register_client(0);
    const AnswerPtr second = service.register_client(id);
    EXPECT_THAT((std::vector{first, second}),
                Each(Says(StatusIs(StatusCode::kInvalidArgument,
                                   Eq(absl::StrCat("client id ", id,
                                                   " is out of range; a job of 2 "
                                                   "clients has ids 0 to 1"))))));
  }
}

// A client of another job is refused alone.
TEST(RegistrationTest, ClientsOfTwoJobsDoNotMix) {
  StateService service(2);
  const AnswerPtr first = service.register_as(7, {member(0), 2, "run-a"});
  EXPECT_THAT(service.register_as(8, {member(1), 2, "run-b"}),
              Says(StatusIs(StatusCode::kInvalidArgument,
                            Eq("client 1 (host-1, pid 101) belongs to job \"run-b\", and the "
                               "coordinator at host-0:1234 serves job \"run-a\"; give each job an "
                               "address of its own"))));
  EXPECT_THAT(first, Waits());
  EXPECT_THAT(service.register_as(9, {member(1), 2, "run-a"}), Says(IsOk()));
  EXPECT_THAT(first, Says(IsOk()));
  // Complete or not.
  EXPECT_THAT(service.register_as(10, {member(1), 2, "run-b"}),
              Says(StatusIs(StatusCode::kInvalidArgument, HasSubstr("belongs to job"))));
}

TEST(RegistrationTest, WhatAClientSaysIsChecked) {
  for (const int num_devices : {-1, 0, 65'537}) {
    StateService service(2);
    MemberInfo info = member(1);
    info.num_local_devices = num_devices;
    EXPECT_THAT(service.register_as(7, {info, 2}),
                Says(StatusIs(StatusCode::kInvalidArgument,
                              Eq(absl::StrCat("client 1 (host-1, pid 101) says that it has ",
                                              num_devices, " devices; a client has 1 to 65536")))));
  }
  StateService service(2);
  CoordinatorState::Registration hasty = {member(1), 2};
  hasty.heartbeat_interval = absl::ZeroDuration();
  EXPECT_THAT(service.register_as(7, hasty),
              Says(StatusIs(StatusCode::kInvalidArgument,
                            HasSubstr("heartbeat_interval of 0 ms; it must be 1 ms or longer"))));
}

TEST(KeyValueTest, GetAfterPut) {
  const auto service = StateService::complete(1);
  EXPECT_THAT(service->state.key_values().put("k", "v"), IsOk());
  EXPECT_THAT(service->get("k"), Says(IsOk()));
  EXPECT_EQ(service->last_found, "v");
}

TEST(KeyValueTest, GetIsAnsweredByPut) {
  const auto service = StateService::complete(1);
  const AnswerPtr waiting = service->get("k");
  const AnswerPtr other = service->get("other");
  EXPECT_THAT(service->state.key_values().put("k", std::string("a\0b", 3)), IsOk());
  service->run();
  EXPECT_THAT(waiting, Says(IsOk()));
  EXPECT_EQ(service->last_found, std::string("a\0b", 3));
  EXPECT_THAT(other, Waits());
}

TEST(KeyValueTest, PutTwice) {
  const auto service = StateService::complete(1);
  EXPECT_THAT(service->state.key_values().put("k", "v"), IsOk());
  EXPECT_THAT(service->state.key_values().put("k", "v"), IsOk());
  EXPECT_THAT(service->state.key_values().put("k", "w"),
              StatusIs(StatusCode::kAlreadyExists,
                       Eq("key \"k\" has another value already; use a new key")));
}

TEST(KeyValueTest, GetTimesOut) {
  const auto service = StateService::complete(1);
  const AnswerPtr waiting = service->get("k", absl::Milliseconds(500));
  EXPECT_EQ(service->state.next_event(), service->now + absl::Milliseconds(500));
  service->pass(absl::Milliseconds(500));
  EXPECT_THAT(waiting,
              Says(StatusIs(StatusCode::kDeadlineExceeded,
                            Eq("key \"k\" was not set in time; see whether the client that sets it "
                               "has reached that call"))));
  EXPECT_THAT(service->state.key_values().put("k", "v"), IsOk());
  service->run();
  EXPECT_EQ(waiting->count, 1);
}

// A client whose call fails may end the service, which must have told the others the cause.
TEST(KeyValueTest, LossIsToldBeforeTheCallsThatItEnds) {
  const auto service = StateService::complete(3);
  const AnswerPtr waiting = service->get("k", absl::Seconds(60), 2);
  service->state.disconnected(StateService::connection_of(2));
  size_t num_told_before = 0;
  for (const std::function<void()>& callback : service->state.take_callbacks()) {
    if (!waiting->came()) num_told_before = service->losses.size();
    callback();
  }
  EXPECT_TRUE(waiting->came());
  EXPECT_EQ(num_told_before, 1u);
}

TEST(KeyValueTest, LossOfTheSetterEndsTheWait) {
  const auto service = StateService::complete(3);
  const AnswerPtr waiting = service->get("k", absl::Seconds(60), 2);
  const AnswerPtr other = service->get("other", absl::Seconds(60), 1);
  service->lose(2);
  const auto lost = StatusIs(StatusCode::kUnavailable, HasSubstr("client 2 (host-2, pid 102)"));
  EXPECT_THAT(waiting, Says(lost));
  EXPECT_THAT(other, Waits());
  EXPECT_THAT(service->get("k", absl::Seconds(60), 2), Says(lost));
  service->leave(1);
  EXPECT_THAT(other, Says(StatusIs(StatusCode::kUnavailable,
                                   Eq("client 1 (host-1, pid 101) has left the job"))));
}

TEST(ProposalTest, TheFirstIsToldToAll) {
  const auto service = StateService::complete(3);
  const AnswerPtr waiting = service->get_proposal("s", 7, /*setter=*/2);
  const AnswerPtr other = service->get_proposal("s", 8, /*setter=*/1);
  EXPECT_THAT(service->state.key_values().propose("s", 7, "first"), IsOkAndHolds("first"));
  service->run();
  EXPECT_THAT(waiting, Says(IsOk()));
  EXPECT_EQ(service->last_found, "first");
  EXPECT_THAT(service->state.key_values().propose("s", 7, "second"), IsOkAndHolds("first"));
  EXPECT_THAT(service->get_proposal("s", 7, /*setter=*/0), Says(IsOk()));
  EXPECT_THAT(other, Waits());
  service->lose(1);
  EXPECT_THAT(other, Says(StatusIs(StatusCode::kUnavailable, HasSubstr("client 1 ("))));
  service->stop();
  EXPECT_THAT(service->state.key_values().propose("s", 9, "v"), StatusIs(StatusCode::kCancelled));
}

// A group whose runs fail without end, as a barrier that is polled with a short deadline.
TEST(ProposalTest, FailuresWithoutEndTakeABoundedPlace) {
  const auto service = StateService::complete(2);
  const std::string text(300, 'x');
  int64_t num_bytes = 0;
  for (uint32_t seq = 1; seq <= 200'000; ++seq) {
    ASSERT_THAT(service->state.key_values().propose("verdict of 3f", seq, text), IsOk());
    if (seq == 1000) num_bytes = service->state.key_values().num_bytes();
  }
  EXPECT_EQ(service->state.key_values().num_bytes(), num_bytes);
  // A client that waited for a forgotten proposal would wait for ever.
  EXPECT_THAT(service->get_proposal("verdict of 3f", 1, /*setter=*/1),
              Says(StatusIs(StatusCode::kNotFound,
                            Eq("\"verdict of 3f 1\" is forgotten: 64 later ones are known; see why "
                               "this client is so far behind the others"))));
}

// Verdicts are the same for all however full the store is.
TEST(ProposalTest, AFullStoreHasOneVerdictForAll) {
  const auto service = StateService::complete(2);
  const std::string full(KeyValues::kMostBytes - 1, 'x');
  ASSERT_THAT(service->state.key_values().put("k", full), IsOk());
  ASSERT_THAT(service->state.key_values().put("l", "v"), StatusIs(StatusCode::kResourceExhausted));
  EXPECT_THAT(service->state.key_values().propose("s", 1, "4:one"), IsOkAndHolds("4:one"));
  EXPECT_THAT(service->state.key_values().propose("s", 1, "4:other"), IsOkAndHolds("4:one"));
}

TEST(ProposalTest, OfABoundedLength) {
  const auto service = StateService::complete(1);
  EXPECT_THAT(service->state.key_values().propose("s", 1, std::string(64 << 10, 'x')),
              StatusIs(StatusCode::kInvalidArgument,
                       Eq("s 1: series and value have 65537 bytes; use at most 65536")));
}

TEST(KeyValueTest, WhatIsKeptIsBounded) {
  const auto service = StateService::complete(2);
  const std::string half(KeyValues::kMostBytes / 2, 'x');
  EXPECT_THAT(service->state.key_values().put("a", half), IsOk());
  EXPECT_THAT(service->state.key_values().put("b", half),
              StatusIs(StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("key \"b\" needs"), HasSubstr("of at most 67108864"))));
  EXPECT_THAT(service->state.key_values().put("c", "small"), IsOk());
  std::vector<AnswerPtr> waiting;
  for (int i = 0; i < KeyValues::kMostWaitingCalls; ++i) {
    waiting.push_back(service->get(absl::StrCat("k", i)));
    waiting.push_back(service->check_in(0, "b", "v"));
  }
  EXPECT_THAT(waiting, Each(Waits()));
  EXPECT_THAT(service->get("k"),
              Says(StatusIs(StatusCode::kResourceExhausted,
                            Eq("client 0 (host-0, pid 100) waits for 1024 keys already, the most "
                               "that a client may; wait for fewer"))));
  EXPECT_THAT(
      service->check_in(0, "b", "v"),
      Says(StatusIs(StatusCode::kResourceExhausted, HasSubstr("waits in 1024 check-ins already"))));
  EXPECT_THAT(service->get("k", absl::Seconds(60), 0, 1), Waits());
}

TEST(LeaveTest, WaitsForAll) {
  const auto service = StateService::complete(3);
  const AnswerPtr a = service->leave(0);
  const AnswerPtr b = service->leave(1);
  EXPECT_THAT((std::vector{a, b}), Each(Waits()));
  const AnswerPtr c = service->leave(2);
  EXPECT_THAT((std::vector{a, b, c}), Each(Says(IsOk())));
}

TEST(LeaveTest, ThoseThatLeaveAreNotLost) {
  const auto service = StateService::complete(2);
  service->leave(1);
  service->lose(1);
  service->heartbeat({0});
  EXPECT_THAT(service->losses, IsEmpty());
  EXPECT_THAT(service->leave(0), Says(IsOk()));
  service->pass(absl::Hours(1));
  EXPECT_THAT(service->losses, IsEmpty());
}

TEST(LeaveTest, WaitsForTheLivingOnly) {
  const auto service = StateService::complete(3);
  const AnswerPtr a = service->leave(0);
  service->lose(2);
  EXPECT_THAT(a, Waits());
  EXPECT_THAT(service->leave(1), Says(IsOk()));
  EXPECT_THAT(a, Says(IsOk()));
}

TEST(LeaveTest, LossOfTheLastOneLetsTheOthersGo) {
  const auto service = StateService::complete(2);
  const AnswerPtr a = service->leave(0);
  service->lose(1);
  EXPECT_THAT(a, Says(IsOk()));
}

TEST(LeaveTest, DeadlineNamesTheMissing) {
  const auto service = StateService::complete(3);
  service->leave(0, absl::Seconds(60));
  const AnswerPtr hasty = service->leave(1, absl::Milliseconds(500));
  service->pass(absl::Milliseconds(500));
  EXPECT_THAT(hasty,
              Says(StatusIs(StatusCode::kDeadlineExceeded,
                            Eq("shutdown: 2 of 3 clients arrived in 500 ms; missing client 2 "
                               "(host-2, pid 102)"))));
}

TEST(LeaveTest, OneThatGivesUpHasLeftAndSpoilsNothing) {
  const auto service = StateService::complete(3);
  const AnswerPtr hasty = service->leave(1, absl::Milliseconds(300));
  service->pass(absl::Seconds(1));
  EXPECT_THAT(hasty, Says(StatusIs(StatusCode::kDeadlineExceeded,
                                   HasSubstr("missing client 0 (host-0, pid 100), client 2 "))));
  service->lose(1);  // changes nothing
  const AnswerPtr first = service->leave(0, absl::Seconds(10));
  EXPECT_THAT(first, Waits());
  const AnswerPtr last = service->leave(2, absl::Seconds(10));
  EXPECT_THAT((std::vector{first, last}), Each(Says(IsOk())));
  EXPECT_THAT(service->losses, ElementsAre(Pair(1, "client 1 (host-1, pid 101) has left the job")));
}

TEST(StopTest, Shutdown_FailsOngoingBarrier) {
  const auto service = StateService::complete(2);
  const AnswerPtr check_in = service->check_in(0, "b", "v");
  const AnswerPtr get = service->get("k");
  service->stop();
  EXPECT_THAT(check_in,
              Says(StatusIs(StatusCode::kCancelled,
                            Eq("b: the coordinator at host-0:1234 has shut down in order"))));
  EXPECT_THAT(get, Says(StatusIs(StatusCode::kCancelled,
                                 Eq("the coordinator at host-0:1234 has shut down in order"))));
}

TEST(StopTest, ThoseThatWaitToLeaveHaveLeft) {
  const auto service = StateService::complete(2);
  const AnswerPtr leave = service->leave(0);
  service->stop();
  EXPECT_THAT(leave, Says(IsOk()));
  EXPECT_THAT(service->leave(1), Says(IsOk()));
  service->lose(1);
  EXPECT_THAT(service->losses, IsEmpty());
}

TEST(StopTest, CancelsRegistration) {
  StateService service(2);
  const AnswerPtr waiting = service.register_client(0);
  service.stop();
  EXPECT_THAT(waiting, Says(StatusIs(StatusCode::kCancelled)));
}

TEST(StopTest, NothingWaitsAfterwards) {
  const auto service = StateService::complete(2);
  service->stop();
  EXPECT_THAT(service->check_in(0, "b", "v"), Says(StatusIs(StatusCode::kCancelled)));
  EXPECT_THAT(service->get("k"), Says(StatusIs(StatusCode::kCancelled)));
  EXPECT_THAT(service->register_client(1), Says(StatusIs(StatusCode::kCancelled)));
  EXPECT_TRUE(service->leave(0)->came());
}

// A random mix of everything: each call is answered once by the end, a check-in passes for all of
// its participants or for none, and no client is reported lost twice.
class RandomJob {
 public:
  explicit RandomJob(uint32_t seed) : random_(seed), service_(4) {
    service_.now += absl::Seconds(static_cast<int>(random_() % 100));
  }

  void run() {
    for (int i = 0; i < 300; ++i) {
      step();
      check_passed();
    }
    service_.stop();
    for (const AnswerPtr& answer : answers_) EXPECT_EQ(answer->count, 1);
    std::set<int> lost;
    for (const auto& [client, reason] : service_.losses) EXPECT_TRUE(lost.insert(client).second);
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
        return;
      case 2:
        if (random_() % 8 == 0) service_.lose(client);
        return;
      case 3:
        if (random_() % 8 != 0 || !can_speak(client)) return;
        answers_.push_back(service_.leave(client, timeout));
        return;
      case 4:
        if (!can_speak(client)) return;
        answers_.push_back(service_.get(name, timeout, static_cast<int>(random_() % 4), client));
        return;
      case 5:
        service_.state.key_values()
            .put(name, std::string(1, static_cast<char>('0' + random_() % 2)))
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
        if (!can_speak(client)) return;
        const std::string value(1, random_() % 16 == 0 ? 'w' : 'v');
        const AnswerPtr answer = service_.check_in(client, name, value, timeout);
        answers_.push_back(answer);
        waiting_.push_back({client, answer});
      }
    }
  }

  // A check-in passes for all four clients at once, or for none.
  void check_passed() {
    std::map<int, int> passed;  // by client
    for (const auto& [client, answer] : waiting_) {
      if (answer->came() && answer->status.ok()) ++passed[client];
    }
    std::erase_if(waiting_, [](const auto& call) { return call.second->came(); });
    for (int client = 0; client < 4; ++client) EXPECT_EQ(passed[client], passed[0]);
  }

  bool can_speak(int client) const {
    return service_.state.client_of(StateService::connection_of(client)).ok();
  }

  std::mt19937 random_;
  StateService service_;
  std::set<int> registered_;
  std::vector<AnswerPtr> answers_;
  std::vector<std::pair<int, AnswerPtr>> waiting_;  // check-ins, by client
};

TEST(CoordinatorStateTest, RandomOperationsAreAnsweredExactlyOnce) {
  const auto first = static_cast<uint32_t>(testing::test_seed(1));
  for (uint32_t seed = first; seed < first + 200; ++seed) {
    SCOPED_TRACE(absl::StrCat("TESSERA_TEST_SEED=", seed));
    RandomJob(seed).run();
    if (::testing::Test::HasFailure()) return;
  }
}

// The waits of the calls of a client: "KIND text MISSING, silent SILENT of NUM".
std::vector<std::string> awaited_by(const StateService& service, int client) {
  std::vector<std::string> texts;
  for (const AwaitedCall& call : service.state.awaited(StateService::connection_of(client))) {
    texts.push_back(absl::StrCat(call.kind, " ", call.text, " ",
                                 IdRanges::of(call.missing).to_string(), " silent ",
                                 IdRanges::of(call.silent).to_string(), " of ", call.num_clients));
  }
  return texts;
}

TEST(AwaitedTest, ARegistrationWaitsForTheClientsThatHaveNotCome) {
  StateService service(3);
  service.register_client(1);
  EXPECT_THAT(awaited_by(service, 1), ::testing::ElementsAre(absl::StrCat(
                                          AwaitedCall::kRegister, "  [0, 2] silent [] of 3")));
  // Nothing is known about a client that did not register.
  EXPECT_THAT(awaited_by(service, 2), IsEmpty());
}

TEST(AwaitedTest, EachCallWaitsForThoseThatHaveNotMadeIt) {
  const auto service = StateService::complete(4);
  service->check_in(0, "mesh", "{x=2}", absl::Seconds(60), {0, 1});
  service->check_in(2, "mesh", "{y=4}");
  service->get("key", absl::Seconds(60), /*setter=*/3, /*client=*/0);
  service->leave(2);
  EXPECT_THAT(
      awaited_by(*service, 0),
      ::testing::ElementsAre(absl::StrCat(AwaitedCall::kCheckIn, " {x=2} [1] silent [] of 2"),
                             absl::StrCat(AwaitedCall::kGet, " key [3] silent [] of 2")));
  // Its own leave has ended its check-in.
  EXPECT_THAT(awaited_by(*service, 2), ::testing::ElementsAre(absl::StrCat(
                                           AwaitedCall::kLeave, "  [0, 1, 3] silent [] of 4")));
  EXPECT_THAT(awaited_by(*service, 3), IsEmpty());
}

TEST(AwaitedTest, AClientThatMissesHeartbeatsIsSilentBeforeItIsLost) {
  const auto service = StateService::complete(3);
  service->check_in(0, "mesh", "{x=3}");
  for (int tick = 0; tick < 2; ++tick) {
    service->pass(testing::kInterval);
    service->heartbeat({0, 1});
  }
  EXPECT_THAT(
      awaited_by(*service, 0),
      ::testing::ElementsAre(absl::StrCat(AwaitedCall::kCheckIn, " {x=3} [1, 2] silent [2] of 3")));
}

}  // namespace
}  // namespace tessera
