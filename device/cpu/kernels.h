// SPDX-License-Identifier: Apache-2.0
//
// Kernels of the CPU: reductions in fixed order, and copies of boxes between row-major
// buffers. Pure functions of memory; they do not wait, and allocate nothing for boxes of rank 8
// and less.
//
// Memory need not be aligned. Memory that the kernels wrote, by streaming stores too, is visible to
// every thread that synchronises with their return.
#ifndef TESSERA_DEVICE_CPU_KERNELS_H_
#define TESSERA_DEVICE_CPU_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "device/cpu/kernels_simd.h"

namespace tessera::cpu {

// The stores for an operation that writes `bytes_written` on this host, all devices together:
// streaming where that is more than half of the last-level cache. Little of the result could stay
// in the cache then, and a line that is stored whole need not be read first.
Stores choose_stores(int64_t bytes_written, int64_t last_level_cache_bytes);

// Runs shorter than this are always stored cached: streaming stores would fill lines in part.
inline constexpr int64_t kMinStreamingRunBytes = 512;
Stores stores_of_run(Stores asked, int64_t run_bytes);

// The size that the system reports, 32 MiB where it reports none. Asked once.
int64_t last_level_cache_bytes();

// outs[j][i] = terms[0][i] op terms[1][i] op ..., in this order, for i in [0, num_elements) and
// every j. Requires validate_reduction(op, dtype). The bits are the same on every CPU.
// - An out may be equal to a term; outs must not overlap terms or each other otherwise.
// - A single term is copied bit for bit.
// - f16 and bf16 accumulate in f32 and round once, to nearest, ties to even. Integers wrap.
// - min and max ignore NaN; avg is the sum divided once. The first of several NaNs is the result,
//   quiet.
void reduce(DType dtype, ReduceOp op, absl::Span<const std::byte* const> terms,
            absl::Span<std::byte* const> outs, int64_t num_elements,
            Stores stores = Stores::kCached);

// Copies bytes that do not overlap, or `to` == `from`.
void copy_bytes(std::byte* to, const std::byte* from, int64_t num_bytes,
                Stores stores = Stores::kCached);

// Writes `count` copies of an element, which may be at any address.
void fill_elements(DType dtype, const void* element, std::byte* out, int64_t count);

// A dense row-major buffer that holds `box`.
struct BoxView {
  std::byte* data;
  const Box& box;
};
struct ConstBoxView {
  const std::byte* data;
  const Box& box;
};

// Copies the elements of `box` from `from` to `to`. Requires box inside both; buffers that do not
// overlap.
void copy_box(const Box& box, ConstBoxView from, BoxView to, int64_t element_bytes,
              Stores stores = Stores::kCached);

// A copy into a buffer that other copies share.
struct BoxCopy {
  const Box& box;
  ConstBoxView from;
};
// Runs copy_box() for each copy, in no particular order. Short rows of several sources that
// alternate in `to` fill its lines while these are in the cache.
void copy_boxes(absl::Span<const BoxCopy> copies, BoxView to, int64_t element_bytes,
                Stores stores = Stores::kCached);

// to[box] = reduction of terms[k][box], as reduce(). Requires box inside all of them.
void reduce_box(DType dtype, ReduceOp op, const Box& box, absl::Span<const ConstBoxView> terms,
                BoxView to, Stores stores = Stores::kCached);

}  // namespace tessera::cpu

#endif  // TESSERA_DEVICE_CPU_KERNELS_H_
