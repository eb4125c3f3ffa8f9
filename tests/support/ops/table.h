// SPDX-License-Identifier: Apache-2.0
//
// The operations of the rows of tables of facts, by their names there.
#ifndef TESSERA_TESTS_SUPPORT_OPS_TABLE_H_
#define TESSERA_TESTS_SUPPORT_OPS_TABLE_H_

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/dtensor.h"
#include "ops/out.h"
#include "tests/support/ops/cases.h"

namespace tessera::testing {

using Operands = absl::Span<const DTensor>;
// Applies the operation of the row with its attributes. Where there are several results, returns
// the row's.
DTensor run_row(const OpCase& row, Operands x, const ops::Out& out);

bool is_operation(const std::string& name);
// Whether the function makes a tensor of no operands, under `out`, which run_row() needs then.
bool is_creation(const std::string& name);
std::vector<std::string> operation_names();

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_OPS_TABLE_H_
