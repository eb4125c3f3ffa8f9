// SPDX-License-Identifier: Apache-2.0
//
// Gradients: every row of ops/testdata/gradients_cases.tsv, and the promises of a tape beside
// values.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
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
#include "ops/nn.h"
#include "ops/out.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/shapes.h"
#include "ops/tape.h"
#include "tests/support/clients.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/ops/cases.h"
#include "tests/support/ops/rows.h"
#include "tests/support/ops/table.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

class OpsGradientsTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, OpsGradientsTest, ::testing::ValuesIn(kJobForms), job_form_name);
INSTANTIATE_TEST_SUITE_P(Hosts, OpsGradientsTest, ::testing::Values(kTwoHosts), job_form_name);
INSTANTIATE_TEST_SUITE_P(Cuda, OpsGradientsTest, ::testing::ValuesIn(cuda_forms()), job_form_name);

TEST_P(OpsGradientsTest, Rows) {
  const StatusOr<std::vector<OpCase>> rows = read_gradient_cases();
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT(run([&](Client& client) { return check_rows(client, *rows, check_gradient_row); }),
              IsOk());
}

// ---- The promises of a tape beside values

// Two values of 8 and their mesh, for the tests below.
struct Tensors {
  Mesh mesh;
  DTensor x;  // [8, 2] of i/4, [batch, -]
  DTensor w;  // [2, 3] of i - 2, whole
};
StatusOr<Tensors> set_up(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"batch", 4}, {"model", 2}}));
  return Tensors{mesh, iota<double>({8, 2}, Layout::parse(mesh, "[batch, -]")) / 4,
                 iota<double>({2, 3}, Layout::replicated(mesh, 2)) - 2};
}

Status expect_same(const DTensor& a, const DTensor& b) {
  TESSERA_ASSIGN_OR_RETURN(const HostTensor<double> left, a.to_host<double>());
  TESSERA_ASSIGN_OR_RETURN(const HostTensor<double> right, b.to_host<double>());
  TESSERA_REQUIRE(left.shape == right.shape);
  for (size_t i = 0; i < left.data.size(); ++i) {
    TESSERA_REQUIRE(std::abs(left.data[i] - right.data[i]) < 1e-12, "element ", i, ": ",
                    left.data[i], " and ", right.data[i]);
  }
  return absl::OkStatus();
}

class TapeTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, TapeTest, ::testing::Values(kJobForms[0], kJobForms[1]),
                         job_form_name);
INSTANTIATE_TEST_SUITE_P(Cuda, TapeTest, ::testing::ValuesIn(cuda_forms()), job_form_name);

TEST_P(TapeTest, OuterTapeRecordsTheInnerOne) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Tensors given, set_up(client));
                Tape outer;
                Tape inner;
                const DTensor x = inner.watch(outer.watch(given.x));
                const DTensor y = ops::tanh(x);
                const DTensor slope = inner.gradient(ops::sum(y), {x})[0];
                const DTensor curvature = outer.gradient(ops::sum(slope), {x})[0];
                const DTensor plain = ops::tanh(given.x);
                return expect_same(curvature, -2 * plain * (1 - plain * plain));
              }),
              IsOk());
}

TEST_P(TapeTest, UsesUpWhatItRecordedUnlessItIsToKeepIt) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Tensors given, set_up(client));
                Tape tape;
                const DTensor x = tape.watch(given.x);
                const DTensor loss = ops::sum(ops::square(x));
                const DTensor first = tape.gradient(loss, {x}, {.keep = true})[0];
                const DTensor second = tape.gradient(loss, {x})[0];
                TESSERA_RETURN_IF_ERROR(expect_same(first, second));
                const Status third = tape.gradient(loss, {x})[0].status();
                TESSERA_REQUIRE(absl::IsFailedPrecondition(third) &&
                                    absl::StrContains(third.message(), "GradientOptions::keep"),
                                third.ToString());
                return absl::OkStatus();
              }),
              IsOk());
}

TEST_P(TapeTest, RefusesWhatHasNoGradient) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Tensors given, set_up(client));
        const auto refused = [](const Status& status, const char* text) -> Status {
          TESSERA_REQUIRE(
              absl::IsInvalidArgument(status) && absl::StrContains(status.message(), text),
              status.ToString());
          return absl::OkStatus();
        };
        Tape tape;
        const DTensor x = tape.watch(given.x);
        const DTensor y = ops::square(x);
        TESSERA_RETURN_IF_ERROR(
            refused(tape.gradient(y, {x})[0].status(), "the target [8, 2] is not a scalar"));
        TESSERA_RETURN_IF_ERROR(refused(tape.gradient(y, {x}, {.seed = given.w})[0].status(),
                                        "the seed is f64 [2, 3], the target f64 [8, 2]"));
        const DTensor integers = ops::cast<int32_t>(given.x);
        TESSERA_RETURN_IF_ERROR(
            refused(tape.watch(integers).status(), "watch: a tensor of i32 has no gradient"));
        // An error of the target is the error of the gradient.
        return refused(tape.gradient(ops::sum(ops::matmul(x, x)), {x})[0].status(), "matmul");
      }),
      IsOk());
}

TEST_P(TapeTest, LeavesGradientsPartialOnRequest) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Tensors given, set_up(client));
                Tape tape;
                const DTensor w = tape.watch(given.w);
                const DTensor loss = ops::sum(ops::square(ops::matmul(given.x, w)));
                const DTensor now = tape.gradient(loss, {w}, {.keep = true})[0];
                const DTensor later = tape.gradient(loss, {w}, {.reduce = Reduce::kLater})[0];
                TESSERA_REQUIRE(now.layout().to_string() == "[-, -]", now.layout().to_string());
                TESSERA_REQUIRE(later.layout().to_string() == "[-, -] sum{batch}",
                                later.layout().to_string());
                return expect_same(now, later);
              }),
              IsOk());
}

// From the last layer to the first; a source that is used twice waits for both; a source that does
// not lead to the target is last. The gradients equal the gradients of a call without the function.
TEST_P(TapeTest, HandsOutGradientsAsTheyAreFinished) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Tensors t, set_up(client));
                const auto gradients = [&](const GradientOptions& options) {
                  Tape tape;
                  const DTensor shared = tape.watch(t.w);
                  const DTensor unused = tape.watch(t.w);
                  const DTensor last = tape.watch(ops::transpose(t.w, {1, 0}));
                  const DTensor middle = tape.watch(ops::matmul(ops::transpose(t.w, {1, 0}), t.w));
                  const DTensor hidden = ops::tanh(ops::matmul(ops::matmul(t.x, shared), middle));
                  const DTensor result = ops::matmul(ops::matmul(hidden, last), shared);
                  return tape.gradient(ops::sum(result), {shared, unused, last, middle}, options);
                };
                const std::vector<DTensor> expected = gradients({});
                std::vector<size_t> order;
                std::vector<DTensor> handed_out;
                GradientOptions options;
                options.on_finished = [&](size_t source, const DTensor& gradient) {
                  order.push_back(source);
                  handed_out.push_back(gradient);
                };
                const std::vector<DTensor> found = gradients(options);
                TESSERA_REQUIRE((order == std::vector<size_t>{2, 3, 0, 1}));
                for (size_t i = 0; i < order.size(); ++i) {
                  TESSERA_RETURN_IF_ERROR(expect_same(handed_out[i], expected[order[i]]));
                  TESSERA_RETURN_IF_ERROR(expect_same(found[i], expected[i]));
                }
                // Nothing is handed out of a gradient that fails.
                order.clear();
                Tape tape;
                const DTensor w = tape.watch(t.w);
                tape.gradient(ops::matmul(t.x, w), {w}, options);
                TESSERA_REQUIRE(order.empty());
                return absl::OkStatus();
              }),
              IsOk());
}

TEST_P(TapeTest, CustomGradientAndRematerialize) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Tensors given, set_up(client));
                Tape tape;
                const DTensor x = tape.watch(given.x);
                const DTensor w = tape.watch(given.w);
                const DTensor inputs[] = {x, w};
                const Forward forward = [](Operands in) {
                  return ops::tanh(ops::matmul(in[0], in[1]));
                };
                const DTensor plain = ops::sum(forward(inputs));
                const DTensor again = ops::sum(ops::rematerialize(forward, inputs));
                for (const DTensor& source : inputs) {
                  const GradientOptions keep = {.keep = true};
                  TESSERA_RETURN_IF_ERROR(expect_same(tape.gradient(plain, {source}, keep)[0],
                                                      tape.gradient(again, {source}, keep)[0]));
                }
                const Backward nothing_by_x = [](Operands, const DTensor&, const DTensor& c) {
                  return std::vector<std::optional<DTensor>>{
                      std::nullopt, ops::broadcast_to(ops::sum(c), {2, 3})};
                };
                const DTensor odd = ops::sum(ops::custom_gradient(inputs, forward, nothing_by_x));
                const std::vector<DTensor> gradients = tape.gradient(odd, inputs);
                TESSERA_RETURN_IF_ERROR(expect_same(gradients[0], given.x * 0));
                return expect_same(gradients[1], given.w * 0 + 24);
              }),
              IsOk());
}

}  // namespace
}  // namespace tessera::testing
