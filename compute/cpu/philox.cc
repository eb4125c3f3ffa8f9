// SPDX-License-Identifier: Apache-2.0
#include "compute/cpu/philox.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "Eigen/Core"
#include "base/check.h"
#include "compute/cpu/loops.h"
#include "compute/cpu/random_loops.h"
#include "compute/random_math.h"
#include "device/number_math.h"

namespace tessera::kernels {
namespace {

constexpr int64_t kWords = 256;  // of one batch

template <class T>
constexpr bool kIsDouble = std::is_same_v<T, double>;
template <class T>
constexpr bool kIsHalf = std::is_same_v<T, Eigen::half> || std::is_same_v<T, Eigen::bfloat16>;
template <class T>
constexpr bool kIsFloat = std::is_same_v<T, float> || kIsDouble<T> || kIsHalf<T>;

// Two words, the low half first.
uint64_t pair_of(const uint32_t* words, int64_t i) {
  return words[2 * i] | uint64_t{words[2 * i + 1]} << 32;
}

// Elements first, ..., first + count - 1. `draw` makes elements from as many times kElementWords
// words of the stream: a multiple of four elements at once, which `first` may be in the middle of.
template <int kElementWords, class T, class Draw>
void draw_elements(const RandomSpec& spec, RandomStream stream, uint64_t first, int64_t count,
                   T* out, Draw draw) {
  constexpr int64_t kBlockElements = 4 / kElementWords;
  const RandomLoops& loops = random_loops();
  uint32_t words[kWords];
  T elements[kWords / kElementWords];
  while (count > 0) {
    const auto skipped = static_cast<int64_t>(first % kBlockElements);
    const int64_t needed = (skipped + count - 1) / kBlockElements + 1;
    const int64_t rounded = (needed + kPhiloxLanes - 1) / kPhiloxLanes * kPhiloxLanes;
    const int64_t blocks = std::min(rounded, kWords / 4);
    loops.philox(spec.key.data(), static_cast<uint32_t>(stream), first / kBlockElements, blocks,
                 words);
    const int64_t made = blocks * kBlockElements;
    const int64_t used = std::min(made - skipped, count);
    if (used == made) {
      draw(words, made, out);
    } else {
      draw(words, made, elements);
      std::copy_n(elements + skipped, used, out);
    }
    first += static_cast<uint64_t>(used);
    count -= used;
    out += used;
  }
}

// The next value: the least above, or the greatest below.
template <class T>
T above(T value) {
  if constexpr (!kIsHalf<T>) {
    return std::nextafter(value, std::numeric_limits<T>::infinity());
  } else {
    // Both 16-bit types are ordered by their bits, apart from the sign.
    auto bits = Eigen::numext::bit_cast<uint16_t>(value);
    if ((bits & 0x7fff) == 0) {
      bits = 1;
    } else {
      bits = static_cast<uint16_t>((bits & 0x8000) != 0 ? bits - 1 : bits + 1);
    }
    return Eigen::numext::bit_cast<T>(bits);
  }
}
template <class T>
T below(T value) {
  return -above(-value);
}

template <class T>
constexpr HalfType kHalfType =
    std::is_same_v<T, Eigen::half> ? HalfType::kFloat16 : HalfType::kBFloat16;
template <class T>
void narrow(const float* in, int64_t n, T* out) {
  loops().narrow(kHalfType<T>, in, reinterpret_cast<uint16_t*>(out), n);
}
// The nearest value of T.
template <class T>
T rounded(double value) {
  if constexpr (kIsHalf<T>) {
    const float odd = odd_float(value);
    T result;
    narrow(&odd, 1, &result);
    return result;
  } else {
    return static_cast<T>(value);
  }
}

template <class T>
void draw_uniform(const RandomSpec& spec, uint64_t first, int64_t count, T* out) {
  using Wide = std::conditional_t<kIsDouble<T>, double, float>;
  constexpr LoopType kType = kIsDouble<T> ? LoopType::kFloat64 : LoopType::kFloat32;
  const T rounded_low = rounded<T>(spec.a);
  const Wide low = static_cast<Wide>(rounded_low);
  const Wide high = static_cast<Wide>(rounded<T>(spec.b));
  const T last = low < high ? below(rounded<T>(spec.b)) : rounded<T>(spec.b);
  // The lower end may have been rounded down.
  const bool is_low = low < spec.a && low < high;
  const T least = is_low ? above(rounded_low) : rounded_low;
  // Where high - low is beyond the type, both are halved, and the number drawn is doubled.
  const bool is_wide = std::isinf(high - low);
  const double infinity = std::numeric_limits<double>::infinity();
  UniformLoop loop = {24, low, high - low, high, static_cast<Wide>(last)};
  if (is_wide) loop = {24, low / 2, high / 2 - low / 2, infinity, infinity};
  if constexpr (kIsHalf<T>) {
    loop.bits = std::is_same_v<T, Eigen::half> ? 11 : 8;
    loop.last = loop.high;  // rounding to T may give `high` too
  }
  const auto end = [&](T value) {
    const T within = static_cast<Wide>(value) >= high ? last : value;
    return is_low && within < least ? least : within;
  };
  draw_elements<kIsDouble<T> ? 2 : 1>(spec, RandomStream::kBits, first, count, out,
                                      [&](const uint32_t* words, int64_t n, T* to) {
                                        if constexpr (kIsHalf<T>) {
                                          float wide[kWords];
                                          random_loops().uniform(kType, loop, words, n, wide);
                                          for (int64_t i = 0; is_wide && i < n; ++i) wide[i] *= 2;
                                          narrow(wide, n, to);
                                          for (int64_t i = 0; i < n; ++i) to[i] = end(to[i]);
                                        } else {
                                          random_loops().uniform(kType, loop, words, n, to);
                                          if (!is_wide && !is_low) return;
                                          for (int64_t i = 0; i < n; ++i)
                                            to[i] = end(is_wide ? 2 * to[i] : to[i]);
                                        }
                                      });
}

template <class T>
void draw_normal(const RandomSpec& spec, uint64_t first, int64_t count, T* out) {
  const NormalLoop loop = {spec.a, spec.b, kIsHalf<T>};
  draw_elements<kIsDouble<T> ? 2 : 1>(
      spec, RandomStream::kNormal, first, count, out, [&](const uint32_t* words, int64_t n, T* to) {
        if constexpr (kIsHalf<T>) {
          float wide[kWords];
          random_loops().normal(LoopType::kFloat32, loop, words, n, wide);
          narrow(wide, n, to);
        } else {
          random_loops().normal(kIsDouble<T> ? LoopType::kFloat64 : LoopType::kFloat32, loop, words,
                                n, to);
        }
      });
}

template <class T>
void draw_truncated_normal(const RandomSpec& spec, uint64_t first, int64_t count, T* out) {
  const TruncatedNormal truncated = truncated_normal(spec.low, spec.high);
  const double least = spec.a + spec.b * spec.low;
  const double most = spec.a + spec.b * spec.high;
  draw_elements<kIsDouble<T> ? 2 : 1>(
      spec, RandomStream::kNormal, first, count, out, [&](const uint32_t* words, int64_t n, T* to) {
        for (int64_t i = 0; i < n; ++i) {
          const double unit =
              kIsDouble<T> ? open_unit_of_words(pair_of(words, i)) : open_unit_of_word(words[i]);
          T value = rounded<T>(spec.a + spec.b * truncated_quantile(truncated, unit));
          // Rounding may leave the range, where T has other numbers in it.
          if (static_cast<double>(value) > most && static_cast<double>(below(value)) >= least) {
            value = below(value);
          } else if (static_cast<double>(value) < least &&
                     static_cast<double>(above(value)) <= most) {
            value = above(value);
          }
          to[i] = value;
        }
      });
}

template <class T>
void draw_bits(const RandomSpec& spec, uint64_t first, int64_t count, T* out) {
  draw_elements<sizeof(T) == 8 ? 2 : 1>(
      spec, RandomStream::kBits, first, count, out, [](const uint32_t* words, int64_t n, T* to) {
        for (int64_t i = 0; i < n; ++i) {
          if constexpr (std::is_same_v<T, bool>) {
            to[i] = words[i] >> 31 != 0;
          } else if constexpr (sizeof(T) == 8) {
            to[i] = static_cast<T>(pair_of(words, i));
          } else {
            to[i] = static_cast<T>(words[i] >> (32 - 8 * sizeof(T)));
          }
        }
      });
}

void draw_bernoulli(const RandomSpec& spec, uint64_t first, int64_t count, bool* out) {
  const auto probability = static_cast<float>(spec.a);
  draw_elements<1>(spec, RandomStream::kBits, first, count, out,
                   [probability](const uint32_t* words, int64_t n, bool* to) {
                     for (int64_t i = 0; i < n; ++i) {
                       to[i] = static_cast<float>(words[i] >> 8) * 0x1p-24f < probability;
                     }
                   });
}

template <class T>
void draw_integers(const RandomSpec& spec, uint64_t first, int64_t count, T* out) {
  draw_elements<2>(spec, RandomStream::kInteger, first, count, out,
                   [&](const uint32_t* words, int64_t n, T* to) {
                     for (int64_t i = 0; i < n; ++i) {
                       const uint64_t x = pair_of(words, i);
                       const uint64_t above = spec.range == 0 ? x : high_product(x, spec.range);
                       to[i] = static_cast<T>(static_cast<uint64_t>(spec.least) + above);
                     }
                   });
}

template <class T>
void draw_permutation(const RandomSpec& spec, uint64_t first, int64_t count, T* out) {
  for (int64_t k = 0; k < count; ++k) {
    out[k] = static_cast<T>(permuted_index(first + static_cast<uint64_t>(k), spec.range,
                                           static_cast<uint32_t>(RandomStream::kPermutation),
                                           spec.key[0], spec.key[1]));
  }
}

template <class T>
void run_of(const RandomSpec& spec, uint64_t first, int64_t count, T* out) {
  if constexpr (kIsFloat<T>) {
    if (spec.kind == RandomKind::kUniform) return draw_uniform(spec, first, count, out);
    if (spec.kind == RandomKind::kNormal) return draw_normal(spec, first, count, out);
    if (spec.kind == RandomKind::kTruncatedNormal) {
      return draw_truncated_normal(spec, first, count, out);
    }
  } else {
    if (spec.kind == RandomKind::kBits) return draw_bits(spec, first, count, out);
    if constexpr (std::is_same_v<T, bool>) {
      if (spec.kind == RandomKind::kBernoulli) return draw_bernoulli(spec, first, count, out);
    } else {
      if (spec.kind == RandomKind::kInteger) return draw_integers(spec, first, count, out);
      if (spec.kind == RandomKind::kPermutation) return draw_permutation(spec, first, count, out);
    }
  }
  TESSERA_CHECK(false, "the distribution has the dtype");
}

}  // namespace

PhiloxBlock philox(PhiloxBlock counter, PhiloxKey key) {
  const PhiloxWords block =
      philox_words({{counter[0], counter[1], counter[2], counter[3]}}, key[0], key[1]);
  return {block.words[0], block.words[1], block.words[2], block.words[3]};
}

void random_run(const RandomSpec& spec, DType dtype, uint64_t first, int64_t count,
                std::byte* out) {
  visit_dtype(dtype, [&]<class T>() { run_of<T>(spec, first, count, reinterpret_cast<T*>(out)); });
}

void random_box(const RandomSpec& spec, DType dtype, const Shape& shape, const Box& box,
                std::byte* out) {
  if (box.is_empty()) return;
  const size_t rank = shape.size();
  // Dims from `inner` on are whole: their elements follow each other.
  size_t inner = rank;
  while (inner > 0 && box.sizes[inner - 1] == shape[inner - 1]) --inner;
  const size_t run_dim = inner == 0 ? 0 : inner - 1;
  int64_t run = 1;
  for (size_t dim = run_dim; dim < rank; ++dim) run *= box.sizes[dim];
  std::vector<int64_t> index = box.offsets;
  for (;;) {
    uint64_t first = 0;
    for (size_t dim = 0; dim < rank; ++dim) {
      first = first * static_cast<uint64_t>(shape[dim]) + static_cast<uint64_t>(index[dim]);
    }
    random_run(spec, dtype, first, run, out);
    out += run * dtype_size(dtype);
    size_t dim = run_dim;
    for (; dim > 0; --dim) {
      if (++index[dim - 1] < box.offsets[dim - 1] + box.sizes[dim - 1]) break;
      index[dim - 1] = box.offsets[dim - 1];
    }
    if (dim == 0) return;
  }
}

}  // namespace tessera::kernels
