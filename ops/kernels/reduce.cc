// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/reduce.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>

#include "Eigen/Core"
#include "absl/container/inlined_vector.h"
#include "base/shape.h"
#include "ops/kernels/strided_walk.h"

namespace tessera::kernels {
namespace {

template <class T>
constexpr bool kIsHalf = std::is_same_v<T, Eigen::half> || std::is_same_v<T, Eigen::bfloat16>;
// What elements are accumulated in. Signed integers wrap as unsigned ones.
template <class T>
using Computed = std::conditional_t<kIsHalf<T>, float, T>;

template <class A>
A combine(ReduceOp op, A a, A b) {
  switch (op) {
    case ReduceOp::kMin:
      return a < b || b != b ? a : b;
    case ReduceOp::kMax:
      return a > b || b != b ? a : b;
    default:
      break;
  }
  if constexpr (std::is_same_v<A, bool>) {
    return a;  // sums and products of bool are refused
  } else if constexpr (std::is_integral_v<A>) {
    using U = std::make_unsigned_t<A>;
    const U x = static_cast<U>(a);
    const U y = static_cast<U>(b);
    // Of 8 bits the product is one of int.
    return static_cast<A>(static_cast<U>(op == ReduceOp::kProd ? x * y : x + y));
  } else {
    return op == ReduceOp::kProd ? a * b : a + b;
  }
}

template <class A>
A identity(ReduceOp op) {
  using Limits = std::numeric_limits<A>;
  switch (op) {
    case ReduceOp::kProd:
      return A(1);
    case ReduceOp::kMin:
      return Limits::has_quiet_NaN ? Limits::quiet_NaN() : Limits::max();
    case ReduceOp::kMax:
      return Limits::has_quiet_NaN ? Limits::quiet_NaN() : Limits::lowest();
    default:
      return A(0);
  }
}

// A run is reduced in lanes, so that the compiler may use vectors and errors of sums stay small.
template <ReduceOp op, class T>
Computed<T> reduce_run(const T* in, int64_t stride, int64_t n) {
  using A = Computed<T>;
  constexpr int kLanes = 16;
  A lanes[kLanes];
  std::fill_n(lanes, kLanes, identity<A>(op));
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int k = 0; k < kLanes; ++k) {
      lanes[k] = combine(op, lanes[k], static_cast<A>(in[(i + k) * stride]));
    }
  }
  for (int k = 0; i < n; ++i, ++k) lanes[k] = combine(op, lanes[k], static_cast<A>(in[i * stride]));
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int k = 0; k < width; ++k) lanes[k] = combine(op, lanes[k], lanes[k + width]);
  }
  return lanes[0];
}

template <ReduceOp op, class T>
void reduce_of(const std::byte* in, absl::Span<const int64_t> sizes,
               const std::vector<bool>& is_reduced, double divisor, std::byte* out) {
  using A = Computed<T>;
  absl::InlinedVector<int64_t, 8> in_strides(sizes.size());
  absl::InlinedVector<int64_t, 8> out_strides(sizes.size(), 0);
  int64_t dense = 1;
  int64_t kept = 1;
  for (size_t dim = sizes.size(); dim-- > 0;) {
    in_strides[dim] = dense;
    dense *= sizes[dim];
    if (is_reduced[dim]) continue;
    out_strides[dim] = kept;
    kept *= sizes[dim];
  }
  std::vector<A> wide;
  A* sums = nullptr;
  if constexpr (kIsHalf<T>) {
    wide.resize(kept);
    sums = wide.data();
  } else {
    sums = reinterpret_cast<A*>(out);
  }
  std::fill_n(sums, kept, identity<A>(op));
  const T* const from = reinterpret_cast<const T*>(in);
  StridedWalk walk(sizes, {in_strides, out_strides});
  const int64_t n = walk.run();
  const int64_t stride = walk.run_stride(0);
  walk.for_each_run([&](absl::Span<const int64_t> offsets) {
    const T* const run = from + offsets[0];
    A* const to = sums + offsets[1];
    if (walk.run_stride(1) == 0) {
      *to = combine(op, *to, reduce_run<op>(run, stride, n));
    } else {
      for (int64_t i = 0; i < n; ++i) to[i] = combine(op, to[i], static_cast<A>(run[i]));
    }
  });
  if constexpr (std::is_floating_point_v<A>) {
    if (divisor != 1) {
      for (int64_t i = 0; i < kept; ++i)
        sums[i] = static_cast<A>(sums[i] / static_cast<A>(divisor));
    }
  }
  if constexpr (kIsHalf<T>) {
    T* const to = reinterpret_cast<T*>(out);
    for (int64_t i = 0; i < kept; ++i) to[i] = static_cast<T>(sums[i]);
  }
}

template <class T>
void cumsum_of(const std::byte* in, const Lines& lines, int64_t first, int64_t count,
               std::byte* out) {
  using A = Computed<T>;
  const T* from = reinterpret_cast<const T*>(in);
  T* to = reinterpret_cast<T*>(out);
  std::vector<A> sums(lines.inner);
  for (int64_t o = 0; o < lines.outer; ++o) {
    std::fill(sums.begin(), sums.end(), A(0));
    for (int64_t i = 0; i < first + count; ++i) {
      for (int64_t k = 0; k < lines.inner; ++k) {
        sums[k] = combine<A>(ReduceOp::kSum, sums[k], static_cast<A>(from[i * lines.inner + k]));
      }
      if (i < first) continue;
      for (int64_t k = 0; k < lines.inner; ++k) *to++ = static_cast<T>(sums[k]);
    }
    from += lines.size * lines.inner;
  }
}

// Whether a comes before b, NaN last.
template <class A>
bool is_before(bool is_descending, A a, A b) {
  if (b != b) return a == a;
  return is_descending ? a > b : a < b;
}

template <class T>
void arg_extreme_of(bool is_max, const std::byte* in, const Lines& lines,
                    const LineIndices& numbers, int64_t* out) {
  using A = Computed<T>;
  const T* const from = reinterpret_cast<const T*>(in);
  for (int64_t o = 0; o < lines.outer; ++o) {
    for (int64_t k = 0; k < lines.inner; ++k) {
      const int64_t begin = o * lines.size * lines.inner + k;
      const T* const line = from + begin;
      const auto number = [&](int64_t i) {
        return numbers.array == nullptr ? numbers.first + i
                                        : numbers.array[begin + i * lines.inner];
      };
      int64_t best = 0;
      for (int64_t i = 1; i < lines.size; ++i) {
        const A next = static_cast<A>(line[i * lines.inner]);
        const A value = static_cast<A>(line[best * lines.inner]);
        const bool is_equal =
            numbers.array != nullptr && !is_before(is_max, value, next) && number(i) < number(best);
        if (is_equal || is_before(is_max, next, value)) best = i;
      }
      *out++ = number(best);
    }
  }
}

template <class T>
void sort_of(bool is_descending, const std::byte* in, const Lines& lines,
             const LineIndices& numbers, int64_t count, std::byte* values, int64_t* indices) {
  using A = Computed<T>;
  const T* const from = reinterpret_cast<const T*>(in);
  T* const to = reinterpret_cast<T*>(values);
  std::vector<int64_t> order(lines.size);
  for (int64_t o = 0; o < lines.outer; ++o) {
    for (int64_t k = 0; k < lines.inner; ++k) {
      const int64_t begin = o * lines.size * lines.inner + k;
      const T* const line = from + begin;
      std::iota(order.begin(), order.end(), 0);
      const auto comes_first = [&](int64_t a, int64_t b) {
        const A x = static_cast<A>(line[a * lines.inner]);
        const A y = static_cast<A>(line[b * lines.inner]);
        if (is_before(is_descending, x, y)) return true;
        return !is_before(is_descending, y, x) && a < b;
      };
      std::partial_sort(order.begin(), order.begin() + count, order.end(), comes_first);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t place = (o * count + i) * lines.inner + k;
        if (values != nullptr) to[place] = line[order[i] * lines.inner];
        if (indices == nullptr) continue;
        indices[place] = numbers.array == nullptr ? numbers.first + order[i]
                                                  : numbers.array[begin + order[i] * lines.inner];
      }
    }
  }
}

}  // namespace

void reduce_dims(ReduceOp op, DType dtype, const std::byte* in, absl::Span<const int64_t> sizes,
                 const std::vector<bool>& is_reduced, double divisor, std::byte* out) {
  visit_dtype(dtype, [&]<class T>() {
    switch (op) {
      case ReduceOp::kProd:
        return reduce_of<ReduceOp::kProd, T>(in, sizes, is_reduced, divisor, out);
      case ReduceOp::kMin:
        return reduce_of<ReduceOp::kMin, T>(in, sizes, is_reduced, divisor, out);
      case ReduceOp::kMax:
        return reduce_of<ReduceOp::kMax, T>(in, sizes, is_reduced, divisor, out);
      default:
        return reduce_of<ReduceOp::kSum, T>(in, sizes, is_reduced, divisor, out);
    }
  });
}

Lines lines_along(absl::Span<const int64_t> sizes, int dim) {
  return {num_elements(sizes.first(dim)), sizes[dim], num_elements(sizes.subspan(dim + 1))};
}

void cumsum(DType dtype, const std::byte* in, const Lines& lines, int64_t first, int64_t count,
            std::byte* out) {
  visit_dtype(dtype, [&]<class T>() { cumsum_of<T>(in, lines, first, count, out); });
}

void arg_extreme(bool is_max, DType dtype, const std::byte* in, const Lines& lines,
                 const LineIndices& numbers, int64_t* out) {
  visit_dtype(dtype, [&]<class T>() { arg_extreme_of<T>(is_max, in, lines, numbers, out); });
}

void sort_lines(bool is_descending, DType dtype, const std::byte* in, const Lines& lines,
                const LineIndices& numbers, int64_t count, std::byte* values, int64_t* indices) {
  visit_dtype(dtype, [&]<class T>() {
    sort_of<T>(is_descending, in, lines, numbers, count, values, indices);
  });
}

}  // namespace tessera::kernels
