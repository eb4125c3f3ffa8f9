// SPDX-License-Identifier: Apache-2.0
//
// products_of_others: the gradient of a product, and its derivatives of any order.
//
//   x = 2, 3, 5                  ->  15, 10, 6
//   x = 2, 3, 5 with c = 1, 0, 0 ->  0, 5, 3     how the above changes as x moves along c
//
// Exclusive products from both ends, with exponents of 64 bits: no quotient, so that zeros are
// right, and no product of some elements is out of range where the product of all is not.
#ifndef TESSERA_COMPUTE_CPU_PRODUCTS_H_
#define TESSERA_COMPUTE_CPU_PRODUCTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"

namespace tessera::kernels {

// Dense arrays of floats of these sizes: in[0] is x, the others are directions c1 to cm. out[k] is
// the coefficient of e1 e2 ... em in the product of x[j] + e1 c1[j] + ... + em cm[j] over all j
// that differ from k in the dims of `is_joined` alone, and do differ. A term of which a factor is 0
// is 0, whatever the others are, unless all its factors are elements of x.
void products_of_others(DType dtype, absl::Span<const std::byte* const> in,
                        absl::Span<const int64_t> sizes, const std::vector<bool>& is_joined,
                        std::byte* out);

}  // namespace tessera::kernels

#endif  // TESSERA_COMPUTE_CPU_PRODUCTS_H_
