// SPDX-License-Identifier: Apache-2.0
//
// Kernels: the work of a GPU, as plain values that a host makes and a kernel reads.
//
//   CopyBatch   boxes from one row-major buffer to another (pack, unpack, strided copies)
//   Reduce      outs = terms[0] op terms[1] op ..., in this order
//   Fill, Iota, Cast
//
// kernel_bodies.h says what one item of each does; kernel_launch.cu runs the items on a GPU, and
// the fake (fake/) on the host, with the same code. kernel_plan.h makes the values from boxes.
//
// nvcc reads this header: it includes nothing but the language's integers. The structs are
// parameters of kernels, which may have 32,764 bytes (compute capability 7.0 and later).
#ifndef TESSERA_DEVICE_CUDA_KERNELS_H_
#define TESSERA_DEVICE_CUDA_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace tessera::cuda {

// As DType and ReduceOp, by the same numbers.
enum class ElementType : uint8_t {
  kBool,
  kInt8,
  kUint8,
  kInt32,
  kInt64,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
};
enum class Reduction : uint8_t { kSum, kProd, kMin, kMax, kAvg };

inline constexpr int kMaxLoops = 8;
inline constexpr int kMaxCopies = 32;
inline constexpr int kMaxTerms = 256;
// Bytes that a thread moves at once where everything is aligned to them.
inline constexpr int kVectorBytes = 16;
// Elements that a thread casts, or numbers, at once where they are aligned.
inline constexpr int kElementsAtOnce = 4;

// Divides 32-bit numbers without a division: n / d == (mulhi(n, multiplier) + n) >> shift.
// Granlund and Montgomery, "Division by Invariant Integers using Multiplication", 1994.
struct Divisor {
  uint32_t divisor = 1;
  uint32_t multiplier = 1;
  uint32_t shift = 0;
};

// Nested loops over runs that are contiguous on both sides, innermost loop first. Item i of the
// whole is item i % items_per_run of run i / items_per_run. There are fewer than 2^31 items: larger
// work is cut by the host, so that a GPU never divides by 64 bits.
struct Loops {
  int32_t num_loops = 0;
  Divisor sizes[kMaxLoops];
  int64_t from_strides[kMaxLoops] = {};  // in bytes; of Iota in elements
  int64_t to_strides[kMaxLoops] = {};
  Divisor items_per_run;
  uint32_t num_items = 0;
};

// Every item is `vector_bytes` (1, 2, 4, 8 or 16) of one run.
struct Copy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  int32_t vector_bytes = 1;
  Loops loops;
};

struct CopyBatch {
  int32_t num_copies = 0;
  Copy copies[kMaxCopies];
};

// Every item is up to `pack` elements of one run.
struct Reduce {
  ElementType type = ElementType::kFloat32;
  Reduction op = Reduction::kSum;
  int32_t num_terms = 0;
  int32_t num_outs = 0;
  int32_t pack = 1;
  uint32_t run_elements = 0;
  Loops loops;
  const std::byte* terms[kMaxTerms] = {};
  std::byte* outs[kMaxTerms] = {};
};

// Repeats a pattern of 16 bytes, which holds whole elements. Every item is one pattern.
struct Fill {
  std::byte* out = nullptr;
  uint64_t num_bytes = 0;
  alignas(16) uint8_t pattern[kVectorBytes] = {};
};

// Element i of a box is its flat index in the whole tensor. Every item is up to `pack` (1 or
// kElementsAtOnce) elements of one run.
struct Iota {
  ElementType type = ElementType::kFloat32;
  std::byte* out = nullptr;
  int64_t first = 0;  // the flat index of the box's first element
  int32_t pack = 1;
  uint32_t run_elements = 0;
  Loops loops;  // from_strides: of the flat index; to_strides: of the box
};

// to[i] = from[i], saturating where an integer cannot hold it; NaN becomes 0. Every item is up to
// `pack` (1 or kElementsAtOnce) elements.
struct Cast {
  ElementType from_type = ElementType::kFloat32;
  ElementType to_type = ElementType::kFloat32;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  uint64_t num_elements = 0;
  int32_t pack = 1;
  bool wraps = false;  // integers that an integer cannot hold keep their low bits instead
};

}  // namespace tessera::cuda

#endif  // TESSERA_DEVICE_CUDA_KERNELS_H_
