// SPDX-License-Identifier: Apache-2.0
//
// read_layout() on every layout of small meshes: the devices of a host hold what they hold under
// the target, each element once.
#include "checkpoint/read_layout.h"

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/reduce_op.h"
#include "checkpoint/testing/saved.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "mesh/mesh.h"
#include "relayout/testing/small_relayouts.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitizers.h"

namespace tessera::checkpoint::internal {
namespace {

using checkpoint::testing::parse_layout;
using tessera::testing::every_layout;
using tessera::testing::kSanitized;
using tessera::testing::small_meshes;
using tessera::testing::StatusIs;
using ::testing::HasSubstr;

Topology hosts_of(int64_t devices) { return *Topology::uniform(1, devices); }

struct ReadRow {
  const char* name;
  const char* mesh;
  const char* target;
  Shape shape;
  int64_t devices_per_host;
  const char* read;
};
const ReadRow kReadRows[] = {
    {"columns_of_each_host", "{node=2, gpu=4}", "[-, gpu]", {64, 6}, 4, "[gpu, -]"},
    {"replicas_in_a_host", "{node=2, gpu=4}", "[node, -]", {128, 6}, 4, "[(node,gpu), -]"},
    {"whole_on_one_host", "{x=4}", "[-, -]", {64, 6}, 4, "[x, -]"},
    {"rows_stay", "{node=2, gpu=4}", "[(node,gpu), -]", {128, 6}, 4, "[(node,gpu), -]"},
    {"a_device_per_host", "{x=4}", "[-, x]", {64, 6}, 1, "[-, x]"},
    {"columns_of_all", "{x=8}", "[-, x]", {64, 64}, 4, "[x:(2)4, x:(1)2]"},
    {"inter_host_is_minor", "{node=2, gpu=4}", "[-, (gpu,node)]", {64, 64}, 4, "[-, (gpu,node)]"},
    {"one_row", "{x=4}", "[-, -]", {1, 64}, 4, "[-, x]"},
    {"uneven_rows", "{x=4}", "[-, -]", {5, 64}, 4, "[x, -]"},
    {"no_long_dim", "{x=8}", "[-, -]", {5, 6}, 8, "[-, x]"},
    {"two_dims", "{x=2, y=4}", "[y, x]", {64, 64}, 8, "[(y,x), -]"},
    {"partial", "{x=2, y=2}", "[x, -] sum{y}", {64, 4}, 4, "[(x,y), -]"},
    {"scalar", "{x=4}", "[]", {}, 4, "[]"},
};

TEST(ReadLayoutTest, Rows) {
  for (const ReadRow& row : kReadRows) {
    SCOPED_TRACE(row.name);
    TESSERA_ASSERT_OK_AND_ASSIGN(const Layout target, parse_layout(row.mesh, row.target));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Layout read,
                                 read_layout(target, row.shape, hosts_of(row.devices_per_host)));
    EXPECT_EQ(read.to_string(), row.read);
  }
}

TEST(ReadLayoutTest, Refusals) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout target, parse_layout("{x=3}", "[-]"));
  EXPECT_THAT(read_layout(target, {4}, hosts_of(2)),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("the hosts of mesh {x=3} differ by sub-axes of it")));
  EXPECT_THAT(read_layout(target, {4, 4}, hosts_of(3)),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

// How often the devices of each host hold each element.
using Held = std::map<int64_t, std::map<std::vector<int64_t>, int>>;

Held held_by_host(const Layout& layout, const Shape& shape, const Topology& topology) {
  Held held;
  for (int64_t position = 0; position < layout.mesh().size(); ++position) {
    auto& of_host = held[topology.host(*layout.mesh().device_at(position))];
    const Box box = layout.box(shape, position);
    std::vector<int64_t> index = box.offsets;
    for (int64_t n = box.num_elements(); n > 0; --n) {
      ++of_host[index];
      for (size_t d = index.size(); d-- > 0;) {
        if (++index[d] < box.offsets[d] + box.sizes[d]) break;
        index[d] = box.offsets[d];
      }
    }
  }
  return held;
}

// Whether a layout could read once: hosts of one size that sub-axes of the mesh tell apart.
void check(const Layout& target, const Shape& shape, const Topology& topology, bool has_layout) {
  SCOPED_TRACE(absl::StrCat(target.to_string_with_mesh(), " ", shape_to_string(shape), " ",
                            topology.to_string()));
  const StatusOr<Layout> read = read_layout(target, shape, topology);
  if (!read.ok()) {
    ASSERT_FALSE(has_layout) << read.status();
    EXPECT_THAT(read, StatusIs(absl::StatusCode::kUnimplemented));
    return;
  }
  EXPECT_FALSE(read->is_partial());
  EXPECT_EQ(read->mesh(), target.mesh());
  const Held wanted = held_by_host(target, shape, topology);
  const Held once = held_by_host(*read, shape, topology);
  for (const auto& [host, elements] : wanted) {
    const auto found = once.find(host);
    ASSERT_TRUE(found != once.end());
    ASSERT_EQ(found->second.size(), elements.size()) << *read;
    for (const auto& [index, count] : found->second) {
      ASSERT_EQ(elements.count(index), 1u) << *read;
      ASSERT_EQ(count, 1) << *read << " " << shape_to_string(index);
    }
  }
}

TEST(ReadLayoutTest, EveryLayoutOfSmallMeshesReadsOnce) {
  const std::vector<Shape> kShapes = {{1}, {3}, {7}, {8}, {0}, {5, 3}, {2, 8}, {0, 4}, {3, 1}};
  int checked = 0;
  for (const Mesh& mesh : small_meshes(3, kSanitized ? 4 : 8)) {
    for (int64_t hosts = 1; hosts <= 2; ++hosts) {
      const int64_t per_host = (mesh.size() + hosts - 1) / hosts;
      for (int rank = 1; rank <= 2; ++rank) {
        for (const Layout& target : every_layout(mesh, rank, {ReduceOp::kSum})) {
          for (const Shape& shape : kShapes) {
            if (static_cast<int>(shape.size()) != rank) continue;
            // The second host begins at a border of a sub-axis unless it begins within a factor:
            // {x=3, y=2} on hosts of 3.
            int64_t block = 1;
            bool aligned = mesh.size() % per_host == 0;
            for (int axis = mesh.rank() - 1; axis >= 0 && aligned && block < per_host; --axis) {
              const int64_t size = mesh.axes()[axis].size;
              if (per_host % (block * size) == 0) {
                block *= size;
              } else {
                aligned = per_host % block == 0 && size % (per_host / block) == 0;
                block = per_host;
              }
            }
            // A layout may cut an axis elsewhere: halves of an axis of 6, thirds for the host.
            const bool is_power =
                mesh.size() == 1 || mesh.size() == 2 || mesh.size() == 4 || mesh.size() == 8;
            check(target, shape, hosts_of(per_host), hosts == 1 || (aligned && is_power));
            if (HasFailure()) return;
            ++checked;
          }
        }
      }
    }
  }
  EXPECT_GT(checked, kSanitized ? 1000 : 20000);
}

// Devices in another order, and hosts that alternate.
TEST(ReadLayoutTest, HostsOfListedDevices) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Topology topology,
                               Topology::of_devices({0, 1, 2, 3}, {0, 1, 0, 1}));
  for (const char* mesh : {"{x=4}", "{x=2, y=2}", "{x=2, y=2} on 3,1,2,0", "{x=4} on 0,2,1,3"}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh parsed, Mesh::parse(mesh));
    for (const Layout& target : every_layout(parsed, 2, {})) {
      check(target, {5, 8}, topology, /*has_layout=*/false);
    }
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout target, parse_layout("{x=4}", "[-, -]"));
  EXPECT_EQ(read_layout(target, {64, 4}, topology)->to_string(), "[x:(1)2, -]");
}

}  // namespace
}  // namespace tessera::checkpoint::internal
