// SPDX-License-Identifier: Apache-2.0
//
// StridedWalk: the innermost runs of arrays that are walked through together. Internal to ops/.
#ifndef TESSERA_COMPUTE_CPU_STRIDED_WALK_H_
#define TESSERA_COMPUTE_CPU_STRIDED_WALK_H_

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "base/public.h"
#include "base/shape.h"
#include "compute/strided.h"

namespace TESSERA_PUBLIC tessera {
namespace kernels {

class StridedWalk {
 public:
  // Arguments as for MergedSpace.
  StridedWalk(absl::Span<const int64_t> sizes, absl::Span<const absl::Span<const int64_t>> strides)
      : space_(sizes, strides), offsets_(strides.size(), 0), is_empty_(num_elements(sizes) == 0) {}

  // The length of a run, and the stride of array k in it.
  int64_t run() const { return space_.sizes().empty() ? 1 : space_.sizes().back(); }
  int64_t run_stride(size_t k) const {
    return space_.sizes().empty() ? 0 : space_.strides(k).back();
  }

  // Calls fn(offsets) for each run in order; offsets[k] is where it begins in array k.
  template <class Fn>
  void for_each_run(Fn fn) {
    if (is_empty_) return;
    const size_t outer = space_.sizes().empty() ? 0 : space_.sizes().size() - 1;
    absl::InlinedVector<int64_t, 8> index(outer, 0);
    for (;;) {
      fn(absl::MakeConstSpan(offsets_));
      size_t dim = outer;
      for (; dim > 0; --dim) {
        const int64_t size = space_.sizes()[dim - 1];
        const bool is_end = ++index[dim - 1] == size;
        const int64_t steps = is_end ? 1 - size : 1;
        for (size_t k = 0; k < offsets_.size(); ++k) {
          offsets_[k] += steps * space_.strides(k)[dim - 1];
        }
        if (!is_end) break;
        index[dim - 1] = 0;
      }
      if (dim == 0) return;
    }
  }

 private:
  const MergedSpace space_;
  absl::InlinedVector<int64_t, 8> offsets_;
  const bool is_empty_;
};

}  // namespace kernels
}  // namespace tessera

#endif  // TESSERA_COMPUTE_CPU_STRIDED_WALK_H_
