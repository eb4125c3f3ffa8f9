// SPDX-License-Identifier: Apache-2.0
//
// DenseReduction, RowCopy: the arguments of the inner loops of the kernels.
#ifndef TESSERA_DEVICE_CPU_KERNEL_ARGUMENTS_H_
#define TESSERA_DEVICE_CPU_KERNEL_ARGUMENTS_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"

namespace tessera::cpu {

// How results are stored. Streaming stores bypass the caches: a third less traffic, but much slower
// if the result is read while it could still be in a cache.
enum class Stores : uint8_t { kCached, kStreaming };

// A reduction of dense memory, as reduce() of kernels.h describes it, of at least two terms.
struct DenseReduction {
  DType dtype = DType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  absl::Span<const std::byte* const> terms;
  absl::Span<std::byte* const> outs;
  int64_t num_bytes = 0;  // of one term; whole elements
  Stores stores = Stores::kCached;
};

// Rows of `row_bytes` each, copied from and to places that are a fixed number of bytes apart.
struct RowCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  int64_t row_bytes = 0;
  int64_t num_rows = 1;
  int64_t to_stride = 0;
  int64_t from_stride = 0;
  Stores stores = Stores::kCached;
};

}  // namespace tessera::cpu

#endif  // TESSERA_DEVICE_CPU_KERNEL_ARGUMENTS_H_
