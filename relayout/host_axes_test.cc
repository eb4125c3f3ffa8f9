// SPDX-License-Identifier: Apache-2.0
//
// Terms by host: facts, and all small meshes against hosts that are looked up one by one.
#include "relayout/host_axes.h"

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/reduce_op.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "relayout/testing/small_relayouts.h"
#include "tests/support/matchers.h"

namespace tessera::internal {
namespace {

// Costs do not matter here.
Topology hosts_of(int64_t devices_per_process, int64_t devices_per_host) {
  return *Topology::uniform(devices_per_process, devices_per_host);
}

Topology listed(const std::vector<int>& host_of) {
  std::vector<int> process_of;
  for (size_t i = 0; i < host_of.size(); ++i) process_of.push_back(static_cast<int>(i));
  return *Topology::of_devices(process_of, host_of);
}

std::string names(const Mesh& mesh, const SubAxes& parts) {
  return absl::StrJoin(parts, ",", [&](std::string* out, const SubAxis& part) {
    absl::StrAppend(out, sub_axis_name(mesh, part));
  });
}

struct HostAxesCase {
  std::string name, mesh, partial;
  Topology topology;
  std::string near, far;  // Both empty: the terms are not told apart by host.
};

TEST(HostAxesTest, AreThoseOfTheTable) {
  const HostAxesCase rows[] = {
      {"axes", "{node=2, gpu=4}", "node,gpu", hosts_of(1, 4), "gpu", "node"},
      {"processes_do_not_matter", "{node=2, gpu=4}", "node,gpu", hosts_of(2, 4), "gpu", "node"},
      {"one_axis", "{x=8}", "x", hosts_of(1, 4), "x:(2)4", "x:(1)2"},
      {"two_hosts_an_axis", "{node=2, gpu=4}", "node,gpu", hosts_of(1, 2), "gpu:(2)2",
       "node,gpu:(1)2"},
      {"two_axes_a_host", "{node=2, a=2, b=2}", "node,a,b", hosts_of(1, 4), "a,b", "node"},
      {"some_of_a_host", "{node=2, a=2, b=2}", "node,b", hosts_of(1, 4), "b", "node"},
      {"one_host_has_all", "{node=2, gpu=4}", "gpu", hosts_of(1, 4), "", ""},
      {"one_term_a_host", "{node=2, gpu=4}", "node", hosts_of(1, 4), "", ""},
      {"one_host", "{x=8}", "x", hosts_of(1, 8), "", ""},
      {"one_device_a_host", "{x=8}", "x", hosts_of(1, 1), "", ""},
      {"blocks_that_cut_no_digit", "{x=6}", "x", hosts_of(1, 4), "", ""},
      {"blocks_of_three", "{x=6}", "x", hosts_of(1, 3), "x:(2)3", "x:(1)2"},
      {"list", "{x=8}", "x", listed({0, 0, 0, 0, 1, 1, 1, 1}), "x:(2)4", "x:(1)2"},
      {"hosts_in_turn", "{x=8}", "x", listed({0, 1, 0, 1, 0, 1, 0, 1}), "x:(1)4", "x:(4)2"},
      {"uneven_hosts", "{x=4}", "x", listed({0, 0, 0, 1}), "", ""},
      {"a_host_that_comes_again", "{x=4, y=2}", "x,y", listed({0, 0, 1, 1, 0, 0, 1, 1}), "x:(1)2,y",
       "x:(2)2"},
      {"ids_in_another_order", "{x=2, y=2} on 0,2,1,3", "x,y", hosts_of(1, 2), "x", "y"},
  };
  for (const HostAxesCase& row : rows) {
    SCOPED_TRACE(row.name);
    TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::parse(row.mesh));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Layout layout,
                                 Layout::parse(mesh, absl::StrCat("[] sum{", row.partial, "}")));
    const SubAxes partial(layout.partial_axes().begin(), layout.partial_axes().end());
    const auto parts = terms_by_host(mesh, partial, row.topology);
    EXPECT_EQ(parts.has_value() ? names(mesh, parts->intra_host) : "", row.near);
    EXPECT_EQ(parts.has_value() ? names(mesh, parts->inter_host) : "", row.far);
  }
}

// Whether devices that differ in `partial` alone are on one host exactly where they differ in
// `near` alone.
bool tells_apart(const Layout& layout, const HostAxes& parts, const Topology& topology) {
  const Mesh& mesh = layout.mesh();
  const Digits all = digits_of(mesh, layout.partial_axes());
  const Digits far = digits_of(mesh, parts.inter_host);
  for (int64_t a = 0; a < mesh.size(); ++a) {
    for (int64_t b = 0; b < mesh.size(); ++b) {
      const bool one_group =
          a - offset_of(all, value_at(all, a)) == b - offset_of(all, value_at(all, b));
      if (!one_group) continue;
      const bool one_host =
          topology.host(mesh.device_ids()[a]) == topology.host(mesh.device_ids()[b]);
      if (one_host != (value_at(far, a) == value_at(far, b))) return false;
    }
  }
  return true;
}

// Whether each host that has terms of an element has equally many of them, more than one, and
// another host has some too.
bool is_even(const Layout& layout, const Topology& topology) {
  const Mesh& mesh = layout.mesh();
  const Digits all = digits_of(mesh, layout.partial_axes());
  std::map<std::pair<int64_t, int64_t>, int> terms;  // by group and host
  std::map<int64_t, std::set<int64_t>> hosts;        // by group
  for (int64_t position = 0; position < mesh.size(); ++position) {
    const int64_t group = position - offset_of(all, value_at(all, position));
    const int64_t host = topology.host(mesh.device_ids()[position]);
    ++terms[{group, host}];
    hosts[group].insert(host);
  }
  const int each = terms.begin()->second;
  return each > 1 &&
         std::all_of(terms.begin(), terms.end(), [&](const auto& t) { return t.second == each; }) &&
         std::all_of(hosts.begin(), hosts.end(), [](const auto& h) { return h.second.size() > 1; });
}

TEST(HostAxesTest, TellHostsApartOnAllSmallMeshes) {
  const std::vector<Topology> topologies = {
      hosts_of(1, 2),
      hosts_of(2, 4),
      hosts_of(1, 3),
      hosts_of(1, 4),
      listed({0, 1, 0, 1, 2, 3, 2, 3}),
      listed({0, 0, 1, 1, 1, 1, 0, 0}),
      listed({0, 0, 0, 1, 1, 1, 2, 2}),
      listed({0, 1, 2, 3, 0, 1, 2, 3}),
  };
  int64_t found = 0;
  int64_t none = 0;
  for (const Mesh& mesh : testing::small_meshes(3, 8)) {
    for (const Layout& layout : testing::every_layout(mesh, 0, {ReduceOp::kSum})) {
      if (!layout.is_partial()) continue;
      const SubAxes partial(layout.partial_axes().begin(), layout.partial_axes().end());
      for (const Topology& topology : topologies) {
        SCOPED_TRACE(absl::StrCat(layout.to_string_with_mesh(), "; ", topology.to_string()));
        const auto parts = terms_by_host(mesh, partial, topology);
        const bool even = is_even(layout, topology);
        if (!parts.has_value()) {
          none += even ? 1 : 0;
          continue;
        }
        ++found;
        ASSERT_TRUE(even);
        ASSERT_TRUE(tells_apart(layout, *parts, topology));
      }
    }
  }
  std::cout << found
            << " reductions by host; not found, though hosts have equally many terms: " << none
            << "\n";
  EXPECT_GT(found, 100);
  EXPECT_LT(none, found / 4);
}

TEST(HostAxesTest, BlocksOfALargeMeshTakeNoLookAtItsDevices) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::parse("{x=1024, y=1024, z=1024}"));
  const SubAxes all = {{0, 1, 1024}, {1, 1, 1024}, {2, 1, 1024}};
  const auto parts = terms_by_host(mesh, all, hosts_of(1, 4096));
  ASSERT_TRUE(parts.has_value());
  EXPECT_EQ(names(mesh, parts->intra_host), "y:(256)4,z");
  EXPECT_EQ(names(mesh, parts->inter_host), "x,y:(1)256");
}

}  // namespace
}  // namespace tessera::internal
