// SPDX-License-Identifier: Apache-2.0
//
// The product of two arrays of one device, summed over labels. A pure function of memory; several
// threads at once.
#ifndef TESSERA_COMPUTE_CPU_CONTRACT_H_
#define TESSERA_COMPUTE_CPU_CONTRACT_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "compute/contraction.h"
#include "compute/engine.h"
#include "device/arithmetic.h"

namespace tessera::kernels {

// out[labels] = sum over all other labels of a[...] b[...]. Each label of an operand is in the
// other one, in `labels`, or in both. Numbers: f16 and bf16 accumulate in f32, integers wrap. The
// order of the sum depends on the sizes alone.
void contract(const Arithmetic& arithmetic, DType dtype, const Labelled& a, const Labelled& b,
              const Labels& labels, absl::Span<const int64_t> sizes, std::byte* out);

}  // namespace tessera::kernels

#endif  // TESSERA_COMPUTE_CPU_CONTRACT_H_
