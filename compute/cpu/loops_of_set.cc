// SPDX-License-Identifier: Apache-2.0
//
// Compiled once for each instruction set, with TESSERA_LOOPS the name of its function. Everything
// else has internal linkage, and no function of a header is called: the linker could take its copy
// for another set, which may not run on the CPU.
#include <cstdint>

#define TESSERA_KERNEL_BODY static inline
#include "compute/cpu/loops.h"
#include "compute/optimizer_math.h"
#include "compute/pointwise_math.h"

// Functions of libm. With this attribute the compiler may call libmvec's for vectors.
#if defined(__AVX2__) && !defined(__clang__)
#define TESSERA_VECTOR_ __attribute__((const, simd("notinbranch")))
#else
#define TESSERA_VECTOR_ __attribute__((const))
#endif
// C++ does not let two functions of C have one name, so each type has a name of its own.
#define TESSERA_UNARY_(name)                                          \
  TESSERA_VECTOR_ float tessera_##name##_f(float) __asm__(#name "f"); \
  TESSERA_VECTOR_ double tessera_##name##_d(double) __asm__(#name);
#define TESSERA_BINARY_(name)                                                \
  TESSERA_VECTOR_ float tessera_##name##_f(float, float) __asm__(#name "f"); \
  TESSERA_VECTOR_ double tessera_##name##_d(double, double) __asm__(#name);
extern "C" {
TESSERA_LIBRARY_MATH_(TESSERA_UNARY_, TESSERA_BINARY_)
}
#undef TESSERA_UNARY_
#undef TESSERA_BINARY_

namespace tessera::kernels {
namespace {

// The Math of pointwise_math.h.
struct HostMath {
#define TESSERA_UNARY_(name)                                   \
  static float name(float x) { return tessera_##name##_f(x); } \
  static double name(double x) { return tessera_##name##_d(x); }
#define TESSERA_BINARY_(name)                                              \
  static float name(float x, float y) { return tessera_##name##_f(x, y); } \
  static double name(double x, double y) { return tessera_##name##_d(x, y); }
  TESSERA_LIBRARY_MATH_(TESSERA_UNARY_, TESSERA_BINARY_)
#undef TESSERA_UNARY_
#undef TESSERA_BINARY_
#define TESSERA_UNARY_(name)                                    \
  static float name(float x) { return __builtin_##name##f(x); } \
  static double name(double x) { return __builtin_##name(x); }
#define TESSERA_BINARY_(name)                                               \
  static float name(float x, float y) { return __builtin_##name##f(x, y); } \
  static double name(double x, double y) { return __builtin_##name(x, y); }
  TESSERA_EXACT_MATH_(TESSERA_UNARY_, TESSERA_BINARY_)
#undef TESSERA_UNARY_
#undef TESSERA_BINARY_
};

// out[i] = formula(a[i]), or formula(a[i], b[i]).
template <int kOperands, class T, class Formula>
void loop(const T* a, const T* b, void* out, int64_t n, Formula formula) {
  if constexpr (kOperands == 1) {
    auto* const to = static_cast<decltype(formula(*a))*>(out);
    for (int64_t i = 0; i < n; ++i) to[i] = formula(a[i]);
  } else {
    auto* const to = static_cast<decltype(formula(*a, *b))*>(out);
    for (int64_t i = 0; i < n; ++i) to[i] = formula(a[i], b[i]);
  }
}

template <class T>
bool compute(PointwiseOp op, const void* first, const void* second, void* out, int64_t n) {
  const T* const a = static_cast<const T*>(first);
  const T* const b = static_cast<const T*>(second);
  switch (op) {
#define TESSERA_LOOP_(name, operands, dtypes, family)                                         \
  case PointwiseOp::name:                                                                     \
    if constexpr (takes<T>(DTypes::dtypes)) {                                                 \
      loop<operands>(a, b, out, n, [](auto... x) { return formulas::name<HostMath>(x...); }); \
      return true;                                                                            \
    }                                                                                         \
    return false;
    TESSERA_POINTWISE_OPS_(TESSERA_LOOP_)
#undef TESSERA_LOOP_
  }
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
  for (int64_t i = 0; i < whole; ++i) out[i] = HostMath::exp(in[i] - shift);
  if (whole == n) return;
  T block[kLanes] = {};
  for (int64_t i = whole; i < n; ++i) block[i - whole] = in[i] - shift;
  for (int64_t k = 0; k < kLanes; ++k) block[k] = HostMath::exp(block[k]);
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
    const T shift =
        HostMath::fabs(most) <= (sizeof(T) == 4 ? T(__FLT_MAX__) : T(__DBL_MAX__)) ? most : T(0);
    exp_row(x, shift, n, y);
    const T sum = sum_of<T>(n, [y](int64_t i) { return y[i]; });
    if (is_log) {
      const T log = HostMath::log(sum);
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
      for (int64_t i = 0; i < n; ++i) to[i] = c[i] - formulas::mul_or_zero<HostMath>(to[i], sum);
    } else {
      const T sum =
          sum_of<T>(n, [y, c](int64_t i) { return formulas::mul_or_zero<HostMath>(y[i], c[i]); });
      for (int64_t i = 0; i < n; ++i) to[i] = formulas::mul_or_zero<HostMath>(y[i], c[i] - sum);
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
  return {mean, 1 / HostMath::sqrt(squares / count + static_cast<T>(epsilon))};
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
