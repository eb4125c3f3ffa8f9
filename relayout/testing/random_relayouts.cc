// SPDX-License-Identifier: Apache-2.0
#include "relayout/testing/random_relayouts.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace tessera::testing {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kAvg};
constexpr int64_t kFactors[] = {2, 2, 2, 2, 3, 5, 7};
constexpr const char* kNames[] = {"x", "y", "z", "w", "u", "v"};
constexpr int kMaxAxes = 6;

// The promises of one step about one device; see check_plan().
std::string check_step(const PlanStep& step, const RelayoutPlan& plan, int device) {
  const std::optional<Box> box = step.new_box(device);
  if (is_reduction(step.kind())) {
    const std::vector<int> terms = step.terms(device);
    const bool wants_nothing = !box.has_value() || box->is_empty();
    if (terms.empty() != wants_nothing) return "terms of an empty box, or none of another";
    for (const int term : terms) {
      const std::optional<Box> held = step.old_box(term);
      if (!held.has_value() || !contains(*held, *box)) return "a term that is not held";
    }
    return "";
  }
  int64_t covered = 0;
  int64_t received = 0;
  for (const Pull& pull : step.pulls(device)) {
    if (!box.has_value() || !contains(*box, pull.box)) return "a pull of what is not wanted";
    if (!contains(pull.source_box, pull.box)) return "a pull of what is not held";
    if (step.old_box(pull.source_device) != pull.source_box) return "source_box";
    covered += pull.box.num_elements();
    if (pull.source_device != device) received += pull.box.num_elements();
  }
  const int64_t wanted = box.has_value() ? box->num_elements() : 0;
  if (covered != wanted && step.kind() != StepKind::kExpand) {
    return "the pulls do not cover the new box";
  }
  if (received * dtype_size(plan.dtype()) != step.received_bytes(device)) return "received_bytes";
  return "";
}

}  // namespace

std::vector<MeshAxis> RandomRelayouts::axes() {
  std::vector<MeshAxis> result;
  const int64_t limit = int64_t{1} << (1 + below(16));
  int64_t devices = 1;
  const int num_axes = static_cast<int>(1 + below(kMaxAxes));
  for (int i = 0; i < num_axes; ++i) {
    int64_t size = 1;
    for (int64_t factors = below(5); factors > 0; --factors) {
      const int64_t factor = kFactors[below(std::size(kFactors))];
      if (devices * size * factor <= limit) size *= factor;
    }
    devices *= size;
    result.push_back({kNames[i], size});
  }
  return result;
}

// Other axes over as many devices.
std::vector<MeshAxis> RandomRelayouts::axes_over(int64_t num_devices) {
  std::vector<MeshAxis> result(static_cast<size_t>(1 + below(4)));
  for (size_t i = 0; i < result.size(); ++i) result[i] = {kNames[i], 1};
  for (int64_t p = 2; num_devices > 1; ++p) {
    for (; num_devices % p == 0; num_devices /= p) {
      result[below(static_cast<int64_t>(result.size()))].size *= p;
    }
  }
  return result;
}

Mesh RandomRelayouts::another_mesh(const Mesh& mesh) {
  switch (below(4)) {
    case 0:
      return *Mesh::create(axes_over(mesh.size()));
    case 1:
      return *Mesh::create(axes());
    default:
      break;
  }
  // A list of devices: as many as the old ones, some of them new, in another order.
  std::vector<int> ids(static_cast<size_t>(mesh.size()));
  std::iota(ids.begin(), ids.end(), static_cast<int>(below(mesh.size() + 1)));
  if (one_in(2)) std::shuffle(ids.begin(), ids.end(), random_);
  return *Mesh::create(axes_over(mesh.size()), std::move(ids));
}

std::vector<std::string> RandomRelayouts::parts_of(const MeshAxis& axis) {
  for (int64_t major = 2; major < axis.size; ++major) {
    if (axis.size % major != 0 || !one_in(3)) continue;
    return {absl::StrCat(axis.name, ":(1)", major),
            absl::StrCat(axis.name, ":(", major, ")", axis.size / major)};
  }
  return {axis.name};
}

Layout RandomRelayouts::layout(const Mesh& mesh, int rank) {
  std::vector<DimSharding> dims(static_cast<size_t>(rank));
  std::vector<std::string> partial;
  const bool may_be_partial = one_in(3);
  for (const MeshAxis& axis : mesh.axes()) {
    for (const std::string& part : parts_of(axis)) {
      const int64_t where = below(rank + 2);
      if (where < rank) {
        DimSharding& dim = dims[where];
        dim.insert(dim.begin() + below(static_cast<int64_t>(dim.size()) + 1), part);
      } else if (where == rank && may_be_partial) {
        partial.push_back(part);
      }
    }
  }
  const Layout whole = *Layout::create(mesh, dims);
  if (partial.empty()) return whole;
  // A part of size 1 is dropped from a layout; partial axes of nothing else are an error.
  const StatusOr<Layout> layout = whole.with_partial(partial, kOps[below(std::size(kOps))]);
  return layout.ok() ? *layout : whole;
}

Shape RandomRelayouts::shape(const Layout& from, const Layout& to) {
  Shape shape;
  int64_t elements = 1;
  for (int dim = 0; dim < from.rank(); ++dim) {
    int64_t size = one_in(40) ? below(2) : 1 + below(200);
    const int64_t even = std::lcm(from.num_shards(dim), to.num_shards(dim));
    if (one_in(2)) size = even * (1 + below(3));
    // Up to 2^40 elements, so that bytes stay within int64 in every sum.
    if (elements > 0 && size > (int64_t{1} << 40) / elements) size = 1;
    elements *= size;
    shape.push_back(size);
  }
  return shape;
}

RelayoutCase RandomRelayouts::next() {
  const int rank = static_cast<int>(below(kMaxRankOfRandomRelayouts + 1));
  const Mesh mesh = *Mesh::create(axes());
  const Layout from = layout(mesh, rank);
  const Layout to = layout(one_in(3) ? another_mesh(mesh) : mesh, rank);
  return {from, to, shape(from, to)};
}

std::string check_plan(const RelayoutPlan& plan, const std::vector<int64_t>& positions) {
  absl::Span<const PlanStep> steps = plan.steps();
  if (steps.empty()) {
    return equivalent(plan.from(), plan.to(), plan.shape()) ? "" : "no steps to another layout";
  }
  // Layouts of different shapes are compared by the oracle alone, which runs the plan.
  const auto differ = [](const Layout& a, const Shape& a_shape, const Layout& b,
                         const Shape& b_shape) {
    return a_shape == b_shape && !equivalent(a, b, a_shape);
  };
  const PlanStep& first = steps.front();
  const PlanStep& last = steps.back();
  if (differ(first.from(), first.shape(), plan.from(), plan.shape())) {
    return "the first step starts elsewhere";
  }
  for (size_t i = 1; i < steps.size(); ++i) {
    const PlanStep& before = steps[i - 1];
    if (differ(before.to(), before.shape(), steps[i].from(), steps[i].shape())) {
      return "steps with a gap";
    }
  }
  if (differ(last.to(), last.shape(), plan.to(), plan.shape())) {
    return "the last step ends elsewhere";
  }
  for (const int64_t position : positions) {
    const int device = plan.to().mesh().device_ids()[position];
    for (const PlanStep& step : steps) {
      const std::string problem = check_step(step, plan, device);
      if (!problem.empty()) {
        return absl::StrCat(step.to_string(), ", device ", device, ": ", problem);
      }
    }
  }
  return "";
}

}  // namespace tessera::testing
