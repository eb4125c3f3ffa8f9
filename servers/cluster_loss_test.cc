// SPDX-License-Identifier: Apache-2.0
//
// ClusterCoordinator and Server on clusters of real processes that are killed and stopped, by plan
// and at random moments. Comments and test names refer to rows of tests/facts/parameter_servers.md.
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/host_array.h"
#include "base/status.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "servers/cluster_coordinator.h"
#include "servers/partitioner.h"
#include "servers/remote_dataset.h"
#include "servers/remote_variable.h"
#include "servers/testing/test_cluster.h"
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
using testing::Read;
using testing::read_of;
using testing::result_of;
using testing::RunningCluster;
using testing::scalar;
using testing::TestCluster;
using testing::value_of;

// The facts say 2 s; a machine that is busy with other tests takes a little longer.
constexpr absl::Duration kLossIsKnown = absl::Seconds(3);

// For tests that stop tasks: these are lost 1.2 s later.
const CoordinatorOptions& noticing_stops() {
  static const CoordinatorOptions options = {.heartbeat_interval = absl::Milliseconds(400)};
  return options;
}

void pause(int ms) {
  absl::SleepFor(absl::Milliseconds(ms));  // sleep: until a moment within a function
}

// Schedules closures until one has run on this worker. Returns the elapsed time.
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
  pause(600);  // in its third closure
  running.cluster.kill("worker", 1);
  EXPECT_THAT(coordinator.join(), IsOk());
  EXPECT_THAT(running.value(), IsOkAndHolds(ElementsAre(12)));
  pause(2000);
  running.cluster.start("worker", 1);
  const absl::Duration back = until_worker_runs(coordinator, 1);
  EXPECT_LT(back, absl::Seconds(4));  // includes the start of the process
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

// The error names the function that ran when the last worker was lost, as a possible cause.
TEST(CoordinatorLossTest, AFunctionThatEndsTheLastWorker) {
  RunningCluster running(1, 1, {}, {.worker_wait = absl::Seconds(2)});
  ASSERT_TRUE(running.ok());
  running.coordinator->schedule("die", {scalar(100), scalar(1), *running.v});
  EXPECT_THAT(running.coordinator->join(),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("no worker was there for 2 s: worker 0 (127.0.0.1:"),
                             HasSubstr(", while it ran function \"die\" in attempt 1"))));
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
  RunningCluster running(2, 2, {}, noticing_stops());
  ASSERT_TRUE(running.ok());
  ClusterCoordinator& coordinator = *running.coordinator;
  TESSERA_ASSERT_OK_AND_ASSIGN(const RemoteVariable w, coordinator.variable("w", scalar(0)));
  const absl::Time start = steady_now();
  coordinator.schedule("stop", {scalar(1), *running.v, w});
  EXPECT_THAT(coordinator.join(), IsOk());
  EXPECT_LT(steady_now() - start, kLossIsKnown);
  // Resumed, the function continues with its pushes, which are ignored. Then the worker is up
  // again.
  for (const int worker : {0, 1}) running.cluster.signal("worker", worker, SIGCONT);
  for (const int worker : {0, 1}) until_worker_runs(coordinator, worker);
  EXPECT_THAT(running.value(), IsOkAndHolds(ElementsAre(1)));
  EXPECT_THAT(value_of(coordinator, w), IsOkAndHolds(ElementsAre(1)));
  for (int i = 0; i < 10; ++i) coordinator.schedule("add", {scalar(1), *running.v, w});
  EXPECT_THAT(coordinator.join(), IsOk());
  EXPECT_THAT(running.value(), IsOkAndHolds(ElementsAre(11)));
  EXPECT_THAT(value_of(coordinator, w), IsOkAndHolds(ElementsAre(11)));
}

// A large f32 variable of zeros, with a shard on each of two parameter servers. A shard is larger
// than socket buffers: a transfer to or from a stopped ps stays unfinished. Worker 0 is the only
// worker.
class LargeVariable {
 public:
  explicit LargeVariable(const CoordinatorOptions& options = {})
      : running(2, 2, fixed_shards(2), options) {
    if (!running.ok()) return;
    leave_one_worker();
    const std::vector<float> zeros(kNumElements);
    StatusOr<RemoteVariable> created =
        running.coordinator->variable("large", HostArray::of<float>(zeros, {kNumElements}));
    EXPECT_THAT(created, IsOk());
    if (created.ok()) large = std::make_unique<RemoteVariable>(*std::move(created));
  }
  bool ok() const { return large != nullptr; }

  // Kills worker 1, and waits until the coordinator knows: two calls at once need both workers.
  void leave_one_worker() {
    running.cluster.kill("worker", 1);
    for (int i = 0; i < 2; ++i) running.wait(50);
    EXPECT_THAT(running.coordinator->join(), IsOk());
  }
  // Schedules a function whose transfer with ps 1 is unfinished when this returns; ps 1 is stopped.
  RemoteValue schedule_and_stop_ps(const std::string& function) {
    RemoteValue value = running.coordinator->schedule(function, {scalar(200), *large});
    running.cluster.signal("ps", 1, SIGSTOP);
    pause(600);  // a few ticks, and fewer than three heartbeats
    return value;
  }
  // Expects that all elements have this value.
  void expect_all(float element) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<float> elements,
                                 value_of(*running.coordinator, *large));
    ASSERT_EQ(elements.size(), static_cast<size_t>(kNumElements));
    EXPECT_EQ(std::count(elements.begin(), elements.end(), element), kNumElements);
  }

  RunningCluster running;
  std::unique_ptr<RemoteVariable> large;

 private:
  static constexpr int64_t kNumElements = 16 << 20;
};

TEST(CoordinatorLossTest, AWorkerIsLostInTheMiddleOfATransfer) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    SCOPED_TRACE(signal);
    LargeVariable variable(noticing_stops());
    ASSERT_TRUE(variable.ok());
    float expected = 0;
    for (const char* const function : {"push_late", "pull_all"}) {
      SCOPED_TRACE(function);
      const RemoteValue value = variable.schedule_and_stop_ps(function);
      TestCluster& cluster = variable.running.cluster;
      if (signal == SIGKILL) {
        cluster.kill("worker", 0);
        cluster.signal("ps", 1, SIGCONT);
        cluster.start("worker", 0);
      } else {
        cluster.signal("worker", 0, SIGSTOP);
        cluster.signal("ps", 1, SIGCONT);
        // Another worker runs the closure when this worker is lost. Resumed, this worker sends the
        // rest.
        cluster.start("worker", 1);
        EXPECT_THAT(value.await(), IsOk());
        cluster.signal("worker", 0, SIGCONT);
        until_worker_runs(*variable.running.coordinator, 0);
        variable.leave_one_worker();
      }
      EXPECT_THAT(variable.running.coordinator->join(), IsOk());
      EXPECT_THAT(result_of(value), IsOkAndHolds(2));  // the first attempt was lost
      if (function == std::string("push_late")) expected += 1;
      variable.expect_all(expected);
    }
  }
}

TEST(CoordinatorLossTest, APauseOfAPsInTheMiddleOfATransferIsNoLoss) {
  LargeVariable variable;
  ASSERT_TRUE(variable.ok());
  for (const char* const function : {"push_late", "pull_all"}) {
    SCOPED_TRACE(function);
    const RemoteValue value = variable.schedule_and_stop_ps(function);
    variable.running.cluster.signal("ps", 1, SIGCONT);
    EXPECT_THAT(result_of(value), IsOkAndHolds(1));
    variable.expect_all(1);
  }
}

TEST(CoordinatorLossTest, APsIsKilledInTheMiddleOfATransfer) {
  for (const char* const function : {"push_late", "pull_all"}) {
    SCOPED_TRACE(function);
    LargeVariable variable;
    ASSERT_TRUE(variable.ok());
    const RemoteValue value = variable.schedule_and_stop_ps(function);
    variable.running.cluster.kill("ps", 1);
    EXPECT_THAT(value.await(),
                StatusIs(absl::StatusCode::kUnavailable,
                         AllOf(HasSubstr("ps 1 (127.0.0.1:"),
                               HasSubstr("; with it are lost the variables \"large\""))));
  }
}

// Tasks are silent as on a busy machine: none is lost. With heartbeats of 400 ms each would be.
TEST(CoordinatorLossTest, ATaskThatIsSilentForSecondsIsNoLossByDefault) {
  RunningCluster running(1, 1);
  ASSERT_TRUE(running.ok());
  for (const char* const job : {"worker", "ps"}) running.cluster.signal(job, 0, SIGSTOP);
  const RemoteValue value = running.add(1);
  pause(4000);
  for (const char* const job : {"worker", "ps"}) running.cluster.signal(job, 0, SIGCONT);
  EXPECT_THAT(value.await(), IsOk());
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto where, running.coordinator->schedule("where").fetch());
  EXPECT_EQ(where[1], scalar(1));
  EXPECT_THAT(running.value(), IsOkAndHolds(ElementsAre(1)));
}

// $TESSERA_HEARTBEAT_INTERVAL applies to both sides, and the options take precedence over it.
TEST(CoordinatorLossTest, TheIntervalOfTheEnvironmentAndOfTheOptions) {
  setenv("TESSERA_HEARTBEAT_INTERVAL", "200ms", 1);
  RunningCluster running(1, 1);
  unsetenv("TESSERA_HEARTBEAT_INTERVAL");
  ASSERT_TRUE(running.ok());
  running.cluster.signal("ps", 0, SIGSTOP);
  EXPECT_THAT(
      running.add(1).await(),
      StatusIs(
          absl::StatusCode::kUnavailable,
          AllOf(HasSubstr("ps 0 (127.0.0.1:"),
                HasSubstr("is lost: it missed more than 3 heartbeats of 200 ms; the last: "))));
  setenv("TESSERA_HEARTBEAT_INTERVAL", "soon", 1);
  TestCluster cluster(1, 1);
  EXPECT_THAT(ClusterCoordinator::create(cluster.chief()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("TESSERA_HEARTBEAT_INTERVAL is \"soon\"")));
  setenv("TESSERA_HEARTBEAT_INTERVAL", "1h", 1);
  RunningCluster quick(1, 1, {}, noticing_stops());
  unsetenv("TESSERA_HEARTBEAT_INTERVAL");
  ASSERT_TRUE(quick.ok());
  quick.cluster.signal("ps", 0, SIGSTOP);
  EXPECT_THAT(quick.add(1).await(),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("it missed more than 3 heartbeats of 400 ms")));
}

// A stopped chief is lost like a task.
TEST(CoordinatorLossTest, ChiefStopped) {
  setenv("TESSERA_HEARTBEAT_INTERVAL", "300ms", 1);
  TestCluster cluster(1, 1);
  cluster.start_all();
  cluster.start("chief", 0);
  unsetenv("TESSERA_HEARTBEAT_INTERVAL");
  pause(3000);  // the chief schedules until it is stopped
  cluster.signal("chief", 0, SIGSTOP);
  for (const char* const job : {"ps", "worker"}) {
    EXPECT_THAT(cluster.wait(job, 0),
                StatusIs(absl::StatusCode::kUnavailable,
                         AllOf(HasSubstr(cluster.address(job, 0)),
                               HasSubstr("is lost: it missed more than 3 heartbeats of 300 ms"))));
  }
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

// The message shows round_robin: v, b and d are on ps 0, a and c on ps 1.
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
      AllOf(HasSubstr("ps 0 (127.0.0.1:"),
            HasSubstr("its connection broke off, and 3 heartbeats in a row found none; the last: "),
            HasSubstr("; with it are lost the variables \"v\", \"b\", \"d\"")));
  EXPECT_THAT(coordinator.join(), is_lost);
  EXPECT_LT(steady_now() - start, kLossIsKnown);
  EXPECT_THAT(running.add(1).await(), is_lost);
  EXPECT_THAT(coordinator.done(), is_lost);
  EXPECT_THAT(coordinator.variable("e", scalar(0)), is_lost);
  EXPECT_THAT(running.cluster.wait("worker", 0, absl::Milliseconds(100)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));  // the error is kept
  running.coordinator = nullptr;
  EXPECT_THAT(running.cluster.wait("worker", 0), IsOk());
}

TEST(CoordinatorLossTest, ChiefKilled) {
  TestCluster cluster(1, 1);
  cluster.start_all();
  cluster.start("chief", 0);
  pause(2000);  // the chief schedules until it is killed
  cluster.kill("chief", 0);
  const absl::Time start = steady_now();
  for (const char* const job : {"ps", "worker"}) {
    EXPECT_THAT(
        cluster.wait(job, 0),
        StatusIs(absl::StatusCode::kUnavailable,
                 AllOf(HasSubstr(cluster.address(job, 0)), HasSubstr("the chief on "),
                       HasSubstr("is lost: its connection broke off, and it made no other"))));
  }
  EXPECT_LT(steady_now() - start, kLossIsKnown);
}

// The elements of the next batch of range(10).batch(2) after so many batches.
std::vector<std::vector<int64_t>> pair_after(int num_batches) {
  return {{2 * num_batches, 2 * num_batches + 1}};
}

TEST(CoordinatorLossTest, DatasetAfterLossAndWorkerBack) {
  RunningCluster running(1, 1);
  ASSERT_TRUE(running.ok());
  ClusterCoordinator& coordinator = *running.coordinator;
  TESSERA_ASSERT_OK_AND_ASSIGN(const RemoteDataset pairs,
                               coordinator.create_per_worker_dataset("pairs"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const RemoteDataset odd,
                               coordinator.create_per_worker_dataset("odd"));
  const auto read = [&](const RemoteDataset& dataset) {
    return read_of(coordinator.schedule("read", {dataset}));
  };
  for (int i = 0; i < 3; ++i) EXPECT_THAT(read(pairs), IsOkAndHolds(Read{0, pair_after(i)}));
  EXPECT_THAT(read(odd), IsOkAndHolds(Read{0, {{1, 3}}}));
  running.cluster.kill("worker", 0);
  running.cluster.start("worker", 0);
  EXPECT_THAT(read(pairs), IsOkAndHolds(Read{0, pair_after(3)}));
  EXPECT_THAT(read(odd), IsOkAndHolds(Read{0, {{5, 7}}}));
  // The worker is killed in a call that has read, which does not count. The call runs again here.
  const RemoteValue again = coordinator.schedule("read_and_die", {pairs, odd});
  while (running.cluster.wait("worker", 0, absl::Milliseconds(100)).code() ==
         absl::StatusCode::kDeadlineExceeded) {
  }
  running.cluster.start("worker", 0);
  EXPECT_THAT(read_of(again), IsOkAndHolds(Read{0, {pair_after(4)[0], {9}}}));
  EXPECT_THAT(read(pairs), IsOkAndHolds(Read{0, {}}));
  EXPECT_THAT(coordinator.join(), IsOk());
}

// A call that was lost on one worker reads from the position of the other worker. The stopped
// worker, whose reader is a batch ahead, reads the batches that did not count again.
TEST(CoordinatorLossTest, AnotherWorkerReadsFromItsOwnPosition) {
  RunningCluster running(2, 1, {}, noticing_stops());
  ASSERT_TRUE(running.ok());
  ClusterCoordinator& coordinator = *running.coordinator;
  TESSERA_ASSERT_OK_AND_ASSIGN(const RemoteDataset data,
                               coordinator.create_per_worker_dataset("long_range"));
  int num_read[2] = {0, 0};
  const auto expect_next = [&](const StatusOr<Read>& read) {
    ASSERT_THAT(read, IsOk());
    EXPECT_EQ(read->batches, pair_after(num_read[read->worker]++)) << "worker " << read->worker;
  };
  const auto read_on = [&](int worker) {
    for (const int before = num_read[worker]; num_read[worker] == before;) {
      // Two at a time, so that both workers get some.
      const RemoteValue first = coordinator.schedule("read", {data, scalar(20)});
      const RemoteValue second = coordinator.schedule("read", {data, scalar(20)});
      for (const RemoteValue& value : {first, second}) expect_next(read_of(value));
      if (::testing::Test::HasFailure()) return;
    }
  };
  for (const char* const function : {"read_and_die", "read_and_stop"}) {
    expect_next(read_of(coordinator.schedule("read", {data})));
    expect_next(read_of(coordinator.schedule(function, {data})));
    for (const int worker : {0, 1}) {
      if (running.cluster.wait("worker", worker, absl::Milliseconds(1)).code() ==
          absl::StatusCode::kAborted) {
        running.cluster.start("worker", worker);
      }
      running.cluster.signal("worker", worker, SIGCONT);
    }
    for (const int worker : {0, 1}) {
      until_worker_runs(coordinator, worker);
      read_on(worker);
    }
  }
}

// A worker that is away makes the data set when it returns.
TEST(CoordinatorLossTest, ADatasetWhileWorkersAreAway) {
  RunningCluster running(2, 1, {}, {.worker_wait = absl::Seconds(2)});
  ASSERT_TRUE(running.ok());
  ClusterCoordinator& coordinator = *running.coordinator;
  running.cluster.kill("worker", 1);
  TESSERA_ASSERT_OK_AND_ASSIGN(const RemoteDataset pairs,
                               coordinator.create_per_worker_dataset("pairs"));
  running.cluster.start("worker", 1);
  until_worker_runs(coordinator, 1);
  running.cluster.kill("worker", 0);
  EXPECT_THAT(read_of(coordinator.schedule("read", {pairs})), IsOkAndHolds(Read{1, pair_after(0)}));
  running.cluster.kill("worker", 1);
  EXPECT_THAT(coordinator.create_per_worker_dataset("pairs"),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("data set \"pairs\": no worker was there for 2 s")));
}

// Workers are killed and stopped at random moments, mostly within functions. Every closure pushes
// to variables on both parameter servers, two of them with shards on both, and reads up to two
// batches. A row of the table counts for each element of one worker how often it was read.
// $TESSERA_LOSS_ROUNDS sets the number of losses.
TEST(CoordinatorLossTest, EveryUpdateCountsOnceWithRandomKillsAndStops) {
  std::mt19937_64 random(::tessera::testing::test_seed());
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  const char* const rounds_text = std::getenv("TESSERA_LOSS_ROUNDS");
  const int num_rounds = rounds_text == nullptr ? 12 : std::atoi(rounds_text);
  constexpr int kNumWorkers = 3;
  constexpr int kNumElements = 1000;  // of long_range, in batches of 2
  RunningCluster running(kNumWorkers, 2, fixed_shards(2),
                         {.max_attempts = 1000, .heartbeat_interval = absl::Milliseconds(400)});
  ASSERT_TRUE(running.ok());
  ClusterCoordinator& coordinator = *running.coordinator;
  int num_losses = 0;
  // The number of rounds before the data set ends and is made again.
  constexpr int kRoundsOfOneLife = 12;
  for (int first = 0; first < num_rounds; first += kRoundsOfOneLife) {
    SCOPED_TRACE(first);
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const RemoteVariable w,
        coordinator.variable(absl::StrCat("w", first),
                             HostArray::of<float>(std::vector<float>(5), {5})));
    const std::vector<float> none(kNumWorkers * kNumElements);
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const RemoteVariable table,
        coordinator.variable(absl::StrCat("table", first),
                             HostArray::of<float>(none, {kNumWorkers, kNumElements})));
    TESSERA_ASSERT_OK_AND_ASSIGN(const RemoteDataset data,
                                 coordinator.create_per_worker_dataset("long_range"));
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<float> before, running.value());
    int num_closures = 0;
    int num_batches = 0;
    for (int i = 0; i < std::min(kRoundsOfOneLife, num_rounds - first); ++i) {
      for (int k = 0; k < 30; ++k, ++num_closures) {
        const int batches = below(3);
        num_batches += batches;
        coordinator.schedule(
            "train", {scalar(static_cast<float>(below(40))), scalar(static_cast<float>(batches)),
                      data, table, *running.v, w});
      }
      pause(50 + below(500));
      const int worker = below(kNumWorkers);
      ++num_losses;
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
    ASSERT_THAT(coordinator.join(absl::Minutes(2)), IsOk());
    EXPECT_THAT(running.value(), IsOkAndHolds(ElementsAre(before[0] + num_closures)));
    EXPECT_THAT(value_of(coordinator, w), IsOkAndHolds(std::vector<float>(5, num_closures)));
    // Counted batches are each worker's first batches, each once.
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<float> counts, value_of(coordinator, table));
    std::vector<float> expected = none;
    int num_counted = 0;
    for (int worker = 0; worker < kNumWorkers; ++worker) {
      const auto row = counts.begin() + worker * kNumElements;
      const auto end = std::find(row, row + kNumElements, 0.0f);
      std::fill_n(expected.begin() + worker * kNumElements, end - row, 1.0f);
      num_counted += static_cast<int>(end - row);
    }
    EXPECT_EQ(counts, expected);
    EXPECT_EQ(num_counted, 2 * num_batches);
  }
  RecordProperty("losses", std::to_string(num_losses));
}

}  // namespace
}  // namespace tessera::distribute
