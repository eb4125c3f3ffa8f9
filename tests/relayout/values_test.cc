// SPDX-License-Identifier: Apache-2.0
//
// The rows of tests/facts/relayout.md, Values, on real devices. Rows about partial sums that name a
// reduction are in tests/relayout/reductions_test.cc, PartialSums.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "relayout/plan.h"
#include "tests/support/clients.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

class RelayoutValuesTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, RelayoutValuesTest, ::testing::ValuesIn(kJobForms), job_form_name);
INSTANTIATE_TEST_SUITE_P(Hosts, RelayoutValuesTest, ::testing::Values(kTwoHosts), job_form_name);
INSTANTIATE_TEST_SUITE_P(Cuda, RelayoutValuesTest, ::testing::ValuesIn(cuda_forms()),
                         job_form_name);

// rows_to_columns_traffic.
TEST_P(RelayoutValuesTest, RowsToColumnsTraffic) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2}"));
                const DTensor rows = iota<int32_t>({4, 4}, Layout::parse(mesh, "[x, -]"));
                const DTensor columns = relayout(rows, Layout::parse(mesh, "[-, x]"));
                TESSERA_ASSIGN_OR_RETURN(
                    const RelayoutPlan plan,
                    plan_relayout(rows.layout(), columns.layout(), {4, 4}, DType::kInt32));
                TESSERA_REQUIRE(plan.steps().size() == 1u);
                for (int device : {0, 1}) {
                  int64_t kept = 0;
                  int64_t received = 0;
                  for (const Pull& pull : plan.steps()[0].pulls(device)) {
                    (pull.source_device == device ? kept : received) += pull.box.num_elements();
                  }
                  TESSERA_REQUIRE(kept == 4 && received == 4, kept, " ", received);
                  TESSERA_REQUIRE(plan.received_bytes(device) == 16);
                }
                TESSERA_REQUIRE(plan.received_bytes(0) + plan.received_bytes(1) == 32);
                return expect_iota<int32_t>(columns);
              }),
              IsOk());
}

// avg_partial_integers.
TEST_P(RelayoutValuesTest, AverageOfIntegersIsRefused) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=3}"));
                const DTensor terms = ones<int32_t>({1}, Layout::parse(mesh, "[-] avg{x}"));
                const DTensor value = relayout(terms, Layout::parse(mesh, "[-]"));
                for (const DTensor& tensor : {terms, value}) {
                  TESSERA_RETURN_IF_ERROR(expect_error(
                      tensor.status(), absl::StatusCode::kInvalidArgument, {"avg", "i32"}));
                }
                return absl::OkStatus();
              }),
              IsOk());
}

// shards_to_sum_and_back.
TEST_P(RelayoutValuesTest, ShardsToSumAndBack) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2}"));
                const std::vector<int32_t> values = {1, 2, 3, 4};
                const DTensor shards = from_host<int32_t>(values, {4}, Layout::parse(mesh, "[x]"));
                const DTensor terms = relayout(shards, Layout::parse(mesh, "[-] sum{x}"));
                TESSERA_ASSIGN_OR_RETURN(
                    const RelayoutPlan plan,
                    plan_relayout(shards.layout(), terms.layout(), {4}, DType::kInt32));
                TESSERA_REQUIRE(plan.max_received_bytes() == 0);
                TESSERA_RETURN_IF_ERROR(expect_device<int32_t>(client, terms, 0, {1, 2, 0, 0}));
                TESSERA_RETURN_IF_ERROR(expect_device<int32_t>(client, terms, 1, {0, 0, 3, 4}));
                return expect_shards<int32_t>(
                    relayout(terms, Layout::parse(mesh, "[x]")),
                    [](int64_t i) { return static_cast<int32_t>(i + 1); });
              }),
              IsOk());
}

// one_of_two_fails.
TEST_P(RelayoutValuesTest, OneOfTwoFails) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2, y=2}"));
                const DTensor good = iota<float>({4, 6}, Layout::parse(mesh, "[x, -]"));
                const DTensor bad = iota<float>({4, 6}, Layout::parse(mesh, "[x]"));
                const Status first = bad.status();
                TESSERA_RETURN_IF_ERROR(expect_error(first, absl::StatusCode::kInvalidArgument));
                const DTensor moved_good = relayout(good, Layout::parse(mesh, "[-, (x,y)]"));
                const DTensor moved_bad = relayout(bad, Layout::parse(mesh, "[-, (x,y)]"));
                TESSERA_REQUIRE(moved_bad.status() == first, moved_bad.status().ToString());
                return expect_iota<float>(moved_good);
              }),
              IsOk());
}

// devices_out_of_reach.
TEST_P(RelayoutValuesTest, ToDevicesThatHeldNothing) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh first, live_mesh(client, "{x=2} on 0,1"));
        TESSERA_ASSIGN_OR_RETURN(const Mesh second, live_mesh(client, "{x=2} on 2,3"));
        const DTensor shards = iota<int32_t>({5}, Layout::parse(first, "[x]"));
        const DTensor moved = relayout(shards, Layout::parse(second, "[-]"));
        for (int device : {2, 3}) {
          TESSERA_RETURN_IF_ERROR(expect_device<int32_t>(client, moved, device, {0, 1, 2, 3, 4}));
        }
        TESSERA_RETURN_IF_ERROR(expect_iota<int32_t>(moved));
        return expect_iota<int32_t>(shards);
      }),
      IsOk());
}

// bool_values.
TEST_P(RelayoutValuesTest, BoolValues) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2}"));
        const std::array<bool, 3> values = {true, false, true};
        const DTensor shards = from_host<bool>(values, {3}, Layout::parse(mesh, "[x]"));
        const DTensor whole = relayout(shards, Layout::parse(mesh, "[-]"));
        for (int device : {0, 1}) {
          TESSERA_RETURN_IF_ERROR(expect_device<bool>(client, whole, device, {true, false, true}));
        }
        return whole.await();
      }),
      IsOk());
}

}  // namespace
}  // namespace tessera::testing
