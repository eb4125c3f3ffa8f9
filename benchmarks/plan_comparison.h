// SPDX-License-Identifier: Apache-2.0
//
// PlanComparison: our plans beside the baseline, over a set of pairs of layouts.
//
//   ratio = elements that the busiest device receives / lower bound
//
// A set is every ordered pair of different layouts of rank r on a mesh of m axes of two devices
// (dims even), or the rows of relayout/testdata/relayout_cases.tsv. Means and worst cases are over
// the pairs with a bound above 0. Pairs with a bound of 0 are counted if a planner receives
// something.
#ifndef TESSERA_BENCHMARKS_PLAN_COMPARISON_H_
#define TESSERA_BENCHMARKS_PLAN_COMPARISON_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "relayout/testing/small_relayouts.h"

namespace tessera::benchmarks {

inline constexpr int kNumPlanners = 2;
// In the order of the columns: "Tessera", "gather, then slice".
absl::string_view planner_name(int planner);

struct Column {
  int64_t num_pairs = 0;  // With a bound above 0.
  double sum_of_ratios = 0;
  double worst_ratio = 0;
  std::string worst_pair;
  double sum_of_time_ratios = 0;  // baseline's time over ours, for a tensor of 16 MiB on Link{}
  int64_t num_needless = 0;       // Pairs with a bound of 0 in which a device receives something.
  double mean_ratio() const { return sum_of_ratios / static_cast<double>(num_pairs); }
  double mean_time_ratio() const { return sum_of_time_ratios / static_cast<double>(num_pairs); }
};

struct PlanComparison {
  std::string name;
  Column columns[kNumPlanners];
  int64_t num_pairs = 0;
  // The first pair for which the baseline receives less than our plan, or takes less time; else
  // empty.
  std::string worse_than_the_baseline;

  Status add(const testing::RelayoutCase& pair);
};

// "m 3, r 2": 2352 pairs.
StatusOr<PlanComparison> compare_all_pairs(int num_axes, int rank);
// The rows of relayout_cases.tsv.
StatusOr<PlanComparison> compare_rows();

}  // namespace tessera::benchmarks

#endif  // TESSERA_BENCHMARKS_PLAN_COMPARISON_H_
