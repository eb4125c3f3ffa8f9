// SPDX-License-Identifier: Apache-2.0
//
// When a client is asked, when it counts as silent, and the error about it.
#include "collectives/span/reach.h"

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera::span {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::StatusIs;

const std::vector<int> kBoth = {2, 5};

absl::Time at(int seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

TEST(ReachTest, AsksOnceAnIntervalWithoutContact) {
  Reach reach(absl::Seconds(1));
  EXPECT_THAT(reach.to_ask(kBoth, at(0)), IsEmpty());
  reach.note_contact(5, at(1));
  EXPECT_THAT(reach.to_ask(kBoth, at(1)), ElementsAre(2));
  EXPECT_THAT(reach.to_ask(kBoth, at(1)), IsEmpty());
  EXPECT_THAT(reach.to_ask(kBoth, at(2)), ElementsAre(2, 5));
}

TEST(ReachTest, SilentAfterManyQuestionsUntilItAnswers) {
  Reach reach(absl::Seconds(1));
  EXPECT_THAT(reach.to_ask(kBoth, at(0)), IsEmpty());
  for (int i = 1; i <= Reach::kMostUnanswered; ++i) {
    EXPECT_THAT(reach.to_ask({2}, at(i)), ElementsAre(2));
    EXPECT_THAT(reach.silent(kBoth), IsEmpty()) << i;
  }
  // One question more, at any time.
  EXPECT_THAT(reach.to_ask(kBoth, at(1000)), ElementsAre(2, 5));
  EXPECT_THAT(reach.silent(kBoth), ElementsAre(2));
  EXPECT_THAT(reach.silent({5}), IsEmpty());
  reach.note_contact(2, at(1000));
  EXPECT_THAT(reach.silent(kBoth), IsEmpty());
  EXPECT_THAT(reach.to_ask(kBoth, at(1000)), IsEmpty());
}

TEST(ReachTest, ShortHeartbeatsLeaveTimeForAnAnswer) {
  Reach reach(absl::Milliseconds(1));
  EXPECT_THAT(reach.to_ask({2}, at(0)), IsEmpty());
  EXPECT_THAT(reach.to_ask({2}, at(0) + absl::Milliseconds(249)), IsEmpty());
  EXPECT_THAT(reach.to_ask({2}, at(0) + absl::Milliseconds(250)), ElementsAre(2));
  EXPECT_EQ(reach.limit(), absl::Seconds(2));
}

TEST(ReachTest, NamesBothHosts) {
  const auto member = [](int id, const char* host) {
    MemberInfo member;
    member.client_id = id;
    member.host = host;
    return member;
  };
  const MemberInfo self = member(0, "host-a");
  EXPECT_THAT(describe_unreachable(self, {member(4, "host-b")}, absl::Seconds(8)),
              StatusIs(absl::StatusCode::kUnavailable,
                       "host-b cannot be reached from host-a: client 0 asked client 4 in vain for "
                       "8 s, while all reach the coordinator; see whether the network and "
                       "firewalls between these hosts let their connections pass"));
  std::vector<MemberInfo> silent;
  for (int id = 1; id < 4; ++id) silent.push_back(member(id, "host-b"));
  silent.push_back(member(7, "host-c"));
  EXPECT_THAT(std::string(describe_unreachable(self, silent, absl::Seconds(8)).message()),
              ::testing::StartsWith("host-b, host-c cannot be reached from host-a: client 0 asked "
                                    "clients 1-3, 7 in vain for 8 s"));
  for (int id = 8; id < 12; ++id) silent.push_back(member(id, id % 2 == 0 ? "host-d" : "host-e"));
  silent.push_back(member(12, "host-f"));
  EXPECT_THAT(
      std::string(describe_unreachable(self, silent, absl::Seconds(8)).message()),
      ::testing::StartsWith("host-b, host-c, host-d, host-e and 1 more cannot be reached from"));
}

}  // namespace
}  // namespace tessera::span
