// SPDX-License-Identifier: Apache-2.0
//
// Kernels of functions of rows: softmax and normalization with their gradients, in one pass over
// memory for each row that fits the cache. Pure functions of one device's memory; several threads
// at once. f16 and bf16 are computed in f32 and rounded once.
#ifndef TESSERA_COMPUTE_CPU_ROWS_H_
#define TESSERA_COMPUTE_CPU_ROWS_H_

#include <cstddef>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "compute/engine.h"
#include "device/arithmetic.h"

namespace tessera::kernels {

// Requires a floating-point dtype, and as many inputs as the kind has.
void rows(InstructionSet set, const RowCall& call, DType dtype,
          absl::Span<const std::byte* const> in, std::byte* out);

}  // namespace tessera::kernels

#endif  // TESSERA_COMPUTE_CPU_ROWS_H_
