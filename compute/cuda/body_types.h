// SPDX-License-Identifier: Apache-2.0
//
// What the bodies of kernels have in common: elements as they are computed, and places in index
// spaces.
#ifndef TESSERA_COMPUTE_CUDA_BODY_TYPES_H_
#define TESSERA_COMPUTE_CUDA_BODY_TYPES_H_

#include <cstddef>
#include <cstdint>

#include "compute/cuda/math.h"
#include "device/cuda/kernel_bodies.h"
#include "device/kernel_body.h"

namespace tessera::cuda {

// The type in which elements of T are computed.
template <class T>
using Computed = typename Wide<T>::Type;

template <class T>
TESSERA_KERNEL_BODY Computed<T> load(const std::byte* from, int64_t i) {
  return Wide<T>::of(reinterpret_cast<const T*>(from)[i]);
}
template <class T>
TESSERA_KERNEL_BODY void store(std::byte* to, int64_t i, Computed<T> value) {
  reinterpret_cast<T*>(to)[i] = Wide<T>::back(value);
}

template <class W>
TESSERA_KERNEL_BODY W quiet_nan() {
  return static_cast<W>(float_of_bits(0x7fc00000));
}
template <class W>
TESSERA_KERNEL_BODY W infinity() {
  return static_cast<W>(float_of_bits(0x7f800000));
}

// n / d and n % d; of small numbers by 32 bits, which a GPU divides several times as fast.
struct Divided {
  int64_t quotient;
  int64_t remainder;
};
TESSERA_KERNEL_BODY Divided divided(int64_t n, int64_t d) {
  if (((n | d) >> 31) == 0) {
    const auto quotient = static_cast<uint32_t>(n) / static_cast<uint32_t>(d);
    return {quotient, n - static_cast<int64_t>(quotient) * d};
  }
  return {n / d, n % d};
}

// The offset of element i of the space in an array of these strides.
TESSERA_KERNEL_BODY int64_t offset_of(const Space& space, const int64_t* strides, int64_t i) {
  if (space.num_dims == 1) return i * strides[0];
  int64_t offset = 0;
  for (int dim = space.num_dims - 1; dim >= 0; --dim) {
    const Divided at = divided(i, space.sizes[dim]);
    offset += at.remainder * strides[dim];
    i = at.quotient;
  }
  return offset;
}

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_CUDA_BODY_TYPES_H_
