// SPDX-License-Identifier: Apache-2.0
//
// The benchmark for GPUs runs on the fakes with right results; no time is asserted.
#include "benchmarks/gpu/benchmark.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "benchmarks/gpu/rounds.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/matchers.h"

namespace tessera::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::IsOk;
using ::testing::SizeIs;
using testing::StatusIs;

// Must be the first test: the benchmark forks, so nothing may have started gRPC.
TEST(BenchmarkTest, EveryPartRunsOnTheDoubles) {
  Report report;
  ASSERT_THAT(run_benchmark({.is_on_fake = true, .rounds = 3}, &report), IsOk());
  // 24 box copies, fill, iota, cast, 6 sums and the copy; 4 + 4 of collectives; 2 + 2 of products.
  EXPECT_THAT(report.rows, SizeIs(24 + 3 + 6 + 1 + 8 + 4));
  for (const Row& row : report.rows) {
    EXPECT_THAT(row.times, AllOf(SizeIs(3), Each(::testing::Gt(0)))) << row.what;
  }
  EXPECT_THAT(report.goals, SizeIs(4));
  for (const Goal& goal : report.goals) EXPECT_TRUE(goal.is_measured) << goal.name;
}

TEST(BenchmarkTest, TheTimelineRunsOnTheDoubles) {
  Report report;
  ASSERT_THAT(run_benchmark({.is_on_fake = true, .rounds = 3, .only = "timeline"}, &report),
              IsOk());
  EXPECT_THAT(report.rows, SizeIs(11));
  for (const Row& row : report.rows) {
    EXPECT_THAT(row.times, AllOf(SizeIs(3), Each(::testing::Gt(0)))) << row.what;
  }
}

TEST(BenchmarkTest, SaysWhereThereIsNoGpu) {
  const Status gpu = find_gpu();
  if (gpu.ok()) GTEST_SKIP() << "there is a GPU";
  // Unimplemented in a build without the toolkit.
  EXPECT_THAT(gpu, AnyOf(StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no GPU: ")),
                         StatusIs(absl::StatusCode::kUnimplemented)));
}

TEST(BenchmarkTest, SaysWhichPartsThereAre) {
  Report report;
  EXPECT_THAT(run_benchmark({.is_on_fake = true, .only = "kernel"}, &report),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("\"kernel\" is not a part; there are collectives")));
}

TEST(RoundsTest, EachContestantRunsOnceARoundAndWarmUpsDoNotCount) {
  std::vector<std::string> order;
  int calls = 0;
  const Contestant contestants[] = {{"a",
                                     [&] {
                                       order.push_back("a");
                                       return absl::Microseconds(++calls);
                                     }},
                                    {"b", [&] {
                                       order.push_back("b");
                                       return absl::Microseconds(100 + ++calls);
                                     }}};
  const auto times = measure_in_turn(contestants, 2);
  ASSERT_THAT(times, IsOk());
  EXPECT_THAT(order, ElementsAre("a", "b", "b", "a", "a", "b", "b", "a"));
  EXPECT_THAT((*times)[0], ElementsAre(5, 8));
  EXPECT_THAT((*times)[1], ElementsAre(106, 107));
}

TEST(RoundsTest, AnErrorNamesItsContestant) {
  const Contestant contestants[] = {
      {"pack", [] { return StatusOr<absl::Duration>(absl::InternalError("wrong")); }}};
  EXPECT_THAT(measure_in_turn(contestants, 1),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("pack: wrong")));
}

TEST(RoundsTest, Median) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(median({}), 0);
}

TEST(ReportTest, SaysWhatWasReached) {
  Report report;
  report.setting = {{"on", "a \"test\""}};
  report.rows = {{"kernels", "pack", {2, 1, 3}, "7 GB/s", "0.70 of the copy's rate", {1.5}}};
  report.goals = {{"a", "0.70", true, false}, {"b", "3 us", true, true}, {"c", "no library"}};
  EXPECT_EQ(report.to_markdown(),
            "on: a \"test\"\n"
            "\n"
            "| part | what | us | rate | compared |\n"
            "| --- | --- | ---: | ---: | --- |\n"
            "| kernels | pack | 2.00 | 7 GB/s | 0.70 of the copy's rate |\n"
            "\n"
            "not reached: a: 0.70\n"
            "reached: b: 3 us\n"
            "not measured: c: no library\n");
  const auto json = nlohmann::json::parse(report.to_json());
  EXPECT_EQ(json["setting"]["on"], "a \"test\"");
  EXPECT_EQ(json["rows"], nlohmann::json::parse(R"([{
    "part": "kernels", "what": "pack", "median_us": 2.0, "rate": "7 GB/s",
    "compared": "0.70 of the copy's rate", "rounds_us": [2.0, 1.0, 3.0], "beside_us": [1.5]}])"));
  EXPECT_EQ(json["goals"], nlohmann::json::parse(R"([
    {"goal": "a", "outcome": "not reached", "text": "0.70"},
    {"goal": "b", "outcome": "reached", "text": "3 us"},
    {"goal": "c", "outcome": "not measured", "text": "no library"}])"));
}

}  // namespace
}  // namespace tessera::benchmarks
