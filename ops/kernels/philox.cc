// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/philox.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "Eigen/Core"
#include "base/check.h"
#include "device/random_math.h"

namespace tessera::kernels {
namespace {

// Words of a stream by their index; blocks are made a few at a time.
class Words {
 public:
  Words(PhiloxKey key, RandomStream stream) : key_(key), stream_(stream) {}

  uint32_t word(uint64_t index) {
    const uint64_t block = index / 4;
    if (block < first_block_ || block - first_block_ >= kBlocks || !has_blocks_) make(block);
    return words_[index - first_block_ * 4];
  }
  // The two words of a 64-bit element, low half first.
  uint64_t element64(uint64_t index) {
    const uint64_t low = word(2 * index);
    return low | uint64_t{word(2 * index + 1)} << 32;
  }

 private:
  static constexpr uint64_t kBlocks = 32;

  // All blocks at once, so that the compiler may use vectors.
  void make(uint64_t first) {
    first_block_ = first;
    has_blocks_ = true;
    uint32_t c[4][kBlocks];
    for (uint64_t k = 0; k < kBlocks; ++k) {
      c[0][k] = static_cast<uint32_t>(first + k);
      c[1][k] = static_cast<uint32_t>((first + k) >> 32);
      c[2][k] = 0;
      c[3][k] = static_cast<uint32_t>(stream_);
    }
    uint32_t key0 = key_[0];
    uint32_t key1 = key_[1];
    for (int round = 0; round < kPhiloxRounds; ++round) {
      for (uint64_t k = 0; k < kBlocks; ++k) {
        philox_round(c[0][k], c[1][k], c[2][k], c[3][k], key0, key1);
      }
      key0 += kPhiloxWeyl0;
      key1 += kPhiloxWeyl1;
    }
    for (uint64_t k = 0; k < kBlocks; ++k) {
      for (int word = 0; word < 4; ++word) words_[4 * k + word] = c[word][k];
    }
  }

  const PhiloxKey key_;
  const RandomStream stream_;
  uint64_t first_block_ = 0;
  bool has_blocks_ = false;
  std::array<uint32_t, 4 * kBlocks> words_;
};

template <class T>
constexpr bool kIsDouble = std::is_same_v<T, double>;

// u in [0, 1) as exactly as T can hold multiples of 2^-p.
template <class T>
auto unit(Words& words, uint64_t i) {
  if constexpr (kIsDouble<T>) {
    return static_cast<double>(words.element64(i) >> 11) * 0x1p-53;
  } else {
    constexpr int kBits = std::is_same_v<T, Eigen::half>       ? 11
                          : std::is_same_v<T, Eigen::bfloat16> ? 8
                                                               : 24;
    return std::ldexp(static_cast<float>(words.word(i) >> (32 - kBits)), -kBits);
  }
}

// u in (0, 1), never an end.
template <class T>
double open_unit(Words& words, uint64_t i) {
  if constexpr (kIsDouble<T>) {
    return (static_cast<double>(words.element64(i) >> 12) + 0.5) * 0x1p-52;
  } else {
    return (static_cast<double>(words.word(i) >> 9) + 0.5) * 0x1p-23;
  }
}

// The greatest value below.
template <class T>
T below(T value) {
  if constexpr (std::is_same_v<T, float> || kIsDouble<T>) {
    return std::nextafter(value, -std::numeric_limits<T>::infinity());
  } else {
    // Both 16-bit types are ordered by their bits, apart from the sign.
    auto bits = Eigen::numext::bit_cast<uint16_t>(value);
    if ((bits & 0x7fff) == 0) {
      bits = 0x8001;
    } else {
      bits = static_cast<uint16_t>((bits & 0x8000) != 0 ? bits + 1 : bits - 1);
    }
    return Eigen::numext::bit_cast<T>(bits);
  }
}

// Each operation is rounded by itself: this file is compiled without contraction.
template <class T>
T uniform(const RandomSpec& spec, Words& words, uint64_t i) {
  using Wide = std::conditional_t<kIsDouble<T>, double, float>;
  const Wide low = static_cast<Wide>(static_cast<T>(spec.a));
  const Wide high = static_cast<Wide>(static_cast<T>(spec.b));
  const Wide scaled = (high - low) * unit<T>(words, i);
  const T value = static_cast<T>(low + scaled);
  return static_cast<Wide>(value) >= high && low < high ? below(static_cast<T>(high)) : value;
}

template <class T>
T normal(const RandomSpec& spec, Words& words, uint64_t i) {
  const uint64_t even = i & ~uint64_t{1};
  const double z = normal_of(open_unit<T>(words, even), open_unit<T>(words, even + 1), i == even);
  return static_cast<T>(spec.a + spec.b * z);
}

template <class T>
T truncated_normal(const RandomSpec& spec, Words& words, uint64_t i) {
  const double first = normal_cdf(spec.low);
  const double last = normal_cdf(spec.high);
  const double z = normal_quantile(first + (last - first) * open_unit<T>(words, i));
  return static_cast<T>(spec.a + spec.b * std::clamp(z, spec.low, spec.high));
}

template <class T>
T bits(Words& words, uint64_t i) {
  if constexpr (std::is_same_v<T, bool>) {
    return words.word(i) >> 31 != 0;
  } else if constexpr (sizeof(T) == 8) {
    return static_cast<T>(words.element64(i));
  } else {
    return static_cast<T>(words.word(i) >> (32 - 8 * sizeof(T)));
  }
}

template <class T>
T integer(const RandomSpec& spec, Words& words, uint64_t i) {
  const uint64_t x = words.element64(i);
  const uint64_t above = spec.range == 0 ? x : high_product(x, spec.range);
  return static_cast<T>(static_cast<uint64_t>(spec.least) + above);
}

RandomStream stream_of(RandomKind kind) {
  switch (kind) {
    case RandomKind::kNormal:
    case RandomKind::kTruncatedNormal:
      return RandomStream::kNormal;
    case RandomKind::kInteger:
      return RandomStream::kInteger;
    case RandomKind::kPermutation:
      return RandomStream::kPermutation;
    default:
      return RandomStream::kBits;
  }
}

template <class T>
constexpr bool kIsFloat = std::is_same_v<T, float> || kIsDouble<T> ||
                          std::is_same_v<T, Eigen::half> || std::is_same_v<T, Eigen::bfloat16>;

template <class T>
void run_of(const RandomSpec& spec, uint64_t first, int64_t count, T* out) {
  Words words(spec.key, stream_of(spec.kind));
  const auto each = [&](auto draw) {
    for (int64_t k = 0; k < count; ++k) out[k] = draw(first + static_cast<uint64_t>(k));
  };
  if constexpr (kIsFloat<T>) {
    if (spec.kind == RandomKind::kUniform) {
      return each([&](uint64_t i) { return uniform<T>(spec, words, i); });
    }
    if (spec.kind == RandomKind::kNormal) {
      return each([&](uint64_t i) { return normal<T>(spec, words, i); });
    }
    if (spec.kind == RandomKind::kTruncatedNormal) {
      return each([&](uint64_t i) { return truncated_normal<T>(spec, words, i); });
    }
  } else {
    if (spec.kind == RandomKind::kBits) {
      return each([&](uint64_t i) { return bits<T>(words, i); });
    }
    if constexpr (std::is_same_v<T, bool>) {
      if (spec.kind == RandomKind::kBernoulli) {
        const auto probability = static_cast<float>(spec.a);
        return each([&](uint64_t i) { return unit<float>(words, i) < probability; });
      }
    } else {
      if (spec.kind == RandomKind::kInteger) {
        return each([&](uint64_t i) { return integer<T>(spec, words, i); });
      }
      if (spec.kind == RandomKind::kPermutation) {
        return each([&](uint64_t i) {
          return static_cast<T>(permuted_index(i, spec.range,
                                               static_cast<uint32_t>(RandomStream::kPermutation),
                                               spec.key[0], spec.key[1]));
        });
      }
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
