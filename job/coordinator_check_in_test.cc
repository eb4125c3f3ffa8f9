// SPDX-License-Identifier: Apache-2.0
//
// Check-ins at the coordinator's state machine, with time passed in: verdicts, deadlines, and what
// the loss of a client does to them. Tests named after one of XLA's coordination service say the
// same.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "job/coordinator_state_service.h"
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

TEST(CheckInTest, BarrierWithMismatchedTasks) {
  // The longer list first and second: neither may be read past its end.
  const std::vector<std::pair<std::vector<int>, std::vector<int>>> cases = {
      {{0, 1}, {0, 1, 2}}, {{0, 1, 2}, {0, 1}}, {{0, 1}, {1, 2}}};
  for (const auto& [first, second] : cases) {
    const auto service = StateService::complete(3);
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
                               "different clients from 0 to 2 with client 2 among them"))));
  EXPECT_THAT(a, Waits());
  const AnswerPtr b = service->check_in(1, "b", "v", absl::Seconds(60), {0, 1});
  EXPECT_THAT((std::vector{a, b}), Each(Says(IsOk())));
}

TEST(CheckInTest, BarrierByNonClusterTask) {
  const auto service = StateService::complete(2);
  for (const std::vector<int>& wrong : {std::vector{0, 2}, {-1, 0}, {0, 0}}) {
    EXPECT_THAT(service->check_in(0, "b", "v", absl::Seconds(60), wrong),
                Says(StatusIs(StatusCode::kInvalidArgument, HasSubstr("must be different"))));
  }
}

TEST(CheckInTest, BarrierTimeout) {
  const auto service = StateService::complete(3);
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
  const auto service = StateService::complete(8);
  const AnswerPtr answer = service->check_in(0, "b", "v", absl::Milliseconds(500));
  service->pass(absl::Milliseconds(500));
  for (int i = 1; i < 8; ++i) {
    EXPECT_THAT(std::string(answer->status.message()), HasSubstr(member(i).to_string()));
  }
}

TEST(CheckInTest, EarliestDeadlineDecides) {
  const auto service = StateService::complete(3);
  const AnswerPtr patient = service->check_in(0, "b", "v", absl::Seconds(60));
  service->pass(absl::Milliseconds(100));
  const AnswerPtr hasty = service->check_in(1, "b", "v", absl::Milliseconds(500));
  EXPECT_EQ(service->state.next_event(), service->now + absl::Milliseconds(500));
  service->pass(absl::Milliseconds(500));
  EXPECT_THAT((std::vector{patient, hasty}),
              Each(Says(StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("came in 600 ms")))));
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
                             Eq("b: client 2 (host-2, pid 102) is lost: its connection to the "
                                "coordinator broke off"));
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
  const auto service = StateService::complete(2);
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
  const auto service = StateService::complete(2);
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
  StateService service(2);
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
  StateService service(2);
  service.state.session_started(7, service.now);
  service.lose(7);
  service.pass(absl::Hours(1));
  EXPECT_THAT(service.losses, IsEmpty());
}

}  // namespace
}  // namespace tessera
