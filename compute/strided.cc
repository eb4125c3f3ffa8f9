// SPDX-License-Identifier: Apache-2.0
#include "compute/strided.h"

namespace tessera::kernels {

absl::InlinedVector<int64_t, 8> dense_strides(absl::Span<const int64_t> sizes) {
  absl::InlinedVector<int64_t, 8> strides(sizes.size(), 1);
  for (size_t dim = sizes.size(); dim-- > 1;) strides[dim - 1] = strides[dim] * sizes[dim];
  return strides;
}

MergedSpace::MergedSpace(absl::Span<const int64_t> sizes,
                         absl::Span<const absl::Span<const int64_t>> strides)
    : strides_(strides.size()) {
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] == 1) continue;
    if (merges(sizes[dim], strides, dim)) {
      sizes_.back() *= sizes[dim];
      for (List& array : strides_) array.pop_back();
    } else {
      sizes_.push_back(sizes[dim]);
    }
    for (size_t k = 0; k < strides.size(); ++k) strides_[k].push_back(strides[k][dim]);
  }
}

bool MergedSpace::merges(int64_t size, absl::Span<const absl::Span<const int64_t>> strides,
                         size_t dim) const {
  if (sizes_.empty()) return false;
  for (size_t k = 0; k < strides.size(); ++k) {
    if (strides_[k].back() != strides[k][dim] * size) return false;
  }
  return true;
}

}  // namespace tessera::kernels
