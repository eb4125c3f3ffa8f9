// SPDX-License-Identifier: Apache-2.0
//
// The device that receives most, against an oracle that intersects the boxes of every device; and
// how many devices are looked at to find it.
#include "relayout/most_received.h"

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/shape.h"
#include "base/status.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "relayout/testing/random_relayouts.h"
#include "relayout/testing/small_relayouts.h"
#include "relayout/topology.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitizers.h"

namespace tessera::internal {
namespace {

using ::tessera::testing::every_layout;
using ::tessera::testing::RelayoutCase;

int64_t received_by_boxes(const RelayoutCase& relayout, int64_t position) {
  const Box wanted = relayout.to.box(relayout.shape, position);
  const std::optional<int64_t> old =
      relayout.from.mesh().position_of_device(*relayout.to.mesh().device_at(position));
  if (!old.has_value()) return wanted.num_elements();
  return wanted.num_elements() -
         intersect(wanted, relayout.from.box(relayout.shape, *old)).num_elements();
}

// The first mistake in the answer, or "".
std::string check(const RelayoutCase& relayout, MostReceived* found) {
  const PullRouting routing(relayout.from, relayout.to, relayout.shape, Topology());
  *found = most_received(routing);
  int64_t most = 0;
  for (int64_t position = 0; position < relayout.to.mesh().size(); ++position) {
    most = std::max(most, received_by_boxes(relayout, position));
  }
  if (found->elements != most) {
    return absl::StrCat(relayout.to_string(), ": found ", found->elements, ", it is ", most);
  }
  if (received_by_boxes(relayout, found->position) != most) {
    return absl::StrCat(relayout.to_string(), ": position ", found->position, " receives less");
  }
  return "";
}

Shape random_shape(std::mt19937_64& random, int rank) {
  Shape shape(rank);
  for (int64_t& size : shape) size = std::uniform_int_distribution<int64_t>(0, 13)(random);
  return shape;
}

// Every pair of layouts of rank 1 and 2 on every mesh of at most 8 devices, with uneven and empty
// shards. A mesh of so few devices is looked at whole where the bound is not attained.
TEST(MostReceivedTest, AgreesWithEveryDeviceOfSmallMeshes) {
  std::mt19937_64 random(15);
  int64_t number = 0;
  int64_t checked = 0;
  MostReceived found;
  for (const Mesh& mesh : testing::small_meshes(3, testing::kSanitized ? 6 : 8)) {
    for (int rank = 1; rank <= 2; ++rank) {
      const std::vector<Layout> layouts = every_layout(mesh, rank, {});
      for (const Layout& from : layouts) {
        for (const Layout& to : layouts) {
          if (++number % 3 != 0 && layouts.size() > 20) continue;
          ++checked;
          ASSERT_EQ(check({from, to, random_shape(random, rank)}, &found), "");
        }
      }
    }
  }
  EXPECT_GT(checked, 1000);
}

// Larger meshes, two meshes, up to rank 6. Where the meshes differ the bound is seldom attained.
TEST(MostReceivedTest, AgreesWithEveryDeviceOfRandomMeshes) {
  testing::RandomRelayouts relayouts(15);
  int64_t checked = 0;
  int64_t looked_at_all = 0;
  for (int i = 0; i < (testing::kSanitized ? 200 : 4000); ++i) {
    const RelayoutCase relayout = relayouts.next();
    if (relayout.from.is_partial() || relayout.to.is_partial()) continue;
    const int64_t size = relayout.to.mesh().size();
    if (size <= 128 || size > 5000) continue;
    ++checked;
    MostReceived found;
    ASSERT_EQ(check(relayout, &found), "");
    looked_at_all += found.num_looked_at > 128 && relayout.from.mesh() == relayout.to.mesh();
  }
  std::cout << looked_at_all << " of " << checked << " on one mesh looked past 128 devices\n";
  EXPECT_GT(checked, testing::kSanitized ? 5 : 200);
  EXPECT_LT(looked_at_all, checked / 5);
}

struct Row {
  const char* name;
  const char* mesh;
  const char* from;
  const char* to;
  Shape shape;
  int64_t elements;
};
constexpr int64_t k30 = int64_t{1} << 30;
const Row kRows[] = {
    {"gather", "{x=16777216}", "[x]", "[-]", {k30}, k30 - 64},
    // 2^30 + 1 elements: shard 0 has 65, the others 64.
    {"gather_of_one_more", "{x=16777216}", "[x]", "[-]", {k30 + 1}, k30 + 1 - 64},
    // All shards but the last have 64.
    {"gather_of_one_less", "{x=16777216}", "[x]", "[-]", {k30 - 1}, k30 - 1 - 63},
    {"gather_of_few", "{x=16777216}", "[x]", "[-]", {7}, 7},
    {"slice", "{x=16777216}", "[-]", "[x]", {k30 + 5}, 0},
    {"all_to_all",
     "{x=4096, y=4096}",
     "[(x,y), -]",
     "[x, y]",
     {k30, 1 << 20},
     (1 << 26) - (1 << 14)},
    {"uneven_all_to_all",
     "{x=4096, y=4096}",
     "[(x,y), -]",
     "[x, y]",
     {1000000007, 1000003},
     // New boxes of at most 244141 by 245, of which a device holds 59 rows at least.
     (int64_t{244141} - 59) * 245},
    {"transpose", "{x=4096, y=4096}", "[x, y]", "[y, x]", {1000003, 999983}, int64_t{245} * 245},
    {"digits", "{x=16777216}", "[x:(1)4096]", "[x:(4096)4096]", {1000003}, 245},
    {"axis_that_stays", "{x=4096, y=4096}", "[x, y]", "[x, -]", {4095, 1000003}, 1000003 - 244},
};
class LargeMeshTest : public ::testing::TestWithParam<Row> {};

TEST_P(LargeMeshTest, FewDevicesAreLookedAt) {
  const Row& row = GetParam();
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::parse(row.mesh));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout from, Layout::parse(mesh, row.from));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout to, Layout::parse(mesh, row.to));
  const MostReceived found = most_received(PullRouting(from, to, row.shape, Topology()));
  EXPECT_EQ(found.elements, row.elements);
  EXPECT_LE(found.num_looked_at, 128);
  EXPECT_EQ(received_by_boxes({from, to, row.shape}, found.position), found.elements);
}
INSTANTIATE_TEST_SUITE_P(Rows, LargeMeshTest, ::testing::ValuesIn(kRows),
                         [](const auto& info) { return std::string(info.param.name); });

// The product of the sizes but the last exceeds 64 bits.
TEST(MostReceivedTest, OfNoElements) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::parse("{x=4}"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout from, Layout::parse(mesh, "[x, -, -]"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout to, Layout::parse(mesh, "[-, x, -]"));
  const Shape shape = {int64_t{1} << 40, int64_t{1} << 40, 0};
  const PullRouting routing(from, to, shape, Topology());
  EXPECT_EQ(most_received(routing).elements, 0);
  EXPECT_EQ(routing.received_at(3), 0);
  EXPECT_EQ(routing.to().elements(3), 0);
}

}  // namespace
}  // namespace tessera::internal
