// SPDX-License-Identifier: Apache-2.0
//
// ring_sum: what the fake adds, as the rings of NCCL add it.
#ifndef TESSERA_COLLECTIVES_NCCL_FAKE_RING_SUM_H_
#define TESSERA_COLLECTIVES_NCCL_FAKE_RING_SUM_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"

namespace tessera::nccl {

// to[i] = terms[0][i], then with terms[1][i], and so on, each step rounded to the type; of an
// average every term first multiplied by the rounded 1 / n. Any dtype but bool. `to` may be one of
// the terms.
void ring_sum(DType dtype, ReduceOp op, absl::Span<const std::byte* const> terms, uint64_t count,
              std::byte* to);

}  // namespace tessera::nccl

#endif  // TESSERA_COLLECTIVES_NCCL_FAKE_RING_SUM_H_
