// SPDX-License-Identifier: Apache-2.0
//
// Relayouts on real devices, against the dense value: the rows of relayout_cases.tsv, every pair of
// layouts on small meshes, and the rows of the facts about values. Each runs as one client of 8
// devices, as 4 clients of 2 that are threads, and as 4 that are processes.
#include "dtensor/relayout.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "Eigen/Core"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "relayout/testing/case_table.h"
#include "relayout/testing/small_relayouts.h"
#include "tests/support/clients.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitizers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

class RelayoutTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, RelayoutTest, ::testing::ValuesIn(kJobForms), job_form_name);
INSTANTIATE_TEST_SUITE_P(Cuda, RelayoutTest, ::testing::ValuesIn(cuda_forms()), job_form_name);

// iota under `from`, then under `to`, then back: every element of every shard is right.
Status there_and_back(const Layout& from, const Layout& to, const Shape& shape) {
  std::optional<DTensor> start = iota<int32_t>(shape, from);
  DTensor there = relayout(*start, to);
  const DTensor back = relayout(there, from);
  // What shared the memory of the source has it still; the next tensor has other memory.
  start.reset();
  const DTensor next = full<int32_t>(shape, -1, from);
  if (!from.is_partial() && !to.is_partial()) {
    TESSERA_RETURN_IF_ERROR(expect_iota<int32_t>(there));
    TESSERA_RETURN_IF_ERROR(expect_iota<int32_t>(back));
    return expect_iota<int32_t>(relayout(std::move(there), from));
  }
  const Layout whole = *Layout::replicated(from.mesh(), from.rank());
  TESSERA_RETURN_IF_ERROR(expect_iota<int32_t>(relayout(back, whole)));
  return expect_iota<int32_t>(
      relayout(std::move(there), *Layout::replicated(to.mesh(), from.rank())));
}

bool fits(const Mesh& mesh, const Client& client) {
  for (const int id : mesh.device_ids()) {
    if (id >= static_cast<int>(client.devices().size())) return false;
  }
  return true;
}

// The same layout on a mesh of the client's job.
StatusOr<Layout> on_devices_of(Client& client, const Layout& layout) {
  return Layout::parse(layout.mesh().with_runtime(client.runtime_of_meshes()), layout.to_string());
}

// How much of what is tried elsewhere a form tries: streams of the GPU's double take longest, and
// sanitizers look at how bytes move more than at where. Processes that share a GPU take a tenth of
// a second an operation.
double share_of_form(const JobForm& form) {
  if (form.shares_gpus) return 0.1;
  if (!kSanitized) return 1;
  return form.num_gpus == 0 ? 0.5 : 0.1;
}

TEST_P(RelayoutTest, CasesOfTheFacts) {
  const size_t stride = static_cast<size_t>(1 / share_of_form(GetParam()));
  EXPECT_THAT(
      run([&](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const std::vector<CaseRow> rows, read_case_table());
        size_t ran = 0;
        for (size_t i = 0; i < rows.size(); i += stride) {
          const RelayoutCase& c = rows[i].relayout;
          if (!fits(c.from.mesh(), client) || !fits(c.to.mesh(), client)) continue;
          if (num_elements(c.shape) > 1 << 20) continue;
          TESSERA_ASSIGN_OR_RETURN(const Layout from, on_devices_of(client, c.from));
          TESSERA_ASSIGN_OR_RETURN(const Layout to, on_devices_of(client, c.to));
          TESSERA_RETURN_IF_ERROR(with_context(there_and_back(from, to, c.shape), rows[i].id));
          ++ran;
        }
        TESSERA_REQUIRE(ran > 200 / stride, ran);
        return absl::OkStatus();
      }),
      IsOk());
}

// Every ordered pair where it is cheap, and a random part of the pairs where it is not: so large a
// share of them, but `least` at least. How many it is does not depend on chance.
Status all_pairs(const Mesh& mesh, const std::vector<Shape>& shapes, bool partial, double share,
                 uint64_t seed, uint64_t least = kSanitized ? 40 : 60) {
  const std::vector<Layout> layouts =
      all_layouts(mesh, static_cast<int>(shapes[0].size()), partial);
  uint64_t left = shapes.size() * layouts.size() * layouts.size();
  uint64_t wanted = std::max(least, static_cast<uint64_t>(share * static_cast<double>(left)));
  TESSERA_REQUIRE(wanted <= left, left);
  std::mt19937_64 random(seed);
  for (const Shape& shape : shapes) {
    for (const Layout& from : layouts) {
      for (const Layout& to : layouts) {
        // Of those that are left, each with the same chance.
        if (random() % left-- >= wanted) continue;
        --wanted;
        TESSERA_RETURN_IF_ERROR(
            with_context(there_and_back(from, to, shape),
                         absl::StrCat(from.to_string(), " to ", to.to_string_with_mesh(), " of ",
                                      shape_to_string(shape), ", seed ", seed)));
      }
    }
  }
  TESSERA_REQUIRE(left == 0 && wanted == 0, left, " left, ", wanted, " wanted");
  return absl::OkStatus();
}

TEST_P(RelayoutTest, AllPairsSmall) {
  const uint64_t seed = test_seed();
  std::cout << "TESSERA_TEST_SEED=" << seed << "\n";
  // All of them where a relayout takes least.
  const bool one_client = GetParam().num_clients == 1 && GetParam().num_gpus == 0 && !kSanitized;
  const double share = share_of_form(GetParam());
  const double part = one_client               ? 1
                      : kSanitized             ? 0.05 * share
                      : GetParam().shares_gpus ? 0.2 * share
                                               : 0.2;
  EXPECT_THAT(run([&](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh two, live_mesh(client, "{x=2, y=2}"));
                TESSERA_ASSIGN_OR_RETURN(const Mesh uneven, live_mesh(client, "{x=2, y=3}"));
                TESSERA_ASSIGN_OR_RETURN(const Mesh three, live_mesh(client, "{x=2, y=2, z=2}"));
                const std::vector<Shape> rank3 = {{8, 8, 8}, {5, 7, 3}, {1, 2, 9}};
                TESSERA_RETURN_IF_ERROR(all_pairs(two, rank3, false, part, seed));
                TESSERA_RETURN_IF_ERROR(
                    all_pairs(uneven, {{5, 7}}, true, one_client ? 1 : 0.2 * share, seed));
                TESSERA_RETURN_IF_ERROR(all_pairs(three, rank3, false, part / 50, seed));
                return all_pairs(three, {{5, 3}}, true, one_client ? 0.05 : 0.01 * share, seed);
              }),
              IsOk());
}

// Clients of one device each that share a GPU.
class RelayoutOnSharedGpuTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Cuda, RelayoutOnSharedGpuTest, ::testing::ValuesIn(sharing_forms()),
                         job_form_name);

TEST_P(RelayoutOnSharedGpuTest, PairsOfLayouts) {
  const uint64_t seed = test_seed();
  std::cout << "TESSERA_TEST_SEED=" << seed << "\n";
  EXPECT_THAT(
      run([&](Client& client) -> Status {
        const auto n = static_cast<int64_t>(client.devices().size());
        TESSERA_ASSIGN_OR_RETURN(const Mesh line, create_mesh(client, {{"x", n}}));
        TESSERA_RETURN_IF_ERROR(all_pairs(line, {{5, 7}, {1, 9}}, true, 0, seed, 20));
        TESSERA_ASSIGN_OR_RETURN(const Mesh grid, create_mesh(client, {{"x", 2}, {"y", n / 2}}));
        return all_pairs(grid, {{8, 5, 3}}, true, 0, seed, 20);
      }),
      IsOk());
}

// Uneven, in every element right, and on a GPU more than NCCL's buffers hold.
TEST_P(RelayoutOnSharedGpuTest, LargeTensors) {
  EXPECT_THAT(run([](Client& client) -> Status {
                const auto n = static_cast<int64_t>(client.devices().size());
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", n}}));
                const int64_t scale = GetParam().num_gpus == kRealGpus ? 8 : 1;
                const Shape shape = {128 * scale - 3, 130 * scale - 1};
                return there_and_back(*Layout::parse(mesh, "[x, -]"),
                                      *Layout::parse(mesh, "[-, x]"), shape);
              }),
              IsOk());
}

// Where links differ plans have several batches, on views of the tensor between them.
TEST_P(RelayoutTest, SchedulesOfSeveralBatches) {
  const bool links_are_equal = GetParam().num_clients == 1 || GetParam().devices_per_client == 1;
  ClientOptions options;
  options.link_costs = LinkCosts{.process = {1e-7, 1e-11}, .host = {1e-7, 1e-8}};
  const auto body = [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2, y=2, z=2}"));
    const Shape shape = {16, 24};
    const std::vector<Layout> layouts = every_layout(mesh, 2, {ReduceOp::kSum});
    const auto stride = static_cast<size_t>((kSanitized ? 49 : 23) / share_of_form(GetParam()));
    int several = 0;
    for (size_t i = 0; i < layouts.size() * layouts.size(); i += stride) {
      const Layout& from = layouts[i / layouts.size()];
      const Layout& to = layouts[i % layouts.size()];
      TESSERA_ASSIGN_OR_RETURN(
          const RelayoutPlan plan,
          plan_relayout(from, to, shape, DType::kInt32, {.topology = client.topology()}));
      int moves = 0;
      for (const PlanStep& step : plan.steps()) {
        const bool reduces =
            step.kind() == StepKind::kReduceScatter || step.kind() == StepKind::kAllReduce;
        moves += reduces || step.shape() == shape ? 0 : 1;
      }
      several += moves > 1 ? 1 : 0;
      TESSERA_RETURN_IF_ERROR(with_context(there_and_back(from, to, shape), plan.to_string()));
    }
    TESSERA_REQUIRE(links_are_equal ? several == 0 : several > (kSanitized ? 0 : 3), several);
    return absl::OkStatus();
  };
  EXPECT_THAT(run(body, options), IsOk());
}

TEST_P(RelayoutTest, IntegersStayExactThroughRandomChains) {
  const uint64_t seed = test_seed();
  std::cout << "TESSERA_TEST_SEED=" << seed << "\n";
  EXPECT_THAT(run([&](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2, y=2, z=2}"));
                const std::vector<Layout> layouts = all_layouts(mesh, 2, true);
                std::mt19937_64 random(seed);
                DTensor tensor = iota<int64_t>({17, 5}, layouts[0]);
                for (int i = 0; i < 20; ++i) {
                  tensor = relayout(tensor, layouts[random() % layouts.size()]);
                }
                TESSERA_ASSIGN_OR_RETURN(const HostTensor<int64_t> value,
                                         tensor.to_host<int64_t>());
                for (int64_t i = 0; i < 85; ++i) TESSERA_REQUIRE(value.data[i] == i);
                return absl::OkStatus();
              }),
              IsOk());
}

// Each device's term, and the value under the new layout: tests/facts/redistribution.md, Partial
// sums, and tests/facts/relayout.md, Values.
struct PartialCase {
  const char* name;
  const char* mesh;
  Shape shape;
  const char* from;
  const char* to;
  std::function<int64_t(int device, int64_t i)> term;
  std::function<int64_t(int64_t i)> value;
};

int64_t power_of_ten(int d) { return d == 0 ? 1 : 10 * power_of_ten(d - 1); }

const PartialCase kPartialCases[] = {
    {"sum_to_whole",
     "{x=4}",
     {5},
     "[-] sum{x}",
     "[-]",
     [](int d, int64_t i) { return power_of_ten(d) * (i + 1); },
     [](int64_t i) { return 1111 * (i + 1); }},
    {"sum_to_uneven_shards",
     "{x=4}",
     {5},
     "[-] sum{x}",
     "[x]",
     [](int d, int64_t i) { return power_of_ten(d) * (i + 1); },
     [](int64_t i) { return 1111 * (i + 1); }},
    {"sum_to_fewer_elements_than_devices",
     "{x=4}",
     {2},
     "[-] sum{x}",
     "[x]",
     [](int d, int64_t i) { return power_of_ten(d) * (i + 1); },
     [](int64_t i) { return 1111 * (i + 1); }},
    {"prod_to_whole",
     "{x=3}",
     {2},
     "[-] prod{x}",
     "[-]",
     [](int d, int64_t i) { return d + 2 + i; },
     [](int64_t i) { return i == 0 ? 24 : 60; }},
    {"min_to_whole",
     "{x=3}",
     {2},
     "[-] min{x}",
     "[-]",
     [](int d, int64_t i) { return i == 0 ? d - 1 : 1 - d; },
     [](int64_t) { return -1; }},
    {"sum_to_a_finer_layout",
     "{x=2, y=3}",
     {6},
     "[x] sum{y}",
     "[(x,y)]",
     [](int d, int64_t i) { return (d % 3 + 1) * 100 + i; },
     [](int64_t i) { return 600 + 3 * i; }},
    {"sum_over_two_axes",
     "{x=2, y=2}",
     {4},
     "[-] sum{x,y}",
     "[-]",
     [](int d, int64_t i) { return power_of_ten(d) * (i + 1); },
     [](int64_t i) { return 1111 * (i + 1); }},
    {"sum_over_two_axes_to_shards",
     "{x=2, y=2}",
     {4},
     "[-] sum{x,y}",
     "[(y,x)]",
     [](int d, int64_t i) { return power_of_ten(d) * (i + 1); },
     [](int64_t i) { return 1111 * (i + 1); }},
    {"sum_keeps_the_other_axis",
     "{x=2, y=2}",
     {4},
     "[-] sum{x,y}",
     "[-] sum{y}",
     [](int d, int64_t i) { return power_of_ten(d) * (i + 1); },
     [](int64_t i) { return 1111 * (i + 1); }},
    {"values_sum_to_whole",
     "{x=4}",
     {8},
     "[-] sum{x}",
     "[-]",
     [](int d, int64_t) { return d + 1; },
     [](int64_t) { return 10; }},
    {"values_sum_to_shards",
     "{x=4}",
     {8},
     "[-] sum{x}",
     "[x]",
     [](int d, int64_t) { return d + 1; },
     [](int64_t) { return 10; }},
    {"values_sum_to_uneven_shards",
     "{x=4}",
     {2},
     "[-] sum{x}",
     "[x]",
     [](int d, int64_t i) { return i == 0 ? d : 10 * d; },
     [](int64_t i) { return i == 0 ? 6 : 60; }},
    {"sum_along_one_axis",
     "{x=2, y=3}",
     {3},
     "[y] sum{x}",
     "[-]",
     [](int d, int64_t) { return 10 * (d / 3) + d % 3; },
     [](int64_t i) { return 10 + 2 * i; }},
    {"sum_to_other_partial_axis",
     "{x=2, y=2}",
     {3},
     "[-] sum{x}",
     "[-] sum{y}",
     [](int d, int64_t i) { return d / 2 + i; },
     [](int64_t i) { return 2 * i + 1; }},
    {"sum_then_max",
     "{x=2}",
     {3},
     "[-] sum{x}",
     "[-] max{x}",
     [](int d, int64_t i) { return d + i; },
     [](int64_t i) { return 2 * i + 1; }},
    {"ones_partial_to_uneven_rows",
     "{x=4}",
     {13, 3},
     "[-, -] sum{x}",
     "[x, -]",
     [](int, int64_t) { return 1; },
     [](int64_t) { return 4; }},
    {"partial_sharded_partial",
     "{x=2, y=2, z=2}",
     {8},
     "[y] sum{x,z}",
     "[-]",
     [](int, int64_t) { return 1; },
     [](int64_t) { return 4; }},
    {"ten_over_merged_2x3",
     "{x=2, y=3}",
     {10},
     "[-] sum{x,y}",
     "[(x,y)]",
     [](int, int64_t) { return 1; },
     [](int64_t) { return 6; }},
    {"out_partial_axes_preserved",
     "{x=2, y=2, z=2}",
     {16, 8},
     "[(y,z), -] sum{x}",
     "[-, y] sum{x}",
     [](int d, int64_t i) { return (d / 4) * 1000 + i; },
     [](int64_t i) { return 1000 + 2 * i; }},
};

// The tensor of this client's terms.
StatusOr<DTensor> from_terms(const Client& client, const Layout& layout, const Shape& shape,
                             const std::function<int64_t(int, int64_t)>& term) {
  std::vector<HostTensor<int32_t>> shards;
  for (const Device& device : client.local_devices()) {
    const std::optional<int64_t> position = layout.mesh().position_of_device(device.id);
    if (!position.has_value()) continue;
    const Box box = layout.box(shape, *position);
    HostTensor<int32_t>& shard = shards.emplace_back();
    shard.shape = box.sizes;
    for_each_element(box, [&](const std::vector<int64_t>& index, int64_t) {
      shard.data.push_back(static_cast<int32_t>(term(device.id, flat_index(shape, index))));
    });
  }
  return from_shards<int32_t>(shape, layout, shards);
}

TEST_P(RelayoutTest, PartialSums) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        for (const PartialCase& c : kPartialCases) {
          TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, c.mesh));
          TESSERA_ASSIGN_OR_RETURN(const Layout from, Layout::parse(mesh, c.from));
          TESSERA_ASSIGN_OR_RETURN(const Layout to, Layout::parse(mesh, c.to));
          TESSERA_ASSIGN_OR_RETURN(const DTensor terms, from_terms(client, from, c.shape, c.term));
          DTensor result = relayout(terms, to);
          if (to.is_partial()) {
            result = relayout(result, Layout::replicated(mesh, to.rank()));
          }
          TESSERA_RETURN_IF_ERROR(
              with_context(expect_shards<int32_t>(
                               result, [&](int64_t i) { return static_cast<int32_t>(c.value(i)); }),
                           c.name));
        }
        return absl::OkStatus();
      }),
      IsOk());
}

// Devices that hold the same term reduce a part of it each, where plans go by bytes.
TEST_P(RelayoutTest, CopiesOfTermsShareTheReduction) {
  ClientOptions options;
  options.link_costs = LinkCosts{.process = {0, 1e-9}, .host = {0, 1e-9}};
  const auto body = [](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4, z=2}"));
    TESSERA_ASSIGN_OR_RETURN(const Layout from, Layout::parse(mesh, "[-, -] sum{x}"));
    const Shape shape = {3, 16};
    const auto term = [](int device, int64_t i) { return power_of_ten(device / 2) * (i + 1); };
    const auto value = [](int64_t i) { return static_cast<int32_t>(1111 * (i + 1)); };
    TESSERA_ASSIGN_OR_RETURN(const DTensor terms, from_terms(client, from, shape, term));
    for (const char* text : {"[-, -]", "[-, x]"}) {
      TESSERA_ASSIGN_OR_RETURN(const Layout to, Layout::parse(mesh, text));
      TESSERA_ASSIGN_OR_RETURN(
          const RelayoutPlan plan,
          plan_relayout(from, to, shape, DType::kInt32, {.topology = client.topology()}));
      TESSERA_REQUIRE(plan.steps().size() == 2u, plan.to_string());
      TESSERA_REQUIRE(plan.steps()[0].new_box(1)->num_elements() == 3 * 16 / 8, plan.to_string());
      TESSERA_REQUIRE(plan.max_received_bytes() == plan.lower_bound_bytes(), plan.explain());
      TESSERA_RETURN_IF_ERROR(
          with_context(expect_shards<int32_t>(relayout(terms, to), value), text));
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(run(body, options), IsOk());
}

// Where devices are planned for as those of two hosts, each adds its own terms first: the bits are
// those of that order for every way to deal the devices to clients, and all ascending where the
// option asks for it.
TEST_P(RelayoutTest, HostsAddTheirOwnTermsFirst) {
  const auto term = [](int d, int64_t i) {
    return (d % 2 == 0 ? 1.0f : -1.0f) * 16777216.0f / static_cast<float>(d + 1) +
           static_cast<float>(i) * 0.1f;
  };
  const auto sum_of = [&](int first, int end, int64_t i) {
    float sum = term(first, i);
    for (int d = first + 1; d < end; ++d) sum += term(d, i);
    return sum;
  };
  const auto by_host = [&](int64_t i) { return sum_of(0, 4, i) + sum_of(4, 8, i); };
  const auto ascending = [&](int64_t i) { return sum_of(0, 8, i); };
  int differ = 0;
  for (int i = 0; i < 96; ++i) differ += by_host(i) != ascending(i) ? 1 : 0;
  ASSERT_GT(differ, 10);
  for (const ReductionOrder order : {ReductionOrder::kByHost, ReductionOrder::kFlat}) {
    const bool is_flat = order == ReductionOrder::kFlat;
    auto faults = std::make_shared<FaultPoints>();
    const int64_t per_client = 8 / GetParam().num_clients;
    faults->topology = *Topology::uniform(std::min<int64_t>(per_client, 4), 4,
                                          {{0, 1e-11}, {0, 1e-10}, {0, 1e-9}});
    ClientOptions options;
    options.reduction_order = order;
    options.faults = faults;
    const auto body = [&](Client& client) -> Status {
      TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2, y=4}"));
      for (const Shape& shape : {Shape{32, 3}, Shape{3, 5}}) {
        TESSERA_ASSIGN_OR_RETURN(const Layout from, Layout::parse(mesh, "[-, -] sum{x,y}"));
        std::vector<HostTensor<float>> shards;
        for (const Device& device : client.local_devices()) {
          HostTensor<float>& shard = shards.emplace_back();
          shard.shape = shape;
          for (int64_t i = 0; i < num_elements(shape); ++i) {
            shard.data.push_back(term(device.id, i));
          }
        }
        const DTensor terms = from_shards<float>(shape, from, shards);
        for (const char* text : {"[-, -]", "[(x,y), -]", "[y, x]", "[x, -]", "[-, y:(2)2]"}) {
          TESSERA_ASSIGN_OR_RETURN(const Layout to, Layout::parse(mesh, text));
          TESSERA_ASSIGN_OR_RETURN(
              const RelayoutPlan plan,
              plan_relayout(from, to, shape, DType::kFloat32,
                            {.topology = client.topology(), .reduction_order = order}));
          const bool one_reduction = plan.steps().size() < 2u || plan.steps()[1].terms(0).empty();
          TESSERA_REQUIRE(one_reduction == is_flat, plan.explain());
          const auto value = [&](int64_t i) { return is_flat ? ascending(i) : by_host(i); };
          TESSERA_RETURN_IF_ERROR(
              with_context(expect_shards<float>(relayout(terms, to), value), plan.to_string()));
        }
      }
      return absl::OkStatus();
    };
    EXPECT_THAT(run(body, options), IsOk());
  }
}

TEST_P(RelayoutTest, ReducedReplicasAreBitwiseEqualForEveryDistribution) {
  // Terms whose sum depends on the order of addition.
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                std::vector<HostTensor<float>> shards;
                const auto term = [](int d, int i) {
                  return (d % 2 == 0 ? 1.0f : -1.0f) * 16777216.0f / static_cast<float>(d + 1) +
                         static_cast<float>(i) * 0.1f;
                };
                for (const Device& device : client.local_devices()) {
                  HostTensor<float>& shard = shards.emplace_back();
                  shard.shape = {101};
                  for (int i = 0; i < 101; ++i) shard.data.push_back(term(device.id, i));
                }
                const auto ascending = [&](int64_t i) {
                  float sum = term(0, static_cast<int>(i));
                  for (int d = 1; d < 8; ++d) sum += term(d, static_cast<int>(i));
                  return sum;
                };
                const DTensor terms =
                    from_shards<float>({101}, Layout::parse(mesh, "[-] sum{x}"), shards);
                TESSERA_RETURN_IF_ERROR(
                    expect_shards<float>(relayout(terms, Layout::parse(mesh, "[-]")), ascending));
                return expect_shards<float>(relayout(terms, Layout::parse(mesh, "[x]")), ascending);
              }),
              IsOk());
}

// tests/facts/dtensor.md: bool_i32_f16.
TEST_P(RelayoutTest, EveryDTypeKeepsItsBits) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4}"));
        for (int t = 0; t < kNumDTypes; ++t) {
          TESSERA_RETURN_IF_ERROR(visit_dtype(static_cast<DType>(t), [&]<class T>() -> Status {
            const DTensor rows = iota<T>({8, 3}, Layout::parse(mesh, "[x, -]"));
            return expect_iota<T>(relayout(rows, Layout::parse(mesh, "[-, -]")));
          }));
        }
        return absl::OkStatus();
      }),
      IsOk());
}

// tests/facts/dtensor.md: equal_layouts.
TEST_P(RelayoutTest, IdentitySharesBuffersAndWaitsForNobody) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
        TESSERA_ASSIGN_OR_RETURN(const Mesh nested, live_mesh(client, "{a=2, b=4}"));
        const DTensor x = iota<float>({20}, Layout::parse(mesh, "[x]"));
        for (const auto& layout : {Layout::parse(mesh, "[x]"), Layout::parse(nested, "[(a,b)]")}) {
          const DTensor y = relayout(x, layout);
          TESSERA_ASSIGN_OR_RETURN(const ShardView<float> before, x.shard<float>(0));
          TESSERA_ASSIGN_OR_RETURN(const ShardView<float> after, y.shard<float>(0));
          TESSERA_REQUIRE(before.data.data() == after.data.data());
        }
        return absl::OkStatus();
      }),
      IsOk());
}

TEST_P(RelayoutTest, TwoInARowNeedOneWait) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2, y=2}"));
        const std::vector<int32_t> values = {1, 2, 3, 4};
        const DTensor x = from_host<int32_t>(values, {2, 2}, Layout::parse(mesh, "[x, -]"));
        const DTensor y =
            relayout(relayout(x, Layout::parse(mesh, "[-, y]")), Layout::parse(mesh, "[x, y]"));
        return expect_shards<int32_t>(y, [](int64_t i) { return static_cast<int32_t>(i + 1); });
      }),
      IsOk());
}

// tests/facts/dtensor.md: other_rank_refused.
TEST_P(RelayoutTest, OtherRankIsRefused) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2, y=2}"));
                const DTensor x = ones<float>({4, 4}, Layout::parse(mesh, "[x, -]"));
                const DTensor y = relayout(x, Layout::parse(mesh, "[x, -, -]"));
                TESSERA_REQUIRE(y.status().code() == absl::StatusCode::kInvalidArgument);
                TESSERA_REQUIRE(absl::StrContains(y.status().message(), "3") &&
                                    absl::StrContains(y.status().message(), "2"),
                                y.status().ToString());
                // An op on a failed tensor fails with the same first error.
                const DTensor z = relayout(y, Layout::parse(mesh, "[x, -, -]"));
                TESSERA_REQUIRE(z.status() == y.status());
                return x.await();
              }),
              IsOk());
}

// tests/facts/dtensor.md: layout_mismatch.
TEST_P(RelayoutTest, LayoutsThatDisagreeAreFoundBeforeAByteMoves) {
  if (GetParam().num_clients == 1) GTEST_SKIP() << "needs two clients";
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
        const DTensor terms = ones<float>({8, 8}, Layout::parse(mesh, "[-, -] sum{x}"));
        const DTensor y =
            relayout(terms, Layout::parse(mesh, client.client_id() == 0 ? "[x, -]" : "[-, x]"));
        const Status status = y.await();
        TESSERA_REQUIRE(status.code() == absl::StatusCode::kInvalidArgument, status.ToString());
        TESSERA_REQUIRE(absl::StrContains(status.message(), "[x, -]") &&
                            absl::StrContains(status.message(), "[-, x]"),
                        status.ToString());
        client.sync_devices().IgnoreError();
        return mesh.barrier("usable", absl::Seconds(20));
      }),
      IsOk());
}

}  // namespace
}  // namespace tessera::testing
