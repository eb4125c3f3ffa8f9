// SPDX-License-Identifier: Apache-2.0
//
// The bodies of random numbers: element i of a tensor, as compute/random_math.h has it. Part of
// math_bodies.h.
#ifndef TESSERA_COMPUTE_CUDA_DRAW_BODIES_H_
#define TESSERA_COMPUTE_CUDA_DRAW_BODIES_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "compute/cuda/body_types.h"
#include "compute/cuda/math.h"
#include "compute/random_math.h"
#include "device/cuda/kernel_bodies.h"
#include "device/kernel_body.h"
#include "device/number_math.h"

namespace tessera::cuda {

using kernels::high_product;
using kernels::normal_pair;
using kernels::NormalPair;
using kernels::odd_float;
using kernels::open_unit_of_word;
using kernels::open_unit_of_words;
using kernels::permuted_index;
using kernels::philox_words;
using kernels::PhiloxWords;
using kernels::times;
using kernels::times_plus;
using kernels::truncated_normal;
using kernels::truncated_quantile;

TESSERA_KERNEL_BODY uint32_t stream_of(Distribution distribution) {
  switch (distribution) {
    case Distribution::kNormal:
    case Distribution::kTruncatedNormal:
      return 2;
    case Distribution::kInteger:
      return 3;
    default:
      return 0;
  }
}
TESSERA_KERNEL_BODY PhiloxWords block_of(const Draw& draw, uint64_t block) {
  return philox_words({{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0,
                        stream_of(draw.distribution)}},
                      draw.key[0], draw.key[1]);
}
TESSERA_KERNEL_BODY uint32_t word_of(const Draw& draw, uint64_t i) {
  return block_of(draw, i / 4).words[i % 4];
}
TESSERA_KERNEL_BODY uint64_t element64_of(const Draw& draw, uint64_t i) {
  const PhiloxWords block = block_of(draw, i / 2);
  const uint32_t* const half = block.words + 2 * (i % 2);
  return half[0] | uint64_t{half[1]} << 32;
}

// 2^-n, exact.
TESSERA_KERNEL_BODY double fraction_of(int n) {
  return 1.0 / static_cast<double>(uint64_t{1} << n);
}
template <class T>
TESSERA_KERNEL_BODY Computed<T> unit_of(const Draw& draw, uint64_t i) {
  if constexpr (std::is_same_v<T, double>) {
    return static_cast<double>(element64_of(draw, i) >> 11) * fraction_of(53);
  } else {
    constexpr int kBits = std::is_same_v<T, Half> ? 11 : std::is_same_v<T, BFloat16> ? 8 : 24;
    return static_cast<float>(word_of(draw, i) >> (32 - kBits)) *
           static_cast<float>(fraction_of(kBits));
  }
}
template <class T>
TESSERA_KERNEL_BODY double open_unit_of(const Draw& draw, uint64_t i) {
  if constexpr (std::is_same_v<T, double>) {
    return open_unit_of_words(element64_of(draw, i));
  } else {
    return open_unit_of_word(word_of(draw, i));
  }
}

// The least value above, by the bits, which are in the order of the values apart from the sign.
template <class T, class Bits>
TESSERA_KERNEL_BODY T value_above(T value) {
  Bits bits;
  memcpy(&bits, &value, sizeof bits);
  constexpr Bits kSign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  if ((bits & static_cast<Bits>(~kSign)) == 0) {
    bits = 1;
  } else {
    bits = static_cast<Bits>((bits & kSign) != 0 ? bits - 1 : bits + 1);
  }
  memcpy(&value, &bits, sizeof bits);
  return value;
}
template <class T>
TESSERA_KERNEL_BODY T value_above(T value) {
  if constexpr (sizeof(T) == 2) {
    return value_above<T, uint16_t>(value);
  } else if constexpr (sizeof(T) == 4) {
    return value_above<T, uint32_t>(value);
  } else {
    return value_above<T, uint64_t>(value);
  }
}
// The greatest value below.
template <class T>
TESSERA_KERNEL_BODY T value_below(T value) {
  const auto negated = [](T x) { return Wide<T>::back(-Wide<T>::of(x)); };
  return negated(value_above(negated(value)));
}

// low + scale u, each operation rounded by itself.
TESSERA_KERNEL_BODY float scaled(float low, float scale, float u) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(low, __fmul_rn(scale, u));
#else
  const volatile float product = scale * u;
  return low + product;
#endif
}
TESSERA_KERNEL_BODY double scaled(double low, double scale, double u) {
#if defined(__CUDA_ARCH__)
  return __dadd_rn(low, __dmul_rn(scale, u));
#else
  const volatile double product = scale * u;
  return low + product;
#endif
}

// The nearest value of T.
template <class T>
TESSERA_KERNEL_BODY T rounded_to(double value) {
  if constexpr (sizeof(T) == 2) {
    return Wide<T>::back(odd_float(value));
  } else {
    return static_cast<T>(value);
  }
}

template <class T>
TESSERA_KERNEL_BODY T draw_uniform(const Draw& draw, uint64_t i) {
  using W = Computed<T>;
  const T rounded_low = rounded_to<T>(draw.a);
  const W low = Wide<T>::of(rounded_low);
  const W high = Wide<T>::of(rounded_to<T>(draw.b));
  const W unit = unit_of<T>(draw, i);
  const W scale = high - low;
  const bool is_wide = scale - scale != 0;  // infinite
  const W wide = is_wide ? 2 * scaled(low / 2, high / 2 - low / 2, unit) : scaled(low, scale, unit);
  T value = Wide<T>::back(wide);
  if (Wide<T>::of(value) >= high && low < high) value = value_below(Wide<T>::back(high));
  // The lower end may have been rounded down.
  if (low < draw.a && low < high && Wide<T>::of(value) <= low) value = value_above(rounded_low);
  return value;
}

template <class T>
TESSERA_KERNEL_BODY T draw_truncated_normal(const Draw& draw, uint64_t i) {
  const double least = draw.a + times(draw.b, draw.low);
  const double most = draw.a + times(draw.b, draw.high);
  const double z =
      truncated_quantile(truncated_normal(draw.low, draw.high), open_unit_of<T>(draw, i));
  const T value = rounded_to<T>(times_plus(draw.b, z, draw.a));
  const auto real = [](T x) { return static_cast<double>(Wide<T>::of(x)); };
  // Rounding may leave the range, where T has other numbers in it.
  if (real(value) > most && real(value_below(value)) >= least) return value_below(value);
  if (real(value) < least && real(value_above(value)) <= most) return value_above(value);
  return value;
}

template <class T>
TESSERA_KERNEL_BODY T draw_float(const Draw& draw, uint64_t i) {
  if (draw.distribution == Distribution::kUniform) return draw_uniform<T>(draw, i);
  if (draw.distribution == Distribution::kTruncatedNormal) {
    return draw_truncated_normal<T>(draw, i);
  }
  const uint64_t even = i & ~uint64_t{1};
  const NormalPair pair = normal_pair(open_unit_of<T>(draw, even), open_unit_of<T>(draw, even + 1));
  return rounded_to<T>(times_plus(draw.b, i == even ? pair.even : pair.odd, draw.a));
}

template <class T>
TESSERA_KERNEL_BODY T draw_integer(const Draw& draw, uint64_t i) {
  switch (draw.distribution) {
    case Distribution::kBernoulli:
      return unit_of<float>(draw, i) < static_cast<float>(draw.a) ? T(1) : T(0);
    case Distribution::kInteger: {
      const uint64_t x = element64_of(draw, i);
      const uint64_t above = draw.range == 0 ? x : high_product(x, draw.range);
      return static_cast<T>(static_cast<uint64_t>(draw.least) + above);
    }
    case Distribution::kPermutation:
      return static_cast<T>(permuted_index(i, draw.range, 4, draw.key[0], draw.key[1]));
    default:
      break;
  }
  if (draw.type == ElementType::kBool) return static_cast<T>(word_of(draw, i) >> 31);
  if constexpr (sizeof(T) == 8) {
    return static_cast<T>(element64_of(draw, i));
  } else {
    return static_cast<T>(word_of(draw, i) >> (32 - 8 * sizeof(T)));
  }
}

template <class T>
struct DrawBody {
  static TESSERA_KERNEL_BODY void item(const Draw& draw, int64_t i) {
    const uint64_t flat =
        draw.first + static_cast<uint64_t>(offset_of(draw.space, draw.strides, i));
    if constexpr (std::is_floating_point_v<Computed<T>>) {
      reinterpret_cast<T*>(draw.out)[i] = draw_float<T>(draw, flat);
    } else {
      reinterpret_cast<T*>(draw.out)[i] = draw_integer<T>(draw, flat);
    }
  }
};

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_CUDA_DRAW_BODIES_H_
