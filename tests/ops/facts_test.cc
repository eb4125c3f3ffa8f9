// SPDX-License-Identifier: Apache-2.0
//
// Every row of ops/testdata/ops_cases.tsv and array_cases.tsv, on 8 devices of several forms of a
// job: what the operation gives and under which layout, or how it is refused.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "ops/contract.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/shapes.h"
#include "tests/support/clients.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/ops/cases.h"
#include "tests/support/ops/rows.h"
#include "tests/support/ops/table.h"

namespace tessera::testing {
namespace {

class OpsFactsTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, OpsFactsTest, ::testing::ValuesIn(kJobForms), job_form_name);
INSTANTIATE_TEST_SUITE_P(Hosts, OpsFactsTest, ::testing::Values(kTwoHosts), job_form_name);
INSTANTIATE_TEST_SUITE_P(Cuda, OpsFactsTest, ::testing::ValuesIn(cuda_forms()), job_form_name);

TEST_P(OpsFactsTest, Rows) {
  const StatusOr<std::vector<OpCase>> rows = read_op_cases();
  ASSERT_THAT(rows, IsOk());
  for (const OpCase& row : *rows) {
    ASSERT_TRUE(is_operation(row.op) || is_creation(row.op)) << row.op;
  }
  EXPECT_THAT(run([&](Client& client) { return check_rows(client, *rows, check_value_row); }),
              IsOk());
}

TEST_P(OpsFactsTest, ClipKeepsNanAndMaximumDropsIt) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
                const DTensor x = full<float>({8}, NAN, Layout::parse(mesh, "[x]"));
                TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> clipped,
                                         ops::clip(x, 0, 1).to_host<float>());
                TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> larger,
                                         ops::maximum(x, 2).to_host<float>());
                for (int i = 0; i < 8; ++i) {
                  TESSERA_REQUIRE(std::isnan(clipped.data[i]) && larger.data[i] == 2, i);
                }
                const Status wrong = ops::clip(x, 1, 0).status();
                TESSERA_REQUIRE(absl::IsInvalidArgument(wrong) &&
                                    absl::StrContains(wrong.message(), "clip: from 1 to 0"),
                                wrong.ToString());
                return absl::OkStatus();
              }),
              IsOk());
}

// Along a split dim the results are made of the results of each shard: they equal the results for a
// whole dim, with NaN, infinities and equal elements in all places, and shards that have none.
TEST_P(OpsFactsTest, LinesOfASplitDim) {
  const auto value = [](int64_t row, int64_t k) -> float {
    if (row == 0) return NAN;
    if (row == 1) return k % 3 == 0 ? NAN : -INFINITY;
    if (row == 2) return static_cast<float>((k * 5) % 7 - 3);
    return k % 4 == 1 ? INFINITY : static_cast<float>(k / 2);
  };
  const auto line = [value](const Box& box, absl::Span<float> out) {
    for (size_t i = 0; i < out.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      out[i] = value(box.offsets[0] + at / box.sizes[1], box.offsets[1] + at % box.sizes[1]);
    }
  };
  const auto check = [line](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 4}, {"y", 2}}));
    for (const int64_t size : {3, 8, 21}) {
      const DTensor split = from_function<float>({4, size}, Layout::parse(mesh, "[y, x]"), line);
      const StatusOr<Layout> all_whole = Layout::parse(mesh, "[-, -]");
      const DTensor whole = relayout(split, all_whole);
      const DTensor bytes = ops::add(zeros<int8_t>({4, size}, split.layout()), 31);
      const auto same = [](const DTensor& a, const DTensor& b) -> Status {
        const auto is_nan = [](const DTensor& x) {
          return ops::is_nan(ops::cast(x, DType::kFloat64));
        };
        const DTensor is_same =
            ops::logical_or(ops::equal(a, b), ops::logical_and(is_nan(a), is_nan(b)));
        TESSERA_ASSIGN_OR_RETURN(const HostTensor<bool> all, ops::all(is_same).to_host<bool>());
        TESSERA_REQUIRE(all.data[0], a.explain());
        return absl::OkStatus();
      };
      const int64_t k = size / 4 > 1 ? 2 : 1;
      const ops::TopK top = ops::top_k(split, k, 1);
      const ops::TopK of_whole = ops::top_k(whole, k, 1);
      const DTensor found[][2] = {
          {ops::argmax(split, 1), ops::argmax(whole, 1)},
          {ops::argmin(split, -1), ops::argmin(whole, 1)},
          {top.values, of_whole.values},
          {top.indices, of_whole.indices},
          {ops::cumsum(split, 1), ops::cumsum(whole, 1)},
          {ops::cumsum(bytes, 1), ops::cumsum(relayout(bytes, all_whole), 1)},
          {ops::cumsum(ops::cast(split, DType::kBFloat16), 1),
           ops::cumsum(ops::cast(whole, DType::kBFloat16), 1)},
      };
      for (const auto& pair : found) {
        TESSERA_RETURN_IF_ERROR(with_context(same(pair[0], pair[1]), absl::StrCat("size ", size)));
      }
      // Numbers of 4 shards are gathered, and not the dim.
      if (size < 8) continue;
      TESSERA_REQUIRE(absl::StrContains(found[0][0].explain(), "f32 [4, 4]"),
                      found[0][0].explain());
      TESSERA_REQUIRE(absl::StrContains(top.values.explain(), absl::StrCat("f32 [4, ", 4 * k, "]")),
                      top.values.explain());
      TESSERA_REQUIRE(absl::StrContains(found[4][0].explain(), "operand 0: [y, x] as it is"),
                      found[4][0].explain());
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(run(check), IsOk());
}

TEST_P(OpsFactsTest, Explain) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
        const DTensor rows = ones<float>({16, 8}, Layout::parse(mesh, "[x, -]"));
        const DTensor columns = ones<float>({8, 16}, Layout::parse(mesh, "[-, x]"));
        const auto says = [](const DTensor& tensor, const std::vector<std::string>& parts) {
          for (const std::string& part : parts) {
            TESSERA_REQUIRE(absl::StrContains(tensor.explain(), part), "no ", part, " in ",
                            tensor.explain());
          }
          return absl::OkStatus();
        };
        TESSERA_RETURN_IF_ERROR(says(rows, {"f32 [16, 8] under [x, -] on {x=8}, made by no"}));
        TESSERA_RETURN_IF_ERROR(says(ops::matmul(rows, columns),
                                     {"by matmul: [a, b] [b, c] -> [a, c]; b contracted (sum)\n",
                                      "the best of ", " assignments of axes, predicted "}));
        TESSERA_RETURN_IF_ERROR(
            says(ops::neg(rows, Layout::parse(mesh, "[-, x]")),
                 {"under [-, x]", "by neg: [a, b] -> [a, b]\n", " us, ", " to a device at most"}));
        TESSERA_RETURN_IF_ERROR(
            says(ops::add(rows, rows), {"operand 0: [x, -] as it is", "operand 1: [x, -] as it"}));
        TESSERA_RETURN_IF_ERROR(
            says(ops::flip(rows, {0}), {"a moved\n", "[x, -], of which each device fetches what"}));
        return says(ops::add(rows, columns), {"failed: add: shapes [16, 8] and [8, 16]"});
      }),
      IsOk());
}

}  // namespace
}  // namespace tessera::testing
