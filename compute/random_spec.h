// SPDX-License-Identifier: Apache-2.0
//
// RandomSpec: a distribution, its parameters and its key. An operation passes it to the engine of a
// device.
#ifndef TESSERA_COMPUTE_RANDOM_SPEC_H_
#define TESSERA_COMPUTE_RANDOM_SPEC_H_

#include <array>
#include <cstdint>

#include "base/public.h"

namespace TESSERA_PUBLIC tessera {
namespace kernels {

using PhiloxKey = std::array<uint32_t, 2>;

// A distribution. The fields of RandomSpec that a kind does not name are not used.
enum class RandomKind : uint8_t {
  kBits,             // of integers and bool
  kUniform,          // of floats, in [a, b)
  kNormal,           // of floats, mean a and standard deviation b
  kTruncatedNormal,  // as kNormal, between low and high standard deviations from the mean
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

}  // namespace kernels
}  // namespace tessera

#endif  // TESSERA_COMPUTE_RANDOM_SPEC_H_
