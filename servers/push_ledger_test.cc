// SPDX-License-Identifier: Apache-2.0
//
// PushLedger: which pushes count, which are Cancelled, and which updates are refused.
#include "servers/push_ledger.h"

#include <string>
#include <vector>

#include "base/status.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera::distribute {
namespace {

using ::tessera::testing::IsOk;
using ::tessera::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr RunKey kFirst = {.worker = 1, .session = 5, .run = 1};
constexpr RunKey kSecond = {.worker = 1, .session = 5, .run = 2};

Push push(const std::string& bytes) { return {.bytes = bytes}; }

std::vector<std::string> counted(const StatusOr<std::vector<Push>>& pushes) {
  EXPECT_THAT(pushes, IsOk());
  std::vector<std::string> result;
  for (const Push& push : pushes.value_or(std::vector<Push>())) result.push_back(push.bytes);
  return result;
}

TEST(PushLedgerTest, AnUpdateThatComesAgainCountsNothing) {
  PushLedger ledger;
  EXPECT_THAT(ledger.stage(kFirst, 1, push("b")), IsOk());
  EXPECT_THAT(ledger.stage(kFirst, 0, push("x")), IsOk());
  EXPECT_THAT(ledger.stage(kFirst, 0, push("a")), IsOk());  // the first answer was lost
  const ServerUpdate update = {.number = 1, .commits = {{kFirst, 2}}};
  EXPECT_THAT(counted(ledger.update(update)), ElementsAre("a", "b"));
  EXPECT_THAT(counted(ledger.update(update)), IsEmpty());
}

TEST(PushLedgerTest, PushesThatCanNeverCountAreCancelled) {
  PushLedger ledger;
  EXPECT_THAT(ledger.stage(kFirst, 0, push("a")), IsOk());
  EXPECT_THAT(counted(ledger.update({.number = 1, .commits = {{kFirst, 1}}})), ElementsAre("a"));
  const auto is_cancelled = StatusIs(
      absl::StatusCode::kCancelled,
      HasSubstr("run 1 of session 5 of worker 1 is over or was given up; its pushes do not count"));
  EXPECT_THAT(ledger.stage(kFirst, 0, push("late")), is_cancelled);
  EXPECT_THAT(ledger.stage(kSecond, 0, push("b")), IsOk());
  EXPECT_THAT(ledger.stage(kFirst, 0, push("late")), is_cancelled);
  EXPECT_THAT(counted(ledger.update({.number = 2, .closed = {{1, 5}}})), IsEmpty());
  EXPECT_THAT(ledger.stage(kSecond, 0, push("late")), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(ledger.stage({.worker = 1, .session = 6, .run = 1}, 0, push("c")), IsOk());
  EXPECT_THAT(ledger.stage({.worker = 0, .session = 2, .run = 1}, 0, push("d")), IsOk());
}

TEST(PushLedgerTest, RefusesWhatTheChiefNeverSends) {
  PushLedger ledger;
  EXPECT_THAT(ledger.update({.number = 2}),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("update 2 of the chief follows 0")));
  EXPECT_THAT(ledger.stage(kFirst, 0, push("a")), IsOk());
  EXPECT_THAT(ledger.update({.number = 1, .commits = {{kFirst, 2}}}),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("the chief commits 2 pushes of")));
  EXPECT_THAT(counted(ledger.update({.number = 1, .commits = {{kFirst, 1}}})), ElementsAre("a"));
}

}  // namespace
}  // namespace tessera::distribute
