// SPDX-License-Identifier: Apache-2.0
//
// Compiled once for each instruction set, with TESSERA_LOOPS the name of its function. Everything
// else has internal linkage, and no function of a header is called: the linker could take its copy
// for another set, which may not run on the CPU.
#include <cstdint>
#include <type_traits>

#define TESSERA_KERNEL_BODY static inline
#include "compute/cpu/loops.h"
#include "compute/optimizer_math.h"
#include "device/number_math.h"

// Functions of libm. With this attribute the compiler may call libmvec's for vectors.
#if defined(__AVX2__) && !defined(__clang__)
#define TESSERA_VECTOR_ __attribute__((const, simd("notinbranch")))
#else
#define TESSERA_VECTOR_ __attribute__((const))
#endif
// C++ does not let two functions of C have one name, so each type has a name of its own.
#define TESSERA_LIBM_(name)                                                      \
  extern "C" TESSERA_VECTOR_ float tessera_##name##_f(float) __asm__(#name "f"); \
  extern "C" TESSERA_VECTOR_ double tessera_##name##_d(double) __asm__(#name);   \
  namespace {                                                                    \
  inline float m_##name(float x) { return tessera_##name##_f(x); }               \
  inline double m_##name(double x) { return tessera_##name##_d(x); }             \
  }
TESSERA_LIBM_(exp)
TESSERA_LIBM_(expm1)
TESSERA_LIBM_(log)
TESSERA_LIBM_(log1p)
TESSERA_LIBM_(sin)
TESSERA_LIBM_(cos)
TESSERA_LIBM_(tanh)
TESSERA_LIBM_(erf)
TESSERA_LIBM_(erfc)
extern "C" TESSERA_VECTOR_ float tessera_pow_f(float, float) __asm__("powf");
extern "C" TESSERA_VECTOR_ double tessera_pow_d(double, double) __asm__("pow");

namespace tessera::kernels {
namespace {

float m_pow(float x, float y) { return tessera_pow_f(x, y); }
double m_pow(double x, double y) { return tessera_pow_d(x, y); }
float m_sqrt(float x) { return __builtin_sqrtf(x); }
double m_sqrt(double x) { return __builtin_sqrt(x); }
float m_abs(float x) { return __builtin_fabsf(x); }
double m_abs(double x) { return __builtin_fabs(x); }
float m_floor(float x) { return __builtin_floorf(x); }
double m_floor(double x) { return __builtin_floor(x); }
float m_ceil(float x) { return __builtin_ceilf(x); }
double m_ceil(double x) { return __builtin_ceil(x); }
float m_round(float x) { return __builtin_rintf(x); }
double m_round(double x) { return __builtin_rint(x); }
float m_fmod(float x, float y) { return __builtin_fmodf(x, y); }
double m_fmod(double x, double y) { return __builtin_fmod(x, y); }

// Integers wrap: signed ones are computed as unsigned ones.
template <class T>
auto as_unsigned(T x) {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    return static_cast<std::make_unsigned_t<T>>(x);
  } else {
    return x;
  }
}
template <class T>
T add(T a, T b) {
  return static_cast<T>(as_unsigned(a) + as_unsigned(b));
}
template <class T>
T sub(T a, T b) {
  return static_cast<T>(as_unsigned(a) - as_unsigned(b));
}
template <class T>
T mul(T a, T b) {
  return static_cast<T>(as_unsigned(a) * as_unsigned(b));
}
// 0 where either factor is 0, whatever the other is.
template <class T>
T mul_or_zero(T a, T b) {
  return ((a == 0) | (b == 0)) ? T(0) : a * b;
}

// Integers: 0 where b is 0.
template <class T>
T floor_div(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return floor_quotient(a, b);
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
    const T r = m_fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
  } else {
    return b == 0 ? T(0) : sub(a, mul(floor_div(a, b), b));
  }
}
// Integers: 0 where the power is a fraction.
template <class T>
T power(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return m_pow(a, b);
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
T sigmoid(T x) {
  const T e = m_exp(-m_abs(x));
  return (x >= 0 ? T(1) : e) / (1 + e);
}

template <class T, class R, class Fn>
bool loop1(const T* a, R* out, int64_t n, Fn fn) {
  for (int64_t i = 0; i < n; ++i) out[i] = fn(a[i]);
  return true;
}
template <class T, class R, class Fn>
bool loop2(const T* a, const T* b, R* out, int64_t n, Fn fn) {
  for (int64_t i = 0; i < n; ++i) out[i] = fn(a[i], b[i]);
  return true;
}

// Operations whose result is bool, and comparisons; false for others.
template <class T>
bool compute_anything(PointwiseOp op, const T* a, const T* b, void* out, int64_t n) {
  bool* const flags = static_cast<bool*>(out);
  T* const to = static_cast<T*>(out);
  switch (op) {
    case PointwiseOp::is_nan:
      return loop1(a, flags, n, [](T x) { return x != x; });
    case PointwiseOp::logical_not:
      return loop1(a, flags, n, [](T x) { return !x; });
    case PointwiseOp::equal:
      return loop2(a, b, flags, n, [](T x, T y) { return x == y; });
    case PointwiseOp::not_equal:
      return loop2(a, b, flags, n, [](T x, T y) { return x != y; });
    case PointwiseOp::less:
      return loop2(a, b, flags, n, [](T x, T y) { return x < y; });
    case PointwiseOp::less_equal:
      return loop2(a, b, flags, n, [](T x, T y) { return x <= y; });
    case PointwiseOp::greater:
      return loop2(a, b, flags, n, [](T x, T y) { return x > y; });
    case PointwiseOp::greater_equal:
      return loop2(a, b, flags, n, [](T x, T y) { return x >= y; });
    case PointwiseOp::logical_and:
      return loop2(a, b, flags, n, [](T x, T y) { return x && y; });
    case PointwiseOp::logical_or:
      return loop2(a, b, flags, n, [](T x, T y) { return x || y; });
    // NaN only where both are.
    case PointwiseOp::maximum:
      return loop2(a, b, to, n, [](T x, T y) { return ((x > y) | (y != y)) ? x : y; });
    case PointwiseOp::minimum:
      return loop2(a, b, to, n, [](T x, T y) { return ((x < y) | (y != y)) ? x : y; });
    default:
      return false;
  }
}

template <class T>
bool compute_numbers(PointwiseOp op, const T* a, const T* b, T* out, int64_t n) {
  switch (op) {
    case PointwiseOp::neg:
      return loop1(a, out, n, [](T x) {
        if constexpr (std::is_floating_point_v<T>) return -x;
        return sub(T(0), x);
      });
    case PointwiseOp::abs:
      return loop1(a, out, n, [](T x) {
        if constexpr (std::is_floating_point_v<T>) return m_abs(x);
        return x < T(0) ? sub(T(0), x) : x;
      });
    case PointwiseOp::sign:
      return loop1(a, out, n, [](T x) {
        const T sign = static_cast<T>((x > T(0) ? T(1) : T(0)) - (x < T(0) ? T(1) : T(0)));
        return x != x ? x : sign;
      });
    case PointwiseOp::square:
      return loop1(a, out, n, [](T x) { return mul(x, x); });
    case PointwiseOp::relu:
      return loop1(a, out, n, [](T x) { return x < T(0) ? T(0) : x; });
    case PointwiseOp::add:
      return loop2(a, b, out, n, add<T>);
    case PointwiseOp::sub:
      return loop2(a, b, out, n, sub<T>);
    case PointwiseOp::mul:
      return loop2(a, b, out, n, mul<T>);
    case PointwiseOp::floor_div:
      return loop2(a, b, out, n, floor_div<T>);
    case PointwiseOp::mod:
      return loop2(a, b, out, n, mod<T>);
    case PointwiseOp::pow:
      return loop2(a, b, out, n, power<T>);
    default:
      return false;
  }
}

template <class T>
bool compute_floats(PointwiseOp op, const T* a, const T* b, T* out, int64_t n) {
  switch (op) {
    case PointwiseOp::exp:
      return loop1(a, out, n, [](T x) { return m_exp(x); });
    case PointwiseOp::expm1:
      return loop1(a, out, n, [](T x) { return m_expm1(x); });
    case PointwiseOp::log:
      return loop1(a, out, n, [](T x) { return m_log(x); });
    case PointwiseOp::log1p:
      return loop1(a, out, n, [](T x) { return m_log1p(x); });
    case PointwiseOp::sqrt:
      return loop1(a, out, n, [](T x) { return m_sqrt(x); });
    case PointwiseOp::rsqrt:
      return loop1(a, out, n, [](T x) { return 1 / m_sqrt(x); });
    case PointwiseOp::reciprocal:
      return loop1(a, out, n, [](T x) { return 1 / x; });
    case PointwiseOp::sin:
      return loop1(a, out, n, [](T x) { return m_sin(x); });
    case PointwiseOp::cos:
      return loop1(a, out, n, [](T x) { return m_cos(x); });
    case PointwiseOp::tanh:
      return loop1(a, out, n, [](T x) { return m_tanh(x); });
    case PointwiseOp::sigmoid:
      return loop1(a, out, n, [](T x) { return sigmoid(x); });
    case PointwiseOp::gelu:
      // By erfc, which is exact where 1 + erf cancels.
      return loop1(a, out, n,
                   [](T x) { return x / 2 * m_erfc(-x * static_cast<T>(0.70710678118654752440)); });
    case PointwiseOp::silu:
      return loop1(a, out, n, [](T x) { return x * sigmoid(x); });
    case PointwiseOp::erf:
      return loop1(a, out, n, [](T x) { return m_erf(x); });
    case PointwiseOp::softplus:
      return loop1(a, out, n, [](T x) { return (x > 0 ? x : T(0)) + m_log1p(m_exp(-m_abs(x))); });
    case PointwiseOp::floor:
      return loop1(a, out, n, [](T x) { return m_floor(x); });
    case PointwiseOp::ceil:
      return loop1(a, out, n, [](T x) { return m_ceil(x); });
    case PointwiseOp::round:
      return loop1(a, out, n, [](T x) { return m_round(x); });
    case PointwiseOp::div:
      return loop2(a, b, out, n, [](T x, T y) { return x / y; });
    case PointwiseOp::mul_or_zero:
      return loop2(a, b, out, n, mul_or_zero<T>);
    case PointwiseOp::div_or_zero:
      return loop2(a, b, out, n, [](T x, T y) {
        const T infinity = static_cast<T>(__builtin_inf());
        return ((x == 0) | (m_abs(y) == infinity)) ? T(0) : x / y;
      });
    default:
      return false;
  }
}

template <class T>
bool compute(PointwiseOp op, const void* first, const void* second, void* out, int64_t n) {
  const T* const a = static_cast<const T*>(first);
  const T* const b = static_cast<const T*>(second);
  T* const to = static_cast<T*>(out);
  if (compute_anything(op, a, b, out, n)) return true;
  if constexpr (!std::is_same_v<T, bool>) {
    if (compute_numbers(op, a, b, to, n)) return true;
  }
  if constexpr (std::is_floating_point_v<T>) return compute_floats(op, a, b, to, n);
  return false;
}

bool pointwise(PointwiseOp op, LoopType type, const void* a, const void* b, void* out, int64_t n) {
  switch (type) {
    case LoopType::kBool:
      return compute<bool>(op, a, b, out, n);
    case LoopType::kInt8:
      return compute<int8_t>(op, a, b, out, n);
    case LoopType::kUint8:
      return compute<uint8_t>(op, a, b, out, n);
    case LoopType::kInt32:
      return compute<int32_t>(op, a, b, out, n);
    case LoopType::kInt64:
      return compute<int64_t>(op, a, b, out, n);
    case LoopType::kFloat32:
      return compute<float>(op, a, b, out, n);
    case LoopType::kFloat64:
      return compute<double>(op, a, b, out, n);
  }
  return false;
}

uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// f16 has 5 bits of exponent and 10 of fraction. A number below 2^-14 is its fraction times 2^-24.
float widen_float16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t rest = half & 0x7FFFu;
  const uint32_t normal = (rest << 13) + 0x38000000u;   // exponent + 127 - 15
  const uint32_t special = (rest << 13) | 0x7F800000u;  // infinity, NaN
  const uint32_t small = bits_of(static_cast<float>(static_cast<int32_t>(rest)) * 0x1p-24f);
  const uint32_t bits = rest >= 0x7C00u ? special : rest < 0x0400u ? small : normal;
  return float_of(bits | sign);
}
uint16_t narrow_float16(float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t rest = bits & 0x7FFFFFFFu;
  // Round to nearest, ties to even: what is cut off, and the last bit that stays.
  const uint32_t normal = (rest - 0x38000000u + 0x0FFFu + ((rest >> 13) & 1)) >> 13;
  // Below 2^-14: adding 1/2 leaves units of 2^-24 in the last bits of the fraction, rounded so.
  const uint32_t small = bits_of(float_of(rest) + 0.5f) - 0x3F000000u;
  const uint32_t finite = rest < 0x38800000u ? small : normal;
  const uint32_t large = rest > 0x7F800000u ? 0x7E00u : 0x7C00u;
  return static_cast<uint16_t>((rest >= 0x477FF000u ? large : finite) | sign);
}
float widen_bfloat16(uint16_t half) { return float_of(static_cast<uint32_t>(half) << 16); }
uint16_t narrow_bfloat16(float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1)) >> 16;
  const uint32_t nan = ((bits >> 16) & 0x8000u) | 0x7FC0u;
  return static_cast<uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded);
}

void widen(HalfType type, const uint16_t* in, float* out, int64_t n) {
  if (type == HalfType::kFloat16) {
    for (int64_t i = 0; i < n; ++i) out[i] = widen_float16(in[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = widen_bfloat16(in[i]);
  }
}
void narrow(HalfType type, const float* in, uint16_t* out, int64_t n) {
  if (type == HalfType::kFloat16) {
    for (int64_t i = 0; i < n; ++i) out[i] = narrow_float16(in[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = narrow_bfloat16(in[i]);
  }
}

template <class T>
void select_of(const uint8_t* condition, const void* a, const void* b, void* out, int64_t n) {
  const T* const x = static_cast<const T*>(a);
  const T* const y = static_cast<const T*>(b);
  T* const to = static_cast<T*>(out);
  for (int64_t i = 0; i < n; ++i) to[i] = condition[i] != 0 ? x[i] : y[i];
}
void select(int64_t element_bytes, const uint8_t* condition, const void* a, const void* b,
            void* out, int64_t n) {
  switch (element_bytes) {
    case 1:
      return select_of<uint8_t>(condition, a, b, out, n);
    case 2:
      return select_of<uint16_t>(condition, a, b, out, n);
    case 4:
      return select_of<uint32_t>(condition, a, b, out, n);
    default:
      return select_of<uint64_t>(condition, a, b, out, n);
  }
}

// Sums of n terms in kLanes partial sums, which are added in their order: the order depends on n
// alone.
template <class T, class Term>
T sum_of(int64_t n, Term term) {
  T lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) lanes[k] += term(i + k);
  }
  for (int64_t k = 0; i < n; ++i, ++k) lanes[k] += term(i);
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t k = 0; k < width; ++k) lanes[k] += lanes[k + width];
  }
  return lanes[0];
}
template <class T>
T greatest(const T* x, int64_t n) {
  T lanes[kLanes];
  for (int64_t k = 0; k < kLanes; ++k) lanes[k] = -__builtin_huge_val();
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) lanes[k] = x[i + k] > lanes[k] ? x[i + k] : lanes[k];
  }
  for (int64_t k = 0; i < n; ++i, ++k) lanes[k] = x[i] > lanes[k] ? x[i] : lanes[k];
  T most = lanes[0];
  for (const T lane : lanes) most = lane > most ? lane : most;
  return most;
}

// out[i] = exp(in[i] - shift), also past the last whole block by vectors.
template <class T>
void exp_row(const T* in, T shift, int64_t n, T* out) {
  const int64_t whole = n / kLanes * kLanes;
  for (int64_t i = 0; i < whole; ++i) out[i] = m_exp(in[i] - shift);
  if (whole == n) return;
  T block[kLanes] = {};
  for (int64_t i = whole; i < n; ++i) block[i - whole] = in[i] - shift;
  for (int64_t k = 0; k < kLanes; ++k) block[k] = m_exp(block[k]);
  for (int64_t i = whole; i < n; ++i) out[i] = block[i - whole];
}

// Subtracts the largest finite element first, so that no exponential is too large.
template <class T>
void softmax_of(bool is_log, const void* in, Rows rows, void* out) {
  for (int64_t row = 0; row < rows.count; ++row) {
    const int64_t n = rows.size;
    const T* const x = static_cast<const T*>(in) + row * n;
    T* const y = static_cast<T*>(out) + row * n;
    const T most = greatest(x, n);
    const T shift = m_abs(most) <= (sizeof(T) == 4 ? T(__FLT_MAX__) : T(__DBL_MAX__)) ? most : T(0);
    exp_row(x, shift, n, y);
    const T sum = sum_of<T>(n, [y](int64_t i) { return y[i]; });
    if (is_log) {
      const T log = m_log(sum);
      for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - shift) - log;
    } else {
      for (int64_t i = 0; i < n; ++i) y[i] = y[i] / sum;
    }
  }
}
void softmax(LoopType type, bool is_log, const void* in, Rows rows, void* out) {
  if (type == LoopType::kFloat32) return softmax_of<float>(is_log, in, rows, out);
  softmax_of<double>(is_log, in, rows, out);
}

template <class T>
void softmax_gradient_of(bool is_log, const void* result, const void* cotangent, Rows rows,
                         void* out) {
  for (int64_t row = 0; row < rows.count; ++row) {
    const int64_t n = rows.size;
    const T* const y = static_cast<const T*>(result) + row * n;
    const T* const c = static_cast<const T*>(cotangent) + row * n;
    T* const to = static_cast<T*>(out) + row * n;
    if (is_log) {
      const T sum = sum_of<T>(n, [c](int64_t i) { return c[i]; });
      exp_row(y, T(0), n, to);
      for (int64_t i = 0; i < n; ++i) to[i] = c[i] - mul_or_zero(to[i], sum);
    } else {
      const T sum = sum_of<T>(n, [y, c](int64_t i) { return mul_or_zero(y[i], c[i]); });
      for (int64_t i = 0; i < n; ++i) to[i] = mul_or_zero(y[i], c[i] - sum);
    }
  }
}
void softmax_gradient(LoopType type, bool is_log, const void* y, const void* c, Rows rows,
                      void* out) {
  if (type == LoopType::kFloat32) return softmax_gradient_of<float>(is_log, y, c, rows, out);
  softmax_gradient_of<double>(is_log, y, c, rows, out);
}

// The mean of a row and 1 / sqrt(variance + epsilon), in two passes: a sum of squares cancels.
template <class T>
struct Moments {
  T mean;
  T scale;
};
template <class T>
Moments<T> moments_of(const T* x, int64_t n, double epsilon) {
  const T count = static_cast<T>(n);
  const T mean = sum_of<T>(n, [x](int64_t i) { return x[i]; }) / count;
  const T squares = sum_of<T>(n, [x, mean](int64_t i) { return (x[i] - mean) * (x[i] - mean); });
  return {mean, 1 / m_sqrt(squares / count + static_cast<T>(epsilon))};
}

template <class T>
void normalize_of(const void* in, const T* scale, const T* bias, Rows rows, double epsilon,
                  void* out) {
  for (int64_t row = 0; row < rows.count; ++row) {
    const T* const x = static_cast<const T*>(in) + row * rows.size;
    T* const y = static_cast<T*>(out) + row * rows.size;
    const Moments<T> m = moments_of(x, rows.size, epsilon);
    if (scale == nullptr) {
      for (int64_t i = 0; i < rows.size; ++i) y[i] = (x[i] - m.mean) * m.scale;
    } else {
      for (int64_t i = 0; i < rows.size; ++i) {
        y[i] = (x[i] - m.mean) * m.scale * scale[i] + bias[i];
      }
    }
  }
}
void normalize(LoopType type, const void* in, const void* scale, const void* bias, Rows rows,
               double epsilon, void* out) {
  if (type == LoopType::kFloat32) {
    return normalize_of(in, static_cast<const float*>(scale), static_cast<const float*>(bias), rows,
                        epsilon, out);
  }
  normalize_of(in, static_cast<const double*>(scale), static_cast<const double*>(bias), rows,
               epsilon, out);
}

// With y the normalized row: scale (c - mean(c) - y mean(c y)).
template <class T>
void normalize_gradient_of(const void* in, const void* cotangent, Rows rows, double epsilon,
                           void* out) {
  for (int64_t row = 0; row < rows.count; ++row) {
    const int64_t n = rows.size;
    const T* const x = static_cast<const T*>(in) + row * n;
    const T* const c = static_cast<const T*>(cotangent) + row * n;
    T* const to = static_cast<T*>(out) + row * n;
    const Moments<T> m = moments_of(x, n, epsilon);
    const T count = static_cast<T>(n);
    const T mean_c = sum_of<T>(n, [c](int64_t i) { return c[i]; }) / count;
    const T mean_cy =
        sum_of<T>(n, [x, c, m](int64_t i) { return c[i] * ((x[i] - m.mean) * m.scale); }) / count;
    for (int64_t i = 0; i < n; ++i) {
      to[i] = m.scale * (c[i] - mean_c - (x[i] - m.mean) * m.scale * mean_cy);
    }
  }
}
void normalize_gradient(LoopType type, const void* in, const void* c, Rows rows, double epsilon,
                        void* out) {
  if (type == LoopType::kFloat32) {
    return normalize_gradient_of<float>(in, c, rows, epsilon, out);
  }
  normalize_gradient_of<double>(in, c, rows, epsilon, out);
}

template <StepRule kRule, class T>
void step_loop(const StepNumbers<double>& numbers, const void* gradient, void* value, void* first,
               void* second, int64_t n) {
  const StepNumbers<T> own = numbers_as<T>(numbers);
  const T* __restrict g = static_cast<const T*>(gradient);
  T* __restrict x = static_cast<T*>(value);
  T* __restrict a = static_cast<T*>(first);
  T* __restrict b = static_cast<T*>(second);
  constexpr int kNumSlots = num_step_slots(kRule);
  for (int64_t i = 0; i < n; ++i) {
    T new_x = x[i];
    T new_a = kNumSlots > 0 ? a[i] : T(0);
    T new_b = kNumSlots > 1 ? b[i] : T(0);
    step_element<kRule>(own, g[i], new_x, new_a, new_b);
    x[i] = new_x;
    if (kNumSlots > 0) a[i] = new_a;
    if (kNumSlots > 1) b[i] = new_b;
  }
}
template <StepRule kRule>
void step_of(LoopType type, const OptimizerStep& step, const void* gradient, void* value,
             void* first, void* second, int64_t n) {
  if (type == LoopType::kFloat32) {
    return step_loop<kRule, float>(step.numbers, gradient, value, first, second, n);
  }
  step_loop<kRule, double>(step.numbers, gradient, value, first, second, n);
}
void optimizer_step(LoopType type, const OptimizerStep& step, const void* gradient, void* value,
                    void* first, void* second, int64_t n) {
  switch (step.rule) {
    case StepRule::kSgd:
      return step_of<StepRule::kSgd>(type, step, gradient, value, first, second, n);
    case StepRule::kMomentum:
      return step_of<StepRule::kMomentum>(type, step, gradient, value, first, second, n);
    case StepRule::kNesterov:
      return step_of<StepRule::kNesterov>(type, step, gradient, value, first, second, n);
    case StepRule::kAdam:
      return step_of<StepRule::kAdam>(type, step, gradient, value, first, second, n);
    case StepRule::kAdagrad:
      return step_of<StepRule::kAdagrad>(type, step, gradient, value, first, second, n);
  }
}

}  // namespace

const Loops& internal::TESSERA_LOOPS() {
  static constexpr Loops kLoops = {
      pointwise,          widen,         narrow, select, softmax, softmax_gradient, normalize,
      normalize_gradient, optimizer_step};
  return kLoops;
}

}  // namespace tessera::kernels
