// SPDX-License-Identifier: Apache-2.0
//
// Gradients: every row of ops/testdata/gradients_cases.tsv, and what a tape promises beside values.
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
#include "tests/support/op_cases.h"
#include "tests/support/op_table.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

// ---- Rows of the table

// The programs that rows describe in words, by their names. What they give is a scalar.
DTensor run_program(const std::string& name, Tape& tape, Operands x) {
  if (name == "program_two_layers") {
    const DTensor hidden = ops::relu(ops::matmul(x[0], x[1]) + x[2]);
    return ops::mean(ops::softmax_cross_entropy(ops::matmul(hidden, x[3]) + x[4], x[5]));
  }
  if (name == "program_attention_block") {
    const DTensor scores = ops::matmul(x[0], ops::transpose(x[0], {1, 0})) * 0.25;
    return ops::sum(ops::square(x[0] + ops::matmul(ops::softmax(scores, 1), x[0])));
  }
  if (name == "program_norm_and_gelu") {
    return ops::sum(ops::gelu(ops::layer_norm(ops::matmul(x[0], x[1]), x[2], x[3], 1e-5)));
  }
  if (name == "program_reused") return ops::sum(x[0] * x[0] + ops::exp(x[0]) * x[0]);
  if (name == "program_stopped") {
    return ops::sum(ops::stop_gradient(ops::tanh(x[0])) * x[0]);
  }
  if (name == "program_unused_source") return ops::sum(ops::square(x[0]));
  // The others take the gradient of a gradient, which the tape keeps and records.
  const GradientOptions keep = {.keep = true};
  if (name == "program_hessian_vector") {
    const DTensor value = ops::sum(x[0] * x[0] * x[0] + ops::sin(x[0]));
    return ops::sum(tape.gradient(value, {x[0]}, keep)[0] * x[1]);
  }
  if (name == "program_gradient_penalty") {
    const DTensor value = ops::sum(ops::tanh(ops::matmul(x[0], x[1])));
    return ops::sum(ops::square(tape.gradient(value, {x[0]}, keep)[0]));
  }
  const DTensor value = ops::sum(ops::square(ops::softmax(x[0], 1)));
  return ops::sum(ops::square(tape.gradient(value, {x[0]}, keep)[0]));
}

StatusOr<DTensor> run_row(const OpCase& row, Tape& tape, Operands x) {
  const std::string name = row.id.substr(0, row.id.rfind('.'));
  if (row.op == "program") return run_program(name, tape, x);
  if (row.op != "relayout") return op_table().at(row.op)(row, x, {});
  const std::string& to = row.attributes.at("to");
  TESSERA_ASSIGN_OR_RETURN(const Layout layout,
                           Layout::parse(x[0].layout().mesh(), to.substr(1, to.size() - 2)));
  return relayout(x[0], layout);
}

Status check_row(const Client& client, const OpCase& row, std::map<std::string, Mesh>& meshes) {
  Tape tape;
  std::vector<DTensor> operands;
  for (const OpOperand& operand : row.operands) {
    TESSERA_ASSIGN_OR_RETURN(DTensor tensor, make_operand(client, operand, meshes));
    operands.push_back(is_floating_point(operand.dtype) ? tape.watch(tensor) : tensor);
  }
  TESSERA_ASSIGN_OR_RETURN(const DTensor result, run_row(row, tape, operands));
  TESSERA_RETURN_IF_ERROR(result.status());
  GradientOptions options;
  if (row.seed != "1") {
    const OpOperand seed = {row.operands[0].mesh, result.dtype(), result.shape(),
                            result.layout().without_partial().to_string(), row.seed};
    TESSERA_ASSIGN_OR_RETURN(options.seed, make_operand(client, seed, meshes));
  }
  const DTensor& source = operands[row.source];
  const DTensor gradient = tape.gradient(result, {source}, options)[0];
  TESSERA_REQUIRE(gradient.layout() == source.layout().without_partial(),
                  gradient.layout().to_string(), " of ", source.layout().to_string());
  return check_result(row, gradient);
}

class OpsGradientsTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, OpsGradientsTest, ::testing::ValuesIn(kJobForms), job_form_name);
INSTANTIATE_TEST_SUITE_P(Hosts, OpsGradientsTest, ::testing::Values(kTwoHosts), job_form_name);
INSTANTIATE_TEST_SUITE_P(Cuda, OpsGradientsTest, ::testing::ValuesIn(cuda_forms()), job_form_name);

TEST_P(OpsGradientsTest, Rows) {
  const StatusOr<std::vector<OpCase>> rows = read_gradient_cases();
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT(run([&](Client& client) -> Status {
                std::map<std::string, Mesh> meshes;
                std::string failures;
                for (const OpCase& row : *rows) {
                  const Status status = check_row(client, row, meshes);
                  if (!status.ok()) {
                    absl::StrAppend(&failures, row.id, ": ", status.message(), "\n");
                  }
                }
                return failures.empty() ? absl::OkStatus() : absl::InternalError(failures);
              }),
              IsOk());
}

// ---- What a tape promises beside values

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
            refused(tape.gradient(y, {x})[0].status(), "the target [8, 2] is no scalar"));
        TESSERA_RETURN_IF_ERROR(refused(tape.gradient(y, {x}, {.seed = given.w})[0].status(),
                                        "the seed is f64 [2, 3], the target f64 [8, 2]"));
        const DTensor integers = ops::cast<int32_t>(given.x);
        TESSERA_RETURN_IF_ERROR(
            refused(tape.watch(integers).status(), "watch: a tensor of i32 has no gradient"));
        // An error of the target is that of the gradient.
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
