// SPDX-License-Identifier: Apache-2.0
//
// ClusterCoordinator and Server on clusters of real processes without faults. Comments and test
// names refer to rows of tests/facts/parameter_servers.md.
#include "servers/cluster_coordinator.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/host_array.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/dtensor.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "input/dataset.h"
#include "input/input_context.h"
#include "job/cluster/cluster.h"
#include "servers/function_registry.h"
#include "servers/partitioner.h"
#include "servers/remote_variable.h"
#include "servers/server.h"
#include "servers/testing/test_cluster.h"
#include "tests/support/matchers.h"

namespace tessera::distribute {
namespace {

using ::tessera::testing::IsOk;
using ::tessera::testing::IsOkAndHolds;
using ::tessera::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::result_of;
using testing::RunningCluster;
using testing::scalar;
using testing::TestCluster;
using testing::value_of;

constexpr auto kInvalidArgument = absl::StatusCode::kInvalidArgument;
constexpr auto kFailedPrecondition = absl::StatusCode::kFailedPrecondition;

TEST(CoordinatorTest, ScheduleJoin) {
  RunningCluster running(2, 2);
  ASSERT_TRUE(running.ok());
  EXPECT_EQ(running.coordinator->num_workers(), 2);
  EXPECT_EQ(running.coordinator->num_ps(), 2);
  for (int i = 0; i < 10; ++i) running.add(1);
  EXPECT_THAT(running.coordinator->join(), IsOk());
  EXPECT_THAT(running.value(), IsOkAndHolds(ElementsAre(10)));
  // In an orderly end every server ends with OK.
  running.coordinator = nullptr;
  for (const int task : {0, 1}) {
    EXPECT_THAT(running.cluster.wait("worker", task), IsOk());
    EXPECT_THAT(running.cluster.wait("ps", task), IsOk());
  }
}

TEST(CoordinatorTest, OneWorkerInOrderAndTheRestOfOneWorker) {
  RunningCluster running(1, 2);
  ASSERT_TRUE(running.ok());
  ClusterCoordinator& coordinator = *running.coordinator;
  // one_worker_in_order
  std::vector<RemoteValue> values;
  for (int i = 0; i < 5; ++i) values.push_back(running.add(1));
  for (int i = 0; i < 5; ++i) EXPECT_THAT(result_of(values[i]), IsOkAndHolds(i + 1.0f));
  // done
  running.wait(200);
  EXPECT_THAT(coordinator.done(), IsOkAndHolds(false));
  EXPECT_THAT(coordinator.join(), IsOk());
  EXPECT_THAT(coordinator.done(), IsOkAndHolds(true));
  // join_timeout
  const RemoteValue slow = running.wait(500);
  EXPECT_THAT(coordinator.join(absl::Milliseconds(100)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("1 closure is not over after 100 ms")));
  EXPECT_THAT(coordinator.join(absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "the timeout is 0 or had already passed: 1 closure is not over"));
  EXPECT_THAT(slow.await(absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("the closure of function \"wait\" is not over after 1 ms")));
  EXPECT_THAT(coordinator.join(), IsOk());
  EXPECT_THAT(slow.await(), IsOk());
}

TEST(CoordinatorTest, FetchWaitsAndFetchList) {
  RunningCluster running(2, 1);
  ASSERT_TRUE(running.ok());
  ClusterCoordinator& coordinator = *running.coordinator;
  const RemoteValue late = coordinator.schedule("slow_add", {scalar(300), scalar(5), *running.v});
  const RemoteValue early = coordinator.schedule("where");
  const RemoteValue none = coordinator.schedule("wait", {scalar(0)});
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto results, coordinator.fetch({late, early, none}));
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[0], std::vector<HostArray>{scalar(5)});
  EXPECT_EQ(results[1].size(), 2u);
  EXPECT_EQ(results[1][1], scalar(1));  // the first attempt
  EXPECT_EQ(results[2].size(), 0u);
}

TEST(CoordinatorTest, FailingClosure) {
  RunningCluster running(1, 1);
  ASSERT_TRUE(running.ok());
  ClusterCoordinator& coordinator = *running.coordinator;
  std::vector<RemoteValue> values = {running.wait(300), running.add(1), running.fail(0)};
  for (int i = 0; i < 5; ++i) values.push_back(running.add(1));
  values.push_back(running.fail(0));
  values.push_back(running.add(1));
  EXPECT_THAT(coordinator.join(),
              StatusIs(kInvalidArgument, AllOf(HasSubstr("worker 0"), HasSubstr("\"fail\": boom"),
                                               Not(HasSubstr("more")))));
  EXPECT_THAT(values[0].await(), IsOk());
  EXPECT_THAT(values[1].await(), IsOk());
  EXPECT_THAT(values[2].await(), StatusIs(kInvalidArgument));
  for (int i = 3; i < 10; ++i) {
    EXPECT_THAT(values[i].await(),
                StatusIs(absl::StatusCode::kCancelled,
                         HasSubstr("not run, because another closure failed with: worker 0")));
  }
  // after_failure
  EXPECT_THAT(coordinator.join(), IsOk());
  EXPECT_THAT(running.value(), IsOkAndHolds(ElementsAre(1)));
  // failure_at_schedule, failure_of_fetch
  const RemoteValue failed = running.fail(0);
  EXPECT_THAT(failed.await(), StatusIs(kInvalidArgument));
  const RemoteValue later = running.add(1);
  EXPECT_THAT(later.await(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("boom")));
  EXPECT_THAT(failed.fetch(), StatusIs(kInvalidArgument, HasSubstr("boom")));
  EXPECT_THAT(failed.fetch(), StatusIs(kInvalidArgument, HasSubstr("boom")));
  EXPECT_THAT(coordinator.fetch({later, failed}), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(coordinator.join(), StatusIs(kInvalidArgument, HasSubstr("boom")));
  // failure_at_done
  EXPECT_THAT(running.fail(0).await(), StatusIs(kInvalidArgument));
  EXPECT_THAT(coordinator.done(), StatusIs(kInvalidArgument, HasSubstr("boom")));
  EXPECT_THAT(coordinator.done(), IsOkAndHolds(true));
  EXPECT_THAT(running.value(), IsOkAndHolds(ElementsAre(1)));
}

TEST(CoordinatorTest, TwoFailures) {
  RunningCluster running(2, 1);
  ASSERT_TRUE(running.ok());
  running.fail(100);
  running.fail(400);
  EXPECT_THAT(running.coordinator->join(),
              StatusIs(kInvalidArgument, AllOf(HasSubstr("boom; 1 more closure failed"))));
  EXPECT_THAT(running.coordinator->join(), IsOk());
}

// unknown_function, function_arguments and other mistakes of a closure. The worker survives.
TEST(CoordinatorTest, UnknownFunctionAndFunctionArguments) {
  RunningCluster running(1, 1);
  ASSERT_TRUE(running.ok());
  ClusterCoordinator& coordinator = *running.coordinator;
  const auto expect = [&](const RemoteValue& value, absl::StatusCode code,
                          const std::string& message) {
    EXPECT_THAT(value.await(), StatusIs(code, HasSubstr(message)));
    EXPECT_THAT(coordinator.join(), StatusIs(code, HasSubstr(message)));
  };
  expect(coordinator.schedule("nope"), absl::StatusCode::kNotFound,
         "function \"nope\" is not in the registry of the workers, which has \"add\", \"assign\"");
  const std::vector<int32_t> one = {1};
  expect(coordinator.schedule("add", {HostArray::of<int32_t>(one, {1}), *running.v}),
         kInvalidArgument, "the argument must be one f32");
  expect(coordinator.schedule("add", {HostArray{DType::kFloat32, {3}, {}}, *running.v}),
         kInvalidArgument, "argument 0 of function \"add\"");
  expect(coordinator.schedule("raise"), absl::StatusCode::kUnknown,
         "function \"raise\": the function raised an exception: ");
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const RemoteVariable matrix,
      coordinator.variable("matrix", HostArray::of<float>(std::vector<float>(6), {3, 2})));
  expect(coordinator.schedule("push_scalar", {matrix}), kInvalidArgument,
         "push_add to \"matrix\", which is f32 of shape [3, 2]: got f32 of shape []");
  TESSERA_ASSERT_OK_AND_ASSIGN(const RemoteVariable flags,
                               coordinator.variable("flags", HostArray::scalar(true)));
  expect(coordinator.schedule("push_scalar", {flags}), kInvalidArgument,
         "push_add to \"flags\": sum is not defined for bool");
  // The other reasons to refuse a variable.
  EXPECT_THAT(coordinator.variable("v", scalar(1)),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("variable \"v\" is there; give each a name of its own")));
  EXPECT_THAT(coordinator.variable("", scalar(1)),
              StatusIs(kInvalidArgument, HasSubstr("a variable needs a name")));
  EXPECT_THAT(coordinator.variable("w", HostArray{DType::kFloat32, {3}, {}}),
              StatusIs(kInvalidArgument, HasSubstr("variable \"w\"")));
  // The pushes of a function count in order, after it returns.
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto before,
                               coordinator.schedule("assign", {*running.v, scalar(7)}).fetch());
  EXPECT_EQ(before[0], scalar(0));
  EXPECT_THAT(running.value(), IsOkAndHolds(ElementsAre(7)));
}

// remote_value_argument
static_assert(!std::is_constructible_v<Argument, RemoteValue>);

// Tensors larger than a message may be are refused before they are copied.
TEST(CoordinatorTest, LargeArgumentsAndResults) {
  RunningCluster running(1, 1);
  ASSERT_TRUE(running.ok());
  ClusterCoordinator& coordinator = *running.coordinator;
  constexpr int64_t kGiB = 1 << 30;
  std::vector<Argument> args;
  args.emplace_back(HostArray{.dtype = DType::kUint8,
                              .shape = {kGiB + (1 << 20)},
                              .bytes = std::vector<std::byte>(kGiB + (1 << 20))});
  EXPECT_THAT(
      coordinator.schedule("pull", std::move(args)).await(),
      StatusIs(kInvalidArgument, HasSubstr("the arguments of function \"pull\" have 1.001 GiB; "
                                           "the most is 1 GiB, use a variable")));
  EXPECT_THAT(coordinator.join(), StatusIs(kInvalidArgument));
  constexpr int64_t kNumElements = 1 << 18;  // 1 MiB
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const RemoteVariable v,
      coordinator.variable("1 MiB",
                           HostArray::of<float>(std::vector<float>(kNumElements), {kNumElements})));
  EXPECT_THAT(coordinator.schedule("repeat", {v, scalar(1100)}).await(),
              StatusIs(kInvalidArgument,
                       HasSubstr("function \"repeat\" returns 1.074 GiB; the most is 1 GiB; return "
                                 "less, or push it to a variable")));
}

TEST(CoordinatorTest, QueueLimit) {
  RunningCluster running(1, 1, {}, {.queue_limit = 4});
  ASSERT_TRUE(running.ok());
  const absl::Time start = steady_now();
  running.wait(1000);
  for (int i = 0; i < 4; ++i) running.wait(1);
  EXPECT_LT(steady_now() - start, absl::Seconds(1));
  running.wait(1);  // the sixth waits until the first is over
  EXPECT_GE(steady_now() - start, absl::Seconds(1));
  EXPECT_THAT(running.coordinator->join(), IsOk());
}

TEST(CoordinatorTest, PullPartitioned) {
  RunningCluster running(2, 2, fixed_shards(5));
  ASSERT_TRUE(running.ok());
  std::vector<float> values;
  for (int i = 0; i < 13; ++i) values.push_back(static_cast<float>(i));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const RemoteVariable v,
      running.coordinator->variable("thirteen", HostArray::of<float>(values, {13, 1})));
  EXPECT_EQ(v.num_shards(), 5);
  EXPECT_EQ(running.v->num_shards(), 1);
  EXPECT_THAT(value_of(*running.coordinator, v), IsOkAndHolds(values));
  for (int i = 0; i < 8; ++i) running.coordinator->schedule("add", {scalar(1), v});
  EXPECT_THAT(running.coordinator->join(), IsOk());
  for (float& value : values) value += 8;
  EXPECT_THAT(value_of(*running.coordinator, v), IsOkAndHolds(values));
}

// An array with different bytes in each row, because gRPC cuts messages anywhere.
HostArray some_bytes(DType dtype, int64_t num_elements) {
  HostArray array = {.dtype = dtype, .shape = {num_elements}, .bytes = {}};
  array.bytes.resize(num_bytes(array.shape, dtype));
  for (int64_t i = 0; i < num_elements; ++i) {
    if (dtype == DType::kUint8) {
      array.view<uint8_t>()[i] = static_cast<uint8_t>(i * 7 + i / 251);
    } else {
      array.view<float>()[i] = static_cast<float>(i % 1'000'003);
    }
  }
  return array;
}
HostArray doubled(HostArray array) {
  if (array.dtype == DType::kFloat32) {
    for (float& element : array.view<float>()) element *= 2;
  } else {
    for (uint8_t& element : array.view<uint8_t>()) element = static_cast<uint8_t>(2 * element);
  }
  return array;
}

// One call pulls and pushes variables of every size, in one shard and in three.
TEST(CoordinatorTest, TensorsOfEverySize) {
  for (const Partitioner& partitioner : {Partitioner(), fixed_shards(3)}) {
    RunningCluster running(1, 2, partitioner);
    ASSERT_TRUE(running.ok());
    ClusterCoordinator& coordinator = *running.coordinator;
    std::vector<HostArray> arrays;
    for (const int64_t size : {0, 1, 2, 13, (64 << 10) - 1, 64 << 10, (64 << 10) + 1, (1 << 20) - 1,
                               1 << 20, (1 << 20) + 1}) {
      arrays.push_back(some_bytes(DType::kUint8, size));
    }
    for (const int64_t size : {0, 1, 5'000'000})
      arrays.push_back(some_bytes(DType::kFloat32, size));
    std::vector<Argument> variables;
    for (const HostArray& array : arrays) {
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const RemoteVariable variable,
          coordinator.variable(absl::StrCat("variable ", variables.size()), array));
      variables.push_back(variable);
    }
    for (int i = 0; i < 2; ++i)
      EXPECT_THAT(coordinator.schedule("double_all", variables).await(), IsOk());
    for (size_t i = 0; i < arrays.size(); ++i) {
      SCOPED_TRACE(i);
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto pulled,
                                   coordinator.schedule("pull", {variables[i]}).fetch());
      EXPECT_TRUE(pulled[0] == doubled(doubled(arrays[i])));
    }
  }
}

// A value does not change while it is sent: a pull has all of a push or nothing.
TEST(CoordinatorTest, PullsDuringPushes) {
  RunningCluster running(2, 1);
  ASSERT_TRUE(running.ok());
  ClusterCoordinator& coordinator = *running.coordinator;
  constexpr int kNumElements = 4 << 20;
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const RemoteVariable large,
      coordinator.variable("large",
                           HostArray::of<float>(std::vector<float>(kNumElements), {kNumElements})));
  for (int i = 0; i < 10; ++i) {
    for (const char* const function : {"push_late", "pull_all"}) {
      coordinator.schedule(function, {scalar(0), large});
    }
  }
  EXPECT_THAT(coordinator.join(), IsOk());
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<float> value, value_of(coordinator, large));
  EXPECT_EQ(std::count(value.begin(), value.end(), 10.0f), kNumElements);
}

TEST(CoordinatorTest, RegistryDiffers) {
  for (const auto& [is_worker_1, name, lacks] :
       {std::tuple(true, "more", "lacks function \"more\", which that of worker "),
        std::tuple(false, "more", "lacks function \"more\", which that of worker "),
        std::tuple(true, "data set more", "lacks data set \"more\", which that of worker ")}) {
    TestCluster cluster(2, 1);
    cluster.start("ps", 0);
    cluster.start("worker", 0, is_worker_1 ? name : "");
    cluster.start("worker", 1, is_worker_1 ? "" : name);
    const int lacking = is_worker_1 ? 1 : 0;
    EXPECT_THAT(ClusterCoordinator::create(cluster.chief()),
                StatusIs(kFailedPrecondition,
                         AllOf(HasSubstr(absl::StrCat("the registry of worker ", lacking, " (",
                                                      cluster.address("worker", lacking), ")")),
                               HasSubstr(lacks))));
    EXPECT_THAT(cluster.wait("ps", 0), StatusIs(kFailedPrecondition, HasSubstr("lacks")));
  }
}

TEST(CoordinatorTest, TwoCoordinators) {
  RunningCluster running(1, 1);
  ASSERT_TRUE(running.ok());
  EXPECT_THAT(ClusterCoordinator::create(running.cluster.chief()),
              StatusIs(kFailedPrecondition,
                       HasSubstr("belongs to the ClusterCoordinator of the chief on ")));
  running.add(1);
  EXPECT_THAT(running.coordinator->join(), IsOk());
  // A coordinator rejects a variable of another coordinator.
  RunningCluster other(1, 1);
  ASSERT_TRUE(other.ok());
  EXPECT_THAT(
      other.coordinator->schedule("pull", {*running.v}).await(),
      StatusIs(kInvalidArgument, HasSubstr("variable \"v\" is of another ClusterCoordinator")));
}

struct ClusterCase {
  const char* name;
  std::map<std::string, std::map<int, std::string>> jobs;
  const char* task_type;
  const char* message;
};

const ClusterCase kClusterCases[] = {
    {"no_ps",
     {{"chief", {{0, "127.0.0.1:1"}}}, {"worker", {{0, "127.0.0.1:2"}}}},
     "chief",
     "has no task of job ps; a ClusterCoordinator needs one or more"},
    {"no_worker",
     {{"chief", {{0, "127.0.0.1:1"}}}, {"ps", {{0, "127.0.0.1:2"}}}},
     "chief",
     "has no task of job worker"},
    {"two_chiefs",
     {{"chief", {{0, "127.0.0.1:1"}, {1, "127.0.0.1:3"}}}, {"ps", {{0, "127.0.0.1:2"}}}},
     "chief",
     "has 2 tasks of job chief; a cluster has one"},
    {"not_the_chief",
     {{"worker", {{0, "127.0.0.1:1"}}}, {"ps", {{0, "127.0.0.1:2"}}}},
     "worker",
     "is made by the chief, and this task is \"worker\""},
    {"other_host",
     {{"worker", {{0, "192.0.2.1:1"}}}, {"ps", {{0, "127.0.0.1:2"}}}},
     "chief",
     "worker 0 is at 192.0.2.1:1, on another host, and TESSERA_TOKEN is not set"},
};

TEST(CoordinatorTest, RefusesClusters) {
  for (const ClusterCase& c : kClusterCases) {
    SCOPED_TRACE(c.name);
    cluster::Cluster cluster;
    cluster.spec.jobs = c.jobs;
    cluster.task_type = c.task_type;
    cluster.task_id = 0;
    EXPECT_THAT(ClusterCoordinator::create(cluster),
                StatusIs(kInvalidArgument, HasSubstr(c.message)));
  }
}

TEST(CoordinatorTest, RefusesOptions) {
  TestCluster cluster(1, 1);
  const auto expect = [&](Partitioner partitioner, const CoordinatorOptions& options,
                          const std::string& message) {
    EXPECT_THAT(ClusterCoordinator::create(cluster.chief(), std::move(partitioner), options),
                StatusIs(kInvalidArgument, HasSubstr(message)));
  };
  expect(fixed_shards(0), {}, "fixed_shards(0)");
  expect({}, {.queue_limit = 0}, "queue_limit is 0; it must be 1 or more");
  expect({}, {.max_attempts = -1}, "max_attempts is -1; it must be 1 or more");
  expect({}, {.worker_wait = absl::ZeroDuration()}, "worker_wait is 0 ms; it must be longer than");
  expect({}, {.heartbeat_interval = absl::ZeroDuration()},
         "heartbeat_interval is 0 ms; it must be from 1 ms to 1 h");
  expect({}, {.heartbeat_interval = absl::InfiniteDuration()},
         "heartbeat_interval is infinite; it must be");
  // No task was started: the wait takes worker_wait.
  EXPECT_THAT(ClusterCoordinator::create(cluster.chief(), {}, {.worker_wait = absl::Seconds(1)}),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("tasks of the cluster that were not reached: ps 0 (127"),
                             HasSubstr("): it has left no job token in "),
                             HasSubstr("; see whether it was started on this host"),
                             HasSubstr("worker 0 (127"), Not(HasSubstr("the coordinator at")))));
}

// The error for an unreachable task has the reason of the latest attempt to connect.
TEST(CoordinatorTest, TasksThatAreNotReached) {
  TestCluster cluster(1, 1);
  setenv("TESSERA_TOKEN", "secret", 1);
  const StatusOr<ClusterCoordinator> coordinator =
      ClusterCoordinator::create(cluster.chief(), {}, {.worker_wait = absl::Seconds(1)});
  unsetenv("TESSERA_TOKEN");
  EXPECT_THAT(
      coordinator,
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               AllOf(HasSubstr("tasks of the cluster that were not reached: ps 0 (127"),
                     HasSubstr("UNAVAILABLE: "), HasSubstr("Connection refused; worker 0 (127"))));
}

TEST(ServerTest, StartStopAndWhatIsRefused) {
  TestCluster cluster(1, 1);
  EXPECT_THAT(Server::start(cluster.chief()),
              StatusIs(kInvalidArgument,
                       HasSubstr("a Server is a worker or a ps, and this task is \"chief\"")));
  TESSERA_ASSERT_OK_AND_ASSIGN(Server server, Server::start(cluster.as("ps", 0)));
  EXPECT_EQ(server.address(), cluster.address("ps", 0));
  EXPECT_THAT(Server::start(cluster.as("ps", 0)),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr(absl::StrCat("ps 0: the server cannot listen on ",
                                              cluster.address("ps", 0)))));
  EXPECT_THAT(server.stop(), IsOk());
  EXPECT_THAT(server.join(), IsOk());
  EXPECT_THAT(server.stop(), IsOk());
}

TEST(CoordinatorTest, WhatWasMovedFromSaysSo) {
  RunningCluster running(1, 1);
  ASSERT_TRUE(running.ok());
  RemoteValue value = running.add(1);
  const RemoteValue same = std::move(value);
  EXPECT_THAT(value.await(), IsOk());  // NOLINT: handles are copied
  const RemoteVariable variable = std::move(*running.v);
  EXPECT_EQ(running.v->name(), variable.name());
  ClusterCoordinator& from = *running.coordinator;
  const ClusterCoordinator to = std::move(from);
  const auto was_moved = StatusIs(kFailedPrecondition, HasSubstr("ClusterCoordinator was moved"));
  EXPECT_EQ(from.num_workers() + from.num_ps(), 0);
  EXPECT_THAT(from.variable("w", scalar(0)), was_moved);
  EXPECT_THAT(from.schedule("add", {scalar(1), variable}).await(), was_moved);
  EXPECT_THAT(from.create_per_worker_dataset("pairs"), was_moved);
  EXPECT_THAT(from.done(), was_moved);
  EXPECT_THAT(from.join(), was_moved);
}

TEST(ServerTest, AnyPort) {
  cluster::Cluster cluster;
  cluster.spec.jobs = {{"chief", {{0, "127.0.0.1:1"}}},
                       {"ps", {{0, "127.0.0.1:0"}}},
                       {"worker", {{0, "127.0.0.1:2"}}}};
  cluster.task_type = "ps";
  cluster.task_id = 0;
  TESSERA_ASSERT_OK_AND_ASSIGN(const Server server, Server::start(cluster));
  EXPECT_THAT(server.address(), AllOf(HasSubstr("127.0.0.1:"), Not(HasSubstr(":0"))));
}

TEST(ServerTest, OneThatWasMovedFromSaysSo) {
  TestCluster cluster(1, 1);
  TESSERA_ASSERT_OK_AND_ASSIGN(Server server, Server::start(cluster.as("ps", 0)));
  const Server other = std::move(server);
  EXPECT_EQ(server.address(), "");
  const auto was_moved = StatusIs(kFailedPrecondition, HasSubstr("the Server was moved from"));
  EXPECT_THAT(server.join(), was_moved);
  EXPECT_THAT(server.stop(), was_moved);
}

TEST(FunctionRegistryTest, RefusesNames) {
  FunctionRegistry registry;
  const FunctionRegistry::Function fn = [](WorkerContext&, absl::Span<const Argument>) {
    return std::vector<DTensor>();
  };
  EXPECT_THAT(registry.add("f", fn), IsOk());
  EXPECT_THAT(registry.add("f", fn), StatusIs(absl::StatusCode::kAlreadyExists,
                                              HasSubstr("\"f\" is in the registry; give each")));
  EXPECT_THAT(registry.add("", fn),
              StatusIs(kInvalidArgument, HasSubstr("a function needs a name that is not empty")));
  EXPECT_THAT(registry.add("g", {}),
              StatusIs(kInvalidArgument, HasSubstr("function \"g\" is empty; give a function")));
  EXPECT_THAT(registry.names(), ElementsAre("f"));
  const FunctionRegistry::DatasetFunction dataset = [](const InputContext&) {
    return input::Dataset::range(1);
  };
  EXPECT_THAT(registry.add_dataset("f", dataset), IsOk());
  EXPECT_THAT(registry.add_dataset("f", dataset),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("data set \"f\" is in the registry; give each a name")));
  EXPECT_THAT(registry.add_dataset("", dataset),
              StatusIs(kInvalidArgument, HasSubstr("a data set needs a name that is not empty")));
  EXPECT_THAT(registry.add_dataset("g", {}),
              StatusIs(kInvalidArgument, HasSubstr("data set \"g\" is empty; give a function")));
  EXPECT_THAT(registry.dataset_names(), ElementsAre("f"));
}

}  // namespace
}  // namespace tessera::distribute
