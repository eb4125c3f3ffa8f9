// SPDX-License-Identifier: Apache-2.0
#include "compute/cpu/products.h"

#include <algorithm>
#include <cmath>

#include "base/shape.h"
#include "compute/cpu/pointwise.h"
#include "compute/strided.h"

namespace tessera::kernels {
namespace {

// fraction * 2^exponent, where 0.5 <= |fraction| < 1, or the fraction is 0, infinite or NaN.
struct Scaled {
  double fraction = 0;
  int64_t exponent = 0;
};

Scaled scaled(double value) {
  if (value == 0 || !std::isfinite(value)) return {value, 0};
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);
  return {fraction, exponent};
}
double value_of(const Scaled& x) {
  constexpr int64_t kFar = 4000;  // beyond every double
  return std::ldexp(x.fraction, static_cast<int>(std::clamp(x.exponent, -kFar, kFar)));
}
Scaled operator*(const Scaled& a, const Scaled& b) {
  const double fraction = a.fraction * b.fraction;
  if (fraction == 0 || !std::isfinite(fraction)) return {fraction, 0};
  if (std::abs(fraction) < 0.5) return {2 * fraction, a.exponent + b.exponent - 1};
  return {fraction, a.exponent + b.exponent};
}
Scaled operator+(const Scaled& a, const Scaled& b) {
  if (a.fraction == 0) return b;
  if (b.fraction == 0) return a;
  if (!std::isfinite(a.fraction) || !std::isfinite(b.fraction)) return {a.fraction + b.fraction, 0};
  const Scaled& large = a.exponent >= b.exponent ? a : b;
  const Scaled& small = a.exponent >= b.exponent ? b : a;
  const int64_t apart = large.exponent - small.exponent;
  if (apart > 100) return large;
  Scaled sum = scaled(large.fraction + std::ldexp(small.fraction, -static_cast<int>(apart)));
  if (sum.fraction != 0) sum.exponent += large.exponent;
  return sum;
}

// A polynomial in e1 to em without their squares: the coefficient of a set of them is at the number
// whose bits are the set.
using Polynomial = std::vector<Scaled>;

// a *= b
void multiply(Polynomial& a, const Scaled* b) {
  // From the largest set: it reads only subsets of itself in `a`, which are not overwritten yet.
  for (size_t set = a.size(); set-- > 0;) {
    Scaled sum;
    for (size_t part = set;; part = (part - 1) & set) {
      const Scaled& x = a[part];
      const Scaled& y = b[set & ~part];
      const bool is_zero = set != 0 && (x.fraction == 0 || y.fraction == 0);
      if (!is_zero) sum = sum + x * y;
      if (part == 0) break;
    }
    a[set] = sum;
  }
}

// The elements of one group are at `places`.
void products_of_group(absl::Span<const std::vector<double>> in, absl::Span<const int64_t> places,
                       std::vector<double>& out) {
  const size_t num_sets = size_t{1} << (in.size() - 1);
  const size_t count = places.size();
  // The factor of each element, and the products of those before it.
  std::vector<Scaled> factors(count * num_sets);
  std::vector<Scaled> before(count * num_sets);
  Polynomial product(num_sets);
  product[0] = scaled(1);
  for (size_t k = 0; k < count; ++k) {
    Scaled* const factor = &factors[k * num_sets];
    factor[0] = scaled(in[0][places[k]]);
    for (size_t c = 1; c < in.size(); ++c) factor[size_t{1} << (c - 1)] = scaled(in[c][places[k]]);
    std::copy(product.begin(), product.end(), before.begin() + k * num_sets);
    multiply(product, factor);
  }
  std::fill(product.begin(), product.end(), Scaled{});
  product[0] = scaled(1);
  Polynomial others(num_sets);
  for (size_t k = count; k-- > 0;) {
    others = product;  // of those after it
    multiply(others, &before[k * num_sets]);
    out[places[k]] = value_of(others[num_sets - 1]);
    multiply(product, &factors[k * num_sets]);
  }
}

// Calls fn(offset) for each index of the joined dims, or of the other dims.
template <class Fn>
void for_each_offset(absl::Span<const int64_t> sizes, const std::vector<bool>& is_joined,
                     bool joined, Fn fn) {
  Shape counts;
  std::vector<int64_t> strides;
  int64_t stride = 1;
  for (size_t dim = sizes.size(); dim-- > 0; stride *= sizes[dim]) {
    if (is_joined[dim] != joined) continue;
    counts.insert(counts.begin(), sizes[dim]);
    strides.insert(strides.begin(), stride);
  }
  const int64_t total = num_elements(counts);
  for (int64_t number = 0; number < total; ++number) {
    int64_t rest = number;
    int64_t offset = 0;
    for (size_t dim = counts.size(); dim-- > 0; rest /= counts[dim]) {
      offset += rest % counts[dim] * strides[dim];
    }
    fn(offset);
  }
}

}  // namespace

void products_of_others(DType dtype, absl::Span<const std::byte* const> in,
                        absl::Span<const int64_t> sizes, const std::vector<bool>& is_joined,
                        std::byte* out) {
  const int64_t count = num_elements(sizes);
  std::vector<std::vector<double>> values(in.size(), std::vector<double>(count));
  for (size_t i = 0; i < in.size(); ++i) {
    cast(dtype, DType::kFloat64, in[i], reinterpret_cast<std::byte*>(values[i].data()), count);
  }
  std::vector<double> products(count);
  std::vector<int64_t> group;
  for_each_offset(sizes, is_joined, true, [&](int64_t offset) { group.push_back(offset); });
  std::vector<int64_t> places(group.size());
  for_each_offset(sizes, is_joined, false, [&](int64_t first) {
    for (size_t k = 0; k < group.size(); ++k) places[k] = first + group[k];
    products_of_group(values, places, products);
  });
  cast(DType::kFloat64, dtype, reinterpret_cast<const std::byte*>(products.data()), out, count);
}

}  // namespace tessera::kernels
