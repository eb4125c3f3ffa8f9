// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/plan_comparison.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmarks/baselines.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "relayout/plan.h"
#include "relayout/testing/case_table.h"

namespace tessera::benchmarks {
namespace {

constexpr double kTensorBytes = 16 << 20;

// The time of a tensor of kTensorBytes.
double scaled_time_us(const Cost& cost, int64_t tensor_elements) {
  Link link;
  // Equivalent to elements of kTensorBytes / tensor_elements bytes, which may be a fraction.
  link.bytes_per_us *= static_cast<double>(tensor_elements) / kTensorBytes;
  return time_us(cost, 1, link);
}

StatusOr<Cost> cost_of_plan(const testing::RelayoutCase& pair, int64_t* bound) {
  TESSERA_ASSIGN_OR_RETURN(const RelayoutPlan plan,
                           plan_relayout(pair.from, pair.to, pair.shape, DType::kInt8));
  *bound = plan.lower_bound_bytes();
  // The layouts of the steps. Our plan is charged by the same count as the baseline, not by its own
  // numbers.
  Sequence sequence = {pair.from};
  for (const PlanStep& step : plan.steps()) sequence.push_back(step.to());
  return cost_of(sequence, pair.shape);
}

void add_to_column(Column* column, const Cost& cost, const Cost& ours, int64_t bound,
                   const testing::RelayoutCase& pair) {
  if (bound == 0) {
    column->num_needless += cost.received_elements > 0 ? 1 : 0;
    return;
  }
  const double ratio = static_cast<double>(cost.received_elements) / static_cast<double>(bound);
  const int64_t elements = num_elements(pair.shape);
  ++column->num_pairs;
  column->sum_of_ratios += ratio;
  column->sum_of_time_ratios += scaled_time_us(cost, elements) / scaled_time_us(ours, elements);
  if (ratio > column->worst_ratio) {
    column->worst_ratio = ratio;
    column->worst_pair = pair.to_string();
  }
}

}  // namespace

absl::string_view planner_name(int planner) {
  static constexpr absl::string_view kNames[] = {"Tessera", "gather, then slice"};
  return kNames[planner];
}

Status PlanComparison::add(const testing::RelayoutCase& pair) {
  ++num_pairs;
  int64_t bound = 0;
  TESSERA_ASSIGN_OR_RETURN(const Cost ours, cost_of_plan(pair, &bound));
  TESSERA_ASSIGN_OR_RETURN(const Sequence gathered, gather_then_slice(pair.from, pair.to));
  const Cost theirs = cost_of(gathered, pair.shape);
  add_to_column(&columns[0], ours, ours, bound, pair);
  add_to_column(&columns[1], theirs, ours, bound, pair);
  const int64_t elements = num_elements(pair.shape);
  const bool worse = ours.received_elements > theirs.received_elements ||
                     scaled_time_us(ours, elements) > scaled_time_us(theirs, elements);
  if (worse && worse_than_the_baseline.empty()) worse_than_the_baseline = pair.to_string();
  return absl::OkStatus();
}

StatusOr<PlanComparison> compare_all_pairs(int num_axes, int rank) {
  std::vector<MeshAxis> axes;
  for (int i = 0; i < num_axes; ++i) axes.push_back({std::string(1, "xyzw"[i]), 2});
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::create(axes));
  const std::vector<Layout> layouts = testing::every_layout(mesh, rank, {});
  PlanComparison result;
  result.name = absl::StrCat("m ", num_axes, ", r ", rank);
  for (const Layout& from : layouts) {
    for (const Layout& to : layouts) {
      if (from == to) continue;
      TESSERA_RETURN_IF_ERROR(result.add({from, to, Shape(rank, int64_t{1} << num_axes)}));
    }
  }
  return result;
}

StatusOr<PlanComparison> compare_rows() {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<testing::CaseRow> rows, testing::read_case_table());
  PlanComparison result;
  result.name = "rows";
  for (const testing::CaseRow& row : rows) {
    TESSERA_RETURN_IF_ERROR(with_context(result.add(row.relayout), row.id));
  }
  return result;
}

}  // namespace tessera::benchmarks
