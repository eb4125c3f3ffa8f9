// SPDX-License-Identifier: Apache-2.0
//
// Helpers of operations that move elements. Internal to ops/.
#ifndef TESSERA_OPS_MOVING_H_
#define TESSERA_OPS_MOVING_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "ops/operand_type.h"
#include "ops/operation.h"

namespace tessera::ops {

inline int64_t rank_of(const OperandType& x) { return static_cast<int64_t>(x.shape().size()); }

// The size of a dim of the result. InvalidArgument where it is beyond int64, with the reason: "pad:
// dim 0 would have more than 2^63 - 1 elements: low [3], high [9223372036854775807]".
StatusOr<int64_t> checked_size(const char* name, int64_t dim, __int128 size,
                               absl::string_view reason);

// A plan whose dims are all passed and which passes every partial operand, for the caller to
// change.
OpPlan plan_same(const OperandType& x);

// Gives the result another size in a dim of the only operand; `reach` says which elements of the
// operand an index needs. Does nothing where each element stays in its place.
void set_moved(OpPlan& plan, int dim, int64_t size, const Reach& reach);

}  // namespace tessera::ops

#endif  // TESSERA_OPS_MOVING_H_
