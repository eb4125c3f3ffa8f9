// SPDX-License-Identifier: Apache-2.0
//
// Loops: the inner loops of kernels over dense memory, compiled once for each instruction set and
// chosen by what the CPU has. Exponentials and the like come from libmvec, the vectors of glibc's
// libm, where the set has vectors; their results differ from libm's by 4 ulp at most.
//
// Blocks have a multiple of kLanes elements, so that no element is computed by other instructions
// than its neighbours: the value of an element does not depend on where a shard begins.
//
// Pure functions of memory; several threads at once.
//
// Arithmetic is not contracted: everything but exponentials and the like, and sums, has equal bits
// on every instruction set.
#ifndef TESSERA_COMPUTE_CPU_LOOPS_H_
#define TESSERA_COMPUTE_CPU_LOOPS_H_

#include <cstdint>

#include "compute/optimizer_math.h"
#include "compute/pointwise_ops.h"

namespace tessera {

enum class InstructionSet : uint8_t;  // device/arithmetic.h

namespace kernels {

// The number of elements of a block is a multiple of this.
inline constexpr int64_t kLanes = 16;

// Element types of loops. f16 and bf16 are computed in f32.
enum class LoopType : uint8_t { kBool, kInt8, kUint8, kInt32, kInt64, kFloat32, kFloat64 };
enum class HalfType : uint8_t { kFloat16, kBFloat16 };

// Rows of `size` elements, dense.
struct Rows {
  int64_t count;
  int64_t size;
};

struct Loops {
  // out[i] = op(a[i], b[i]) of a block; b is ignored where the op has one operand. False where the
  // op does not take the type.
  bool (*pointwise)(PointwiseOp op, LoopType type, const void* a, const void* b, void* out,
                    int64_t n);
  // Any n. Narrowing rounds to nearest, ties to even, and keeps NaN.
  void (*widen)(HalfType type, const uint16_t* in, float* out, int64_t n);
  void (*narrow)(HalfType type, const float* in, uint16_t* out, int64_t n);
  // out[i] = condition[i] ? a[i] : b[i], of elements of 1, 2, 4 or 8 bytes. Any n.
  void (*select)(int64_t element_bytes, const uint8_t* condition, const void* a, const void* b,
                 void* out, int64_t n);
  // f32 or f64, row by row: softmax, or its logarithm; and the gradient of the sum of `y`, which is
  // the result, times c.
  void (*softmax)(LoopType type, bool is_log, const void* in, Rows rows, void* out);
  void (*softmax_gradient)(LoopType type, bool is_log, const void* y, const void* c, Rows rows,
                           void* out);
  // f32 or f64: (x - mean) / sqrt(variance + epsilon) of each row, times a row `scale` plus a row
  // `bias` where they are not null.
  void (*normalize)(LoopType type, const void* in, const void* scale, const void* bias, Rows rows,
                    double epsilon, void* out);
  // The gradient of the sum of the above, without scale and bias, times c.
  void (*normalize_gradient)(LoopType type, const void* in, const void* c, Rows rows,
                             double epsilon, void* out);
  // f32 or f64: the step of n elements in place. No two arrays overlap; state arrays that the rule
  // has no use for are not read.
  void (*optimizer_step)(LoopType type, const OptimizerStep& step, const void* gradient,
                         void* value, void* first, void* second, int64_t n);
};

// The loops of the best instruction set of this CPU; or of a given set, which the CPU must have.
const Loops& loops();
const Loops& loops(InstructionSet set);

namespace internal {
const Loops& loops_baseline();
const Loops& loops_avx2();
const Loops& loops_avx512();
}  // namespace internal

}  // namespace kernels
}  // namespace tessera

#endif  // TESSERA_COMPUTE_CPU_LOOPS_H_
