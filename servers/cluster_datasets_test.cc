// SPDX-License-Identifier: Apache-2.0
//
// Data sets of workers, by ClusterCoordinator on clusters without faults. Comments and test names
// refer to rows of tests/facts/parameter_servers.md.
#include <cstdint>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/status.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "input/source.h"
#include "servers/cluster_coordinator.h"
#include "servers/remote_dataset.h"
#include "servers/remote_variable.h"
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
using testing::Read;
using testing::read_of;
using testing::RunningCluster;
using testing::scalar;

constexpr auto kInvalidArgument = absl::StatusCode::kInvalidArgument;

// Runs reading closures, one after the other, until each of two workers has run one.
std::vector<Read> read_on_both(ClusterCoordinator& coordinator, const RemoteDataset& dataset) {
  std::vector<Read> reads;
  const absl::Time deadline = steady_now() + absl::Seconds(20);
  for (std::set<int> workers; workers.size() < 2 && steady_now() < deadline;) {
    std::vector<RemoteValue> values;
    for (int i = 0; i < 2; ++i) {
      values.push_back(coordinator.schedule("read", {dataset, scalar(50)}));
    }
    for (const RemoteValue& value : values) {
      StatusOr<Read> read = read_of(value);
      EXPECT_THAT(read, IsOk());
      if (!read.ok()) return reads;
      workers.insert(read->worker);
      reads.push_back(*std::move(read));
    }
  }
  return reads;
}

TEST(CoordinatorDatasetsTest, PerWorkerDataset) {
  RunningCluster running(2, 1);
  ASSERT_TRUE(running.ok());
  ClusterCoordinator& coordinator = *running.coordinator;
  TESSERA_ASSERT_OK_AND_ASSIGN(const RemoteDataset pairs,
                               coordinator.create_per_worker_dataset("pairs"));
  EXPECT_EQ(pairs.element_spec(), (std::vector<input::TensorSpec>{{DType::kInt64, {-1}}}));
  // Each worker reads independently, from the start.
  std::map<int, int> num_read;
  for (int round = 0; round < 2; ++round) {
    for (const Read& read : read_on_both(coordinator, pairs)) {
      const int64_t first = 2 * num_read[read.worker]++;
      const bool is_end = first >= 10;
      EXPECT_EQ(read.batches, is_end ? std::vector<std::vector<int64_t>>()
                                     : std::vector<std::vector<int64_t>>({{first, first + 1}}));
    }
  }
  // The function was called once on each worker. It is called again for another data set, which has
  // its own positions.
  for (const float num_calls : {1.0f, 2.0f}) {
    for (int i = 0; i < 4; ++i) {
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto calls,
                                   coordinator.schedule("calls_of_pairs").fetch());
      EXPECT_EQ(calls[1], scalar(num_calls));
    }
    if (num_calls == 2) break;
    TESSERA_ASSERT_OK_AND_ASSIGN(const RemoteDataset again,
                                 coordinator.create_per_worker_dataset("pairs"));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Read read, read_of(coordinator.schedule("read", {again})));
    EXPECT_THAT(read.batches, ElementsAre(ElementsAre(0, 1)));
  }
  // The arguments of the function.
  TESSERA_ASSERT_OK_AND_ASSIGN(const RemoteDataset sharded,
                               coordinator.create_per_worker_dataset("sharded"));
  num_read.clear();
  for (const Read& read : read_on_both(coordinator, sharded)) {
    const int64_t first = read.worker;
    switch (num_read[read.worker]++) {
      case 0:
        EXPECT_THAT(read.batches, ElementsAre(ElementsAre(first, first + 2, first + 4)));
        break;
      case 1:
        EXPECT_THAT(read.batches, ElementsAre(ElementsAre(first + 6, first + 8)));
        break;
      default:
        EXPECT_THAT(read.batches, ElementsAre());
    }
  }
  EXPECT_THAT(coordinator.join(), IsOk());
}

TEST(CoordinatorDatasetsTest, DatasetEnds) {
  RunningCluster running(1, 1);
  ASSERT_TRUE(running.ok());
  ClusterCoordinator& coordinator = *running.coordinator;
  TESSERA_ASSERT_OK_AND_ASSIGN(const RemoteDataset pairs,
                               coordinator.create_per_worker_dataset("pairs"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const RemoteDataset odd,
                               coordinator.create_per_worker_dataset("odd"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const RemoteDataset none,
                               coordinator.create_per_worker_dataset("no_elements"));
  EXPECT_TRUE(none.element_spec().empty());
  const auto read = [&](std::vector<Argument> args) {
    return read_of(coordinator.schedule("read", std::move(args)));
  };
  // A call may read several times, and several data sets.
  EXPECT_THAT(read({pairs, odd, pairs}), IsOkAndHolds(Read{0, {{0, 1}, {1, 3}, {2, 3}}}));
  EXPECT_THAT(read({pairs, none, pairs}), IsOkAndHolds(Read{0, {{4, 5}, {6, 7}}}));
  EXPECT_THAT(read({odd, odd, odd, odd}), IsOkAndHolds(Read{0, {{5, 7}, {9}}}));
  EXPECT_THAT(read({pairs, pairs, odd}), IsOkAndHolds(Read{0, {{8, 9}}}));
  EXPECT_THAT(read({pairs, odd, none}), IsOkAndHolds(Read{0, {}}));
  EXPECT_THAT(coordinator.join(), IsOk());
  // Only the function's error is reported, not the end of the data set.
  EXPECT_THAT(coordinator.schedule("read_and_fail", {pairs}).await(),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("enough")));
  EXPECT_THAT(coordinator.join(), StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_THAT(read({pairs}), IsOkAndHolds(Read{0, {}}));
}

// Only a call that counts moves the position.
TEST(CoordinatorDatasetsTest, AFailedCallHasReadNothing) {
  RunningCluster running(1, 1);
  ASSERT_TRUE(running.ok());
  ClusterCoordinator& coordinator = *running.coordinator;
  for (const char* const name : {"pairs", "odd"}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const RemoteDataset dataset,
                                 coordinator.create_per_worker_dataset(name));
    const auto read = [&] { return read_of(coordinator.schedule("read", {dataset})); };
    TESSERA_ASSERT_OK_AND_ASSIGN(const Read first, read());
    coordinator.schedule("read_and_fail", {dataset, dataset});
    EXPECT_THAT(coordinator.join(), StatusIs(absl::StatusCode::kOutOfRange));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Read second, read());
    coordinator.schedule("read_and_fail", {dataset});
    EXPECT_THAT(coordinator.join(), StatusIs(absl::StatusCode::kOutOfRange));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Read third, read());
    using Batches = std::vector<std::vector<int64_t>>;
    const bool is_pairs = std::string(name) == "pairs";
    EXPECT_EQ(first.batches, (is_pairs ? Batches{{0, 1}} : Batches{{1, 3}}));
    EXPECT_EQ(second.batches, (is_pairs ? Batches{{2, 3}} : Batches{{5, 7}}));
    EXPECT_EQ(third.batches, (is_pairs ? Batches{{4, 5}} : Batches{{9}}));
  }
}

// An error of the data set names the worker, the data set and the element; the position stays.
TEST(CoordinatorDatasetsTest, ADatasetFails) {
  RunningCluster running(1, 1);
  ASSERT_TRUE(running.ok());
  ClusterCoordinator& coordinator = *running.coordinator;
  TESSERA_ASSERT_OK_AND_ASSIGN(const RemoteDataset broken,
                               coordinator.create_per_worker_dataset("broken"));
  EXPECT_THAT(read_of(coordinator.schedule("read_quietly", {broken})),
              IsOkAndHolds(Read{0, {{0, 1}, {2, 3}}}));
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(coordinator.schedule("read", {broken}).await(),
                StatusIs(absl::StatusCode::kDataLoss,
                         AllOf(HasSubstr("worker 0: function \"read\": data set \"broken\": "),
                               HasSubstr("element 5"), HasSubstr("it is damaged"))));
    EXPECT_THAT(coordinator.join(), StatusIs(absl::StatusCode::kDataLoss));
  }
}

struct DatasetCase {
  const char* name;
  absl::StatusCode code;
  const char* message;
};

const DatasetCase kDatasetCases[] = {
    {"nope", absl::StatusCode::kNotFound,
     "data set \"nope\" is not in the registry of the workers, which has \"broken\", \"carries_an"},
    {"unbatched", kInvalidArgument,
     "data set \"unbatched\": it has no batches; call batch(size) last"},
    {"carries_an_error", kInvalidArgument, "data set \"carries_an_error\": range: n is -1"},
    {"fails", absl::StatusCode::kNotFound, "data set \"fails\": no such file"},
    {"raises", absl::StatusCode::kUnknown,
     "data set \"raises\": the function raised an exception: "},
    {"dtypes_differ", kInvalidArgument,
     "data set \"dtypes_differ\" has batches of i64 [-1] on worker 0 (127.0.0.1:"},
};

TEST(CoordinatorDatasetsTest, RefusesDatasets) {
  RunningCluster running(2, 1);
  ASSERT_TRUE(running.ok());
  ClusterCoordinator& coordinator = *running.coordinator;
  for (const DatasetCase& c : kDatasetCases) {
    SCOPED_TRACE(c.name);
    const StatusOr<RemoteDataset> dataset = coordinator.create_per_worker_dataset(c.name);
    EXPECT_THAT(dataset, StatusIs(c.code, HasSubstr(c.message)));
    if (c.code != absl::StatusCode::kNotFound) {
      EXPECT_THAT(dataset.status().message(), HasSubstr("worker 0 (127.0.0.1:"));
    }
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(const RemoteDataset sizes,
                               coordinator.create_per_worker_dataset("sizes_differ"));
  EXPECT_EQ(sizes.element_spec(), (std::vector<input::TensorSpec>{{DType::kFloat32, {4, -1}}}));
  // None of these is the error of a closure.
  EXPECT_THAT(coordinator.join(), IsOk());
}

// A call reads only its arguments, which must be data sets of its coordinator.
TEST(CoordinatorDatasetsTest, ReadsOnlyArguments) {
  RunningCluster running(1, 1);
  ASSERT_TRUE(running.ok());
  ClusterCoordinator& coordinator = *running.coordinator;
  TESSERA_ASSERT_OK_AND_ASSIGN(const RemoteDataset pairs,
                               coordinator.create_per_worker_dataset("pairs"));
  EXPECT_THAT(coordinator.schedule("read_kept", {pairs}).await(), IsOk());
  EXPECT_THAT(coordinator.schedule("read_kept").await(),
              StatusIs(kInvalidArgument,
                       HasSubstr("data set \"pairs\" is not an argument of this call; pass it")));
  EXPECT_THAT(coordinator.join(), StatusIs(kInvalidArgument));
  RunningCluster other(1, 1);
  ASSERT_TRUE(other.ok());
  EXPECT_THAT(
      other.coordinator->schedule("read", {pairs}).await(),
      StatusIs(kInvalidArgument,
               HasSubstr("argument 0 of function \"read\": data set \"pairs\" is of another "
                         "ClusterCoordinator")));
}

// Batches are split over the devices of the worker: `read` compares their layout.
TEST(CoordinatorDatasetsTest, BatchesOverDevices) {
  setenv("TESSERA_LOCAL_DEVICES", "3", 1);
  RunningCluster running(1, 1);
  unsetenv("TESSERA_LOCAL_DEVICES");
  ASSERT_TRUE(running.ok());
  TESSERA_ASSERT_OK_AND_ASSIGN(const RemoteDataset sharded,
                               running.coordinator->create_per_worker_dataset("sharded"));
  for (int64_t first = 0; first < 9; first += 3) {
    EXPECT_THAT(read_of(running.coordinator->schedule("read", {sharded})),
                IsOkAndHolds(Read{0, {{first, first + 1, first + 2}}}));
  }
  EXPECT_THAT(read_of(running.coordinator->schedule("read", {sharded})),
              IsOkAndHolds(Read{0, {{9}}}));
}

}  // namespace
}  // namespace tessera::distribute
