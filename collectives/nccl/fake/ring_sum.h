// SPDX-License-Identifier: Apache-2.0
//
// ring_sum: the sums of the fake, in the order of NCCL's rings.
#ifndef TESSERA_COLLECTIVES_NCCL_FAKE_RING_SUM_H_
#define TESSERA_COLLECTIVES_NCCL_FAKE_RING_SUM_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"

namespace tessera::nccl {

// to[i] = terms[0][i], then with terms[1][i], and so on, each step rounded to the type. In an
// average every term is first multiplied by the rounded 1 / n. Any dtype except bool. `to` may be
// equal to a term.
void ring_sum(DType dtype, ReduceOp op, absl::Span<const std::byte* const> terms, uint64_t count,
              std::byte* to);

}  // namespace tessera::nccl

#endif  // TESSERA_COLLECTIVES_NCCL_FAKE_RING_SUM_H_
