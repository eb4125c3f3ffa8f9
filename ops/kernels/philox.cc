// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/philox.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "Eigen/Core"
#include "base/check.h"

namespace tessera::kernels {
namespace {

constexpr int kRounds = 10;
constexpr uint32_t kMultiplier0 = 0xd2511f53;
constexpr uint32_t kMultiplier1 = 0xcd9e8d57;
constexpr uint32_t kWeyl0 = 0x9e3779b9;
constexpr uint32_t kWeyl1 = 0xbb67ae85;

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
    for (int round = 0; round < kRounds; ++round) {
      for (uint64_t k = 0; k < kBlocks; ++k) {
        const uint64_t product0 = uint64_t{kMultiplier0} * c[0][k];
        const uint64_t product1 = uint64_t{kMultiplier1} * c[2][k];
        c[0][k] = static_cast<uint32_t>(product1 >> 32) ^ c[1][k] ^ key0;
        c[1][k] = static_cast<uint32_t>(product1);
        c[2][k] = static_cast<uint32_t>(product0 >> 32) ^ c[3][k] ^ key1;
        c[3][k] = static_cast<uint32_t>(product0);
      }
      key0 += kWeyl0;
      key1 += kWeyl1;
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

// Box and Muller 1958. The angle is reduced exactly, so that small results are accurate.
template <class T>
T normal(const RandomSpec& spec, Words& words, uint64_t i) {
  const uint64_t even = i & ~uint64_t{1};
  const double radius = std::sqrt(-2 * std::log(open_unit<T>(words, even)));
  const double turns = open_unit<T>(words, even + 1);
  const double quarters = std::nearbyint(4 * turns);
  const double angle = 2 * M_PI * (turns - quarters / 4);
  // sin and cos of the angle, turned by the quarters; the cosine is a quarter ahead.
  const int quarter = (static_cast<int>(quarters) + (i == even ? 1 : 0)) & 3;
  double wave = (quarter & 1) != 0 ? std::cos(angle) : std::sin(angle);
  if ((quarter & 2) != 0) wave = -wave;
  return static_cast<T>(spec.a + spec.b * (radius * wave));
}

double polynomial(double x, const double (&coefficients)[8]) {
  double value = 0;
  for (int k = 7; k >= 0; --k) value = value * x + coefficients[k];
  return value;
}

// The quantile of the normal distribution: Wichura 1988, Applied Statistics algorithm AS 241,
// PPND16.
double normal_quantile(double p) {
  constexpr double kA[] = {3.3871328727963666080e0, 1.3314166789178437745e2,
                           1.9715909503065514427e3, 1.3731693765509461125e4,
                           4.5921953931549871457e4, 6.7265770927008700853e4,
                           3.3430575583588128105e4, 2.5090809287301226727e3};
  constexpr double kB[] = {1.0,
                           4.2313330701600911252e1,
                           6.8718700749205790830e2,
                           5.3941960214247511077e3,
                           2.1213794301586595867e4,
                           3.9307895800092710610e4,
                           2.8729085735721942674e4,
                           5.2264952788528545610e3};
  constexpr double kC[] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                           5.76949722146069140550e0,  3.64784832476320460504e0,
                           1.27045825245236838258e0,  2.41780725177450611770e-1,
                           2.27238449892691845833e-2, 7.74545014278341407640e-4};
  constexpr double kD[] = {1.0,
                           2.05319162663775882187e0,
                           1.67638483018380384940e0,
                           6.89767334985100004550e-1,
                           1.48103976427480074590e-1,
                           1.51986665636164571966e-2,
                           5.47593808499534494600e-4,
                           1.05075007164441684324e-9};
  constexpr double kE[] = {6.65790464350110377720e0,  5.46378491116411436990e0,
                           1.78482653991729133580e0,  2.96560571828504891230e-1,
                           2.65321895265761230930e-2, 1.24266094738807843860e-3,
                           2.71155556874348757815e-5, 2.01033439929228813265e-7};
  constexpr double kF[] = {1.0,
                           5.99832206555887937690e-1,
                           1.36929880922735805310e-1,
                           1.48753612908506148525e-2,
                           7.86869131145613259100e-4,
                           1.84631831751005468180e-5,
                           1.42151175831644588870e-7,
                           2.04426310338993978564e-15};
  const double q = p - 0.5;
  if (std::abs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * polynomial(r, kA) / polynomial(r, kB);
  }
  const double tail = std::sqrt(-std::log(q < 0 ? p : 1 - p));
  const double value = tail <= 5 ? polynomial(tail - 1.6, kC) / polynomial(tail - 1.6, kD)
                                 : polynomial(tail - 5, kE) / polynomial(tail - 5, kF);
  return q < 0 ? -value : value;
}

double normal_cdf(double x) { return 0.5 * std::erfc(-x * M_SQRT1_2); }

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
  const uint64_t above =
      spec.range == 0 ? x : absl::Uint128High64(absl::uint128(x) * absl::uint128(spec.range));
  return static_cast<T>(static_cast<uint64_t>(spec.least) + above);
}

// A Feistel network of eight rounds over the least power of 4 that is not below the range, again
// until the number is in the range.
int64_t permuted(const RandomSpec& spec, uint64_t i) {
  uint32_t half_bits = 1;
  while (half_bits < 32 && uint64_t{1} << (2 * half_bits) < spec.range) ++half_bits;
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t x = i;
  do {
    uint64_t left = x >> half_bits;
    uint64_t right = x & mask;
    for (uint32_t round = 0; round < 8; ++round) {
      const PhiloxBlock block = philox({static_cast<uint32_t>(right), round, half_bits,
                                        static_cast<uint32_t>(RandomStream::kPermutation)},
                                       spec.key);
      const uint64_t next = left ^ (block[0] & mask);
      left = right;
      right = next;
    }
    x = left << half_bits | right;
  } while (x >= spec.range);
  return static_cast<int64_t>(x);
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
        return each([&](uint64_t i) { return static_cast<T>(permuted(spec, i)); });
      }
    }
  }
  TESSERA_CHECK(false, "the distribution has the dtype");
}

}  // namespace

PhiloxBlock philox(PhiloxBlock counter, PhiloxKey key) {
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = uint64_t{kMultiplier0} * counter[0];
    const uint64_t product1 = uint64_t{kMultiplier1} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
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
