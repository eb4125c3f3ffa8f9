// SPDX-License-Identifier: Apache-2.0
//
// Which failure the report takes for the root cause.
#include "job/launcher/launch_report.h"

#include <algorithm>
#include <csignal>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

constexpr char kLostPeer[] = "UNAVAILABLE: client 1 (host-a, pid 7) is lost";

ClientEnd end_at(int client_id, int second, const ExitStatus& exit,
                 const std::string& reported = "") {
  ClientEnd end;
  end.client_id = client_id;
  end.exit = exit;
  end.time = absl::UnixEpoch() + absl::Seconds(second);
  end.reported_status = reported;
  return end;
}

std::vector<int> order_of(std::vector<ClientEnd> ends) {
  std::stable_sort(ends.begin(), ends.end(), is_likelier_cause);
  std::vector<int> ids;
  for (const ClientEnd& end : ends) ids.push_back(end.client_id);
  return ids;
}

TEST(LaunchReportTest, FailuresAreInTheOrderOfTheirTimes) {
  EXPECT_THAT(order_of({end_at(0, 3, {.code = 1}), end_at(1, 2, {.code = 1})}), ElementsAre(1, 0));
  // Failures of one time are in the order in which the kernel reported them.
  EXPECT_THAT(order_of({end_at(3, 2, {.code = 1}), end_at(1, 2, {.code = 1})}), ElementsAre(3, 1));
}

TEST(LaunchReportTest, LossOfAPeerComesAfterEveryOtherFailure) {
  EXPECT_THAT(order_of({end_at(0, 1, {.code = 3}, kLostPeer), end_at(2, 1, {.code = 3}, kLostPeer),
                        end_at(1, 9, {.signal = SIGKILL})}),
              ElementsAre(1, 0, 2));
  EXPECT_THAT(order_of({end_at(0, 1, {.code = 3}, kLostPeer),
                        end_at(1, 9, {.code = 4}, "INTERNAL: bad data")}),
              ElementsAre(1, 0));
}

// It was stopped in a debugger, was declared lost, went on, and was the last to end.
TEST(LaunchReportTest, ClientThatIsToldOfItsOwnLossComesFirst) {
  const char* const reason =
      "UNAVAILABLE: barrier \"b\" on {x=3}: client 1 (host-a, pid 7) was declared lost: it missed "
      "3 "
      "heartbeats of 1 s";
  EXPECT_THAT(order_of({end_at(0, 4, {.code = 1}, reason), end_at(11, 5, {.code = 1}, reason),
                        end_at(1, 10, {.code = 1}, reason)}),
              ElementsAre(1, 0, 11));
}

// R4. Client 1 was killed. While its memory was being freed, client 0 ended, which hides the loss
// that was reported to it.
TEST(LaunchReportTest, ClientThatWasEndingAlreadyComesFirst) {
  ClientEnd victim = end_at(1, 9, {.signal = SIGKILL});
  const ClientEnd survivor = end_at(0, 1, {.code = 3});
  EXPECT_THAT(order_of({survivor, victim}), ElementsAre(0, 1));
  victim.ending_since = survivor.time;
  EXPECT_THAT(order_of({survivor, victim}), ElementsAre(1, 0));
}

TEST(LaunchReportTest, StoppedClientsAreNamed) {
  EXPECT_EQ(stopped_report({}), "");
  EXPECT_EQ(stopped_report({4}), "tessera_run: then stopped client 4\n");
  EXPECT_EQ(stopped_report({0, 2, 3}), "tessera_run: then stopped clients 0, 2, 3\n");
}

}  // namespace
}  // namespace tessera
