// SPDX-License-Identifier: Apache-2.0
//
// The silence of members by intervals: lost clients, hosts that cannot be reached, and clients that
// are gone.
#include "job/coordinator/heartbeats.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "job/coordinator/testing/coordinator_state_service.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::member;

// The clients of each loss after one more interval.
std::vector<std::string> tick(Heartbeats& heartbeats) {
  std::vector<std::string> losses;
  heartbeats.tick(absl::Seconds(1), [&](const IdRanges& clients, const Status&) {
    losses.push_back(clients.to_list());
    clients.for_each([&](int client) { heartbeats.client_gone(client); });
  });
  return losses;
}

// Clients 0 and 1 on the host of the service, 2 and 3 on another one.
std::vector<MemberInfo> members_on_two_hosts() {
  std::vector<MemberInfo> members;
  for (int id = 0; id < 4; ++id) {
    members.push_back(member(id));
    members.back().host_id = id < 2 ? "own" : "other";
  }
  return members;
}

TEST(HeartbeatsTest, SilentHostIsOneLossAndTheOwnHostIsNone) {
  const std::vector<MemberInfo> members = members_on_two_hosts();
  Heartbeats heartbeats(members, "own");
  for (int i = 0; i < kMissedHeartbeats; ++i) EXPECT_THAT(tick(heartbeats), IsEmpty());
  EXPECT_TRUE(heartbeats.is_silent(2));
  EXPECT_THAT(tick(heartbeats), ElementsAre("0", "1", "2, 3"));
  EXPECT_EQ(heartbeats.num_gone(), 4);
  EXPECT_THAT(tick(heartbeats), IsEmpty());
}

TEST(HeartbeatsTest, ClientThatIsGoneIsInNoLoss) {
  const std::vector<MemberInfo> members = members_on_two_hosts();
  Heartbeats heartbeats(members, "own");
  heartbeats.client_gone(2);
  heartbeats.client_gone(2);
  for (int i = 0; i < kMissedHeartbeats; ++i) tick(heartbeats);
  for (const int client : {0, 1}) heartbeats.heard(client);
  EXPECT_THAT(tick(heartbeats), ElementsAre("3"));
  EXPECT_THAT(heartbeats.not_gone(), ElementsAre(0, 1));
  EXPECT_EQ(heartbeats.num_gone(), 2);
}

}  // namespace
}  // namespace tessera
