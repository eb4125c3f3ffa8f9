// SPDX-License-Identifier: Apache-2.0
//
// Relayouts of partial layouts on real devices: the values of the facts, reductions that copies of
// a term share, sums by host, and the order of addition. Each runs as one client of 8 devices, as 4
// clients of 2 that are threads, and as 4 that are processes.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "relayout/plan.h"
#include "relayout/topology.h"
#include "tests/support/clients.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

class RelayoutReductionsTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, RelayoutReductionsTest, ::testing::ValuesIn(kJobForms),
                         job_form_name);
INSTANTIATE_TEST_SUITE_P(Hosts, RelayoutReductionsTest, ::testing::Values(kTwoHosts),
                         job_form_name);
INSTANTIATE_TEST_SUITE_P(Cuda, RelayoutReductionsTest, ::testing::ValuesIn(cuda_forms()),
                         job_form_name);

// Each device's term, and the value under the new layout: tests/facts/redistribution.md, Partial
// sums, and tests/facts/relayout.md, Values.
struct PartialCase {
  const char* name;
  const char* mesh;
  Shape shape;
  const char* from;
  const char* to;
  std::function<int32_t(int device, int64_t i)> term;
  std::function<int32_t(int64_t i)> value;
};

// Device d's digit of the sum of four: 1, 10, 100 or 1000, times i + 1.
int64_t digit(int d, int64_t i) { return d == 0 ? i + 1 : 10 * digit(d - 1, i); }
int64_t sum_of_digits(int64_t i) { return 1111 * (i + 1); }

int32_t one(int, int64_t) { return 1; }

// clang-format off
const PartialCase kPartialCases[] = {
    {"sum_to_whole", "{x=4}", {5}, "[-] sum{x}", "[-]", digit, sum_of_digits},
    {"sum_to_uneven_shards", "{x=4}", {5}, "[-] sum{x}", "[x]", digit, sum_of_digits},
    {"sum_to_fewer_elements_than_devices", "{x=4}", {2}, "[-] sum{x}", "[x]", digit, sum_of_digits},
    {"prod_to_whole", "{x=3}", {2}, "[-] prod{x}", "[-]",
     [](int d, int64_t i) { return d + 2 + i; }, [](int64_t i) { return i == 0 ? 24 : 60; }},
    {"min_to_whole", "{x=3}", {2}, "[-] min{x}", "[-]",
     [](int d, int64_t i) { return i == 0 ? d - 1 : 1 - d; }, [](int64_t) { return -1; }},
    {"sum_to_a_finer_layout", "{x=2, y=3}", {6}, "[x] sum{y}", "[(x,y)]",
     [](int d, int64_t i) { return (d % 3 + 1) * 100 + i; }, [](int64_t i) { return 600 + 3 * i; }},
    {"sum_over_two_axes", "{x=2, y=2}", {4}, "[-] sum{x,y}", "[-]", digit, sum_of_digits},
    {"sum_over_two_axes_to_shards", "{x=2, y=2}", {4}, "[-] sum{x,y}", "[(y,x)]", digit, sum_of_digits},
    {"sum_keeps_the_other_axis", "{x=2, y=2}", {4}, "[-] sum{x,y}", "[-] sum{y}", digit, sum_of_digits},
    {"values_sum_to_whole", "{x=4}", {8}, "[-] sum{x}", "[-]",
     [](int d, int64_t) { return d + 1; }, [](int64_t) { return 10; }},
    {"values_sum_to_shards", "{x=4}", {8}, "[-] sum{x}", "[x]",
     [](int d, int64_t) { return d + 1; }, [](int64_t) { return 10; }},
    {"values_sum_to_uneven_shards", "{x=4}", {2}, "[-] sum{x}", "[x]",
     [](int d, int64_t i) { return i == 0 ? d : 10 * d; }, [](int64_t i) { return i == 0 ? 6 : 60; }},
    {"sum_along_one_axis", "{x=2, y=3}", {3}, "[y] sum{x}", "[-]",
     [](int d, int64_t) { return 10 * (d / 3) + d % 3; }, [](int64_t i) { return 10 + 2 * i; }},
    {"sum_to_other_partial_axis", "{x=2, y=2}", {3}, "[-] sum{x}", "[-] sum{y}",
     [](int d, int64_t i) { return d / 2 + i; }, [](int64_t i) { return 2 * i + 1; }},
    {"sum_then_max", "{x=2}", {3}, "[-] sum{x}", "[-] max{x}",
     [](int d, int64_t i) { return d + i; }, [](int64_t i) { return 2 * i + 1; }},
    {"ones_partial_to_uneven_rows", "{x=4}", {13, 3}, "[-, -] sum{x}", "[x, -]", one, [](int64_t) { return 4; }},
    {"partial_sharded_partial", "{x=2, y=2, z=2}", {8}, "[y] sum{x,z}", "[-]", one, [](int64_t) { return 4; }},
    {"ten_over_merged_2x3", "{x=2, y=3}", {10}, "[-] sum{x,y}", "[(x,y)]", one, [](int64_t) { return 6; }},
    {"out_partial_axes_preserved", "{x=2, y=2, z=2}", {16, 8}, "[(y,z), -] sum{x}", "[-, y] sum{x}",
     [](int d, int64_t i) { return (d / 4) * 1000 + i; }, [](int64_t i) { return 1000 + 2 * i; }},
};
// clang-format on

// The tensor whose element i of a device's term is term(device, i).
template <class T>
StatusOr<DTensor> from_terms(const Client& client, const Layout& layout, const Shape& shape,
                             const std::function<T(int device, int64_t i)>& term) {
  std::vector<HostTensor<T>> shards;
  for (const Device& device : client.local_devices()) {
    const std::optional<int64_t> position = layout.mesh().position_of_device(device.id);
    if (!position.has_value()) continue;
    const Box box = layout.box(shape, *position);
    HostTensor<T>& shard = shards.emplace_back();
    shard.shape = box.sizes;
    for_each_element(box, [&](const std::vector<int64_t>& index, int64_t) {
      shard.data.push_back(term(device.id, flat_index(shape, index)));
    });
  }
  return from_shards<T>(shape, layout, shards);
}

TEST_P(RelayoutReductionsTest, PartialSums) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        for (const PartialCase& c : kPartialCases) {
          TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, c.mesh));
          TESSERA_ASSIGN_OR_RETURN(const Layout from, Layout::parse(mesh, c.from));
          TESSERA_ASSIGN_OR_RETURN(const Layout to, Layout::parse(mesh, c.to));
          TESSERA_ASSIGN_OR_RETURN(const DTensor terms,
                                   from_terms<int32_t>(client, from, c.shape, c.term));
          DTensor result = relayout(terms, to);
          if (to.is_partial()) {
            result = relayout(result, Layout::replicated(mesh, to.rank()));
          }
          TESSERA_RETURN_IF_ERROR(with_context(expect_shards<int32_t>(result, c.value), c.name));
        }
        return absl::OkStatus();
      }),
      IsOk());
}

// Devices that hold the same term reduce a part of it each, where plans go by bytes.
TEST_P(RelayoutReductionsTest, CopiesOfTermsShareTheReduction) {
  if (GetParam().num_hosts > 1) GTEST_SKIP() << "each host adds its own terms first";
  ClientOptions options;
  options.link_costs = LinkCosts{.process = {0, 1e-9}, .host = {0, 1e-9}};
  const auto body = [](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4, z=2}"));
    TESSERA_ASSIGN_OR_RETURN(const Layout from, Layout::parse(mesh, "[-, -] sum{x}"));
    const Shape shape = {3, 16};
    const auto term = [](int device, int64_t i) { return digit(device / 2, i); };
    TESSERA_ASSIGN_OR_RETURN(const DTensor terms, from_terms<int32_t>(client, from, shape, term));
    for (const char* text : {"[-, -]", "[-, x]"}) {
      TESSERA_ASSIGN_OR_RETURN(const Layout to, Layout::parse(mesh, text));
      TESSERA_ASSIGN_OR_RETURN(
          const RelayoutPlan plan,
          plan_relayout(from, to, shape, DType::kInt32, {.topology = client.topology()}));
      TESSERA_REQUIRE(plan.steps().size() == 2u, plan.to_string());
      TESSERA_REQUIRE(plan.steps()[0].new_box(1)->num_elements() == 3 * 16 / 8, plan.to_string());
      TESSERA_REQUIRE(plan.max_received_bytes() == plan.lower_bound_bytes(), plan.explain());
      TESSERA_RETURN_IF_ERROR(
          with_context(expect_shards<int32_t>(relayout(terms, to), sum_of_digits), text));
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(run(body, options), IsOk());
}

// Terms whose sum depends on the order of addition.
float rough_term(int d, int64_t i) {
  return (d % 2 == 0 ? 1.0f : -1.0f) * 16777216.0f / static_cast<float>(d + 1) +
         static_cast<float>(i) * 0.1f;
}

// Adds the terms of devices `first` to `end` - 1, ascending.
float sum_of_rough_terms(int first, int end, int64_t i) {
  float sum = rough_term(first, i);
  for (int d = first + 1; d < end; ++d) sum += rough_term(d, i);
  return sum;
}

float ascending(int64_t i) { return sum_of_rough_terms(0, 8, i); }
float by_host(int64_t i) { return sum_of_rough_terms(0, 4, i) + sum_of_rough_terms(4, 8, i); }

// Plans for devices of two hosts add each host's own terms first. The bits have that order for
// every way to deal the devices to clients, and ascending order where the option asks for it.
TEST_P(RelayoutReductionsTest, HostsAddTheirOwnTermsFirst) {
  int differ = 0;
  for (int i = 0; i < 96; ++i) differ += by_host(i) != ascending(i) ? 1 : 0;
  ASSERT_GT(differ, 10);
  for (const ReductionOrder order : {ReductionOrder::kByHost, ReductionOrder::kFlat}) {
    const bool is_flat = order == ReductionOrder::kFlat;
    internal::ClientHooks hooks;
    const int64_t per_client = 8 / GetParam().num_clients;
    hooks.topology = *Topology::uniform(std::min<int64_t>(per_client, 4), 4,
                                        {{0, 1e-11}, {0, 1e-10}, {0, 1e-9}});
    ClientOptions options;
    options.reduction_order = order;
    const auto body = [&](Client& client) -> Status {
      TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2, y=4}"));
      for (const Shape& shape : {Shape{32, 3}, Shape{3, 5}}) {
        TESSERA_ASSIGN_OR_RETURN(const Layout from, Layout::parse(mesh, "[-, -] sum{x,y}"));
        TESSERA_ASSIGN_OR_RETURN(const DTensor terms,
                                 from_terms<float>(client, from, shape, rough_term));
        for (const char* text : {"[-, -]", "[(x,y), -]", "[y, x]", "[x, -]", "[-, y:(2)2]"}) {
          TESSERA_ASSIGN_OR_RETURN(const Layout to, Layout::parse(mesh, text));
          TESSERA_ASSIGN_OR_RETURN(
              const RelayoutPlan plan,
              plan_relayout(from, to, shape, DType::kFloat32,
                            {.topology = client.topology(), .reduction_order = order}));
          const bool one_reduction = plan.steps().size() < 2u || plan.steps()[1].terms(0).empty();
          TESSERA_REQUIRE(one_reduction == is_flat, plan.explain());
          TESSERA_RETURN_IF_ERROR(
              with_context(expect_shards<float>(relayout(terms, to), is_flat ? ascending : by_host),
                           plan.to_string()));
        }
      }
      return absl::OkStatus();
    };
    EXPECT_THAT(run(body, options, hooks), IsOk());
  }
}

TEST_P(RelayoutReductionsTest, ReducedReplicasAreBitwiseEqualForEveryDistribution) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                TESSERA_ASSIGN_OR_RETURN(const Layout from, Layout::parse(mesh, "[-] sum{x}"));
                TESSERA_ASSIGN_OR_RETURN(const DTensor terms,
                                         from_terms<float>(client, from, {101}, rough_term));
                TESSERA_RETURN_IF_ERROR(
                    expect_shards<float>(relayout(terms, Layout::parse(mesh, "[-]")), ascending));
                return expect_shards<float>(relayout(terms, Layout::parse(mesh, "[x]")), ascending);
              }),
              IsOk());
}

}  // namespace
}  // namespace tessera::testing
