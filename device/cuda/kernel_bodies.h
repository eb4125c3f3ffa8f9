// SPDX-License-Identifier: Apache-2.0
//
// The bodies of the kernels: the work of one item. Compiled twice, by nvcc for the GPU and by the
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

// The type in which T is added up, and the conversions to it and back.
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

// The result of adding a term. min and max ignore NaN: if all terms are NaN the first stays.
template <class W>
TESSERA_KERNEL_BODY W combine(Reduction op, W total, W term) {
  switch (op) {
    case Reduction::kSum:
    case Reduction::kAvg:
      return kernels::wrapped_sum(total, term);
    case Reduction::kProd:
      return kernels::wrapped_product(total, term);
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

// The place of an item: its run's offsets on both sides, and its number within the run.
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

// `kPack` elements at once, in vectors of 16 bytes where there are so many. The op is a constant,
// because a branch on it between two loads would delay the second one.
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

// ---- Conversions: integers by way of int64, f64 by way of double, the other types with a point by
// way of float, all exact.

// `kCount` neighbours, which a thread loads and stores by vectors of up to 16 bytes.
template <class T, int kCount>
struct alignas(kCount * sizeof(T) < kVectorBytes ? kCount * sizeof(T) : kVectorBytes) Elements {
  T elements[kCount];
};

TESSERA_KERNEL_BODY bool is_floating(ElementType type) { return type >= ElementType::kFloat16; }

template <class T, class V, int kCount>
TESSERA_KERNEL_BODY void load_as(const std::byte* from, uint64_t first, V (&values)[kCount]) {
  const auto loaded =
      *reinterpret_cast<const Elements<T, kCount>*>(reinterpret_cast<const T*>(from) + first);
  for (int e = 0; e < kCount; ++e) values[e] = static_cast<V>(Wide<T>::of(loaded.elements[e]));
}

template <int kCount>
TESSERA_KERNEL_BODY void load_integers(ElementType type, const std::byte* from, uint64_t first,
                                       int64_t (&values)[kCount]) {
  switch (type) {
    case ElementType::kInt8:
      return load_as<int8_t>(from, first, values);
    case ElementType::kInt32:
      return load_as<int32_t>(from, first, values);
    case ElementType::kInt64:
      return load_as<int64_t>(from, first, values);
    default:
      return load_as<uint8_t>(from, first, values);
  }
}

// All but f64.
template <int kCount>
TESSERA_KERNEL_BODY void load_floats(ElementType type, const std::byte* from, uint64_t first,
                                     float (&values)[kCount]) {
  switch (type) {
    case ElementType::kFloat16:
      return load_as<Half>(from, first, values);
    case ElementType::kBFloat16:
      return load_as<BFloat16>(from, first, values);
    default:
      return load_as<float>(from, first, values);
  }
}

// From int64, float or double to a type with a point, rounded once.
template <class T>
struct Rounded {
  template <class V>
  static TESSERA_KERNEL_BODY T of(V value) {
    return static_cast<T>(value);
  }
};
template <>
struct Rounded<Half> {
  template <class V>
  static TESSERA_KERNEL_BODY Half of(V value) {
    return to_half(kernels::odd_float(value));
  }
};
template <>
struct Rounded<BFloat16> {
  template <class V>
  static TESSERA_KERNEL_BODY BFloat16 of(V value) {
    return to_bfloat16(kernels::odd_float(value));
  }
};

template <class T, class V, int kCount>
TESSERA_KERNEL_BODY void store_as(std::byte* to, uint64_t first, const V (&values)[kCount]) {
  Elements<T, kCount> stored;
  for (int e = 0; e < kCount; ++e) stored.elements[e] = Rounded<T>::of(values[e]);
  *reinterpret_cast<Elements<T, kCount>*>(reinterpret_cast<T*>(to) + first) = stored;
}

template <class V, int kCount>
TESSERA_KERNEL_BODY void store_floating(ElementType type, std::byte* to, uint64_t first,
                                        const V (&values)[kCount]) {
  switch (type) {
    case ElementType::kFloat16:
      return store_as<Half>(to, first, values);
    case ElementType::kBFloat16:
      return store_as<BFloat16>(to, first, values);
    case ElementType::kFloat32:
      return store_as<float>(to, first, values);
    default:
      return store_as<double>(to, first, values);
  }
}

// Keeps the low bits, as conversions between integers do. Values for bool are 0 and 1.
template <int kCount>
TESSERA_KERNEL_BODY void store_integers(ElementType type, std::byte* to, uint64_t first,
                                        const int64_t (&values)[kCount]) {
  switch (type) {
    case ElementType::kInt32:
      return store_as<int32_t>(to, first, values);
    case ElementType::kInt64:
      return store_as<int64_t>(to, first, values);
    default:
      return store_as<uint8_t>(to, first, values);
  }
}

// The integers that a type holds.
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

template <class V>
TESSERA_KERNEL_BODY int64_t saturated(ElementType type, V value) {
  const Range range = range_of(type);
  if (value != value) return 0;
  // As float or double the highest of int32 and int64 is rounded up to the first value beyond them.
  if (value >= static_cast<V>(range.highest)) return range.highest;
  if (value <= static_cast<V>(range.lowest)) return range.lowest;
  return static_cast<int64_t>(value);
}

TESSERA_KERNEL_BODY int64_t saturated(ElementType type, int64_t value) {
  const Range range = range_of(type);
  if (value < range.lowest) return range.lowest;
  return value > range.highest ? range.highest : value;
}

template <class V, int kCount>
TESSERA_KERNEL_BODY void cast_values(const Cast& cast, uint64_t first, const V (&values)[kCount]) {
  if (is_floating(cast.to_type)) return store_floating(cast.to_type, cast.to, first, values);
  int64_t held[kCount];
  for (int e = 0; e < kCount; ++e) {
    held[e] =
        cast.to_type == ElementType::kBool ? values[e] != V{0} : saturated(cast.to_type, values[e]);
  }
  store_integers(cast.to_type, cast.to, first, held);
}

template <int kCount>
TESSERA_KERNEL_BODY void cast_elements(const Cast& cast, uint64_t first) {
  if (cast.from_type == ElementType::kFloat64) {
    double values[kCount];
    load_as<double>(cast.from, first, values);
    return cast_values(cast, first, values);
  }
  if (is_floating(cast.from_type)) {
    float values[kCount];
    load_floats(cast.from_type, cast.from, first, values);
    return cast_values(cast, first, values);
  }
  int64_t values[kCount];
  load_integers(cast.from_type, cast.from, first, values);
  if (cast.wraps && !is_floating(cast.to_type) && cast.to_type != ElementType::kBool) {
    return store_integers(cast.to_type, cast.to, first, values);
  }
  cast_values(cast, first, values);
}

// Requires that kPack is the cast's pack. A constant: a kernel with both paths takes twice as long
// for single elements.
template <int kPack>
TESSERA_KERNEL_BODY void cast_item(const Cast& cast, uint64_t item) {
  const uint64_t first = item * kPack;
  if constexpr (kPack == 1) {
    cast_elements<1>(cast, first);
  } else if (first + kPack <= cast.num_elements) {
    cast_elements<kPack>(cast, first);
  } else {
    for (uint64_t at = first; at < cast.num_elements; ++at) cast_elements<1>(cast, at);
  }
}

template <int kCount>
TESSERA_KERNEL_BODY void iota_elements(const Iota& iota, uint64_t at, int64_t value) {
  int64_t values[kCount];
  for (int e = 0; e < kCount; ++e) values[e] = value + e;
  if (is_floating(iota.type)) return store_floating(iota.type, iota.out, at, values);
  if (iota.type == ElementType::kBool) {
    for (int e = 0; e < kCount; ++e) values[e] = values[e] != 0;
  }
  store_integers(iota.type, iota.out, at, values);
}

// Requires that kPack is the iota's pack, see cast_item().
template <int kPack>
TESSERA_KERNEL_BODY void iota_item(const Iota& iota, uint32_t item) {
  const Place place = place_of(iota.loops, item);
  const uint64_t first = uint64_t{place.item} * kPack;
  const uint64_t at = static_cast<uint64_t>(place.to) + first;
  const int64_t value = iota.first + place.from + static_cast<int64_t>(first);
  if constexpr (kPack == 1) {
    iota_elements<1>(iota, at, value);
  } else if (first + kPack <= iota.run_elements) {
    iota_elements<kPack>(iota, at, value);
  } else {
    for (int e = 0; first + e < iota.run_elements; ++e) iota_elements<1>(iota, at + e, value + e);
  }
}

}  // namespace tessera::cuda

#endif  // TESSERA_DEVICE_CUDA_KERNEL_BODIES_H_
