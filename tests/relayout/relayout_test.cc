// SPDX-License-Identifier: Apache-2.0
//
// Relayouts on real devices, against the dense value: the rows of relayout_cases.tsv and every pair
// of layouts on small meshes. Each runs as one client of 8 devices, as 4 clients of 2 that are
// threads, and as 4 that are processes. Reductions are in reductions_test.cc.
#include "dtensor/relayout.h"

#include <algorithm>
#include <cstdint>
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
#include "dtensor/client_hooks.h"
#include "dtensor/dtensor.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "mesh/mesh_runtime.h"
#include "relayout/testing/case_table.h"
#include "relayout/testing/small_relayouts.h"
#include "tests/support/clients.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitizers.h"
#include "tests/support/seed.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

class RelayoutTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, RelayoutTest, ::testing::ValuesIn(kJobForms), job_form_name);
INSTANTIATE_TEST_SUITE_P(Hosts, RelayoutTest, ::testing::Values(kTwoHosts), job_form_name);
INSTANTIATE_TEST_SUITE_P(Cuda, RelayoutTest, ::testing::ValuesIn(cuda_forms()), job_form_name);

// iota under `from`, then under `to`, then back: every element of every shard is right.
Status there_and_back(const Layout& from, const Layout& to, const Shape& shape) {
  std::optional<DTensor> start = iota<int32_t>(shape, from);
  DTensor there = relayout(*start, to);
  const DTensor back = relayout(there, from);
  // Tensors that shared the memory of the source keep it; the next tensor has other memory.
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

// The layout on a mesh of the client's job.
StatusOr<Layout> on_devices_of(Client& client, const Layout& layout) {
  return layout.with_mesh(internal::with_runtime(layout.mesh(), internal::mesh_runtime_of(client)));
}

// The share of the cases that a form runs: streams of the GPU's double take longest, and sanitizers
// check how bytes move rather than where to. Processes that share a GPU take a tenth of a second
// per operation.
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
        // Each remaining pair has an equal chance.
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
        moves += is_reduction(step.kind()) || step.shape() == shape ? 0 : 1;
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
