// SPDX-License-Identifier: Apache-2.0
//
// The inner loops of the kernels, compiled once for each instruction set and chosen at run time by
// what the CPU has: plain code for any x86-64, SSE4, AVX2, AVX-512. All of them give the same bits.
//
// kernels.h is the interface for the rest; here are its parts that see bytes and no boxes.
#ifndef TESSERA_DEVICE_CPU_KERNELS_SIMD_H_
#define TESSERA_DEVICE_CPU_KERNELS_SIMD_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
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

// Both leave streaming stores unordered with what follows: fence_stores() before others are told.
void reduce_dense(const DenseReduction& reduction);
void copy_rows(const RowCopy& copy);
void fence_stores();

// The instruction sets that this binary has code for and this CPU can run, best first.
std::vector<int64_t> instruction_sets();
absl::string_view instruction_set_name(int64_t instruction_set);
// For tests: one of instruction_sets() is used from now on, or with 0 the best again. Not while
// another thread is in a kernel.
void use_instruction_set(int64_t instruction_set);

}  // namespace tessera::cpu

#endif  // TESSERA_DEVICE_CPU_KERNELS_SIMD_H_
