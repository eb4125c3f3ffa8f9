// SPDX-License-Identifier: Apache-2.0
#include "compute/cpu/reduce.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <type_traits>
#include <utility>

#include "Eigen/Core"
#include "absl/container/inlined_vector.h"
#include "base/shape.h"
#include "compute/cpu/strided_walk.h"

namespace tessera::kernels {
namespace {

template <class T>
constexpr bool kIsHalf = std::is_same_v<T, Eigen::half> || std::is_same_v<T, Eigen::bfloat16>;
// The type that elements are accumulated in. Signed integers wrap as unsigned ones.
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
    // The product of 8-bit integers is an int.
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

// The most floats that are added one after the other. The sums of more are added pairwise, so that
// the error grows with the logarithm of their number.
constexpr int64_t kMostTerms = 128;
constexpr int64_t kLeastElements = 2048;
template <ReduceOp op, class T>
constexpr bool kIsPairwise = op == ReduceOp::kSum&& std::is_floating_point_v<Computed<T>>;

// A run is reduced in lanes, so that the compiler may use vectors.
template <ReduceOp op, class T>
Computed<T> reduce_run(const T* in, int64_t stride, int64_t n) {
  using A = Computed<T>;
  constexpr int kLanes = 16;
  if constexpr (kIsPairwise<op, T>) {
    if (n > kMostTerms * kLanes) {
      const int64_t half = n / 2 / kLanes * kLanes;
      return reduce_run<op>(in, stride, half) +
             reduce_run<op>(in + half * stride, stride, n - half);
    }
  }
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

// An array, and the place of the reduction of each element: strides are 0 along reduced dims.
struct ReducedSpace {
  absl::InlinedVector<int64_t, 8> sizes;
  absl::InlinedVector<int64_t, 8> in_strides;
  absl::InlinedVector<int64_t, 8> out_strides;
};

// to[i] = op(to[i], run[i]).
template <ReduceOp op, class T>
void combine_run(const T* __restrict run, int64_t n, Computed<T>* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = combine(op, to[i], static_cast<Computed<T>>(run[i]));
}

// Reduces the array into `sums`, run by run.
template <ReduceOp op, class T>
void reduce_runs(const T* from, const ReducedSpace& space, Computed<T>* sums) {
  StridedWalk walk(space.sizes, {space.in_strides, space.out_strides});
  const int64_t n = walk.run();
  if (walk.run_stride(1) == 0) {
    const int64_t stride = walk.run_stride(0);
    return walk.for_each_run([&](absl::Span<const int64_t> offsets) {
      Computed<T>& to = sums[offsets[1]];
      to = combine(op, to, reduce_run<op>(from + offsets[0], stride, n));
    });
  }
  walk.for_each_run([&](absl::Span<const int64_t> offsets) {
    combine_run<op>(from + offsets[0], n, sums + offsets[1]);
  });
}

// As reduce_runs(), by halves of the outermost reduced dim until few runs are added to an element.
// Dims behind the last kept dim are in the runs.
template <ReduceOp op, class T>
void reduce_halves(const T* from, ReducedSpace space, int64_t kept, Computed<T>* sums) {
  size_t behind = space.sizes.size();
  while (behind > 0 && space.out_strides[behind - 1] == 0) --behind;
  int64_t terms = 1;
  int64_t run = 0;
  size_t outermost = behind;
  for (size_t dim = behind; dim-- > 0;) {
    if (space.out_strides[dim] != 0) continue;
    if (run == 0) run = space.in_strides[dim];
    terms *= space.sizes[dim];
    if (space.sizes[dim] > 1) outermost = dim;
  }
  // A walk of few elements is slow.
  const int64_t most = run == 0 ? kMostTerms : std::max(kMostTerms, kLeastElements / run);
  if (terms <= most) return reduce_runs<op>(from, space, sums);
  const int64_t half = space.sizes[outermost] / 2;
  const int64_t rest = space.sizes[outermost] - half;
  space.sizes[outermost] = half;
  reduce_halves<op>(from, space, kept, sums);
  std::vector<Computed<T>> others(kept);
  space.sizes[outermost] = rest;
  reduce_halves<op>(from + half * space.in_strides[outermost], space, kept, others.data());
  for (int64_t i = 0; i < kept; ++i) sums[i] += others[i];
}

template <ReduceOp op, class T>
void reduce_of(const std::byte* in, absl::Span<const int64_t> sizes,
               const std::vector<bool>& is_reduced, double divisor, std::byte* out) {
  using A = Computed<T>;
  ReducedSpace space;
  space.sizes.assign(sizes.begin(), sizes.end());
  space.in_strides.resize(sizes.size());
  space.out_strides.resize(sizes.size(), 0);
  int64_t dense = 1;
  int64_t kept = 1;
  for (size_t dim = sizes.size(); dim-- > 0;) {
    space.in_strides[dim] = dense;
    dense *= sizes[dim];
    if (is_reduced[dim]) continue;
    space.out_strides[dim] = kept;
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
  if constexpr (kIsPairwise<op, T>) {
    reduce_halves<op>(from, std::move(space), kept, sums);
  } else {
    reduce_runs<op>(from, space, sums);
  }
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

// Adds an element to each sum, and stores the sums in `out` if there is one.
template <class T, class A>
void add_to_sums(const T* __restrict in, int64_t n, A* __restrict sums, T* __restrict out) {
  for (int64_t k = 0; k < n; ++k) {
    sums[k] = combine<A>(ReduceOp::kSum, sums[k], static_cast<A>(in[k]));
    if (out != nullptr) out[k] = static_cast<T>(sums[k]);
  }
}

template <class T>
void cumsum_of(const std::byte* in, const Lines& lines, int64_t first, int64_t count,
               std::byte* out) {
  // The error of a long sum in f32 grows with its length.
  using A = std::conditional_t<std::is_same_v<T, float>, double, Computed<T>>;
  const T* from = reinterpret_cast<const T*>(in);
  T* to = reinterpret_cast<T*>(out);
  const auto sums = std::make_unique<A[]>(lines.inner);
  for (int64_t o = 0; o < lines.outer; ++o) {
    std::fill_n(sums.get(), lines.inner, A(0));
    for (int64_t i = 0; i < first + count; ++i) {
      add_to_sums(from + i * lines.inner, lines.inner, sums.get(), i < first ? nullptr : to);
      if (i >= first) to += lines.inner;
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
