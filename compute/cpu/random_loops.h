// SPDX-License-Identifier: Apache-2.0
//
// RandomLoops: the inner loops of random numbers, compiled once for each instruction set, as Loops.
// The numbers have the same bits on every instruction set: all operations are rounded by
// themselves.
//
// Pure functions of memory; several threads at once.
#ifndef TESSERA_COMPUTE_CPU_RANDOM_LOOPS_H_
#define TESSERA_COMPUTE_CPU_RANDOM_LOOPS_H_

#include <cstdint>

#include "compute/cpu/loops.h"

namespace tessera {

enum class InstructionSet : uint8_t;  // device/arithmetic.h

namespace kernels {

// The number of blocks of Philox is a multiple of this.
inline constexpr int64_t kPhiloxLanes = 16;

// u is the number of the top `bits` bits of a word, times 2^-bits; for f64 the top 53 bits of two
// words. Gives low + scale u, or `last` where that is not below `high`. All are values of the type.
struct UniformLoop {
  int bits;
  double low;
  double scale;
  double high;
  double last;
};

// Numbers mean + stddev z. f32 is rounded to nearest, or to odd (device/number_math.h) where it is
// narrowed next.
struct NormalLoop {
  double mean;
  double stddev;
  bool is_narrowed = false;
};

struct RandomLoops {
  // The words of blocks first, ..., first + num_blocks - 1 of a stream, four each.
  void (*philox)(const uint32_t key[2], uint32_t stream, uint64_t first, int64_t num_blocks,
                 uint32_t* words);
  // n elements of f32 from n words, or of f64 from 2 n words.
  void (*uniform)(LoopType type, const UniformLoop& loop, const uint32_t* words, int64_t n,
                  void* out);
  // As uniform; n is even.
  void (*normal)(LoopType type, const NormalLoop& loop, const uint32_t* words, int64_t n,
                 void* out);
};

// The loops of the best instruction set of this CPU; or of a given set, which the CPU must have.
const RandomLoops& random_loops();
const RandomLoops& random_loops(InstructionSet set);

namespace internal {
const RandomLoops& random_loops_baseline();
const RandomLoops& random_loops_avx2();
const RandomLoops& random_loops_avx512();
}  // namespace internal

}  // namespace kernels
}  // namespace tessera

#endif  // TESSERA_COMPUTE_CPU_RANDOM_LOOPS_H_
