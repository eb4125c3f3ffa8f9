// SPDX-License-Identifier: Apache-2.0
#include "tests/support/ops/rows.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "layout/layout.h"
#include "ops/contract.h"
#include "ops/nn.h"
#include "ops/out.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/shapes.h"
#include "ops/tape.h"
#include "tests/support/forked.h"
#include "tests/support/ops/table.h"

namespace tessera::testing {
namespace {

Status check_refusal(const OpCase& row, const Status& status) {
  TESSERA_REQUIRE(!status.ok(), "it was not refused");
  TESSERA_REQUIRE(row.error[0] == "InvalidArgument" && absl::IsInvalidArgument(status),
                  status.ToString());
  for (size_t k = 1; k < row.error.size(); ++k) {
    TESSERA_REQUIRE(absl::StrContains(status.message(), row.error[k]), "no \"", row.error[k],
                    "\" in: ", status.message());
  }
  return absl::OkStatus();
}

// Whether the layouts of the operands agree, so that no byte may be sent.
bool sends_nothing(const OpCase& row) {
  const std::vector<std::string> words = absl::StrSplit(row.why, '+');
  return std::all_of(words.begin(), words.end(), [](const std::string& word) {
    return word == "pass" || word == "agree" || word == "free" || word == "linear" ||
           word == "contract";
  });
}

// The programs that rows describe in words, by their names. Their results are scalars.
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
  if (row.op != "relayout") return run_row(row, x, {});
  const std::string& to = row.attributes.at("to");
  TESSERA_ASSIGN_OR_RETURN(const Layout layout,
                           Layout::parse(x[0].layout().mesh(), to.substr(1, to.size() - 2)));
  return relayout(x[0], layout);
}

}  // namespace

Status check_value_row(const Client& client, const OpCase& row,
                       std::map<std::string, Mesh>& meshes) {
  std::vector<DTensor> operands;
  for (const OpOperand& operand : row.operands) {
    TESSERA_ASSIGN_OR_RETURN(DTensor tensor, make_operand(client, operand, meshes));
    operands.push_back(std::move(tensor));
  }
  TESSERA_ASSIGN_OR_RETURN(const ops::Out out, make_out(client, row, meshes));
  const DTensor result = run_row(row, operands, out);
  if (!row.error.empty()) return check_refusal(row, result.status());
  if (sends_nothing(row) && row.out == "-") {
    // A composition explains its last operation.
    for (absl::string_view line : absl::StrSplit(result.explain(), '\n')) {
      TESSERA_REQUIRE(!absl::EndsWith(line, " to a device at most") ||
                          absl::EndsWith(line, ", 0 B to a device at most"),
                      result.explain());
    }
  }
  return check_result(row, result);
}

Status check_gradient_row(const Client& client, const OpCase& row,
                          std::map<std::string, Mesh>& meshes) {
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

Status check_rows(const Client& client, const std::vector<OpCase>& rows, CheckRow check) {
  std::map<std::string, Mesh> meshes;
  std::string failures;
  for (const OpCase& row : rows) {
    const Status status = check(client, row, meshes);
    if (!status.ok()) absl::StrAppend(&failures, row.id, ": ", status.message(), "\n");
  }
  return failures.empty() ? absl::OkStatus() : absl::InternalError(failures);
}

}  // namespace tessera::testing
