// SPDX-License-Identifier: Apache-2.0
//
// Random numbers by their index: Philox4x32-10 of Salmon, Moraes, Dror, Shaw, "Parallel random
// numbers: as easy as 1, 2, 3", 2011, whose reference is Random123.
//
// Element i of a tensor depends on the key and on i, its flat index in the global tensor, alone: a
// part of a tensor made by itself equals that part of the whole. tests/facts/random.md has the
// exact mapping. Pure functions; several threads at once.
#ifndef TESSERA_OPS_KERNELS_PHILOX_H_
#define TESSERA_OPS_KERNELS_PHILOX_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/numeric/int128.h"
#include "base/dtype.h"
#include "base/shape.h"

namespace tessera::kernels {

using PhiloxKey = std::array<uint32_t, 2>;
using PhiloxBlock = std::array<uint32_t, 4>;
PhiloxBlock philox(PhiloxBlock counter, PhiloxKey key);

// What a distribution draws from: numbers of two streams never depend on each other.
enum class RandomStream : uint32_t {
  kBits = 0,
  kFoldIn = 1,
  kNormal = 2,
  kInteger = 3,
  kPermutation = 4,
};

// What to draw. Only the numbers that the kind names are used.
enum class RandomKind : uint8_t {
  kBits,             // of integers and bool
  kUniform,          // of floats, in [a, b)
  kNormal,           // of floats, mean a and standard deviation b
  kTruncatedNormal,  // the same, between low and high standard deviations from the mean
  kBernoulli,        // of bool, true with probability a
  kInteger,          // of integers, in [least, least + range); range 0 stands for 2^64
  kPermutation,      // of i64, of 0 to range - 1
};
struct RandomSpec {
  RandomKind kind = RandomKind::kBits;
  PhiloxKey key = {};
  double a = 0;
  double b = 1;
  double low = -2;
  double high = 2;
  int64_t least = 0;
  uint64_t range = 0;
};

// Elements first, ..., first + count - 1 of a tensor of any shape.
void random_run(const RandomSpec& spec, DType dtype, uint64_t first, int64_t count, std::byte* out);
// The elements of a box of a tensor of this shape, dense.
void random_box(const RandomSpec& spec, DType dtype, const Shape& shape, const Box& box,
                std::byte* out);

}  // namespace tessera::kernels

#endif  // TESSERA_OPS_KERNELS_PHILOX_H_
