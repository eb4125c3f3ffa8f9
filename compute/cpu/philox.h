// SPDX-License-Identifier: Apache-2.0
//
// Random numbers by their index: Philox4x32-10 of Salmon, Moraes, Dror, Shaw, "Parallel random
// numbers: as easy as 1, 2, 3", 2011, whose reference is Random123.
//
// Element i of a tensor depends on the key and on i, its flat index in the global tensor, alone: a
// part of a tensor made by itself equals that part of the whole. tests/facts/random.md has the
// exact mapping. Pure functions; several threads at once.
#ifndef TESSERA_COMPUTE_CPU_PHILOX_H_
#define TESSERA_COMPUTE_CPU_PHILOX_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/shape.h"
#include "compute/random_spec.h"

namespace tessera::kernels {

using PhiloxBlock = std::array<uint32_t, 4>;
PhiloxBlock philox(PhiloxBlock counter, PhiloxKey key);

// The stream that a distribution draws from: numbers of two streams never depend on each other.
enum class RandomStream : uint32_t {
  kBits = 0,
  kFoldIn = 1,
  kNormal = 2,
  kInteger = 3,
  kPermutation = 4,
};

// Elements first, ..., first + count - 1 of a tensor of any shape.
void random_run(const RandomSpec& spec, DType dtype, uint64_t first, int64_t count, std::byte* out);
// The elements of a box of a tensor of this shape, dense.
void random_box(const RandomSpec& spec, DType dtype, const Shape& shape, const Box& box,
                std::byte* out);

}  // namespace tessera::kernels

#endif  // TESSERA_COMPUTE_CPU_PHILOX_H_
