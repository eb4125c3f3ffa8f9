// SPDX-License-Identifier: Apache-2.0
//
// Prints how many bytes and how much time the baseline needs beside our plans.
//
//   plan_baselines [--markdown] [--small]      --small: only the smallest set
//
// Exit status 1 if the baseline is better for any pair.
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "benchmarks/plan_comparison.h"

namespace tessera::benchmarks {
namespace {

StatusOr<std::vector<PlanComparison>> compare(bool small) {
  std::vector<PlanComparison> all;
  const std::vector<std::pair<int, int>> sizes =
      small ? std::vector<std::pair<int, int>>{{2, 2}}
            : std::vector<std::pair<int, int>>{{2, 2}, {3, 2}, {3, 3}, {4, 2}};
  for (const auto& [num_axes, rank] : sizes) {
    TESSERA_ASSIGN_OR_RETURN(PlanComparison one, compare_all_pairs(num_axes, rank));
    all.push_back(std::move(one));
  }
  if (small) return all;
  TESSERA_ASSIGN_OR_RETURN(PlanComparison rows, compare_rows());
  all.push_back(std::move(rows));
  return all;
}

void print_markdown(const std::vector<PlanComparison>& all) {
  std::cout << "| set | pairs (bound > 0) | planner | mean bytes | worst bytes | mean time | "
               "receives for nothing |\n| --- | ---: | --- | ---: | ---: | ---: | ---: |\n";
  for (const PlanComparison& set : all) {
    for (int planner = 0; planner < kNumPlanners; ++planner) {
      const Column& column = set.columns[planner];
      std::cout << absl::StrFormat("| %s | %d (%d) | %s | %.3f | %.2f | %.2f | %d |\n", set.name,
                                   set.num_pairs, column.num_pairs, planner_name(planner),
                                   column.mean_ratio(), column.worst_ratio,
                                   column.mean_time_ratio(), column.num_needless);
    }
  }
}

void print_text(const std::vector<PlanComparison>& all) {
  for (const PlanComparison& set : all) {
    std::cout << set.name << ": " << set.num_pairs << " pairs\n";
    for (int planner = 0; planner < kNumPlanners; ++planner) {
      const Column& column = set.columns[planner];
      std::cout << absl::StrFormat(
          "  %-20s bytes / bound: mean %.3f, worst %.2f; time / ours: mean %.2f; receives for "
          "nothing: %d\n",
          planner_name(planner), column.mean_ratio(), column.worst_ratio, column.mean_time_ratio(),
          column.num_needless);
      if (column.worst_ratio > 1) std::cout << "    worst: " << column.worst_pair << "\n";
    }
  }
}

int main_of_plan_baselines(int argc, char** argv) {
  bool markdown = false;
  bool small = false;
  for (int i = 1; i < argc; ++i) {
    const absl::string_view argument = argv[i];
    markdown = markdown || argument == "--markdown";
    small = small || argument == "--small";
    if (argument != "--markdown" && argument != "--small") {
      std::cerr << "usage: plan_baselines [--markdown] [--small]\n";
      return 2;
    }
  }
  const StatusOr<std::vector<PlanComparison>> all = compare(small);
  if (!all.ok()) {
    std::cerr << all.status() << "\n";
    return 2;
  }
  markdown ? print_markdown(*all) : print_text(*all);
  int result = 0;
  for (const PlanComparison& set : *all) {
    if (set.worse_than_the_baseline.empty()) continue;
    std::cerr << "worse than the baseline: " << set.worse_than_the_baseline << "\n";
    result = 1;
  }
  return result;
}

}  // namespace
}  // namespace tessera::benchmarks

int main(int argc, char** argv) { return tessera::benchmarks::main_of_plan_baselines(argc, argv); }
