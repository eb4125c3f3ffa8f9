// SPDX-License-Identifier: Apache-2.0
//
// Every operation on small operands, for tests that try many layouts: sizes that the
// meshes of a test divide, that they do not, that are less than the number of shards, 1 and 0; and
// rank 0. What they give is in op_oracle.h.
//
// Operands have no mesh and no layout yet. Elements of floats are odd multiples of 1/16 and differ
// in one operand, so that no function here has a kink at them, or a tie: finite differences work.
#ifndef TESSERA_TESTS_SUPPORT_OPS_SMALL_OPS_H_
#define TESSERA_TESTS_SUPPORT_OPS_SMALL_OPS_H_

#include <vector>

#include "base/status.h"
#include "tests/support/ops/cases.h"

namespace tessera::testing {

StatusOr<std::vector<OpCase>> small_op_cases();

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_OPS_SMALL_OPS_H_
