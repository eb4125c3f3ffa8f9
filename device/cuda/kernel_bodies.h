// SPDX-License-Identifier: Apache-2.0
//
// The bodies of the kernels: what one item does. Compiled twice, by nvcc for the GPU and by the
// host's compiler for the fake. Results of tests on the host hold on a GPU, except for the
// conversions of half types, which the GPU does by instructions.
//
// Pure functions of their arguments and memory; items of one kernel write disjoint bytes.
#ifndef TESSERA_DEVICE_CUDA_KERNEL_BODIES_H_
#define TESSERA_DEVICE_CUDA_KERNEL_BODIES_H_

#include <cstdint>
#include <cstring>

#include "device/cuda/kernels.h"
#include "device/kernel_body.h"
#include "device/number_math.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace tessera::cuda {

// The half types as they are in memory. Arithmetic is done in float.
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

TESSERA_KERNEL_BODY uint32_t float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
TESSERA_KERNEL_BODY float float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

TESSERA_KERNEL_BODY float to_float(BFloat16 value) {
  return float_of_bits(static_cast<uint32_t>(value.bits) << 16);
}

TESSERA_KERNEL_BODY BFloat16 to_bfloat16(float value) {
#if defined(__CUDA_ARCH__)
  return {__bfloat16_as_ushort(__float2bfloat16_rn(value))};
#else
  const uint32_t bits = float_bits(value);
  if ((bits & 0x7fffffff) > 0x7f800000) {  // NaN stays NaN, quiet
    return {static_cast<uint16_t>((bits >> 16) | 0x40)};
  }
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
#endif
}

TESSERA_KERNEL_BODY float to_float(Half value) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(value.bits));
#else
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000) << 16;
  const uint32_t exponent = value.bits >> 10 & 0x1f;
  const uint32_t mantissa = value.bits & 0x3ff;
  if (exponent == 0x1f) return float_of_bits(sign | 0x7f800000 | mantissa << 13);
  if (exponent != 0) return float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
  // Zero or subnormal: mantissa * 2^-24, exact in float.
  const float magnitude = static_cast<float>(mantissa) * float_of_bits(0x33800000);
  return float_of_bits(sign | float_bits(magnitude));
#endif
}

TESSERA_KERNEL_BODY Half to_half(float value) {
#if defined(__CUDA_ARCH__)
  return {__half_as_ushort(__float2half_rn(value))};
#else
  const uint32_t bits = float_bits(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  uint32_t half;
  if (magnitude > 0x7f800000) {
    half = 0x7e00 | (magnitude >> 13 & 0x3ff);
  } else if (magnitude >= 0x477ff000) {  // 65520 and above round to infinity
    half = 0x7c00;
  } else if (magnitude >= 0x38800000) {  // normal: to nearest, ties to even
    half = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
  } else {
    // Subnormal: adding 0.5 puts the last bit of the half where float rounds.
    half = float_bits(float_of_bits(magnitude) + 0.5f) - 0x3f000000;
  }
  return {static_cast<uint16_t>(sign | half)};
#endif
}

// The type in which T is added up, and the ways there and back.
template <class T>
struct Wide {
  using Type = T;
  static TESSERA_KERNEL_BODY T of(T value) { return value; }
  static TESSERA_KERNEL_BODY T back(T value) { return value; }
};
template <>
struct Wide<Half> {
  using Type = float;
  static TESSERA_KERNEL_BODY float of(Half value) { return to_float(value); }
  static TESSERA_KERNEL_BODY Half back(float value) { return to_half(value); }
};
template <>
struct Wide<BFloat16> {
  using Type = float;
  static TESSERA_KERNEL_BODY float of(BFloat16 value) { return to_float(value); }
  static TESSERA_KERNEL_BODY BFloat16 back(float value) { return to_bfloat16(value); }
};

// Integers wrap: they are added as unsigned ones.
TESSERA_KERNEL_BODY int8_t add(int8_t a, int8_t b) { return static_cast<int8_t>(a + b); }
TESSERA_KERNEL_BODY uint8_t add(uint8_t a, uint8_t b) { return static_cast<uint8_t>(a + b); }
TESSERA_KERNEL_BODY int32_t add(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}
TESSERA_KERNEL_BODY int64_t add(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
TESSERA_KERNEL_BODY float add(float a, float b) { return a + b; }
TESSERA_KERNEL_BODY double add(double a, double b) { return a + b; }

TESSERA_KERNEL_BODY int8_t multiply(int8_t a, int8_t b) { return static_cast<int8_t>(a * b); }
TESSERA_KERNEL_BODY uint8_t multiply(uint8_t a, uint8_t b) { return static_cast<uint8_t>(a * b); }
TESSERA_KERNEL_BODY int32_t multiply(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
}
TESSERA_KERNEL_BODY int64_t multiply(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}
TESSERA_KERNEL_BODY float multiply(float a, float b) { return a * b; }
TESSERA_KERNEL_BODY double multiply(double a, double b) { return a * b; }

// The result of one more term. NaN is ignored by min and max: of NaNs alone the first stays.
template <class W>
TESSERA_KERNEL_BODY W combine(Reduction op, W total, W term) {
  switch (op) {
    case Reduction::kSum:
    case Reduction::kAvg:
      return add(total, term);
    case Reduction::kProd:
      return multiply(total, term);
    case Reduction::kMin:
      return term == term && (total != total || term < total) ? term : total;
    case Reduction::kMax:
      return term == term && (total != total || total < term) ? term : total;
  }
  return total;
}

TESSERA_KERNEL_BODY uint32_t divide(uint32_t n, const Divisor& d) {
#if defined(__CUDA_ARCH__)
  const uint32_t high = __umulhi(n, d.multiplier);
#else
  const auto high = static_cast<uint32_t>(static_cast<uint64_t>(n) * d.multiplier >> 32);
#endif
  return static_cast<uint32_t>((static_cast<uint64_t>(high) + n) >> d.shift);
}

// Where an item is: its run's offsets on both sides, and its number within the run.
struct Place {
  int64_t from = 0;
  int64_t to = 0;
  uint32_t item = 0;
};

TESSERA_KERNEL_BODY Place place_of(const Loops& loops, uint32_t item) {
  Place place;
  uint32_t rest = divide(item, loops.items_per_run);
  place.item = item - rest * loops.items_per_run.divisor;
  for (int l = 0; l < loops.num_loops; ++l) {
    const uint32_t quotient = divide(rest, loops.sizes[l]);
    const int64_t index = rest - quotient * loops.sizes[l].divisor;
    place.from += index * loops.from_strides[l];
    place.to += index * loops.to_strides[l];
    rest = quotient;
  }
  return place;
}

struct alignas(16) Vector16 {
  uint32_t words[4];
};

template <class V>
TESSERA_KERNEL_BODY void copy_vector(std::byte* to, const std::byte* from) {
  *reinterpret_cast<V*>(to) = *reinterpret_cast<const V*>(from);
}

TESSERA_KERNEL_BODY void copy_item(const Copy& copy, uint32_t item) {
  const Place place = place_of(copy.loops, item);
  const int64_t within = static_cast<int64_t>(place.item) * copy.vector_bytes;
  std::byte* to = copy.to + place.to + within;
  const std::byte* from = copy.from + place.from + within;
  switch (copy.vector_bytes) {
    case 16:
      return copy_vector<Vector16>(to, from);
    case 8:
      return copy_vector<uint64_t>(to, from);
    case 4:
      return copy_vector<uint32_t>(to, from);
    case 2:
      return copy_vector<uint16_t>(to, from);
    default:
      return copy_vector<uint8_t>(to, from);
  }
}

// `kPack` elements at once, in vectors of 16 bytes where there are so many. The op is a constant:
// a branch on it between two loads would put off the second one.
template <class T, int kPack, Reduction kOp>
TESSERA_KERNEL_BODY void reduce_pack(const Reduce& reduce, int64_t from, int64_t to) {
  using W = typename Wide<T>::Type;
  struct alignas(kPack * sizeof(T) == kVectorBytes ? kVectorBytes : alignof(T)) Pack {
    T elements[kPack];
  };
  Pack result = *reinterpret_cast<const Pack*>(reduce.terms[0] + from);
  if (reduce.num_terms > 1) {
    W totals[kPack];
    for (int e = 0; e < kPack; ++e) totals[e] = Wide<T>::of(result.elements[e]);
      // Several loads before the first addition.
#ifdef __CUDA_ARCH__
#pragma unroll 4
#endif
    for (int k = 1; k < reduce.num_terms; ++k) {
      const Pack term = *reinterpret_cast<const Pack*>(reduce.terms[k] + from);
      for (int e = 0; e < kPack; ++e) {
        totals[e] = combine<W>(kOp, totals[e], Wide<T>::of(term.elements[e]));
      }
    }
    for (int e = 0; e < kPack; ++e) {
      if (kOp == Reduction::kAvg) {
        totals[e] = static_cast<W>(totals[e] / static_cast<W>(reduce.num_terms));
      }
      result.elements[e] = Wide<T>::back(totals[e]);
    }
  }
  for (int j = 0; j < reduce.num_outs; ++j) {
    *reinterpret_cast<Pack*>(reduce.outs[j] + to) = result;
  }
}

template <class T, int kPack>
TESSERA_KERNEL_BODY void reduce_pack(const Reduce& reduce, int64_t from, int64_t to) {
  switch (reduce.op) {
    case Reduction::kSum:
      return reduce_pack<T, kPack, Reduction::kSum>(reduce, from, to);
    case Reduction::kProd:
      return reduce_pack<T, kPack, Reduction::kProd>(reduce, from, to);
    case Reduction::kMin:
      return reduce_pack<T, kPack, Reduction::kMin>(reduce, from, to);
    case Reduction::kMax:
      return reduce_pack<T, kPack, Reduction::kMax>(reduce, from, to);
    case Reduction::kAvg:
      return reduce_pack<T, kPack, Reduction::kAvg>(reduce, from, to);
  }
}

template <class T>
TESSERA_KERNEL_BODY void reduce_item(const Reduce& reduce, uint32_t item) {
  constexpr int kPack = kVectorBytes / static_cast<int>(sizeof(T));
  const Place place = place_of(reduce.loops, item);
  const int64_t first = static_cast<int64_t>(place.item) * reduce.pack;
  const int64_t offset = first * static_cast<int64_t>(sizeof(T));
  if (reduce.pack == kPack && first + kPack <= static_cast<int64_t>(reduce.run_elements)) {
    return reduce_pack<T, kPack>(reduce, place.from + offset, place.to + offset);
  }
  for (int64_t e = 0; e < reduce.pack && first + e < reduce.run_elements; ++e) {
    const int64_t own = offset + e * static_cast<int64_t>(sizeof(T));
    reduce_pack<T, 1>(reduce, place.from + own, place.to + own);
  }
}

TESSERA_KERNEL_BODY void fill_item(const Fill& fill, uint64_t item) {
  const uint64_t first = item * kVectorBytes;
  if (first + kVectorBytes <= fill.num_bytes) {
    copy_vector<Vector16>(fill.out + first, reinterpret_cast<const std::byte*>(fill.pattern));
    return;
  }
  for (uint64_t b = first; b < fill.num_bytes; ++b) {
    fill.out[b] = static_cast<std::byte>(fill.pattern[b - first]);
  }
}

// ---- Conversions: integers by way of int64, numbers with a point by way of double, both exact.

TESSERA_KERNEL_BODY bool is_floating(ElementType type) { return type >= ElementType::kFloat16; }

TESSERA_KERNEL_BODY int64_t load_integer(ElementType type, const std::byte* from, uint64_t i) {
  switch (type) {
    case ElementType::kInt8:
      return reinterpret_cast<const int8_t*>(from)[i];
    case ElementType::kInt32:
      return reinterpret_cast<const int32_t*>(from)[i];
    case ElementType::kInt64:
      return reinterpret_cast<const int64_t*>(from)[i];
    default:
      return reinterpret_cast<const uint8_t*>(from)[i];
  }
}

TESSERA_KERNEL_BODY double load_floating(ElementType type, const std::byte* from, uint64_t i) {
  switch (type) {
    case ElementType::kFloat16:
      return to_float(reinterpret_cast<const Half*>(from)[i]);
    case ElementType::kBFloat16:
      return to_float(reinterpret_cast<const BFloat16*>(from)[i]);
    case ElementType::kFloat32:
      return reinterpret_cast<const float*>(from)[i];
    default:
      return reinterpret_cast<const double*>(from)[i];
  }
}

// From int64 or double to a type with a point, rounded once.
template <class V>
TESSERA_KERNEL_BODY void store_floating(ElementType type, std::byte* to, uint64_t i, V value) {
  switch (type) {
    case ElementType::kFloat16:
      reinterpret_cast<Half*>(to)[i] = to_half(kernels::odd_float(value));
      return;
    case ElementType::kBFloat16:
      reinterpret_cast<BFloat16*>(to)[i] = to_bfloat16(kernels::odd_float(value));
      return;
    case ElementType::kFloat32:
      reinterpret_cast<float*>(to)[i] = static_cast<float>(value);
      return;
    default:
      reinterpret_cast<double*>(to)[i] = static_cast<double>(value);
  }
}

// Keeps the low bits, as conversions between integers do; bool is whether it is not 0.
TESSERA_KERNEL_BODY void store_integer(ElementType type, std::byte* to, uint64_t i, int64_t value) {
  switch (type) {
    case ElementType::kBool:
      reinterpret_cast<uint8_t*>(to)[i] = value != 0;
      return;
    case ElementType::kInt32:
      reinterpret_cast<int32_t*>(to)[i] = static_cast<int32_t>(value);
      return;
    case ElementType::kInt64:
      reinterpret_cast<int64_t*>(to)[i] = value;
      return;
    default:
      reinterpret_cast<uint8_t*>(to)[i] = static_cast<uint8_t>(value);
  }
}

// The integers that a type holds; of bool those are told apart from 0.
struct Range {
  int64_t lowest;
  int64_t highest;
};
TESSERA_KERNEL_BODY Range range_of(ElementType type) {
  switch (type) {
    case ElementType::kInt8:
      return {-128, 127};
    case ElementType::kUint8:
      return {0, 255};
    case ElementType::kInt32:
      return {INT32_MIN, INT32_MAX};
    default:
      return {INT64_MIN, INT64_MAX};
  }
}

TESSERA_KERNEL_BODY int64_t saturated(ElementType type, double value) {
  const Range range = range_of(type);
  if (value != value) return 0;
  // 2^63 is the first double beyond int64, and -2^63 is one of its values.
  if (value >= static_cast<double>(range.highest)) return range.highest;
  if (value <= static_cast<double>(range.lowest)) return range.lowest;
  return static_cast<int64_t>(value);
}

TESSERA_KERNEL_BODY void cast_item(const Cast& cast, uint64_t i) {
  if (is_floating(cast.from_type)) {
    const double value = load_floating(cast.from_type, cast.from, i);
    if (is_floating(cast.to_type)) return store_floating(cast.to_type, cast.to, i, value);
    if (cast.to_type == ElementType::kBool) {
      return store_integer(cast.to_type, cast.to, i, value != 0);
    }
    return store_integer(cast.to_type, cast.to, i, saturated(cast.to_type, value));
  }
  const int64_t value = load_integer(cast.from_type, cast.from, i);
  if (is_floating(cast.to_type)) return store_floating(cast.to_type, cast.to, i, value);
  if (cast.wraps) return store_integer(cast.to_type, cast.to, i, value);
  const Range range = range_of(cast.to_type);
  const int64_t held = value < range.lowest    ? range.lowest
                       : value > range.highest ? range.highest
                                               : value;
  store_integer(cast.to_type, cast.to, i, held);
}

TESSERA_KERNEL_BODY void iota_item(const Iota& iota, uint32_t item) {
  const Place place = place_of(iota.loops, item);
  const auto at = static_cast<uint64_t>(place.to) + place.item;
  const int64_t value = iota.first + place.from + static_cast<int64_t>(place.item);
  if (is_floating(iota.type)) return store_floating(iota.type, iota.out, at, value);
  store_integer(iota.type, iota.out, at, value);
}

}  // namespace tessera::cuda

#endif  // TESSERA_DEVICE_CUDA_KERNEL_BODIES_H_
