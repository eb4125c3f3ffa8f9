// SPDX-License-Identifier: Apache-2.0
//
// Every plan runs on simulated devices and means the same value after as before: all pairs of
// layouts on small meshes, random ones on larger and on pairs of meshes.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "relayout/testing/plan_oracle.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitizers.h"
#include "tests/support/seed.h"

namespace tessera {
namespace {

using ::tessera::testing::check_relayout;
using ::tessera::testing::CheckResult;
using ::tessera::testing::test_seed;

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kAvg};

Layout layout_of(const Mesh& mesh, const std::vector<DimSharding>& dims,
                 const std::vector<std::string>& partial, ReduceOp op) {
  StatusOr<Layout> layout = Layout::create(mesh, dims);
  if (layout.ok() && !partial.empty()) layout = layout->with_partial(partial, op);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return *layout;
}

// Appends every layout that gives each axis from `next` on to a dim (at any place among those
// there), to the partial axes, or to none.
void all_layouts(const Mesh& mesh, const std::vector<std::string>& axes, size_t next,
                 std::vector<DimSharding> dims, std::vector<std::string> partial,
                 const std::vector<ReduceOp>& ops, std::vector<Layout>* out) {
  if (next == axes.size()) {
    if (partial.empty()) {
      out->push_back(layout_of(mesh, dims, partial, ReduceOp::kSum));
      return;
    }
    for (ReduceOp op : ops) out->push_back(layout_of(mesh, dims, partial, op));
    return;
  }
  all_layouts(mesh, axes, next + 1, dims, partial, ops, out);
  for (DimSharding& dim : dims) {
    for (size_t place = 0; place <= dim.size(); ++place) {
      dim.insert(dim.begin() + place, axes[next]);
      all_layouts(mesh, axes, next + 1, dims, partial, ops, out);
      dim.erase(dim.begin() + place);
    }
  }
  if (!ops.empty()) {
    partial.push_back(axes[next]);
    all_layouts(mesh, axes, next + 1, dims, partial, ops, out);
  }
}

struct Totals {
  int64_t checked = 0;
  int64_t sends_more = 0;
};

bool is_even(const Layout& from, const Layout& to, const Shape& shape) {
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] % (from.num_shards(dim) * to.num_shards(dim)) != 0) return false;
  }
  return true;
}

void check_all_pairs(const std::vector<Layout>& layouts, const Shape& shape, bool aligned,
                     Totals* totals) {
  for (const Layout& from : layouts) {
    for (const Layout& to : layouts) {
      const CheckResult result = check_relayout(from, to, shape);
      ASSERT_EQ(result.problem, "");
      ++totals->checked;
      if (from.is_partial()) {
        ASSERT_EQ(check_relayout(from, to, shape, testing::network_only_options()).problem, "");
      }
      totals->sends_more += result.sends_more ? 1 : 0;
      // Where boxes are equal and parts of axes comparable, no device is a bottleneck.
      const bool moves_only = aligned && !from.is_partial() && !to.is_partial();
      if (moves_only && is_even(from, to, shape)) {
        ASSERT_FALSE(result.sends_more) << from << " to " << to;
      }
    }
  }
}

struct ExhaustiveCase {
  std::string name;
  std::string mesh;
  // Each entry is a set of axes or sub-axes that layouts may use together.
  std::vector<std::vector<std::string>> axes;
  int rank;
  std::vector<ReduceOp> ops;
  std::vector<Shape> shapes;
};

void PrintTo(const ExhaustiveCase& row, std::ostream* out) { *out << row.name; }

class AllPairsTest : public ::testing::TestWithParam<ExhaustiveCase> {};

TEST_P(AllPairsTest, TheValueSurvivesAtTheLowerBound) {
  const ExhaustiveCase& row = GetParam();
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::parse(row.mesh));
  std::vector<Layout> layouts;
  for (const std::vector<std::string>& axes : row.axes) {
    all_layouts(mesh, axes, 0, std::vector<DimSharding>(row.rank), {}, row.ops, &layouts);
  }
  if (testing::kSanitized) {
    std::vector<Layout> some;
    for (size_t i = 0; i < layouts.size(); i += 5) some.push_back(layouts[i]);
    layouts = std::move(some);
  }
  Totals totals;
  for (const Shape& shape : row.shapes) {
    check_all_pairs(layouts, shape, row.axes.size() == 1, &totals);
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(totals.checked, layouts.size() * layouts.size() * row.shapes.size());
  std::cout << row.name << ": " << totals.checked << " relayouts, in " << totals.sends_more
            << " of them a device sends more than any receives\n";
}

const std::vector<ReduceOp> kSumMax = {ReduceOp::kSum, ReduceOp::kMax};

const ExhaustiveCase kExhaustiveCases[] = {
    {"one_axis_every_op",
     "{x=3}",
     {{"x"}},
     2,
     {std::begin(kOps), std::end(kOps)},
     {{3, 6}, {4, 5}, {1, 2}, {0, 3}}},
    {"scalars", "{x=2, y=3}", {{"x", "y"}}, 0, {std::begin(kOps), std::end(kOps)}, {{}}},
    {"axis_of_one", "{x=1, y=4}", {{"x", "y"}}, 1, kSumMax, {{8}, {5}, {2}}},
    {"two_by_two",
     "{x=2, y=2}",
     {{"x", "y"}},
     2,
     {ReduceOp::kSum, ReduceOp::kAvg},
     {{4, 4}, {5, 3}, {1, 2}}},
    {"two_by_three", "{x=2, y=3}", {{"x", "y"}}, 2, kSumMax, {{6, 6}, {7, 5}}},
    {"three_by_two_reordered", "{x=3, y=2} on 5,2,9,0,7,1", {{"x", "y"}}, 2, kSumMax, {{6, 4}}},
    {"sub_axes_of_four", "{x=4}", {{"x"}, {"x:(1)2", "x:(2)2"}}, 2, kSumMax, {{4, 8}, {5, 3}}},
    {"sub_axes_of_six_misaligned",
     "{x=6}",
     {{"x"}, {"x:(1)2", "x:(2)3"}, {"x:(1)3", "x:(3)2"}},
     1,
     kSumMax,
     {{12}, {7}, {4}}},
    {"sub_axes_of_six_rank_two",
     "{x=6}",
     {{"x:(1)2", "x:(2)3"}, {"x:(1)3", "x:(3)2"}},
     2,
     {ReduceOp::kSum},
     {{6, 6}, {5, 7}}},
    {"three_axes", "{x=2, y=2, z=2}", {{"x", "y", "z"}}, 2, {}, {{8, 8}, {5, 7}}},
    {"rank_three_on_two_axes",
     "{x=2, y=3}",
     {{"x", "y"}},
     3,
     {},
     {{8, 8, 8}, {5, 7, 3}, {1, 2, 9}}},
    {"rank_three_on_three_axes", "{x=2, y=2, z=2}", {{"x", "y", "z"}}, 3, {}, {{1, 2, 9}}},
    {"three_axes_partial", "{x=2, y=2, z=2}", {{"x", "y", "z"}}, 1, kSumMax, {{8}, {5}}},
};

INSTANTIATE_TEST_SUITE_P(Small, AllPairsTest, ::testing::ValuesIn(kExhaustiveCases),
                         [](const auto& info) { return info.param.name; });

// Random relayouts, on one mesh or between two over devices 0 to 11.
class Sampler {
 public:
  explicit Sampler(uint64_t seed) : random_(seed) {}

  int below(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random_); }

  Mesh mesh() {
    std::vector<MeshAxis> axes;
    int size = 1;
    const char* names[] = {"x", "y", "z", "w"};
    for (const char* name : names) {
      const int axis = below(4) + 1;
      if (size * axis > 12) break;
      axes.push_back({name, axis});
      size *= axis;
    }
    std::vector<int> ids(12);
    std::iota(ids.begin(), ids.end(), 0);
    if (below(2) == 0) std::shuffle(ids.begin(), ids.end(), random_);
    ids.resize(size);
    return *Mesh::create(std::move(axes), std::move(ids));
  }

  Layout layout(const Mesh& mesh, int rank) {
    std::vector<DimSharding> dims(rank);
    std::vector<std::string> partial;
    for (const MeshAxis& axis : mesh.axes()) {
      std::vector<std::string> parts = {axis.name};
      if (axis.size == 4 && below(2) == 0) {
        parts = {axis.name + ":(1)2", axis.name + ":(2)2"};
      }
      for (const std::string& part : parts) {
        const int where = below(rank + 3);
        if (where < rank) {
          DimSharding& dim = dims[where];
          dim.insert(dim.begin() + below(static_cast<int>(dim.size()) + 1), part);
        } else if (where == rank) {
          partial.push_back(part);
        }
      }
    }
    return layout_of(mesh, dims, partial, kOps[below(5)]);
  }

  Shape shape(int rank) {
    Shape shape;
    for (int dim = 0; dim < rank; ++dim) shape.push_back(below(20) == 0 ? 0 : below(9) + 1);
    return shape;
  }

 private:
  std::mt19937_64 random_;
};

TEST(RandomRelayoutTest, TheValueSurvivesBetweenAnyTwoMeshes) {
  Sampler sampler(test_seed(20240229));
  Totals totals;
  for (; totals.checked < 3000; ++totals.checked) {
    const int rank = sampler.below(4);
    const Mesh old_mesh = sampler.mesh();
    const Mesh new_mesh = sampler.below(2) == 0 ? old_mesh : sampler.mesh();
    const Layout from = sampler.layout(old_mesh, rank);
    const Layout to = sampler.layout(new_mesh, rank);
    const CheckResult result = check_relayout(from, to, sampler.shape(rank));
    ASSERT_EQ(result.problem, "");
    totals.sends_more += result.sends_more ? 1 : 0;
  }
  std::cout << totals.checked << " relayouts, in " << totals.sends_more
            << " of them a device sends more than any receives\n";
}

}  // namespace
}  // namespace tessera
