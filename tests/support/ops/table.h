// SPDX-License-Identifier: Apache-2.0
//
// op_table(): the operations by the names that the tables of facts have for them.
#ifndef TESSERA_TESTS_SUPPORT_OPS_TABLE_H_
#define TESSERA_TESTS_SUPPORT_OPS_TABLE_H_

#include <map>
#include <string>

#include "absl/types/span.h"
#include "dtensor/dtensor.h"
#include "ops/out.h"
#include "tests/support/ops/cases.h"

namespace tessera::testing {

using Operands = absl::Span<const DTensor>;
// Runs the operation of the row with its attributes. Where there are several results, returns the
// row's.
using RunOp = DTensor (*)(const OpCase& row, Operands x, const ops::Out& out);

const std::map<std::string, RunOp>& op_table();

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_OPS_TABLE_H_
