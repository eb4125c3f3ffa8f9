// SPDX-License-Identifier: Apache-2.0
//
// Liveness without processes: the tests report losses and write life words.
#include "shm/liveness.h"

#include <linux/futex.h>

#include <atomic>
#include <utility>
#include <vector>

#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/coordinator/fake_coordinator.h"
#include "tests/support/matchers.h"

namespace tessera::shm {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

// Client 0 of four; client 3 is on another host.
class LivenessTest : public ::testing::Test {
 protected:
  LivenessTest() {
    liveness_.set_lost_listener(
        [this](int client, const Status& reason) { losses_.emplace_back(client, reason); });
  }

  static testing::FakeJob& split(testing::FakeJob& job) {
    job.set_host_id(3, "host-b");
    return job;
  }

  testing::FakeJob job_{std::vector<int>(4, 1)};
  HostMembers members_{split(job_).coordinator(0)};
  int num_wakes_ = 0;
  Liveness liveness_{members_, [this] { ++num_wakes_; }};
  std::vector<std::pair<int, Status>> losses_;
  // The test has no thread that the kernel could mark, so words change before watch() sees them.
  LifeWord words_[3] = {1, 1, 1};
};

TEST_F(LivenessTest, MembersOfTheHostAreCounted) {
  EXPECT_EQ(members_.num_on_host(), 3);
  EXPECT_EQ(members_.num_devices_on_host(), 3);
  EXPECT_TRUE(members_.is_on_host(0));
  EXPECT_FALSE(members_.is_on_host(3));
}

TEST_F(LivenessTest, TheFirstReasonOfALossStays) {
  EXPECT_FALSE(liveness_.any_lost());
  liveness_.report_lost(3, absl::UnavailableError("first"));
  liveness_.report_lost(3, absl::UnavailableError("second"));
  EXPECT_TRUE(liveness_.any_lost());
  EXPECT_EQ(num_wakes_, 1);
  ASSERT_EQ(losses_.size(), 1u);
  EXPECT_EQ(losses_[0].first, 3);
  EXPECT_THAT(losses_[0].second, StatusIs(absl::StatusCode::kUnavailable, "first"));
  EXPECT_EQ(liveness_.client_status(3), losses_[0].second);
  EXPECT_TRUE(liveness_.is_dead(3));
  EXPECT_FALSE(liveness_.has_died(3));
  EXPECT_THAT(liveness_.client_status(1), IsOk());
  for (int none : {-1, 4}) {
    EXPECT_THAT(liveness_.client_status(none), StatusIs(absl::StatusCode::kInternal));
  }
}

TEST_F(LivenessTest, AHangUpAfterAGoodbyeIsALeaving) {
  liveness_.note_goodbye(1);
  EXPECT_TRUE(liveness_.has_left(1));
  EXPECT_THAT(liveness_.client_status(1), IsOk());
  liveness_.hang_up(1);
  liveness_.hang_up(2);
  EXPECT_THAT(liveness_.client_status(1),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("has left the job")));
  EXPECT_THAT(liveness_.client_status(2),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("is lost: its process")));
  liveness_.leave();
  liveness_.hang_up(3);
  EXPECT_THAT(liveness_.client_status(3),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("has left the job")));
}

TEST_F(LivenessTest, LifeWordsTellWhichProcessesStillRun) {
  words_[1] = 0;                     // withdrawn in order
  words_[2] = 1 | FUTEX_OWNER_DIED;  // marked by the kernel
  ASSERT_THAT(liveness_.watch({&words_[0], &words_[1], &words_[2], nullptr}), IsOk());
  EXPECT_FALSE(liveness_.is_gone(0));
  EXPECT_TRUE(liveness_.is_gone(1));
  EXPECT_FALSE(liveness_.has_died(1));
  EXPECT_TRUE(liveness_.is_gone(2));
  EXPECT_TRUE(liveness_.has_died(2));
  EXPECT_TRUE(liveness_.is_dead(2));
  EXPECT_FALSE(liveness_.is_gone(3));
  liveness_.stop_watching();
}

TEST_F(LivenessTest, ALostClientWhoseProcessRunsMayBeStopped) {
  words_[1] = 0;
  ASSERT_THAT(liveness_.watch({&words_[0], &words_[1], &words_[2], nullptr}), IsOk());
  EXPECT_THAT(liveness_.find_stopped(), IsOk());
  for (int client : {1, 3}) liveness_.report_lost(client, absl::UnavailableError("gone"));
  EXPECT_THAT(liveness_.find_stopped(), IsOk());
  liveness_.report_lost(2, absl::UnavailableError("silent"));
  EXPECT_THAT(liveness_.find_stopped(), StatusIs(absl::StatusCode::kUnavailable, "silent"));
  liveness_.stop_watching();
}

}  // namespace
}  // namespace tessera::shm
