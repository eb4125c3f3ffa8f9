// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/kernels_plain.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "Eigen/Core"
#include "base/check.h"

namespace tessera::cpu {
namespace {

// Elements that are reduced at a time: the accumulators stay in the first-level cache.
constexpr int64_t kBlockElements = 1024;

// The types in which an element is loaded and accumulated. bool as its byte, for which min is and,
// max is or.
template <class T>
struct Arithmetic {
  using Stored = T;
  using Accumulator = T;
};
template <>
struct Arithmetic<bool> {
  using Stored = uint8_t;
  using Accumulator = uint8_t;
};
template <>
struct Arithmetic<Eigen::half> {
  using Stored = Eigen::half;
  using Accumulator = float;
};
template <>
struct Arithmetic<Eigen::bfloat16> {
  using Stored = Eigen::bfloat16;
  using Accumulator = float;
};

// Which of two NaNs a sum returns is the compiler's choice, unless they are ordered: then the
// first.
enum class Nans { kAny, kOrdered };

template <ReduceOp op, Nans nans, class A>
A combine(A a, A b) {
  if constexpr (op == ReduceOp::kMin || op == ReduceOp::kMax) {
    // A NaN loses against any number: a comparison with it is false, and a != a finds it in `a`.
    const bool take_b = op == ReduceOp::kMin ? b < a : b > a;
    return take_b || a != a ? b : a;
  } else if constexpr (std::is_integral_v<A>) {
    using U = std::make_unsigned_t<A>;
    // Small types are promoted to int, where their products fit; u32 and u64 wrap by themselves.
    if constexpr (op == ReduceOp::kProd) {
      return static_cast<A>(static_cast<U>(a) * static_cast<U>(b));
    } else {
      return static_cast<A>(static_cast<U>(a) + static_cast<U>(b));
    }
  } else {
    if (nans == Nans::kOrdered && a != a) return a + a;
    return op == ReduceOp::kProd ? a * b : a + b;
  }
}

// The memory need not be aligned to its elements: a process may lend any.
template <class T>
void load(const std::byte* from, T* to, int64_t count) {
  std::memcpy(static_cast<void*>(to), from, count * sizeof(T));
}

// The `n` elements from byte `offset` on; `block` is for the caller to use afterwards.
template <class T, ReduceOp op, Nans nans>
void accumulate(const DenseReduction& r, int64_t offset, int64_t n,
                typename Arithmetic<T>::Stored* block,
                typename Arithmetic<T>::Accumulator* accumulators) {
  using Accumulator = typename Arithmetic<T>::Accumulator;
  load(r.terms[0] + offset, block, n);
  for (int64_t i = 0; i < n; ++i) accumulators[i] = static_cast<Accumulator>(block[i]);
  for (size_t k = 1; k < r.terms.size(); ++k) {
    load(r.terms[k] + offset, block, n);
    for (int64_t i = 0; i < n; ++i) {
      accumulators[i] = combine<op, nans>(accumulators[i], static_cast<Accumulator>(block[i]));
    }
  }
}

template <class T, ReduceOp op>
void reduce_typed(const DenseReduction& r) {
  using Stored = typename Arithmetic<T>::Stored;
  using Accumulator = typename Arithmetic<T>::Accumulator;
  Accumulator accumulators[kBlockElements];
  Stored block[kBlockElements];
  const int64_t num_elements = r.num_bytes / static_cast<int64_t>(sizeof(Stored));
  for (int64_t first = 0; first < num_elements; first += kBlockElements) {
    const int64_t n = std::min(kBlockElements, num_elements - first);
    const int64_t offset = first * static_cast<int64_t>(sizeof(Stored));
    accumulate<T, op, Nans::kAny>(r, offset, n, block, accumulators);
    int64_t num_nans = 0;
    for (int64_t i = 0; i < n; ++i) num_nans += accumulators[i] != accumulators[i];
    if (num_nans > 0) accumulate<T, op, Nans::kOrdered>(r, offset, n, block, accumulators);
    if constexpr (op == ReduceOp::kAvg) {
      const auto divisor = static_cast<Accumulator>(r.terms.size());
      for (int64_t i = 0; i < n; ++i) accumulators[i] /= divisor;
    }
    for (int64_t i = 0; i < n; ++i) block[i] = static_cast<Stored>(accumulators[i]);
    for (std::byte* out : r.outs) std::memcpy(out + offset, block, n * sizeof(Stored));
  }
}

template <class T>
void reduce_with(const DenseReduction& r) {
  constexpr bool kIsFloat = !std::is_integral_v<T>;
  switch (r.op) {
    case ReduceOp::kMin:
      return reduce_typed<T, ReduceOp::kMin>(r);
    case ReduceOp::kMax:
      return reduce_typed<T, ReduceOp::kMax>(r);
    case ReduceOp::kSum:
      if constexpr (!std::is_same_v<T, bool>) return reduce_typed<T, ReduceOp::kSum>(r);
      break;
    case ReduceOp::kProd:
      if constexpr (!std::is_same_v<T, bool>) return reduce_typed<T, ReduceOp::kProd>(r);
      break;
    case ReduceOp::kAvg:
      if constexpr (kIsFloat) return reduce_typed<T, ReduceOp::kAvg>(r);
      break;
  }
  TESSERA_CHECK(false, "a reduction that validate_reduction passed");
}

}  // namespace

void reduce_dense_plain(const DenseReduction& reduction) {
  visit_dtype(reduction.dtype, [&]<class T>() { reduce_with<T>(reduction); });
}

void copy_rows_plain(const RowCopy& copy) {
  for (int64_t row = 0; row < copy.num_rows; ++row) {
    std::memcpy(copy.to + row * copy.to_stride, copy.from + row * copy.from_stride, copy.row_bytes);
  }
}

}  // namespace tessera::cpu
