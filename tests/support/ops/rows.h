// SPDX-License-Identifier: Apache-2.0
//
// check_value_row, check_gradient_row: the rows of the tables of facts, run on a client and
// compared with the answer. Collective over the clients of a job; the meshes of rows are on its
// first devices.
#ifndef TESSERA_TESTS_SUPPORT_OPS_ROWS_H_
#define TESSERA_TESTS_SUPPORT_OPS_ROWS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/status.h"
#include "dtensor/client.h"
#include "mesh/mesh.h"
#include "tests/support/ops/cases.h"

namespace tessera::testing {

// Checks a row of read_op_cases(): values, dtype, shape and layout of the result, that operands
// which agree are not moved, or the refusal. `meshes` keeps the meshes.
Status check_value_row(const Client& client, const OpCase& row,
                       std::map<std::string, Mesh>& meshes);

// Checks a row of read_gradient_cases(): the gradient by the row's source, and its layout.
Status check_gradient_row(const Client& client, const OpCase& row,
                          std::map<std::string, Mesh>& meshes);

// All rows; the error has a line for each that fails.
using CheckRow = absl::FunctionRef<Status(const Client& client, const OpCase& row,
                                          std::map<std::string, Mesh>& meshes)>;
Status check_rows(const Client& client, const std::vector<OpCase>& rows, CheckRow check);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_OPS_ROWS_H_
