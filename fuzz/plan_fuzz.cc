// SPDX-License-Identifier: Apache-2.0
//
// Any request for a plan. The bytes become:
//
// - a mesh of at most 3 axes and 16 devices, and sometimes another mesh for the second layout;
// - two layouts with sub-axes and partials;
// - a shape, and sometimes a topology and a memory cap.
//
// The oracle's simulated devices run the plan and check each of its promises. The result is
// compared with the dense value.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "fuzz/fuzz.h"
#include "layout/layout.h"
#include "relayout/plan.h"
#include "relayout/testing/plan_oracle.h"
#include "relayout/topology.h"

namespace tessera {
namespace {

using fuzz::ByteReader;
using fuzz::require;

constexpr int64_t kMaxDevices = 16;

Mesh read_mesh(ByteReader& bytes) {
  const int rank = 1 + bytes.below(3);
  std::vector<MeshAxis> axes;
  int64_t size = 1;
  for (int i = 0; i < rank; ++i) {
    const int64_t axis =
        1 + bytes.below(static_cast<int>(std::min<int64_t>(8, kMaxDevices / size)));
    axes.push_back({std::string(1, static_cast<char>('x' + i)), axis});
    size *= axis;
  }
  if (bytes.coin()) return *Mesh::create(std::move(axes));
  // Other devices in another order: rotated and reflected.
  std::vector<int> ids;
  const int first = bytes.below(4);
  const int turn = bytes.below(static_cast<int>(size));
  const bool reflected = bytes.coin();
  for (int64_t i = 0; i < size; ++i) {
    const int64_t id = (i + turn) % size;
    ids.push_back(first + static_cast<int>(reflected ? size - 1 - id : id));
  }
  return *Mesh::create(std::move(axes), std::move(ids));
}

// An axis, or a part of it if the size divides.
std::string read_axis(ByteReader& bytes, const MeshAxis& axis) {
  if (!bytes.coin()) return axis.name;
  const int64_t pre = 1 + bytes.below(4);
  const int64_t size = 2 + bytes.below(3);
  if (axis.size % (pre * size) != 0) return axis.name;
  return absl::StrCat(axis.name, ":(", pre, ")", size);
}

// Assigns each axis or part to a dim, to the reduction, or to nothing. If Layout::create() refuses
// the combination, the tensor is replicated.
Layout read_layout(ByteReader& bytes, const Mesh& mesh, int rank) {
  std::vector<DimSharding> dims(rank);
  std::vector<std::string> partial;
  const int parts = bytes.below(6);
  for (int i = 0; i < parts; ++i) {
    const MeshAxis& axis = mesh.axes()[bytes.below(mesh.rank())];
    const std::string name = read_axis(bytes, axis);
    const int place = bytes.below(rank + 1);
    (place == rank ? partial : dims[place]).push_back(name);
  }
  constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax};
  const ReduceOp op = kOps[bytes.below(3)];
  StatusOr<Layout> layout = Layout::create(mesh, dims);
  if (layout.ok() && !partial.empty() && bytes.coin()) {
    StatusOr<Layout> with_partial = layout->with_partial(partial, op);
    if (with_partial.ok()) layout = std::move(with_partial);
  }
  return layout.ok() ? *layout : *Layout::replicated(mesh, rank);
}

void check_texts(const RelayoutPlan& plan, const RelayoutPlan& again) {
  const std::string text = plan.to_string();
  require(plan == again && plan.hash() == again.hash(), text);
  require(text == again.to_string() && plan.explain() == again.explain(), text);
}

// Links differ by up to 1000 times, so that plans of several batches win.
PlanOptions read_options(ByteReader& bytes) {
  const auto cost = [&] {
    constexpr double kPowers[] = {1, 10, 100, 1000};
    return LinkCost{1e-6 * bytes.below(4), 1e-9 * kPowers[bytes.below(4)]};
  };
  const LinkCosts costs = {cost(), cost(), cost()};
  const int64_t per_process = 1 + bytes.below(2);
  const int64_t per_host = per_process * (1 + bytes.below(8));
  PlanOptions options;
  options.topology = *Topology::uniform(per_process, per_host, costs);
  if (bytes.coin()) options.memory_cap_bytes = int64_t{8} << bytes.below(10);
  if (bytes.coin()) options.reduction_order = ReductionOrder::kFlat;
  return options;
}

// An alternative within the cap that takes less time than the plan; empty if there is none.
std::string faster_alternative(const RelayoutPlan& plan, int64_t cap) {
  for (const Alternative& alternative : plan.alternatives()) {
    // The times of equal steps, predicted in two ways, may differ in the last digits.
    if (alternative.peak_bytes > cap ||
        plan.predicted_time() <= alternative.predicted_time + absl::Nanoseconds(1)) {
      continue;
    }
    return absl::StrCat(plan.to_string(), " under ", plan.topology().to_string(), ": ",
                        alternative.name, " is faster, ",
                        absl::FormatDuration(alternative.predicted_time), " against ",
                        absl::FormatDuration(plan.predicted_time()));
  }
  return "";
}

void check_choice(const RelayoutPlan& plan, const PlanOptions& options) {
  const std::string text = plan.to_string();
  const int64_t cap = options.memory_cap_bytes.value_or(std::numeric_limits<int64_t>::max());
  // A tensor that does not move may already be above the cap.
  require(plan.steps().empty() || plan.peak_bytes() <= cap,
          absl::StrCat(text, ": above the cap ", cap));
  require(plan.max_received_bytes() >= plan.lower_bound_bytes(), text);
  const std::vector<Alternative> alternatives = plan.alternatives();
  const auto chosen = std::count_if(alternatives.begin(), alternatives.end(),
                                    [](const Alternative& way) { return way.chosen; });
  require(chosen == (plan.steps().empty() ? 0 : 1), absl::StrCat(text, ": ", chosen, " chosen"));
  if (faster_alternative(plan, cap).empty()) return;
  // If hosts may add first, the planner chooses as if each device were a process.
  PlanOptions without_processes = options;
  without_processes.topology = options.topology.without_processes();
  const StatusOr<RelayoutPlan> compared =
      plan_relayout(plan.from(), plan.to(), plan.shape(), plan.dtype(), without_processes);
  require(compared.ok() && compared->to_string() == text, text);
  require(faster_alternative(*compared, cap).empty(), faster_alternative(*compared, cap));
}

// Checks the plan under any topology and cap: the same meaning, and all promises.
void check_with_options(const Layout& from, const Layout& to, const Shape& shape,
                        const PlanOptions& options) {
  const StatusOr<RelayoutPlan> plan = plan_relayout(from, to, shape, DType::kFloat64, options);
  if (!plan.ok()) {
    require(options.memory_cap_bytes.has_value() &&
                plan.status().code() == absl::StatusCode::kResourceExhausted,
            plan.status().ToString());
    return;
  }
  check_texts(*plan, *plan_relayout(from, to, shape, DType::kFloat64, options));
  check_choice(*plan, options);
  const testing::DeviceValues values = testing::deal(
      from, shape, [](int64_t flat, int64_t term) { return flat * 7 % 31 + 100 * term; });
  std::string problem;
  const std::vector<double> expected = testing::assemble(from, shape, values, &problem);
  const testing::DeviceValues result = testing::run_plan(*plan, values, &problem);
  const bool equal = testing::assemble(to, shape, result, &problem) == expected;
  require(problem.empty() && equal, absl::StrCat(plan->to_string(), ": ", problem));
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  ByteReader bytes(data, size);
  const Mesh from_mesh = read_mesh(bytes);
  const Mesh to_mesh = bytes.below(4) == 0 ? read_mesh(bytes) : from_mesh;
  const int rank = bytes.below(4);
  const Layout from = read_layout(bytes, from_mesh, rank);
  const Layout to = read_layout(bytes, to_mesh, rank);
  Shape shape;
  for (int dim = 0; dim < rank; ++dim) shape.push_back(bytes.below(9));

  const StatusOr<RelayoutPlan> plan = plan_relayout(from, to, shape, DType::kInt64);
  if (!plan.ok()) {
    require(!plan.status().message().empty(), plan.status().ToString());
    return 0;
  }
  check_texts(*plan, *plan_relayout(from, to, shape, DType::kInt64));
  if (!from.is_partial() && !to.is_partial()) {
    require(plan->max_received_bytes() == plan->lower_bound_bytes(), plan->to_string());
  }
  const std::string problem = testing::check_relayout(from, to, shape).problem;
  require(problem.empty(), absl::StrCat(plan->to_string(), ": ", problem));
  if (bytes.coin()) check_with_options(from, to, shape, read_options(bytes));
  return 0;
}
