// SPDX-License-Identifier: Apache-2.0
//
// The rows of ops/testdata/ops_cases.tsv and array_cases.tsv: operations with known answers.
// tests/facts/ops.md and tests/facts/array.md explain the columns.
#ifndef TESSERA_TESTS_SUPPORT_OPS_CASES_H_
#define TESSERA_TESTS_SUPPORT_OPS_CASES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "ops/out.h"

namespace tessera::testing {

struct OpOperand {
  std::string mesh;
  DType dtype;
  Shape shape;
  std::string layout;
  std::string formula;  // "-": zeros
};

struct OpCase {
  std::string id;
  std::string op;
  std::map<std::string, std::string> attributes;
  std::string mesh;                 // of a row that creates a tensor
  std::vector<OpOperand> operands;  // none: the row creates a tensor, under `out`
  std::string out;                  // "-": none
  // The result.
  Shape shape;
  DType dtype = DType::kFloat32;
  std::string layout;  // "*": any
  std::string why;
  double sum = 0, squares = 0, weighted = 0;
  std::vector<std::pair<int64_t, double>> at;
  double tolerance = 0;
  // For a gradient: the cotangent of the result, "1" where that is a scalar, and the operand.
  std::string seed;
  int source = 0;
  // For a refusal: the code, then texts that the message contains. Empty: there is a result.
  std::vector<std::string> error;

  bool has(const std::string& attribute) const { return attributes.count(attribute) != 0; }
  // The value of an attribute that the row has.
  int64_t integer(const std::string& attribute) const;
  double real(const std::string& attribute) const;
  // "[1, -2]".
  std::vector<int64_t> integers(const std::string& attribute) const;
};

StatusOr<std::vector<OpCase>> read_op_cases();
// A row without an answer, of the first 8 columns: id, op, attributes, meshes, dtypes, shapes,
// layouts, formulas. "-" leaves out meshes or layouts. Its dtype is the attribute of that name,
// else the first operand's.
StatusOr<OpCase> make_op_case(const std::vector<std::string>& cells);
// The rows of ops/testdata/gradients_cases.tsv and array_gradients_cases.tsv.
StatusOr<std::vector<OpCase>> read_gradient_cases();

// Operand number i of the case, on the first devices of the job. Collective over the client's job
// for the first operand on a mesh; `meshes` keeps the meshes.
StatusOr<DTensor> make_operand(const Client& client, const OpOperand& operand,
                               std::map<std::string, Mesh>& meshes);
StatusOr<ops::Out> make_out(const Client& client, const OpCase& row,
                            std::map<std::string, Mesh>& meshes);

// Element i of a formula, which may replace elements: "(7i+3)%11-5 {1: nan, 3: -inf}".
StatusOr<double> formula_at(absl::string_view formula, int64_t i);

// Compares the values, and of a row that names them dtype, shape and layout, on every client.
Status check_result(const OpCase& row, const DTensor& result);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_OPS_CASES_H_
