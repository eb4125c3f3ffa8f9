// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"

namespace tessera {

std::optional<int64_t> checked_product(absl::Span<const int64_t> factors) {
  // A zero anywhere makes the product zero, whatever the partial products before it are.
  for (int64_t factor : factors) {
    if (factor == 0) return 0;
  }
  int64_t product = 1;
  for (int64_t factor : factors) {
    if (__builtin_mul_overflow(product, factor, &product)) return std::nullopt;
  }
  return product;
}

}  // namespace tessera
