// SPDX-License-Identifier: Apache-2.0
//
// StridedWalk: the innermost runs of arrays that are walked through together. Internal to ops/.
#ifndef TESSERA_OPS_KERNELS_STRIDED_WALK_H_
#define TESSERA_OPS_KERNELS_STRIDED_WALK_H_

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "base/shape.h"

namespace tessera::kernels {

// An array and its strides, in elements, along the dims of an index space: 0 where it is broadcast.
struct StridedArray {
  const std::byte* data;
  absl::Span<const int64_t> strides;
};

// The strides of a dense array of these sizes.
inline absl::InlinedVector<int64_t, 8> dense_strides(absl::Span<const int64_t> sizes) {
  absl::InlinedVector<int64_t, 8> strides(sizes.size(), 1);
  for (size_t dim = sizes.size(); dim-- > 1;) strides[dim - 1] = strides[dim] * sizes[dim];
  return strides;
}

// One index space and the strides of several arrays in it, in elements, with neighbouring dims
// merged where all arrays allow it.
class StridedWalk {
 public:
  // `strides[k]` has one entry for each dim of `sizes`.
  StridedWalk(absl::Span<const int64_t> sizes,
              absl::Span<const absl::Span<const int64_t>> strides) {
    offsets_.assign(strides.size(), 0);
    is_empty_ = num_elements(sizes) == 0;
    for (size_t dim = 0; dim < sizes.size(); ++dim) {
      if (sizes[dim] == 1) continue;
      bool merges = !sizes_.empty();
      for (size_t k = 0; k < strides.size() && merges; ++k) {
        merges = strides_[strides_.size() - strides.size() + k] == strides[k][dim] * sizes[dim];
      }
      if (merges) {
        sizes_.back() *= sizes[dim];
        for (size_t k = 0; k < strides.size(); ++k) {
          strides_[strides_.size() - strides.size() + k] = strides[k][dim];
        }
        continue;
      }
      sizes_.push_back(sizes[dim]);
      for (const absl::Span<const int64_t>& array : strides) strides_.push_back(array[dim]);
    }
    if (sizes_.empty()) {
      sizes_.push_back(1);
      strides_.resize(strides.size(), 0);
    }
  }

  // The length of a run, and the stride of array k in it.
  int64_t run() const { return sizes_.back(); }
  int64_t run_stride(size_t k) const { return strides_[(sizes_.size() - 1) * offsets_.size() + k]; }

  // Calls fn(offsets) for each run in order; offsets[k] is where it begins in array k.
  template <class Fn>
  void for_each_run(Fn fn) {
    if (is_empty_) return;
    const size_t outer = sizes_.size() - 1;
    absl::InlinedVector<int64_t, 8> index(outer, 0);
    for (;;) {
      fn(absl::MakeConstSpan(offsets_));
      size_t dim = outer;
      for (; dim > 0; --dim) {
        const int64_t* const strides = &strides_[(dim - 1) * offsets_.size()];
        if (++index[dim - 1] < sizes_[dim - 1]) {
          for (size_t k = 0; k < offsets_.size(); ++k) offsets_[k] += strides[k];
          break;
        }
        index[dim - 1] = 0;
        for (size_t k = 0; k < offsets_.size(); ++k) {
          offsets_[k] -= strides[k] * (sizes_[dim - 1] - 1);
        }
      }
      if (dim == 0) return;
    }
  }

 private:
  absl::InlinedVector<int64_t, 8> sizes_;
  absl::InlinedVector<int64_t, 32> strides_;  // by dim, then by array
  absl::InlinedVector<int64_t, 4> offsets_;
  bool is_empty_ = false;
};

}  // namespace tessera::kernels

#endif  // TESSERA_OPS_KERNELS_STRIDED_WALK_H_
