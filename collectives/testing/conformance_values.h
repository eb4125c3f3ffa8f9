// SPDX-License-Identifier: Apache-2.0
//
// Values, oracles and comparisons of the conformance suite: simple loops over scalars.
#ifndef TESSERA_COLLECTIVES_TESTING_CONFORMANCE_VALUES_H_
#define TESSERA_COLLECTIVES_TESTING_CONFORMANCE_VALUES_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "Eigen/Core"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "collectives/testing/conformance.h"
#include "tests/support/scalars.h"

namespace tessera::conformance {

using testing::for_each_index;
using testing::is_nan;
using testing::reduce_scalars;
using testing::same;

// Memory for n elements of any dtype: std::vector<bool> has no span.
template <class T>
class Values {
 public:
  explicit Values(int64_t n, T fill = T(0)) : size_(n), data_(new T[n]) {
    for (int64_t i = 0; i < n; ++i) data_[i] = fill;
  }
  Values(std::initializer_list<T> values) : Values(static_cast<int64_t>(values.size())) {
    int64_t i = 0;
    for (const T value : values) data_[i++] = value;
  }
  int64_t size() const { return size_; }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }
  absl::Span<const T> in() const {
    return absl::Span<const T>(data_.get(), static_cast<size_t>(size_));
  }
  absl::Span<T> out() { return absl::Span<T>(data_.get(), static_cast<size_t>(size_)); }

 private:
  int64_t size_;
  std::shared_ptr<T[]> data_;  // copies share: a case never changes a table's values
};

template <class T>
std::string show(T value) {
  if constexpr (std::is_integral_v<T>) {
    return absl::StrCat(static_cast<int64_t>(value));
  } else {
    // Digits that distinguish the value from its neighbours.
    constexpr int kDigits = std::numeric_limits<T>::max_digits10;
    return absl::StrFormat("%.*g", kDigits, static_cast<double>(value));
  }
}

template <class T>
Status expect_equal(absl::Span<const T> got, const Values<T>& want, absl::string_view what) {
  if (static_cast<int64_t>(got.size()) != want.size()) {
    return absl::InternalError(
        absl::StrCat(what, ": ", got.size(), " elements, expected ", want.size()));
  }
  for (size_t i = 0; i < got.size(); ++i) {
    if (same(got[i], want[static_cast<int64_t>(i)])) continue;
    return absl::InternalError(absl::StrCat(what, ": element ", i, " of ", got.size(), " is ",
                                            show(got[i]), ", expected ",
                                            show(want[static_cast<int64_t>(i)])));
  }
  return absl::OkStatus();
}

inline Status expect(bool condition, absl::string_view what) {
  return condition ? absl::OkStatus() : absl::InternalError(absl::StrCat("not so: ", what));
}

// Checks that `status` is an error of this code whose message holds all of `parts`.
Status expect_error(const Status& status, absl::StatusCode code,
                    absl::Span<const std::string> parts);
// Checks that every member of the group passes the same text.
Status expect_same_text(const Group& group, absl::string_view text);
// Checks that a collective with values works: to be called after a failure.
Status expect_works(const Group& group);

// A stream of numbers that is the same on every member.
inline uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}
inline uint64_t mix(uint64_t a, uint64_t b) { return mix(mix(a) ^ b); }

// Element i of the input of member m: all bits for integers; for floats numbers of both signs and
// several magnitudes, and now and then infinities, NaN and zeros of both signs.
template <class T>
T value_of(uint64_t seed, int member, int64_t i) {
  const uint64_t bits = mix(mix(seed, static_cast<uint64_t>(member)), static_cast<uint64_t>(i));
  if constexpr (std::is_same_v<T, bool>) {
    return (bits & 1) != 0;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(bits);
  } else {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    static constexpr double kSpecial[] = {0.0, -0.0, kInfinity, -kInfinity,
                                          std::numeric_limits<double>::quiet_NaN()};
    if (bits % 64 < 5) return static_cast<T>(kSpecial[bits % 64]);
    const double mantissa = static_cast<double>(bits >> 40) / (1 << 24) * 2 - 1;
    return static_cast<T>(std::ldexp(mantissa, static_cast<int>(bits >> 8 & 15) - 4));
  }
}

template <class T>
Values<T> values_of(uint64_t seed, int member, int64_t n) {
  Values<T> result(n);
  for (int64_t i = 0; i < n; ++i) result[i] = value_of<T>(seed, member, i);
  return result;
}

// Element i of the reduction of the value_of() of members 0 to P-1.
template <class T>
T reduced_value(ReduceOp op, uint64_t seed, int num_members, int64_t i) {
  std::vector<T> terms;
  for (int m = 0; m < num_members; ++m) terms.push_back(value_of<T>(seed, m, i));
  return reduce_scalars(op, terms);
}

// Sums of counts by member: of all, and of those before `position`.
inline int64_t before(const std::vector<int64_t>& counts, int position) {
  int64_t sum = 0;
  for (int k = 0; k < position; ++k) sum += counts[k];
  return sum;
}
inline int64_t total(const std::vector<int64_t>& counts) {
  return before(counts, static_cast<int>(counts.size()));
}

// `shape` cut into n uneven parts along `dim`; later parts may be empty.
inline std::vector<Box> cut(const Shape& shape, int dim, int n) {
  std::vector<Box> boxes;
  int64_t first = 0;
  for (int k = 0; k < n; ++k) {
    Box box = whole_box(shape);
    const int64_t rest = shape[dim] - first;
    const int64_t size = k + 1 == n ? rest : std::min(rest, (shape[dim] + k) / n);
    box.offsets[dim] = first;
    box.sizes[dim] = size;
    first += size;
    boxes.push_back(box);
  }
  return boxes;
}

}  // namespace tessera::conformance

#endif  // TESSERA_COLLECTIVES_TESTING_CONFORMANCE_VALUES_H_
