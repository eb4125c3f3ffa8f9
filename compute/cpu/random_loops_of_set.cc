// SPDX-License-Identifier: Apache-2.0
//
// Compiled once for each instruction set, as loops_of_set.cc, with TESSERA_RANDOM_LOOPS the name of
// its function.
#include <immintrin.h>

#include <cstdint>

#define TESSERA_KERNEL_BODY static inline
#include "compute/cpu/random_loops.h"
#include "compute/random_math.h"
#include "device/number_math.h"

namespace tessera::kernels {
namespace {

// Vectors of 64-bit lanes: the product of the lower halves of lanes, and the even or odd lanes of
// two vectors in turns.
#if defined(__AVX512F__)
using Vector = __m512i;
// With masks of all lanes: gcc 12 warns of what the others leave undefined.
Vector multiply(Vector a, Vector b) { return _mm512_maskz_mul_epu32(0xff, a, b); }
Vector zip_even(Vector a, Vector b) { return _mm512_maskz_unpacklo_epi64(0xff, a, b); }
Vector zip_odd(Vector a, Vector b) { return _mm512_maskz_unpackhi_epi64(0xff, a, b); }
#elif defined(__AVX2__)
using Vector = __m256i;
Vector multiply(Vector a, Vector b) { return _mm256_mul_epu32(a, b); }
Vector zip_even(Vector a, Vector b) { return _mm256_unpacklo_epi64(a, b); }
Vector zip_odd(Vector a, Vector b) { return _mm256_unpackhi_epi64(a, b); }
#else
using Vector = __m128i;
Vector multiply(Vector a, Vector b) { return _mm_mul_epu32(a, b); }
Vector zip_even(Vector a, Vector b) { return _mm_unpacklo_epi64(a, b); }
Vector zip_odd(Vector a, Vector b) { return _mm_unpackhi_epi64(a, b); }
#endif
constexpr int kLanes64 = sizeof(Vector) / 8;
typedef uint64_t Lanes __attribute__((vector_size(sizeof(Vector))));

Lanes multiply(Lanes a, uint32_t b) {
  return reinterpret_cast<Lanes>(
      multiply(reinterpret_cast<Vector>(a), reinterpret_cast<Vector>(Lanes{} + uint64_t{b})));
}

// A block in each lane: word k of the blocks is the lower half of the lanes of c[k]. The upper
// halves hold anything.
struct Blocks {
  Lanes c[4];
};

// philox_round() of random_math.h.
void round_of(Blocks& blocks, uint32_t key0, uint32_t key1) {
  Lanes* const c = blocks.c;
  const Lanes product0 = multiply(c[0], kPhiloxMultiplier0);
  const Lanes product1 = multiply(c[2], kPhiloxMultiplier1);
  c[0] = (product1 >> 32) ^ c[1] ^ uint64_t { key0 };
  c[1] = product1;
  c[2] = (product0 >> 32) ^ c[3] ^ uint64_t { key1 };
  c[3] = product0;
}

// The counters of blocks from `first` on: even lanes hold the first half of them, so that store()
// writes them in order.
Blocks counters(uint64_t first, uint32_t stream) {
  Lanes number = {};
  for (int lane = 0; lane < kLanes64; ++lane) {
    number[lane] = first + static_cast<uint64_t>(lane / 2 + lane % 2 * (kLanes64 / 2));
  }
  return {{number, number >> 32, Lanes{}, Lanes{} + uint64_t{stream}}};
}
void store(const Blocks& blocks, uint32_t* words) {
  constexpr uint64_t kLower = 0xffffffff;
  const Vector front = reinterpret_cast<Vector>((blocks.c[0] & kLower) | blocks.c[1] << 32);
  const Vector back = reinterpret_cast<Vector>((blocks.c[2] & kLower) | blocks.c[3] << 32);
  const Vector zipped[] = {zip_even(front, back), zip_odd(front, back)};
  __builtin_memcpy(words, zipped, sizeof zipped);
}

// Two vectors at once: each waits for its products.
void philox(const uint32_t key[2], uint32_t stream, uint64_t first, int64_t num_blocks,
            uint32_t* words) {
  static_assert(kPhiloxLanes % (2 * kLanes64) == 0);
  for (int64_t block = 0; block < num_blocks; block += 2 * kLanes64) {
    Blocks a = counters(first + static_cast<uint64_t>(block), stream);
    Blocks b = counters(first + static_cast<uint64_t>(block + kLanes64), stream);
    uint32_t key0 = key[0];
    uint32_t key1 = key[1];
    for (int round = 0; round < kPhiloxRounds; ++round) {
      round_of(a, key0, key1);
      round_of(b, key0, key1);
      key0 += kPhiloxWeyl0;
      key1 += kPhiloxWeyl1;
    }
    store(a, words + 4 * block);
    store(b, words + 4 * (block + kLanes64));
  }
}

// Words 2 i and 2 i + 1, the first in the lower half.
uint64_t pair_of(const uint32_t* words, int64_t i) {
  uint64_t pair;
  __builtin_memcpy(&pair, words + 2 * i, sizeof pair);
  return pair;
}

void uniform(LoopType type, const UniformLoop& loop, const uint32_t* words, int64_t n, void* out) {
  if (type == LoopType::kFloat32) {
    float* const to = static_cast<float*>(out);
    const int shift = 32 - loop.bits;
    const float unit = 1 / static_cast<float>(1 << loop.bits);
    const float low = static_cast<float>(loop.low);
    const float scale = static_cast<float>(loop.scale);
    const float high = static_cast<float>(loop.high);
    const float last = static_cast<float>(loop.last);
    for (int64_t i = 0; i < n; ++i) {
      const float value =
          low + scale * (static_cast<float>(static_cast<int32_t>(words[i] >> shift)) * unit);
      to[i] = value >= high ? last : value;
    }
    return;
  }
  double* const to = static_cast<double*>(out);
  const UniformLoop l = loop;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t pair = pair_of(words, i);
    const double unit =
        double_of_52_bits(pair >> 32) * 0x1p-32 + double_of_52_bits(pair << 32 >> 43) * 0x1p-53;
    const double value = l.low + l.scale * unit;
    to[i] = value >= l.high ? l.last : value;
  }
}

float nearest_float(double x) { return static_cast<float>(x); }

// f32, by two words each pair.
template <class Round>
void normal_floats(double mean, double stddev, const uint32_t* words, int64_t n, float* to,
                   Round round) {
  for (int64_t i = 0; i < n / 2; ++i) {
    const uint64_t pair = pair_of(words, i);
    const NormalPair z = normal_pair(open_unit_of_word(static_cast<uint32_t>(pair)),
                                     open_unit_of_word(static_cast<uint32_t>(pair >> 32)));
    to[2 * i] = round(times_plus(stddev, z.even, mean));
    to[2 * i + 1] = round(times_plus(stddev, z.odd, mean));
  }
}

void normal(LoopType type, const NormalLoop& loop, const uint32_t* words, int64_t n, void* out) {
  const double mean = loop.mean;
  const double stddev = loop.stddev;
  if (type == LoopType::kFloat32) {
    float* const to = static_cast<float*>(out);
    if (loop.is_narrowed) {
      return normal_floats(mean, stddev, words, n, to, [](double x) { return odd_float(x); });
    }
    return normal_floats(mean, stddev, words, n, to, nearest_float);
  }
  double* const to = static_cast<double*>(out);
  for (int64_t i = 0; i < n; i += 2) {
    const NormalPair z = normal_pair(open_unit_of_words(pair_of(words, i)),
                                     open_unit_of_words(pair_of(words, i + 1)));
    to[i] = times_plus(stddev, z.even, mean);
    to[i + 1] = times_plus(stddev, z.odd, mean);
  }
}

}  // namespace

const RandomLoops& internal::TESSERA_RANDOM_LOOPS() {
  static constexpr RandomLoops kLoops = {philox, uniform, normal};
  return kLoops;
}

}  // namespace tessera::kernels
