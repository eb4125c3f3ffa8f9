// SPDX-License-Identifier: Apache-2.0
//
// ClusterCoordinator and Server on clusters of real processes that are killed and stopped: by plan,
// and at random moments. The rows of tests/facts/parameter_servers.md are named by their names.
#include <signal.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/host_array.h"
#include "base/status.h"
#include "distribute/coordinator.h"
#include "distribute/partitioner.h"
#include "distribute/remote_variable.h"
#include "distribute/testing/test_cluster.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"
#include "tests/support/seed.h"

namespace tessera::distribute {
namespace {

using ::tessera::testing::IsOk;
using ::tessera::testing::IsOkAndHolds;
using ::tessera::testing::StatusIs;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::result_of;
using testing::RunningCluster;
using testing::scalar;
using testing::TestCluster;
using testing::value_of;

// Of the facts are 2 s; a machine that is busy with other tests gets a little more.
constexpr absl::Duration kLossIsKnown = absl::Seconds(3);

void pause(int ms) {
  absl::SleepFor(absl::Milliseconds(ms));  // sleep: until a moment within a function
}

// Closures run until one has run on this worker; how long that took.
absl::Duration until_worker_runs(ClusterCoordinator& coordinator, int worker) {
  const absl::Time start = steady_now();
  while (steady_now() - start < absl::Seconds(20)) {
    std::vector<RemoteValue> values;
    for (int i = 0; i < 4; ++i) {
      coordinator.schedule("wait", {scalar(5)});
      values.push_back(coordinator.schedule("where"));
    }
    for (const RemoteValue& value : values) {
      if (result_of(value).value_or(-1) == static_cast<float>(worker)) return steady_now() - start;
    }
  }
  ADD_FAILURE() << "worker " << worker << " runs nothing";
  return absl::InfiniteDuration();
}

TEST(CoordinatorLossTest, WorkerKilledAndWorkerBack) {
  RunningCluster running(2, 1);
  ASSERT_TRUE(running.ok());
  ClusterCoordinator& coordinator = *running.coordinator;
  for (int i = 0; i < 12; ++i) {
    coordinator.schedule("slow_add", {scalar(250), scalar(1), *running.v});
  }
  pause(600);  // in its third
  running.cluster.kill("worker", 1);
  EXPECT_THAT(coordinator.join(), IsOk());
  EXPECT_THAT(running.value(), IsOkAndHolds(ElementsAre(12)));
  pause(2000);
  running.cluster.start("worker", 1);
  const absl::Duration back = until_worker_runs(coordinator, 1);
  EXPECT_LT(back, absl::Seconds(4));  // with the start of the process
  RecordProperty("back_ms", std::to_string(absl::ToInt64Milliseconds(back)));
  EXPECT_THAT(coordinator.join(), IsOk());
}

TEST(CoordinatorLossTest, AllWorkersLost) {
  RunningCluster running(1, 1, {}, {.worker_wait = absl::Seconds(2)});
  ASSERT_TRUE(running.ok());
  running.cluster.kill("worker", 0);
  const absl::Time start = steady_now();
  const RemoteValue first = running.add(1);
  const RemoteValue second = running.add(1);
  EXPECT_THAT(running.coordinator->join(),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("no worker was there for 2 s: worker 0 (127.0.0.1:"),
                             HasSubstr("is lost: "))));
  EXPECT_GT(steady_now() - start, absl::Seconds(2));
  EXPECT_LT(steady_now() - start, absl::Seconds(2) + kLossIsKnown);
  EXPECT_THAT(first.await(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(second.await(), StatusIs(absl::StatusCode::kCancelled));
  running.cluster.start("worker", 0);
  running.add(1);
  EXPECT_THAT(running.coordinator->join(), AnyOf(IsOk(), StatusIs(absl::StatusCode::kUnavailable)));
}

TEST(CoordinatorLossTest, Attempts) {
  RunningCluster running(3, 1, {}, {.max_attempts = 3});
  ASSERT_TRUE(running.ok());
  running.coordinator->schedule("die", {scalar(100), scalar(1), *running.v});
  EXPECT_THAT(running.coordinator->join(),
              StatusIs(absl::StatusCode::kAborted,
                       AllOf(HasSubstr("function \"die\" was given up after 3 attempts"),
                             HasSubstr("is lost: "))));
}

TEST(CoordinatorLossTest, TheThirdAttemptCountsOnce) {
  RunningCluster running(3, 2, {}, {.max_attempts = 3});
  ASSERT_TRUE(running.ok());
  const RemoteValue value =
      running.coordinator->schedule("die", {scalar(2), scalar(1), *running.v});
  EXPECT_THAT(running.coordinator->join(), IsOk());
  EXPECT_THAT(result_of(value), IsOkAndHolds(1));
  EXPECT_THAT(running.value(), IsOkAndHolds(ElementsAre(1)));
}

TEST(CoordinatorLossTest, WorkerStopped) {
  RunningCluster running(2, 2);
  ASSERT_TRUE(running.ok());
  ClusterCoordinator& coordinator = *running.coordinator;
  TESSERA_ASSERT_OK_AND_ASSIGN(const RemoteVariable w, coordinator.variable("w", scalar(0)));
  const absl::Time start = steady_now();
  coordinator.schedule("stop", {scalar(1), *running.v, w});
  EXPECT_THAT(coordinator.join(), IsOk());
  EXPECT_LT(steady_now() - start, kLossIsKnown);
  // Awake, the function goes on with its pushes, which are ignored; then the worker is back.
  for (const int worker : {0, 1}) running.cluster.signal("worker", worker, SIGCONT);
  for (const int worker : {0, 1}) until_worker_runs(coordinator, worker);
  EXPECT_THAT(running.value(), IsOkAndHolds(ElementsAre(1)));
  EXPECT_THAT(value_of(coordinator, w), IsOkAndHolds(ElementsAre(1)));
  for (int i = 0; i < 10; ++i) coordinator.schedule("add", {scalar(1), *running.v, w});
  EXPECT_THAT(coordinator.join(), IsOk());
  EXPECT_THAT(running.value(), IsOkAndHolds(ElementsAre(11)));
  EXPECT_THAT(value_of(coordinator, w), IsOkAndHolds(ElementsAre(11)));
}

// A pause that is shorter than three heartbeats loses nothing.
TEST(CoordinatorLossTest, AShortPauseOfAnyTaskIsNoLoss) {
  RunningCluster running(1, 1);
  ASSERT_TRUE(running.ok());
  for (const char* const job : {"worker", "ps"}) {
    running.cluster.signal(job, 0, SIGSTOP);
    const RemoteValue value = running.add(1);
    pause(500);
    running.cluster.signal(job, 0, SIGCONT);
    EXPECT_THAT(value.await(), IsOk());
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto where, running.coordinator->schedule("where").fetch());
  EXPECT_EQ(where[1], scalar(1));
  EXPECT_THAT(running.value(), IsOkAndHolds(ElementsAre(2)));
}

// round_robin is in the message: v, b and d are on ps 0, a and c on ps 1.
TEST(CoordinatorLossTest, PsKilledAndRoundRobin) {
  RunningCluster running(1, 2);
  ASSERT_TRUE(running.ok());
  ClusterCoordinator& coordinator = *running.coordinator;
  for (const char* const name : {"a", "b", "c", "d"}) {
    EXPECT_THAT(coordinator.variable(name, scalar(0)), IsOk());
  }
  const RemoteValue queued = coordinator.schedule("slow_add", {scalar(200), scalar(1), *running.v});
  for (int i = 0; i < 20; ++i) {
    coordinator.schedule("slow_add", {scalar(200), scalar(1), *running.v});
  }
  pause(300);
  running.cluster.kill("ps", 0);
  const absl::Time start = steady_now();
  const auto is_lost = StatusIs(
      absl::StatusCode::kUnavailable,
      AllOf(HasSubstr("ps 0 (127.0.0.1:"), HasSubstr("heartbeats of 400 ms were missed in a row"),
            HasSubstr("; with it are lost the variables \"v\", \"b\", \"d\"")));
  EXPECT_THAT(coordinator.join(), is_lost);
  EXPECT_LT(steady_now() - start, kLossIsKnown);
  EXPECT_THAT(running.add(1).await(), is_lost);
  EXPECT_THAT(coordinator.done(), is_lost);
  EXPECT_THAT(coordinator.variable("e", scalar(0)), is_lost);
  EXPECT_THAT(running.cluster.wait("worker", 0, absl::Milliseconds(100)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));  // it is kept
  running.coordinator = nullptr;
  EXPECT_THAT(running.cluster.wait("worker", 0), IsOk());
}

TEST(CoordinatorLossTest, ChiefKilled) {
  TestCluster cluster(1, 1);
  cluster.start_all();
  cluster.start("chief", 0);
  pause(2000);  // it schedules until it is killed
  cluster.kill("chief", 0);
  const absl::Time start = steady_now();
  for (const char* const job : {"ps", "worker"}) {
    EXPECT_THAT(cluster.wait(job, 0),
                StatusIs(absl::StatusCode::kUnavailable,
                         AllOf(HasSubstr(cluster.address(job, 0)), HasSubstr("the chief on "),
                               HasSubstr("is lost: 3 heartbeats of 400 ms were missed"))));
  }
  EXPECT_LT(steady_now() - start, kLossIsKnown);
}

// Workers are killed and stopped at random moments, most of them within functions. Every closure
// pushes to variables on both parameter servers, one of them cut into shards on both.
TEST(CoordinatorLossTest, EveryUpdateCountsOnceWithRandomKillsAndStops) {
  std::mt19937_64 random(::tessera::testing::test_seed());
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  constexpr int kNumWorkers = 3;
  constexpr int kNumClosures = 400;
  RunningCluster running(kNumWorkers, 2, fixed_shards(2), {.max_attempts = 1000});
  ASSERT_TRUE(running.ok());
  ClusterCoordinator& coordinator = *running.coordinator;
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const RemoteVariable w,
      coordinator.variable("w", HostArray::of<float>(std::vector<float>(5), {5})));
  for (int i = 0; i < kNumClosures; ++i) {
    coordinator.schedule("slow_add",
                         {scalar(static_cast<float>(below(40))), scalar(1), *running.v, w});
  }
  for (int i = 0; i < 12; ++i) {
    pause(100 + below(500));
    const int worker = below(kNumWorkers);
    if (below(3) > 0) {
      running.cluster.kill("worker", worker);
      if (below(2) == 0) pause(below(2000));
      running.cluster.start("worker", worker);
    } else {
      running.cluster.signal("worker", worker, SIGSTOP);
      pause(below(3000));
      running.cluster.signal("worker", worker, SIGCONT);
    }
  }
  EXPECT_THAT(coordinator.join(absl::Minutes(2)), IsOk());
  EXPECT_THAT(running.value(), IsOkAndHolds(ElementsAre(kNumClosures)));
  EXPECT_THAT(value_of(coordinator, w), IsOkAndHolds(std::vector<float>(5, kNumClosures)));
}

}  // namespace
}  // namespace tessera::distribute
