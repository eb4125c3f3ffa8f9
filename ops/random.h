// SPDX-License-Identifier: Apache-2.0
//
// Key and the distributions: tensors of random numbers.
//
//   const random::Key key = random::Key::from_seed(42);
//   DTensor w = random::normal<float>(key.fold_in(0), {64, 10}, layout);
//
// Element i depends on the key and its flat index i in the global tensor alone: the values are the
// same under every layout, mesh, split over clients and type of device. A key used twice gives the
// same numbers twice; fold_in() and split() make others of it. Nothing is sent.
//
// The numbers drawn are finite and in the range that the parameters say, which are f64 whatever T
// is; where T has no number in the range it is the nearest. InvalidArgument where T does not hold
// the numbers that may be drawn, as in normal<Eigen::half>(key, shape, layout, 0, 20000).
//
// Philox4x32-10 of Random123. Errors are in the tensor, as in full(): InvalidArgument for
// parameters out of range, naming them. JAX: jax.random. TF: tf.random.stateless_*.
#ifndef TESSERA_OPS_RANDOM_H_
#define TESSERA_OPS_RANDOM_H_

#include <concepts>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "base/public.h"
#include "base/shape.h"
#include "base/status.h"
#include "compute/random_spec.h"
#include "dtensor/dtensor.h"
#include "layout/layout.h"

namespace TESSERA_PUBLIC tessera {
namespace random {

// A value: two words.
class Key {
 public:
  static Key from_seed(uint64_t seed);
  // Another key, which depends on this one and the number.
  Key fold_in(uint64_t data) const;
  // n other keys: fold_in(0) to fold_in(n - 1).
  std::vector<Key> split(int64_t n) const;

  // 16 hexadecimal digits, to save with a checkpoint; those of the number for from_seed(number).
  std::string to_string() const;
  // InvalidArgument for a text that to_string() does not write.
  static StatusOr<Key> parse(absl::string_view text);

  const kernels::PhiloxKey& words() const { return words_; }
  friend bool operator==(const Key& a, const Key& b) { return a.words_ == b.words_; }

 private:
  explicit Key(kernels::PhiloxKey words) : words_(words) {}

  kernels::PhiloxKey words_;
};

// Internal.
DTensor draw(const kernels::RandomSpec& spec, DType dtype, const Shape& shape,
             const LayoutArg& layout);
DTensor draw_integers(const Key& key, DType dtype, const Shape& shape, const LayoutArg& layout,
                      absl::int128 low, absl::int128 high);

template <class T>
concept Integer = HasDType<T> && std::integral<T>;
template <class T>
concept Float = HasDType<T> && !std::integral<T>;

// Integers have all bits random; bool is true or false.
template <Integer T>
DTensor bits(const Key& key, const Shape& shape, const LayoutArg& layout) {
  return draw({.kind = kernels::RandomKind::kBits, .key = key.words()}, dtype_of<T>(), shape,
              layout);
}
// Numbers in [low, high), never high itself; where the two are equal it is that number.
template <Float T>
DTensor uniform(const Key& key, const Shape& shape, const LayoutArg& layout, double low = 0,
                double high = 1) {
  return draw({.kind = kernels::RandomKind::kUniform, .key = key.words(), .a = low, .b = high},
              dtype_of<T>(), shape, layout);
}
template <Float T>
DTensor normal(const Key& key, const Shape& shape, const LayoutArg& layout, double mean = 0,
               double stddev = 1) {
  return draw({.kind = kernels::RandomKind::kNormal, .key = key.words(), .a = mean, .b = stddev},
              dtype_of<T>(), shape, layout);
}
// Normal numbers from mean + low stddev to mean + high stddev; one of `low` and `high` may be
// infinite. Upper tails are as exact as lower ones, also far from the mean.
template <Float T>
DTensor truncated_normal(const Key& key, const Shape& shape, const LayoutArg& layout,
                         double mean = 0, double stddev = 1, double low = -2, double high = 2) {
  return draw({.kind = kernels::RandomKind::kTruncatedNormal,
               .key = key.words(),
               .a = mean,
               .b = stddev,
               .low = low,
               .high = high},
              dtype_of<T>(), shape, layout);
}
// bool: true with the probability, to 2^-24.
DTensor bernoulli(const Key& key, const Shape& shape, const LayoutArg& layout,
                  double probability = 0.5);
// Integers in [low, high), which T can hold; high may be its largest value plus 1.
template <Integer T>
DTensor randint(const Key& key, const Shape& shape, const LayoutArg& layout, absl::int128 low,
                absl::int128 high) {
  return draw_integers(key, dtype_of<T>(), shape, layout, low, high);
}
// i64 of shape [n]: 0 to n - 1, each once. Each device makes its own part, without a sort.
DTensor permutation(const Key& key, int64_t n, const LayoutArg& layout);

}  // namespace random
}  // namespace tessera

#endif  // TESSERA_OPS_RANDOM_H_
