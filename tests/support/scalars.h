// SPDX-License-Identifier: Apache-2.0
//
// Slow oracles: one scalar, one element of a box at a time.
#ifndef TESSERA_TESTS_SUPPORT_SCALARS_H_
#define TESSERA_TESTS_SUPPORT_SCALARS_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "Eigen/Core"
#include "base/reduce_op.h"
#include "base/shape.h"

namespace tessera::testing {

// Not a number, for the types that have one.
template <class T>
bool is_nan(T value) {
  if constexpr (std::is_integral_v<T>) {
    return false;
  } else {
    return std::isnan(static_cast<double>(value));
  }
}

// Equal bits, or both NaN: the processor decides which NaN an operation makes.
template <class T>
bool same(T a, T b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0 || (is_nan(a) && is_nan(b));
}

// The reduction of scalars in ascending order, with the numerics of docs/layouts.md.
template <class T>
T reduce_scalars(ReduceOp op, const std::vector<T>& terms) {
  if (terms.size() == 1) return terms[0];
  if (op == ReduceOp::kMin || op == ReduceOp::kMax) {
    T best = terms[0];
    for (const T term : terms) {
      if (is_nan(term)) continue;
      if (is_nan(best) || (op == ReduceOp::kMin ? term < best : best < term)) best = term;
    }
    return best;
  }
  if constexpr (std::is_integral_v<T>) {
    // All arithmetic is modulo 2^64, so its low bits are right modulo 2^bits.
    uint64_t total = op == ReduceOp::kProd ? 1 : 0;
    for (const T term : terms) {
      const auto wide = static_cast<uint64_t>(static_cast<int64_t>(term));
      total = op == ReduceOp::kProd ? total * wide : total + wide;
    }
    return static_cast<T>(total);
  } else {
    using Wide = std::conditional_t<sizeof(T) == 2, float, T>;
    volatile Wide total = static_cast<Wide>(terms[0]);
    for (size_t k = 1; k < terms.size(); ++k) {
      const auto term = static_cast<Wide>(terms[k]);
      total = op == ReduceOp::kProd ? total * term : total + term;
    }
    if (op == ReduceOp::kAvg) total = total / static_cast<Wide>(terms.size());
    return static_cast<T>(static_cast<Wide>(total));
  }
}

// Calls fn(index) for every index of `box`, row-major.
template <class Fn>
void for_each_index(const Box& box, Fn fn) {
  std::vector<int64_t> index = box.offsets;
  for (int64_t left = box.num_elements(); left > 0; --left) {
    fn(index);
    for (int dim = static_cast<int>(index.size()) - 1; dim >= 0; --dim) {
      if (++index[dim] < box.offsets[dim] + box.sizes[dim]) break;
      index[dim] = box.offsets[dim];
    }
  }
}

// Where the element of this index is in the dense buffer of the box.
inline int64_t place_in(const Box& box, const std::vector<int64_t>& index) {
  int64_t place = 0;
  for (size_t dim = 0; dim < index.size(); ++dim) {
    place = place * box.sizes[dim] + index[dim] - box.offsets[dim];
  }
  return place;
}

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_SCALARS_H_
