// SPDX-License-Identifier: Apache-2.0
#include "tests/support/ops/every_layout.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/reduce_op.h"
#include "layout/sub_axis.h"
#include "tests/support/forked.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

// A mesh whose axes are parts of the axes of another mesh, and the names of the parts there: {a=2,
// b=2} of {x=4} has a: "x:(1)2", b: "x:(2)2".
struct Refined {
  std::vector<MeshAxis> axes;
  std::map<std::string, std::string> names;
};

// Every way to write the axes from `axis` on as products, beyond what `refined` has; `pre` is what
// the parts of this axis so far multiply to.
void refine(const Mesh& mesh, int axis, int64_t pre, const Refined& refined,
            std::vector<Refined>& all) {
  if (axis == mesh.rank()) return all.push_back(refined);
  const MeshAxis& whole = mesh.axes()[axis];
  if (pre == whole.size && pre > 1) return refine(mesh, axis + 1, 1, refined, all);
  for (int64_t size = whole.size == 1 ? 1 : 2; size <= whole.size / pre; ++size) {
    if (whole.size / pre % size != 0) continue;
    Refined longer = refined;
    const std::string name = absl::StrCat("part", refined.axes.size());
    longer.axes.push_back({name, size});
    longer.names[name] = absl::StrCat(whole.name, ":(", pre, ")", size);
    refine(mesh, whole.size == 1 ? axis + 1 : axis, whole.size == 1 ? 1 : pre * size, longer, all);
  }
}

std::vector<std::string> renamed(absl::Span<const std::string> axes,
                                 const std::map<std::string, std::string>& names) {
  std::vector<std::string> result;
  for (const std::string& axis : axes) result.push_back(names.at(axis));
  return result;
}

// {axis, place value}.
using Digits = std::set<std::pair<int, int64_t>>;

void add_digits(const Mesh& mesh, absl::Span<const SubAxis> axes, Digits& digits) {
  for (const SubAxis& axis : axes) {
    const int64_t size = mesh.axes()[axis.axis].size;
    const bool has_halves = (size & (size - 1)) == 0;
    if (!has_halves) digits.insert({axis.axis, 1});
    for (int64_t place = 1; has_halves && place < axis.size; place *= 2) {
      digits.insert({axis.axis, axis.pre * place});
    }
  }
}

}  // namespace

std::vector<Layout> every_layout(const Mesh& mesh, int rank, DType dtype) {
  std::vector<Refined> meshes;
  refine(mesh, 0, 1, {}, meshes);
  std::vector<Layout> result;
  std::set<std::string> seen;
  const auto add = [&](const StatusOr<Layout>& layout) {
    if (layout.ok() && seen.insert(layout->to_string()).second) result.push_back(*layout);
  };
  for (const Refined& refined : meshes) {
    for (const Layout& layout : all_layouts(*Mesh::create(refined.axes), rank, true)) {
      std::vector<DimSharding> dims;
      for (const DimSharding& dim : layout.dims()) dims.push_back(renamed(dim, refined.names));
      const StatusOr<Layout> whole = Layout::create(mesh, dims);
      if (!layout.is_partial()) add(whole);
      std::vector<std::string> partial;
      for (const SubAxis& axis : layout.partial_axes()) {
        partial.push_back(refined.axes[axis.axis].name);
      }
      for (int op = 0; op < kNumReduceOps && !partial.empty(); ++op) {
        if (!validate_reduction(static_cast<ReduceOp>(op), dtype).ok()) continue;
        add(whole->with_partial(renamed(partial, refined.names), static_cast<ReduceOp>(op)));
      }
    }
  }
  return result;
}

Status check_only_split_as(absl::Span<const Layout> operands, const Layout& result) {
  const Mesh& mesh = result.mesh();
  Digits split;
  Digits used;
  for (const Layout& operand : operands) {
    for (const auto& dim : operand.dim_axes()) add_digits(mesh, dim, split);
    add_digits(mesh, operand.partial_axes(), used);
  }
  used.insert(split.begin(), split.end());
  Digits of_result;
  for (const auto& dim : result.dim_axes()) add_digits(mesh, dim, of_result);
  TESSERA_REQUIRE(std::includes(split.begin(), split.end(), of_result.begin(), of_result.end()),
                  result.to_string(), " is split by what splits no operand");
  add_digits(mesh, result.partial_axes(), of_result);
  TESSERA_REQUIRE(std::includes(used.begin(), used.end(), of_result.begin(), of_result.end()),
                  result.to_string(), " is partial along what no operand uses");
  return absl::OkStatus();
}

}  // namespace tessera::testing
