// SPDX-License-Identifier: Apache-2.0
//
// Runs are computed in blocks that fit the cache: a block of an operand that is dense and needs no
// conversion is read where it is, any other is first copied next to each other. So each operation
// has one loop for each type, over dense memory.
#include "ops/kernels/pointwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "Eigen/Core"
#include "base/check.h"
#include "ops/kernels/strided_walk.h"

namespace tessera::kernels {
namespace {

constexpr PointwiseInfo kInfos[] = {
#define TESSERA_INFO_(name, operands, dtypes, gives_bool) \
  {#name, operands, DTypes::dtypes, gives_bool},
    TESSERA_POINTWISE_OPS_(TESSERA_INFO_)
#undef TESSERA_INFO_
};

constexpr int64_t kBlock = 512;

template <class T>
constexpr bool kIsHalf = std::is_same_v<T, Eigen::half> || std::is_same_v<T, Eigen::bfloat16>;
// What elements of T are computed in.
template <class T>
using Computed = std::conditional_t<kIsHalf<T>, float, T>;

// Integers wrap: signed ones are computed as unsigned ones.
template <class T, class Fn>
T wrapping(T a, T b, Fn fn) {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(fn(static_cast<U>(a), static_cast<U>(b))));
  } else {
    return fn(a, b);
  }
}
template <class T>
T add(T a, T b) {
  return wrapping(a, b, [](auto x, auto y) { return x + y; });
}
template <class T>
T sub(T a, T b) {
  return wrapping(a, b, [](auto x, auto y) { return x - y; });
}
template <class T>
T mul(T a, T b) {
  return wrapping(a, b, [](auto x, auto y) { return x * y; });
}

// Of integers 0 where b is 0.
template <class T>
T floor_div(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::floor(a / b);
  } else {
    if (b == 0) return 0;
    if constexpr (std::is_signed_v<T>) {
      if (b == -1) return sub(T(0), a);
      return static_cast<T>(a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0));
    } else {
      return static_cast<T>(a / b);
    }
  }
}
template <class T>
T mod(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    const T r = std::fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
  } else {
    return b == 0 ? T(0) : sub(a, mul(floor_div(a, b), b));
  }
}
// Of integers 0 where the power is a fraction.
template <class T>
T pow(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::pow(a, b);
  } else {
    if constexpr (std::is_signed_v<T>) {
      if (b < 0) return a == 1 ? T(1) : a == T(-1) ? (b % 2 == 0 ? T(1) : T(-1)) : T(0);
    }
    T result = 1;
    for (; b > 0; b = static_cast<T>(b >> 1), a = mul(a, a)) {
      if ((b & 1) != 0) result = mul(result, a);
    }
    return result;
  }
}
template <class T>
T maximum(T a, T b) {
  return a > b || b != b ? a : b;
}
template <class T>
T minimum(T a, T b) {
  return a < b || b != b ? a : b;
}
template <class T>
T sigmoid(T x) {
  const T e = std::exp(-std::abs(x));
  return x >= 0 ? 1 / (1 + e) : e / (1 + e);
}

template <class T, class R, class Fn>
void loop1(const T* a, R* out, int64_t n, Fn fn) {
  for (int64_t i = 0; i < n; ++i) out[i] = fn(a[i]);
}
template <class T, class R, class Fn>
void loop2(const T* a, const T* b, R* out, int64_t n, Fn fn) {
  for (int64_t i = 0; i < n; ++i) out[i] = fn(a[i], b[i]);
}

// Operations whose result is bool. False for others.
template <class T>
bool compute_bool(PointwiseOp op, const T* a, const T* b, bool* out, int64_t n) {
  switch (op) {
    case PointwiseOp::is_nan:
      loop1(a, out, n, [](T x) { return x != x; });
      return true;
    case PointwiseOp::logical_not:
      loop1(a, out, n, [](T x) { return !x; });
      return true;
    case PointwiseOp::equal:
      loop2(a, b, out, n, [](T x, T y) { return x == y; });
      return true;
    case PointwiseOp::not_equal:
      loop2(a, b, out, n, [](T x, T y) { return x != y; });
      return true;
    case PointwiseOp::less:
      loop2(a, b, out, n, [](T x, T y) { return x < y; });
      return true;
    case PointwiseOp::less_equal:
      loop2(a, b, out, n, [](T x, T y) { return x <= y; });
      return true;
    case PointwiseOp::greater:
      loop2(a, b, out, n, [](T x, T y) { return x > y; });
      return true;
    case PointwiseOp::greater_equal:
      loop2(a, b, out, n, [](T x, T y) { return x >= y; });
      return true;
    case PointwiseOp::logical_and:
      loop2(a, b, out, n, [](T x, T y) { return x && y; });
      return true;
    case PointwiseOp::logical_or:
      loop2(a, b, out, n, [](T x, T y) { return x || y; });
      return true;
    default:
      return false;
  }
}

// Operations on numbers. False for others.
template <class T>
bool compute_numbers(PointwiseOp op, const T* a, const T* b, T* out, int64_t n) {
  switch (op) {
    case PointwiseOp::neg:
      loop1(a, out, n, [](T x) {
        if constexpr (std::is_floating_point_v<T>) return -x;
        return sub(T(0), x);
      });
      return true;
    case PointwiseOp::abs:
      loop1(a, out, n, [](T x) {
        if constexpr (std::is_floating_point_v<T>) return std::abs(x);
        return x < T(0) ? sub(T(0), x) : x;
      });
      return true;
    case PointwiseOp::sign:
      loop1(a, out, n, [](T x) {
        if (x != x) return x;
        return static_cast<T>((x > T(0) ? 1 : 0) - (x < T(0) ? 1 : 0));
      });
      return true;
    case PointwiseOp::square:
      loop1(a, out, n, [](T x) { return mul(x, x); });
      return true;
    case PointwiseOp::relu:
      loop1(a, out, n, [](T x) { return x < T(0) ? T(0) : x; });
      return true;
    case PointwiseOp::add:
      loop2(a, b, out, n, add<T>);
      return true;
    case PointwiseOp::sub:
      loop2(a, b, out, n, sub<T>);
      return true;
    case PointwiseOp::mul:
      loop2(a, b, out, n, mul<T>);
      return true;
    case PointwiseOp::floor_div:
      loop2(a, b, out, n, floor_div<T>);
      return true;
    case PointwiseOp::mod:
      loop2(a, b, out, n, mod<T>);
      return true;
    case PointwiseOp::pow:
      loop2(a, b, out, n, pow<T>);
      return true;
    default:
      return false;
  }
}

// Operations on floats. False for others.
template <class T>
bool compute_floats(PointwiseOp op, const T* a, const T* b, T* out, int64_t n) {
  switch (op) {
    case PointwiseOp::exp:
      loop1(a, out, n, [](T x) { return std::exp(x); });
      return true;
    case PointwiseOp::expm1:
      loop1(a, out, n, [](T x) { return std::expm1(x); });
      return true;
    case PointwiseOp::log:
      loop1(a, out, n, [](T x) { return std::log(x); });
      return true;
    case PointwiseOp::log1p:
      loop1(a, out, n, [](T x) { return std::log1p(x); });
      return true;
    case PointwiseOp::sqrt:
      loop1(a, out, n, [](T x) { return std::sqrt(x); });
      return true;
    case PointwiseOp::rsqrt:
      loop1(a, out, n, [](T x) { return 1 / std::sqrt(x); });
      return true;
    case PointwiseOp::reciprocal:
      loop1(a, out, n, [](T x) { return 1 / x; });
      return true;
    case PointwiseOp::sin:
      loop1(a, out, n, [](T x) { return std::sin(x); });
      return true;
    case PointwiseOp::cos:
      loop1(a, out, n, [](T x) { return std::cos(x); });
      return true;
    case PointwiseOp::tanh:
      loop1(a, out, n, [](T x) { return std::tanh(x); });
      return true;
    case PointwiseOp::sigmoid:
      loop1(a, out, n, sigmoid<T>);
      return true;
    case PointwiseOp::gelu:
      // By erfc, which is exact where 1 + erf cancels.
      loop1(a, out, n, [](T x) { return x / 2 * std::erfc(-x * static_cast<T>(M_SQRT1_2)); });
      return true;
    case PointwiseOp::silu:
      loop1(a, out, n, [](T x) { return x * sigmoid(x); });
      return true;
    case PointwiseOp::erf:
      loop1(a, out, n, [](T x) { return std::erf(x); });
      return true;
    case PointwiseOp::softplus:
      loop1(a, out, n, [](T x) { return std::max(x, T(0)) + std::log1p(std::exp(-std::abs(x))); });
      return true;
    case PointwiseOp::floor:
      loop1(a, out, n, [](T x) { return std::floor(x); });
      return true;
    case PointwiseOp::ceil:
      loop1(a, out, n, [](T x) { return std::ceil(x); });
      return true;
    case PointwiseOp::round:
      loop1(a, out, n, [](T x) { return std::nearbyint(x); });
      return true;
    case PointwiseOp::div:
      loop2(a, b, out, n, [](T x, T y) { return x / y; });
      return true;
    default:
      return false;
  }
}

// The result in `out`, which is of bool where the op gives bool.
template <class T>
void compute(PointwiseOp op, const T* a, const T* b, void* out, int64_t n) {
  if (compute_bool(op, a, b, static_cast<bool*>(out), n)) return;
  T* const to = static_cast<T*>(out);
  if (op == PointwiseOp::maximum) return loop2(a, b, to, n, maximum<T>);
  if (op == PointwiseOp::minimum) return loop2(a, b, to, n, minimum<T>);
  if constexpr (!std::is_same_v<T, bool>) {
    if (compute_numbers(op, a, b, to, n)) return;
  }
  if constexpr (std::is_floating_point_v<T>) {
    if (compute_floats(op, a, b, to, n)) return;
  }
  TESSERA_CHECK(false, "the operation takes the dtype");
}

// `n` elements with a stride, next to each other and in the type of computation.
template <class T>
const Computed<T>* load(const T* from, int64_t stride, int64_t n, Computed<T>* block) {
  if constexpr (!kIsHalf<T>) {
    if (stride == 1) return from;
  }
  if (stride == 0) {
    std::fill_n(block, n, static_cast<Computed<T>>(*from));
  } else {
    for (int64_t i = 0; i < n; ++i) block[i] = static_cast<Computed<T>>(from[i * stride]);
  }
  return block;
}

template <class T>
void pointwise_of(PointwiseOp op, absl::Span<const Strided> operands,
                  absl::Span<const int64_t> sizes, std::byte* out) {
  absl::InlinedVector<absl::Span<const int64_t>, 2> strides;
  for (const Strided& operand : operands) strides.push_back(operand.strides);
  StridedWalk walk(sizes, strides);
  const bool gives_bool = pointwise_info(op).gives_bool;
  const auto out_bytes = static_cast<int64_t>(gives_bool ? sizeof(bool) : sizeof(T));
  Computed<T> blocks[2][kBlock];
  Computed<T> result[kBlock];
  walk.for_each_run([&](absl::Span<const int64_t> offsets) {
    for (int64_t begin = 0; begin < walk.run(); begin += kBlock) {
      const int64_t n = std::min(kBlock, walk.run() - begin);
      const Computed<T>* loaded[2] = {nullptr, nullptr};
      for (size_t k = 0; k < operands.size(); ++k) {
        const int64_t stride = walk.run_stride(k);
        loaded[k] = load(reinterpret_cast<const T*>(operands[k].data) + offsets[k] + begin * stride,
                         stride, n, blocks[k]);
      }
      if (kIsHalf<T> && !gives_bool) {
        compute(op, loaded[0], loaded[1], result, n);
        T* const to = reinterpret_cast<T*>(out);
        for (int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(result[i]);
      } else {
        compute(op, loaded[0], loaded[1], out, n);
      }
      out += n * out_bytes;
    }
  });
}

// Elements of `T` stand for all dtypes of their size.
template <class T>
void copy_of(const Strided& in, absl::Span<const int64_t> sizes, std::byte* out) {
  StridedWalk walk(sizes, {in.strides});
  const T* const from = reinterpret_cast<const T*>(in.data);
  T* to = reinterpret_cast<T*>(out);
  const int64_t stride = walk.run_stride(0);
  walk.for_each_run([&](absl::Span<const int64_t> offsets) {
    const T* const run = from + offsets[0];
    if (stride == 1) {
      std::memcpy(to, run, walk.run() * sizeof(T));
    } else {
      for (int64_t i = 0; i < walk.run(); ++i) to[i] = run[i * stride];
    }
    to += walk.run();
  });
}

template <class T>
void select_of(const Strided& condition, const Strided& a, const Strided& b,
               absl::Span<const int64_t> sizes, std::byte* out) {
  StridedWalk walk(sizes, {condition.strides, a.strides, b.strides});
  const bool* const conditions = reinterpret_cast<const bool*>(condition.data);
  T* to = reinterpret_cast<T*>(out);
  walk.for_each_run([&](absl::Span<const int64_t> offsets) {
    const bool* const c = conditions + offsets[0];
    const T* const x = reinterpret_cast<const T*>(a.data) + offsets[1];
    const T* const y = reinterpret_cast<const T*>(b.data) + offsets[2];
    for (int64_t i = 0; i < walk.run(); ++i) {
      to[i] = c[i * walk.run_stride(0)] ? x[i * walk.run_stride(1)] : y[i * walk.run_stride(2)];
    }
    to += walk.run();
  });
}

template <class T>
void clip_of(const std::byte* in, const std::byte* low, const std::byte* high, int64_t n,
             std::byte* out) {
  const T* const from = reinterpret_cast<const T*>(in);
  const T least = *reinterpret_cast<const T*>(low);
  const T most = *reinterpret_cast<const T*>(high);
  T* const to = reinterpret_cast<T*>(out);
  // A comparison with NaN is false.
  for (int64_t i = 0; i < n; ++i) {
    to[i] = from[i] < least ? least : from[i] > most ? most : from[i];
  }
}

// Calls fn with an unsigned integer of the size of the dtype's elements.
template <class Fn>
void visit_size(DType dtype, Fn fn) {
  switch (dtype_size(dtype)) {
    case 1:
      return fn(uint8_t{});
    case 2:
      return fn(uint16_t{});
    case 4:
      return fn(uint32_t{});
    default:
      return fn(uint64_t{});
  }
}

template <class To, class From>
To cast_element(From from) {
  if constexpr (std::is_same_v<To, bool>) {
    return from != From(0);
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
    if (from != from) return 0;
    // The largest integer may be rounded up to a float that is out of range.
    using Limits = std::numeric_limits<To>;
    if (from <= static_cast<From>(Limits::min())) return Limits::min();
    if (from >= static_cast<From>(Limits::max())) return Limits::max();
    return static_cast<To>(from);
  } else {
    return static_cast<To>(from);
  }
}

template <class From, class To>
void cast_of(const std::byte* in, std::byte* out, int64_t n) {
  const From* const from = reinterpret_cast<const From*>(in);
  To* const to = reinterpret_cast<To*>(out);
  for (int64_t i = 0; i < n; ++i) {
    to[i] = static_cast<To>(cast_element<Computed<To>>(static_cast<Computed<From>>(from[i])));
  }
}

}  // namespace

const PointwiseInfo& pointwise_info(PointwiseOp op) { return kInfos[static_cast<int>(op)]; }

bool accepts(DTypes dtypes, DType dtype) {
  switch (dtypes) {
    case DTypes::kFloats:
      return is_floating_point(dtype);
    case DTypes::kNumbers:
      return dtype != DType::kBool;
    case DTypes::kBool:
      return dtype == DType::kBool;
    case DTypes::kAnything:
      return true;
  }
  return false;
}

void pointwise(PointwiseOp op, DType dtype, absl::Span<const Strided> operands,
               absl::Span<const int64_t> sizes, std::byte* out) {
  visit_dtype(dtype, [&]<class T>() { pointwise_of<T>(op, operands, sizes, out); });
}

void select(DType dtype, const Strided& condition, const Strided& a, const Strided& b,
            absl::Span<const int64_t> sizes, std::byte* out) {
  visit_size(dtype,
             [&](auto element) { select_of<decltype(element)>(condition, a, b, sizes, out); });
}

void copy_strided(DType dtype, const Strided& in, absl::Span<const int64_t> sizes, std::byte* out) {
  visit_size(dtype, [&](auto element) { copy_of<decltype(element)>(in, sizes, out); });
}

void clip(DType dtype, const std::byte* in, const std::byte* low, const std::byte* high,
          int64_t num_elements, std::byte* out) {
  visit_dtype(dtype, [&]<class T>() { clip_of<T>(in, low, high, num_elements, out); });
}

void cast(DType from, DType to, const std::byte* in, std::byte* out, int64_t num_elements) {
  visit_dtype(from, [&]<class From>() {
    visit_dtype(to, [&]<class To>() { cast_of<From, To>(in, out, num_elements); });
  });
}

}  // namespace tessera::kernels
