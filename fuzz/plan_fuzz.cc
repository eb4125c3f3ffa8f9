// SPDX-License-Identifier: Apache-2.0
//
// Any request for a plan: bytes become a mesh of at most 3 axes and 16 devices, two layouts with
// sub-axes and partials, perhaps another mesh for the second, and a shape. The plan is run by the
// oracle's simulated devices, which checks each of its promises, and compared with the dense value.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fuzz/fuzz.h"
#include "layout/layout.h"
#include "relayout/plan.h"
#include "relayout/plan_oracle.h"

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

// An axis, or a part of it where it divides.
std::string read_axis(ByteReader& bytes, const MeshAxis& axis) {
  if (!bytes.coin()) return axis.name;
  const int64_t pre = 1 + bytes.below(4);
  const int64_t size = 2 + bytes.below(3);
  if (axis.size % (pre * size) != 0) return axis.name;
  return absl::StrCat(axis.name, ":(", pre, ")", size);
}

// Each axis or part goes to a dim, to the reduction, or nowhere. Layout::create() judges whether
// the parts fit together; where they do not, the tensor is replicated.
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
  return 0;
}
