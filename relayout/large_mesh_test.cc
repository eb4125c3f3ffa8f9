// SPDX-License-Identifier: Apache-2.0
//
// Plans on the largest meshes: the cost of a plan does not grow with the mesh, and questions about
// all devices take no memory for each of them. Measured in allocations and in resident memory,
// never by the clock.
#include <sys/resource.h>

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "relayout/plan.h"
#include "relayout/topology.h"
#include "tests/support/allocations.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::tessera::testing::IsOk;
using ::tessera::testing::num_allocations;
using ::tessera::testing::StatusIs;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

int64_t most_resident_bytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} << 10;
}

StatusOr<RelayoutPlan> plan_of(absl::string_view mesh_text, absl::string_view from,
                               absl::string_view to, const Shape& shape,
                               const PlanOptions& options = {}) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::parse(mesh_text));
  TESSERA_ASSIGN_OR_RETURN(const Layout layout, Layout::parse(mesh, from));
  return plan_relayout(layout, Layout::parse(mesh, to), shape, DType::kFloat32, options);
}

struct Row {
  const char* name;
  const char* mesh;  // of 2^24 devices
  const char* from;
  const char* to;
  Shape shape;
  int64_t max_received_bytes;
  int64_t lower_bound_bytes;
  int64_t peak_bytes;
};
constexpr int64_t k30 = int64_t{1} << 30;
const Row kRows[] = {
    {"gather", "{x=16777216}", "[x]", "[-]", {k30}, 4 * k30 - 256, 4 * k30 - 256, 4 * k30 + 256},
    {"uneven_slice_of_few", "{x=16777216}", "[-]", "[x]", {7}, 0, 0, 32},
    {"all_to_all",
     "{x=4096, y=4096}",
     "[(x,y), -]",
     "[x, y]",
     {k30, 1 << 20},
     (1 << 28) - (1 << 16),
     (1 << 28) - (1 << 16),
     1 << 29},
    {"digits", "{x=16777216}", "[x:(1)4096]", "[x:(4096)4096]", {7}, 4, 4, 8},
    // Each device adds up one element of 4096 terms: 4095 terms from others.
    {"reduce_scatter",
     "{x=4096, y=4096}",
     "[-, y] sum{x}",
     "[x, y]",
     {1 << 12, 1 << 12},
     4095 * 4,
     4095 * 4,
     (1 << 14) + 4},
};
class LargeMeshTest : public ::testing::TestWithParam<Row> {};

TEST_P(LargeMeshTest, CostsNoMemoryForItsDevices) {
  const Row& row = GetParam();
  const int64_t before = num_allocations();
  TESSERA_ASSERT_OK_AND_ASSIGN(const RelayoutPlan plan,
                               plan_of(row.mesh, row.from, row.to, row.shape));
  // A list of rows would be one for each device.
  EXPECT_LT(num_allocations() - before, 20000);
  EXPECT_EQ(plan.received_bytes(plan.to().mesh().size()), 0);
  EXPECT_EQ(plan.max_received_bytes(), row.max_received_bytes);
  EXPECT_EQ(plan.lower_bound_bytes(), row.lower_bound_bytes);
  EXPECT_EQ(plan.peak_bytes(), row.peak_bytes);
  EXPECT_THAT(plan.explain(), HasSubstr(row.mesh));
  EXPECT_LT(num_allocations() - before, 40000);
  // One byte for each device would be 16 MiB.
  EXPECT_LT(most_resident_bytes(), int64_t{64} << 20);
}
INSTANTIATE_TEST_SUITE_P(Rows, LargeMeshTest, ::testing::ValuesIn(kRows),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(LargeMeshTest, SchedulesAndCaps) {
  const int64_t before = num_allocations();
  TESSERA_ASSERT_OK_AND_ASSIGN(const Topology topology, Topology::uniform(8, 64));
  TESSERA_ASSERT_OK_AND_ASSIGN(const RelayoutPlan plan,
                               plan_of("{node=262144, gpu=64}", "[(node,gpu)]", "[-]", {k30},
                                       {.topology = topology, .memory_cap_bytes = 8 * k30}));
  EXPECT_EQ(plan.peak_bytes(), 4 * k30 + (1 << 29) + 256);
  EXPECT_LE(plan.peak_bytes(), 8 * k30);
  EXPECT_LT(num_allocations() - before, 1000000);
  EXPECT_LT(most_resident_bytes(), int64_t{64} << 20);
}

TEST(LargeMeshTest, EquivalenceWhereNothingDecidesButTheDevices) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::parse("{x=2097152}"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout rows, Layout::parse(mesh, "[x, -]"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout columns, Layout::parse(mesh, "[-, x]"));
  const int64_t before = num_allocations();
  equivalent(rows, columns, {0, 3});
  equivalent(rows, columns, {3, 3});
  EXPECT_LT(num_allocations() - before, 1000);
}

TEST(LargeMeshTest, MoreDevicesAreRefusedAtOnce) {
  const int64_t before = num_allocations();
  EXPECT_THAT(plan_of("{x=2147483647}", "[x]", "[-]", {k30}),
              StatusIs(kInvalid,
                       "mesh {x=2147483647} has 2147483647 devices; relayouts are planned for at "
                       "most 16777216, use a smaller mesh"));
  EXPECT_THAT(plan_of("{x=46340, y=46340}", "[(x,y), -]", "[x, y]", {k30, k30}),
              StatusIs(kInvalid, HasSubstr("has 2147395600 devices; relayouts are planned for")));
  EXPECT_THAT(plan_of("{x=16777217}", "[x]", "[x]", {8}), StatusIs(kInvalid));
  EXPECT_THAT(plan_of("{x=16777216}", "[x]", "[x]", {8}), IsOk());
  EXPECT_LT(num_allocations() - before, 1000);
  EXPECT_LT(most_resident_bytes(), int64_t{64} << 20);
}

}  // namespace
}  // namespace tessera
