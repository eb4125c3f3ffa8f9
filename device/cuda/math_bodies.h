// SPDX-License-Identifier: Apache-2.0
//
// The bodies of the kernels of math.h: what one item does. Compiled twice, as kernel_bodies.h is.
// with_body() finds the body for the types that a value names.
//
// Numerics are those of ops/kernels: f16 and bf16 are computed in f32 and rounded once; integers
// wrap; min, max and searches ignore NaN.
#ifndef TESSERA_DEVICE_CUDA_MATH_BODIES_H_
#define TESSERA_DEVICE_CUDA_MATH_BODIES_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "device/cuda/kernel_bodies.h"
#include "device/cuda/math.h"

namespace tessera::cuda {

using kernels::PointwiseOp;

template <class A, class B>
struct IsSame {
  static constexpr bool kValue = false;
};
template <class A>
struct IsSame<A, A> {
  static constexpr bool kValue = true;
};

// What elements of T are computed in.
template <class T>
using Computed = typename Wide<T>::Type;
template <class W>
inline constexpr bool kIsFloat = IsSame<W, float>::kValue || IsSame<W, double>::kValue;
template <class W>
inline constexpr bool kIsUnsigned = IsSame<W, uint8_t>::kValue;

template <class T>
TESSERA_KERNEL_BODY Computed<T> load(const std::byte* from, int64_t i) {
  return Wide<T>::of(reinterpret_cast<const T*>(from)[i]);
}
template <class T>
TESSERA_KERNEL_BODY void store(std::byte* to, int64_t i, Computed<T> value) {
  reinterpret_cast<T*>(to)[i] = Wide<T>::back(value);
}

template <class W>
TESSERA_KERNEL_BODY W quiet_nan() {
  return static_cast<W>(float_of_bits(0x7fc00000));
}
template <class W>
TESSERA_KERNEL_BODY W infinity() {
  return static_cast<W>(float_of_bits(0x7f800000));
}

// n / d and n % d; of small numbers by 32 bits, which a GPU divides several times as fast.
struct Divided {
  int64_t quotient;
  int64_t remainder;
};
TESSERA_KERNEL_BODY Divided divided(int64_t n, int64_t d) {
  if (((n | d) >> 31) == 0) {
    const auto quotient = static_cast<uint32_t>(n) / static_cast<uint32_t>(d);
    return {quotient, n - static_cast<int64_t>(quotient) * d};
  }
  return {n / d, n % d};
}

// The offset of element i of the space in an array of these strides.
TESSERA_KERNEL_BODY int64_t offset_of(const Space& space, const int64_t* strides, int64_t i) {
  if (space.num_dims == 1) return i * strides[0];
  int64_t offset = 0;
  for (int dim = space.num_dims - 1; dim >= 0; --dim) {
    const Divided at = divided(i, space.sizes[dim]);
    offset += at.remainder * strides[dim];
    i = at.quotient;
  }
  return offset;
}

// ---- Map

template <class W>
TESSERA_KERNEL_BODY W subtract(W a, W b) {
  if constexpr (kIsFloat<W>) {
    return a - b;
  } else {
    return static_cast<W>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
  }
}
template <class W>
TESSERA_KERNEL_BODY bool is_negative(W a) {
  if constexpr (kIsUnsigned<W>) {
    return false;
  } else {
    return a < W(0);
  }
}
// Of integers 0 where b is 0.
template <class W>
TESSERA_KERNEL_BODY W floor_divide(W a, W b) {
  if constexpr (kIsFloat<W>) {
    return std::floor(a / b);
  } else {
    if (b == 0) return 0;
    if constexpr (kIsUnsigned<W>) {
      return static_cast<W>(a / b);
    } else {
      if (b == static_cast<W>(-1)) return subtract(W(0), a);
      return static_cast<W>(a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0));
    }
  }
}
template <class W>
TESSERA_KERNEL_BODY W modulo(W a, W b) {
  if constexpr (kIsFloat<W>) {
    const W r = std::fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
  } else {
    return b == 0 ? W(0) : subtract(a, multiply(floor_divide(a, b), b));
  }
}
// Of integers 0 where the power is a fraction.
template <class W>
TESSERA_KERNEL_BODY W power(W a, W b) {
  if constexpr (kIsFloat<W>) {
    return std::pow(a, b);
  } else {
    if constexpr (!kIsUnsigned<W>) {
      if (b < 0) return a == 1 ? W(1) : a == W(-1) ? (b % 2 == 0 ? W(1) : W(-1)) : W(0);
    }
    W result = 1;
    for (; b > 0; b = static_cast<W>(b >> 1), a = multiply(a, a)) {
      if ((b & 1) != 0) result = multiply(result, a);
    }
    return result;
  }
}
template <class W>
TESSERA_KERNEL_BODY W sigmoid(W x) {
  const W e = std::exp(-std::fabs(x));
  return x >= 0 ? 1 / (1 + e) : e / (1 + e);
}

// The result of an op that gives bool, in *result. False of others.
template <class W>
TESSERA_KERNEL_BODY bool compare(PointwiseOp op, W a, W b, bool* result) {
  switch (op) {
    case PointwiseOp::is_nan:
      *result = a != a;
      return true;
    case PointwiseOp::logical_not:
      *result = a == W(0);
      return true;
    case PointwiseOp::equal:
      *result = a == b;
      return true;
    case PointwiseOp::not_equal:
      *result = a != b;
      return true;
    case PointwiseOp::less:
      *result = a < b;
      return true;
    case PointwiseOp::less_equal:
      *result = a <= b;
      return true;
    case PointwiseOp::greater:
      *result = a > b;
      return true;
    case PointwiseOp::greater_equal:
      *result = a >= b;
      return true;
    case PointwiseOp::logical_and:
      *result = a != W(0) && b != W(0);
      return true;
    case PointwiseOp::logical_or:
      *result = a != W(0) || b != W(0);
      return true;
    default:
      return false;
  }
}

// Operations on floats.
template <class W>
TESSERA_KERNEL_BODY W compute_float(PointwiseOp op, W a, W b) {
  switch (op) {
    case PointwiseOp::exp:
      return std::exp(a);
    case PointwiseOp::expm1:
      return std::expm1(a);
    case PointwiseOp::log:
      return std::log(a);
    case PointwiseOp::log1p:
      return std::log1p(a);
    case PointwiseOp::sqrt:
      return std::sqrt(a);
    case PointwiseOp::rsqrt:
      return 1 / std::sqrt(a);
    case PointwiseOp::reciprocal:
      return 1 / a;
    case PointwiseOp::sin:
      return std::sin(a);
    case PointwiseOp::cos:
      return std::cos(a);
    case PointwiseOp::tanh:
      return std::tanh(a);
    case PointwiseOp::sigmoid:
      return sigmoid(a);
    case PointwiseOp::gelu:
      return a / 2 * std::erfc(-a * static_cast<W>(0.70710678118654752440));
    case PointwiseOp::silu:
      return a * sigmoid(a);
    case PointwiseOp::erf:
      return std::erf(a);
    case PointwiseOp::softplus:
      // As std::max: NaN stays.
      return (a < 0 ? W(0) : a) + std::log1p(std::exp(-std::fabs(a)));
    case PointwiseOp::floor:
      return std::floor(a);
    case PointwiseOp::ceil:
      return std::ceil(a);
    case PointwiseOp::round:
      return std::rint(a);
    case PointwiseOp::div:
      return a / b;
    default:
      return W(0);
  }
}

template <class W>
TESSERA_KERNEL_BODY W compute(PointwiseOp op, W a, W b) {
  switch (op) {
    case PointwiseOp::neg:
      if constexpr (kIsFloat<W>) return -a;
      return subtract(W(0), a);
    case PointwiseOp::abs:
      if constexpr (kIsFloat<W>) return std::fabs(a);
      return is_negative(a) ? subtract(W(0), a) : a;
    case PointwiseOp::sign:
      return a != a ? a : static_cast<W>((a > W(0) ? 1 : 0) - (is_negative(a) ? 1 : 0));
    case PointwiseOp::square:
      return multiply(a, a);
    case PointwiseOp::relu:
      return is_negative(a) ? W(0) : a;
    case PointwiseOp::add:
      return add(a, b);
    case PointwiseOp::sub:
      return subtract(a, b);
    case PointwiseOp::mul:
      return multiply(a, b);
    case PointwiseOp::floor_div:
      return floor_divide(a, b);
    case PointwiseOp::mod:
      return modulo(a, b);
    case PointwiseOp::pow:
      return power(a, b);
    case PointwiseOp::maximum:
      return a > b || b != b ? a : b;
    case PointwiseOp::minimum:
      return a < b || b != b ? a : b;
    default:
      if constexpr (kIsFloat<W>) return compute_float(op, a, b);
      return W(0);
  }
}

template <class T>
TESSERA_KERNEL_BODY T operand(const Map& map, int k, int64_t i) {
  const MapOperand& in = map.in[k];
  if (in.data == nullptr) return *reinterpret_cast<const T*>(in.element);
  return reinterpret_cast<const T*>(in.data)[offset_of(map.space, in.strides, i)];
}

template <class T>
struct PointwiseBody {
  static TESSERA_KERNEL_BODY void item(const Map& map, int64_t i) {
    using W = Computed<T>;
    const W a = Wide<T>::of(operand<T>(map, 0, i));
    const W b = map.num_operands > 1 ? Wide<T>::of(operand<T>(map, 1, i)) : W(0);
    bool truth = false;
    if (compare(map.op, a, b, &truth)) {
      reinterpret_cast<uint8_t*>(map.out)[i] = truth ? 1 : 0;
    } else {
      store<T>(map.out, i, compute(map.op, a, b));
    }
  }
};
template <class T>
struct ClipBody {
  static TESSERA_KERNEL_BODY void item(const Map& map, int64_t i) {
    const T value = operand<T>(map, 0, i);
    const T low = operand<T>(map, 1, i);
    const T high = operand<T>(map, 2, i);
    // A comparison with NaN is false.
    reinterpret_cast<T*>(map.out)[i] = Wide<T>::of(value) < Wide<T>::of(low)    ? low
                                       : Wide<T>::of(value) > Wide<T>::of(high) ? high
                                                                                : value;
  }
};
// `T` stands for all types of its size.
template <class T>
struct CopyBody {
  static TESSERA_KERNEL_BODY void item(const Map& map, int64_t i) {
    reinterpret_cast<T*>(map.out)[i] = operand<T>(map, 0, i);
  }
};
template <class T>
struct SelectBody {
  static TESSERA_KERNEL_BODY void item(const Map& map, int64_t i) {
    reinterpret_cast<T*>(map.out)[i] =
        operand<uint8_t>(map, 0, i) != 0 ? operand<T>(map, 1, i) : operand<T>(map, 2, i);
  }
};

// ---- Reductions and lines

template <class W>
TESSERA_KERNEL_BODY W identity_of(ElementType type, Reduction op) {
  switch (op) {
    case Reduction::kProd:
      return W(1);
    case Reduction::kMin:
    case Reduction::kMax:
      if constexpr (kIsFloat<W>) {
        return quiet_nan<W>();
      } else {
        if (type == ElementType::kBool) return op == Reduction::kMin ? W(1) : W(0);
        const Range range = range_of(type);
        return static_cast<W>(op == Reduction::kMin ? range.highest : range.lowest);
      }
    default:
      return W(0);
  }
}

// The type of an input or a result of a reduction: T, or what it is computed in.
template <class In, class Out>
struct ReduceBody {
  static TESSERA_KERNEL_BODY void item(const ReduceDims& reduce, int64_t i) {
    using W = Computed<In>;
    const Divided at = divided(i, reduce.kept_is_fastest ? reduce.num_kept : reduce.num_chunks);
    const int64_t kept = reduce.kept_is_fastest ? at.remainder : at.quotient;
    const int64_t chunk = reduce.kept_is_fastest ? at.quotient : at.remainder;
    const int64_t begin = offset_of(reduce.kept, reduce.kept_strides, kept);
    W total = identity_of<W>(reduce.type, reduce.op);
    for (int64_t r = chunk; r < reduce.num_reduced; r += reduce.num_chunks) {
      const W term =
          load<In>(reduce.in, begin + offset_of(reduce.reduced, reduce.reduced_strides, r));
      total = combine(reduce.op, total, term);
    }
    if constexpr (kIsFloat<W>) {
      if (reduce.divisor != 1) total /= static_cast<W>(reduce.divisor);
    }
    store<Out>(reduce.out, i, total);
  }
};

template <class T>
struct CumSumBody {
  static TESSERA_KERNEL_BODY void item(const CumSum& sums, int64_t i) {
    const Divided at = divided(i, sums.lines.inner);
    const int64_t from = at.quotient * sums.lines.size * sums.lines.inner + at.remainder;
    const int64_t to = at.quotient * sums.count * sums.lines.inner + at.remainder;
    Computed<T> total = 0;
    for (int64_t k = 0; k < sums.first + sums.count; ++k) {
      total = add(total, load<T>(sums.in, from + k * sums.lines.inner));
      if (k >= sums.first) store<T>(sums.out, to + (k - sums.first) * sums.lines.inner, total);
    }
  }
};

// Whether a comes before b, NaN last.
template <class W>
TESSERA_KERNEL_BODY bool is_before(bool is_descending, W a, W b) {
  if (b != b) return a == a;
  return is_descending ? a > b : a < b;
}

template <class T>
struct ArgExtremeBody {
  static TESSERA_KERNEL_BODY void item(const ArgExtreme& search, int64_t i) {
    const Divided at = divided(i, search.lines.inner);
    const int64_t from = at.quotient * search.lines.size * search.lines.inner + at.remainder;
    int64_t best = 0;
    Computed<T> value = load<T>(search.in, from);
    for (int64_t k = 1; k < search.lines.size; ++k) {
      const Computed<T> next = load<T>(search.in, from + k * search.lines.inner);
      if (!is_before(search.is_max, next, value)) continue;
      best = k;
      value = next;
    }
    search.out[i] = best;
  }
};

// Element number k of a line, of which `line` is the number.
template <class T>
TESSERA_KERNEL_BODY Computed<T> element_of(const std::byte* in, const LineShape& lines,
                                           int64_t line, int64_t k) {
  const Divided at = divided(line, lines.inner);
  return load<T>(in, (at.quotient * lines.size + k) * lines.inner + at.remainder);
}

template <class T>
struct MergeBody {
  static TESSERA_KERNEL_BODY void item(const MergePass& pass, int64_t i) {
    const int64_t size = pass.lines.size;
    const Divided at = divided(i, size);
    const int64_t place = at.remainder;
    const int64_t begin = place / (2 * pass.width) * (2 * pass.width);
    const int64_t middle = begin + pass.width < size ? begin + pass.width : size;
    const int64_t end = middle + pass.width < size ? middle + pass.width : size;
    const int64_t own = index_at(pass, at.quotient, place);
    const Computed<T> value = element_of<T>(pass.in, pass.lines, at.quotient, own);
    // How many of the other run come before: all indices there are larger, or all smaller.
    const bool is_first = place < middle;
    int64_t least = is_first ? middle : begin;
    int64_t most = is_first ? end : middle;
    const int64_t first = least;
    while (least < most) {
      const int64_t probe = least + (most - least) / 2;
      const Computed<T> other =
          element_of<T>(pass.in, pass.lines, at.quotient, index_at(pass, at.quotient, probe));
      const bool other_is_before = is_first ? is_before(pass.is_descending, other, value)
                                            : !is_before(pass.is_descending, value, other);
      if (other_is_before) {
        least = probe + 1;
      } else {
        most = probe;
      }
    }
    const int64_t in_own_run = place - (is_first ? begin : middle);
    pass.to[at.quotient * size + begin + in_own_run + (least - first)] = own;
  }

  static TESSERA_KERNEL_BODY int64_t index_at(const MergePass& pass, int64_t line, int64_t place) {
    return pass.from == nullptr ? place : pass.from[line * pass.lines.size + place];
  }
};

template <class T>
struct TakeOrderedBody {
  static TESSERA_KERNEL_BODY void item(const TakeOrdered& take, int64_t i) {
    // i is [outer, count, inner].
    const Divided at = divided(i, take.lines.inner);
    const Divided place = divided(at.quotient, take.count);
    const int64_t line = place.quotient * take.lines.inner + at.remainder;
    const int64_t k = take.order == nullptr ? place.remainder
                                            : take.order[line * take.lines.size + place.remainder];
    if (take.indices != nullptr) take.indices[i] = k;
    if (take.values == nullptr) return;
    const int64_t from = (place.quotient * take.lines.size + k) * take.lines.inner + at.remainder;
    reinterpret_cast<T*>(take.values)[i] = reinterpret_cast<const T*>(take.in)[from];
  }
};

// ---- Indices

TESSERA_KERNEL_BODY int64_t index_at(const IndexArray& indices, int64_t k) {
  return indices.is_64 ? reinterpret_cast<const int64_t*>(indices.data)[k]
                       : reinterpret_cast<const int32_t*>(indices.data)[k];
}

struct CheckIndicesBody {
  static TESSERA_KERNEL_BODY void item(const CheckIndices& check, int64_t i) {
    const int64_t index = index_at(check.indices, i);
    if (index >= 0 && index < check.whole) return;
#if defined(__CUDA_ARCH__)
    atomicMin(reinterpret_cast<unsigned long long*>(check.first_wrong),
              static_cast<unsigned long long>(i));
#else
    if (static_cast<uint64_t>(i) < *check.first_wrong) {
      *check.first_wrong = static_cast<uint64_t>(i);
    }
#endif
  }
};
struct ReportIndexBody {
  static TESSERA_KERNEL_BODY void item(const ReportIndex& report, int64_t /*i*/) {
    const auto wrong = static_cast<int64_t>(*report.first_wrong);
    report.out[0] = wrong;
    report.out[1] = wrong < 0 ? 0 : index_at(report.indices, wrong);
  }
};

template <class T>
struct TakeBody {
  static TESSERA_KERNEL_BODY void item(const Take& take, int64_t i) {
    const Divided at = divided(i, take.lines.inner);
    const Divided line = divided(at.quotient, take.indices.count);
    const int64_t place = index_at(take.indices, line.remainder) - take.first;
    const bool is_here = place >= 0 && place < take.lines.size;
    const int64_t from = (line.quotient * take.lines.size + place) * take.lines.inner;
    reinterpret_cast<T*>(take.out)[i] =
        is_here ? reinterpret_cast<const T*>(take.in)[from + at.remainder] : T(0);
  }
};

template <class T>
struct ScatterAddBody {
  static TESSERA_KERNEL_BODY void item(const ScatterAdd& scatter, int64_t i) {
    const Divided at = divided(i, scatter.lines.inner);
    const Divided line = divided(at.quotient, scatter.lines.size);
    const int64_t index = line.remainder + scatter.first;
    const int64_t count = scatter.indices.count;
    // The first of those that are not below the index.
    int64_t least = 0;
    int64_t most = count;
    while (least < most) {
      const int64_t probe = least + (most - least) / 2;
      if (index_at(scatter.indices, number_at(scatter, probe)) < index) {
        least = probe + 1;
      } else {
        most = probe;
      }
    }
    T total = scatter.in == nullptr ? Wide<T>::back(0) : reinterpret_cast<const T*>(scatter.in)[i];
    for (; least < count; ++least) {
      const int64_t k = number_at(scatter, least);
      if (index_at(scatter.indices, k) != index) break;
      const int64_t from = (line.quotient * count + k) * scatter.lines.inner + at.remainder;
      total = Wide<T>::back(add(Wide<T>::of(total), load<T>(scatter.updates, from)));
    }
    reinterpret_cast<T*>(scatter.out)[i] = total;
  }

  static TESSERA_KERNEL_BODY int64_t number_at(const ScatterAdd& scatter, int64_t place) {
    return scatter.order == nullptr ? place : scatter.order[place];
  }
};

struct OneHotBody {
  static TESSERA_KERNEL_BODY void item(const OneHot& hot, int64_t i) {
    const Divided at = divided(i, hot.depth);
    hot.out[i] = index_at(hot.indices, at.quotient) == at.remainder ? 1.0f : 0.0f;
  }
};

template <class T>
struct PickBody {
  static TESSERA_KERNEL_BODY void item(const Pick& pick, int64_t i) {
    const int64_t place = index_at(pick.indices, i) - pick.first;
    const bool is_here = place >= 0 && place < pick.columns;
    reinterpret_cast<T*>(pick.out)[i] =
        is_here ? reinterpret_cast<const T*>(pick.in)[i * pick.columns + place] : T(0);
  }
};

template <class T>
struct MaskLaterBody {
  static TESSERA_KERNEL_BODY void item(const MaskLater& mask, int64_t i) {
    const Divided at = divided(i, mask.keys);
    const int64_t query = divided(at.quotient, mask.queries).remainder;
    if (at.remainder > query + mask.shift) {
      store<T>(mask.out, i, -infinity<Computed<T>>());
    } else {
      reinterpret_cast<T*>(mask.out)[i] = reinterpret_cast<const T*>(mask.in)[i];
    }
  }
};

// ---- Images

// The index that a tap of the window at result index `at` sees, -1 where it is outside.
TESSERA_KERNEL_BODY int64_t seen_index(const ImageWindow& window, int64_t at, int64_t tap,
                                       int64_t size) {
  const int64_t index = at * window.stride - window.before + tap * window.dilation;
  return index >= 0 && index < size ? index : -1;
}
// The result index whose window sees `index` by a tap, -1 where there is none of `size`.
TESSERA_KERNEL_BODY int64_t seeing_index(const ImageWindow& window, int64_t index, int64_t tap,
                                         int64_t size) {
  const int64_t reach = index + window.before - tap * window.dilation;
  if (reach < 0 || reach % window.stride != 0) return -1;
  const int64_t at = reach / window.stride;
  return at < size ? at : -1;
}
TESSERA_KERNEL_BODY int64_t num_seen(const ImageWindow& window, int64_t at, int64_t size) {
  int64_t count = 0;
  for (int64_t tap = 0; tap < window.size; ++tap) {
    count += seen_index(window, at, tap, size) >= 0 ? 1 : 0;
  }
  return count;
}
TESSERA_KERNEL_BODY int64_t at4(const int64_t* sizes, int64_t i, int64_t j, int64_t k, int64_t l) {
  return ((i * sizes[1] + j) * sizes[2] + k) * sizes[3] + l;
}

template <class T>
struct ImageBody {
  using W = Computed<T>;

  static TESSERA_KERNEL_BODY void item(const Image& image, int64_t i) {
    int64_t at[4];
    int64_t rest = i;
    for (int dim = 3; dim >= 0; --dim) {
      const Divided divided_by = divided(rest, image.out_sizes[dim]);
      at[dim] = divided_by.remainder;
      rest = divided_by.quotient;
    }
    at[1] += image.out_offsets[1];
    at[2] += image.out_offsets[2];
    store<T>(image.out, i, value_of(image, at));
  }

  static TESSERA_KERNEL_BODY W value_of(const Image& image, const int64_t* at) {
    switch (image.function) {
      case ImageFunction::kConv:
        return convolution(image, at);
      case ImageFunction::kConvByX:
        return convolution_by_x(image, at);
      case ImageFunction::kConvByFilter:
        return convolution_by_filter(image, at);
      case ImageFunction::kAvgPool:
        return mean(image, at);
      case ImageFunction::kAvgPoolByX:
        return mean_by_x(image, at);
      case ImageFunction::kMaxPool: {
        const Largest largest = largest_of(image, at[0], at[1], at[2], at[3]);
        return load<T>(image.b, at4(image.b_sizes, at[0], largest.row, largest.column, at[3]));
      }
      default:
        return largest_by_values(image, at);
    }
  }

  static TESSERA_KERNEL_BODY W convolution(const Image& image, const int64_t* at) {
    W sum = 0;
    for (int64_t r = 0; r < image.height.size; ++r) {
      const int64_t row = seen_index(image.height, at[1], r, image.a_sizes[1]);
      for (int64_t c = 0; row >= 0 && c < image.width.size; ++c) {
        const int64_t column = seen_index(image.width, at[2], c, image.a_sizes[2]);
        if (column < 0) continue;
        for (int64_t k = 0; k < image.a_sizes[3]; ++k) {
          sum += load<T>(image.a, at4(image.a_sizes, at[0], row, column, k)) *
                 load<T>(image.b, at4(image.b_sizes, r, c, k, at[3]));
        }
      }
    }
    return sum;
  }

  static TESSERA_KERNEL_BODY W convolution_by_x(const Image& image, const int64_t* at) {
    W sum = 0;
    for (int64_t r = 0; r < image.height.size; ++r) {
      const int64_t row = seeing_index(image.height, at[1], r, image.a_sizes[1]);
      for (int64_t c = 0; row >= 0 && c < image.width.size; ++c) {
        const int64_t column = seeing_index(image.width, at[2], c, image.a_sizes[2]);
        if (column < 0) continue;
        for (int64_t f = 0; f < image.a_sizes[3]; ++f) {
          sum += load<T>(image.a, at4(image.a_sizes, at[0], row, column, f)) *
                 load<T>(image.b, at4(image.b_sizes, r, c, at[3], f));
        }
      }
    }
    return sum;
  }

  // The result is a filter: [height, width, in, out].
  static TESSERA_KERNEL_BODY W convolution_by_filter(const Image& image, const int64_t* at) {
    W sum = 0;
    const int64_t r = at[0];
    const int64_t c = at[1] - image.out_offsets[1];
    const int64_t k = at[2] - image.out_offsets[2];
    for (int64_t n = 0; n < image.b_sizes[0]; ++n) {
      for (int64_t i = 0; i < image.b_sizes[1]; ++i) {
        const int64_t row = seen_index(image.height, i, r, image.a_sizes[1]);
        for (int64_t j = 0; row >= 0 && j < image.b_sizes[2]; ++j) {
          const int64_t column = seen_index(image.width, j, c, image.a_sizes[2]);
          if (column < 0) continue;
          sum += load<T>(image.a, at4(image.a_sizes, n, row, column, k)) *
                 load<T>(image.b, at4(image.b_sizes, n, i, j, at[3]));
        }
      }
    }
    return sum;
  }

  static TESSERA_KERNEL_BODY W mean(const Image& image, const int64_t* at) {
    W sum = 0;
    for (int64_t r = 0; r < image.height.size; ++r) {
      const int64_t row = seen_index(image.height, at[1], r, image.a_sizes[1]);
      for (int64_t c = 0; row >= 0 && c < image.width.size; ++c) {
        const int64_t column = seen_index(image.width, at[2], c, image.a_sizes[2]);
        if (column >= 0) sum += load<T>(image.a, at4(image.a_sizes, at[0], row, column, at[3]));
      }
    }
    return sum / static_cast<W>(num_seen(image.height, at[1], image.a_sizes[1]) *
                                num_seen(image.width, at[2], image.a_sizes[2]));
  }

  static TESSERA_KERNEL_BODY W mean_by_x(const Image& image, const int64_t* at) {
    W sum = 0;
    for (int64_t r = 0; r < image.height.size; ++r) {
      const int64_t row = seeing_index(image.height, at[1], r, image.a_sizes[1]);
      for (int64_t c = 0; row >= 0 && c < image.width.size; ++c) {
        const int64_t column = seeing_index(image.width, at[2], c, image.a_sizes[2]);
        if (column < 0) continue;
        const W count = static_cast<W>(num_seen(image.height, row, image.rows) *
                                       num_seen(image.width, column, image.columns));
        sum += load<T>(image.a, at4(image.a_sizes, at[0], row, column, at[3])) / count;
      }
    }
    return sum;
  }

  // Where image a is largest in the window of a result.
  struct Largest {
    int64_t row;
    int64_t column;
  };
  static TESSERA_KERNEL_BODY Largest largest_of(const Image& image, int64_t n, int64_t i, int64_t j,
                                                int64_t k) {
    Largest largest = {0, 0};
    W best = quiet_nan<W>();
    bool is_first = true;
    for (int64_t r = 0; r < image.height.size; ++r) {
      const int64_t row = seen_index(image.height, i, r, image.a_sizes[1]);
      for (int64_t c = 0; row >= 0 && c < image.width.size; ++c) {
        const int64_t column = seen_index(image.width, j, c, image.a_sizes[2]);
        if (column < 0) continue;
        const W value = load<T>(image.a, at4(image.a_sizes, n, row, column, k));
        // A comparison with NaN is false.
        if (!is_first && !(value > best || (best != best && value == value))) continue;
        is_first = false;
        best = value;
        largest = {row, column};
      }
    }
    return largest;
  }

  static TESSERA_KERNEL_BODY W largest_by_values(const Image& image, const int64_t* at) {
    W sum = 0;
    for (int64_t r = 0; r < image.height.size; ++r) {
      const int64_t row = seeing_index(image.height, at[1], r, image.b_sizes[1]);
      for (int64_t c = 0; row >= 0 && c < image.width.size; ++c) {
        const int64_t column = seeing_index(image.width, at[2], c, image.b_sizes[2]);
        if (column < 0) continue;
        const Largest largest = largest_of(image, at[0], row, column, at[3]);
        if (largest.row != at[1] || largest.column != at[2]) continue;
        sum += load<T>(image.b, at4(image.b_sizes, at[0], row, column, at[3]));
      }
    }
    return sum;
  }
};

// ---- Random numbers: Philox4x32-10, as ops/kernels/philox.h

struct PhiloxWords {
  uint32_t words[4];
};
TESSERA_KERNEL_BODY PhiloxWords philox(PhiloxWords counter, uint32_t key0, uint32_t key1) {
  uint32_t* const c = counter.words;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xd2511f53} * c[0];
    const uint64_t product1 = uint64_t{0xcd9e8d57} * c[2];
    c[0] = static_cast<uint32_t>(product1 >> 32) ^ c[1] ^ key0;
    c[1] = static_cast<uint32_t>(product1);
    c[2] = static_cast<uint32_t>(product0 >> 32) ^ c[3] ^ key1;
    c[3] = static_cast<uint32_t>(product0);
    key0 += 0x9e3779b9;
    key1 += 0xbb67ae85;
  }
  return counter;
}

TESSERA_KERNEL_BODY uint32_t stream_of(Distribution distribution) {
  switch (distribution) {
    case Distribution::kNormal:
    case Distribution::kTruncatedNormal:
      return 2;
    case Distribution::kInteger:
      return 3;
    default:
      return 0;
  }
}
TESSERA_KERNEL_BODY PhiloxWords block_of(const Draw& draw, uint64_t block) {
  return philox({{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0,
                  stream_of(draw.distribution)}},
                draw.key[0], draw.key[1]);
}
TESSERA_KERNEL_BODY uint32_t word_of(const Draw& draw, uint64_t i) {
  return block_of(draw, i / 4).words[i % 4];
}
TESSERA_KERNEL_BODY uint64_t element64_of(const Draw& draw, uint64_t i) {
  const PhiloxWords block = block_of(draw, i / 2);
  const uint32_t* const half = block.words + 2 * (i % 2);
  return half[0] | uint64_t{half[1]} << 32;
}

// 2^-n, exact.
TESSERA_KERNEL_BODY double fraction_of(int n) {
  return 1.0 / static_cast<double>(uint64_t{1} << n);
}
template <class T>
TESSERA_KERNEL_BODY Computed<T> unit_of(const Draw& draw, uint64_t i) {
  if constexpr (IsSame<T, double>::kValue) {
    return static_cast<double>(element64_of(draw, i) >> 11) * fraction_of(53);
  } else {
    constexpr int kBits = IsSame<T, Half>::kValue ? 11 : IsSame<T, BFloat16>::kValue ? 8 : 24;
    return static_cast<float>(word_of(draw, i) >> (32 - kBits)) *
           static_cast<float>(fraction_of(kBits));
  }
}
template <class T>
TESSERA_KERNEL_BODY double open_unit_of(const Draw& draw, uint64_t i) {
  if constexpr (IsSame<T, double>::kValue) {
    return (static_cast<double>(element64_of(draw, i) >> 12) + 0.5) * fraction_of(52);
  } else {
    return (static_cast<double>(word_of(draw, i) >> 9) + 0.5) * fraction_of(23);
  }
}

// The greatest value below; ordered by their bits, apart from the sign.
template <class T, class Bits>
TESSERA_KERNEL_BODY T value_below(T value) {
  Bits bits;
  memcpy(&bits, &value, sizeof bits);
  constexpr Bits kSign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  if ((bits & static_cast<Bits>(~kSign)) == 0) {
    bits = static_cast<Bits>(kSign | 1);
  } else {
    bits = static_cast<Bits>((bits & kSign) != 0 ? bits + 1 : bits - 1);
  }
  memcpy(&value, &bits, sizeof bits);
  return value;
}
template <class T>
TESSERA_KERNEL_BODY T value_below(T value) {
  if constexpr (sizeof(T) == 2) {
    return value_below<T, uint16_t>(value);
  } else if constexpr (sizeof(T) == 4) {
    return value_below<T, uint32_t>(value);
  } else {
    return value_below<T, uint64_t>(value);
  }
}

// low + scale u, each operation rounded by itself.
TESSERA_KERNEL_BODY float scaled(float low, float scale, float u) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(low, __fmul_rn(scale, u));
#else
  const volatile float product = scale * u;
  return low + product;
#endif
}
TESSERA_KERNEL_BODY double scaled(double low, double scale, double u) {
#if defined(__CUDA_ARCH__)
  return __dadd_rn(low, __dmul_rn(scale, u));
#else
  const volatile double product = scale * u;
  return low + product;
#endif
}

TESSERA_KERNEL_BODY uint64_t high_product(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(a, b);
#else
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
#endif
}

TESSERA_KERNEL_BODY double polynomial_of(double x, const double (&coefficients)[8]) {
  double value = 0;
  for (int k = 7; k >= 0; --k) value = value * x + coefficients[k];
  return value;
}
// The quantile of the normal distribution, by Wichura 1988, algorithm AS 241.
TESSERA_KERNEL_BODY double normal_quantile(double p) {
  constexpr double kA[] = {3.3871328727963666080e0, 1.3314166789178437745e2,
                           1.9715909503065514427e3, 1.3731693765509461125e4,
                           4.5921953931549871457e4, 6.7265770927008700853e4,
                           3.3430575583588128105e4, 2.5090809287301226727e3};
  constexpr double kB[] = {1.0,
                           4.2313330701600911252e1,
                           6.8718700749205790830e2,
                           5.3941960214247511077e3,
                           2.1213794301586595867e4,
                           3.9307895800092710610e4,
                           2.8729085735721942674e4,
                           5.2264952788528545610e3};
  constexpr double kC[] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                           5.76949722146069140550e0,  3.64784832476320460504e0,
                           1.27045825245236838258e0,  2.41780725177450611770e-1,
                           2.27238449892691845833e-2, 7.74545014278341407640e-4};
  constexpr double kD[] = {1.0,
                           2.05319162663775882187e0,
                           1.67638483018380384940e0,
                           6.89767334985100004550e-1,
                           1.48103976427480074590e-1,
                           1.51986665636164571966e-2,
                           5.47593808499534494600e-4,
                           1.05075007164441684324e-9};
  constexpr double kE[] = {6.65790464350110377720e0,  5.46378491116411436990e0,
                           1.78482653991729133580e0,  2.96560571828504891230e-1,
                           2.65321895265761230930e-2, 1.24266094738807843860e-3,
                           2.71155556874348757815e-5, 2.01033439929228813265e-7};
  constexpr double kF[] = {1.0,
                           5.99832206555887937690e-1,
                           1.36929880922735805310e-1,
                           1.48753612908506148525e-2,
                           7.86869131145613259100e-4,
                           1.84631831751005468180e-5,
                           1.42151175831644588870e-7,
                           2.04426310338993978564e-15};
  const double q = p - 0.5;
  if (std::fabs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * polynomial_of(r, kA) / polynomial_of(r, kB);
  }
  const double tail = std::sqrt(-std::log(q < 0 ? p : 1 - p));
  const double value = tail <= 5 ? polynomial_of(tail - 1.6, kC) / polynomial_of(tail - 1.6, kD)
                                 : polynomial_of(tail - 5, kE) / polynomial_of(tail - 5, kF);
  return q < 0 ? -value : value;
}
TESSERA_KERNEL_BODY double normal_cdf(double x) {
  return 0.5 * std::erfc(-x * 0.70710678118654752440);
}

TESSERA_KERNEL_BODY double normal_value(double radius_unit, double turns, bool is_even) {
  const double radius = std::sqrt(-2 * std::log(radius_unit));
  const double quarters = std::rint(4 * turns);
  const double angle = 2 * 3.14159265358979323846 * (turns - quarters / 4);
  const int quarter = (static_cast<int>(quarters) + (is_even ? 1 : 0)) & 3;
  const double wave = (quarter & 1) != 0 ? std::cos(angle) : std::sin(angle);
  return radius * ((quarter & 2) != 0 ? -wave : wave);
}

TESSERA_KERNEL_BODY int64_t permuted(const Draw& draw, uint64_t i) {
  uint32_t half_bits = 1;
  while (half_bits < 32 && uint64_t{1} << (2 * half_bits) < draw.range) ++half_bits;
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t x = i;
  do {
    uint64_t left = x >> half_bits;
    uint64_t right = x & mask;
    for (uint32_t round = 0; round < 8; ++round) {
      const PhiloxWords block =
          philox({{static_cast<uint32_t>(right), round, half_bits, 4}}, draw.key[0], draw.key[1]);
      const uint64_t next = left ^ (block.words[0] & mask);
      left = right;
      right = next;
    }
    x = left << half_bits | right;
  } while (x >= draw.range);
  return static_cast<int64_t>(x);
}

// From double to T by one rounding, or by way of float, as on the host.
template <class T>
TESSERA_KERNEL_BODY T rounded_to(double value) {
  return Wide<T>::back(static_cast<Computed<T>>(value));
}

template <class T>
TESSERA_KERNEL_BODY T draw_float(const Draw& draw, uint64_t i) {
  using W = Computed<T>;
  if (draw.distribution == Distribution::kUniform) {
    const W low = Wide<T>::of(rounded_to<T>(draw.a));
    const W high = Wide<T>::of(rounded_to<T>(draw.b));
    const T value = Wide<T>::back(scaled(low, high - low, unit_of<T>(draw, i)));
    return Wide<T>::of(value) >= high && low < high ? value_below(Wide<T>::back(high)) : value;
  }
  if (draw.distribution == Distribution::kNormal) {
    const uint64_t even = i & ~uint64_t{1};
    const double z =
        normal_value(open_unit_of<T>(draw, even), open_unit_of<T>(draw, even + 1), i == even);
    return rounded_to<T>(draw.a + draw.b * z);
  }
  const double first = normal_cdf(draw.low);
  const double last = normal_cdf(draw.high);
  const double z = normal_quantile(first + (last - first) * open_unit_of<T>(draw, i));
  return rounded_to<T>(draw.a + draw.b * (z < draw.low ? draw.low : z > draw.high ? draw.high : z));
}

template <class T>
TESSERA_KERNEL_BODY T draw_integer(const Draw& draw, uint64_t i) {
  switch (draw.distribution) {
    case Distribution::kBernoulli:
      return unit_of<float>(draw, i) < static_cast<float>(draw.a) ? T(1) : T(0);
    case Distribution::kInteger: {
      const uint64_t x = element64_of(draw, i);
      const uint64_t above = draw.range == 0 ? x : high_product(x, draw.range);
      return static_cast<T>(static_cast<uint64_t>(draw.least) + above);
    }
    case Distribution::kPermutation:
      return static_cast<T>(permuted(draw, i));
    default:
      break;
  }
  if (draw.type == ElementType::kBool) return static_cast<T>(word_of(draw, i) >> 31);
  if constexpr (sizeof(T) == 8) {
    return static_cast<T>(element64_of(draw, i));
  } else {
    return static_cast<T>(word_of(draw, i) >> (32 - 8 * sizeof(T)));
  }
}

template <class T>
struct DrawBody {
  static TESSERA_KERNEL_BODY void item(const Draw& draw, int64_t i) {
    const uint64_t flat =
        draw.first + static_cast<uint64_t>(offset_of(draw.space, draw.strides, i));
    if constexpr (kIsFloat<Computed<T>>) {
      reinterpret_cast<T*>(draw.out)[i] = draw_float<T>(draw, flat);
    } else {
      reinterpret_cast<T*>(draw.out)[i] = draw_integer<T>(draw, flat);
    }
  }
};

// ---- Products

template <class T>
struct ProductBody {
  static TESSERA_KERNEL_BODY void item(const Product& product, int64_t i) {
    const Divided at = divided(i, product.columns);
    const Divided row = divided(at.quotient, product.rows);
    const int64_t a = row.quotient * product.a_batch_stride + row.remainder * product.a_row_stride;
    const int64_t b =
        row.quotient * product.b_batch_stride + at.remainder * product.b_column_stride;
    Computed<T> sum = 0;
    for (int64_t k = 0; k < product.summed; ++k) {
      sum = add(sum, multiply(load<T>(product.a, a + k * product.a_summed_stride),
                              load<T>(product.b, b + k * product.b_summed_stride)));
    }
    store<T>(product.c, i, sum);
  }
};

// ---- The body of a value: calls fn(Body()), whose item(value, i) does item i

template <class Fn>
void with_type(ElementType type, Fn fn) {
  switch (type) {
    case ElementType::kBool:
    case ElementType::kUint8:
      return fn(uint8_t());
    case ElementType::kInt8:
      return fn(int8_t());
    case ElementType::kInt32:
      return fn(int32_t());
    case ElementType::kInt64:
      return fn(int64_t());
    case ElementType::kFloat16:
      return fn(Half());
    case ElementType::kBFloat16:
      return fn(BFloat16());
    case ElementType::kFloat32:
      return fn(float());
    case ElementType::kFloat64:
      return fn(double());
  }
}
template <class Fn>
void with_float(ElementType type, Fn fn) {
  switch (type) {
    case ElementType::kFloat16:
      return fn(Half());
    case ElementType::kBFloat16:
      return fn(BFloat16());
    case ElementType::kFloat64:
      return fn(double());
    default:
      return fn(float());
  }
}
// An integer of so many bytes.
template <class Fn>
void with_size(int32_t bytes, Fn fn) {
  switch (bytes) {
    case 1:
      return fn(uint8_t());
    case 2:
      return fn(uint16_t());
    case 4:
      return fn(uint32_t());
    default:
      return fn(uint64_t());
  }
}
inline int32_t element_bytes_of(ElementType type) {
  int32_t size = 0;
  with_type(type, [&size](auto element) { size = static_cast<int32_t>(sizeof element); });
  return size;
}

template <class Fn>
void with_body(const Map& map, Fn fn) {
  switch (map.kind) {
    case Map::Kind::kPointwise:
      return with_type(map.type, [fn](auto t) { fn(PointwiseBody<decltype(t)>()); });
    case Map::Kind::kClip:
      return with_type(map.type, [fn](auto t) { fn(ClipBody<decltype(t)>()); });
    case Map::Kind::kSelect:
      return with_size(element_bytes_of(map.type), [fn](auto t) { fn(SelectBody<decltype(t)>()); });
    case Map::Kind::kCopy:
      return with_size(element_bytes_of(map.type), [fn](auto t) { fn(CopyBody<decltype(t)>()); });
  }
}
template <class Fn>
void with_body(const ReduceDims& reduce, Fn fn) {
  with_type(reduce.type, [fn, &reduce](auto t) {
    using T = decltype(t);
    using W = Computed<T>;
    if constexpr (IsSame<T, W>::kValue) {
      fn(ReduceBody<T, T>());
    } else {
      if (reduce.from_wide) return reduce.to_wide ? fn(ReduceBody<W, W>()) : fn(ReduceBody<W, T>());
      return reduce.to_wide ? fn(ReduceBody<T, W>()) : fn(ReduceBody<T, T>());
    }
  });
}
template <class Fn>
void with_body(const CumSum& value, Fn fn) {
  with_type(value.type, [fn](auto t) { fn(CumSumBody<decltype(t)>()); });
}
template <class Fn>
void with_body(const ArgExtreme& value, Fn fn) {
  with_type(value.type, [fn](auto t) { fn(ArgExtremeBody<decltype(t)>()); });
}
template <class Fn>
void with_body(const MergePass& value, Fn fn) {
  with_type(value.type, [fn](auto t) { fn(MergeBody<decltype(t)>()); });
}
template <class Fn>
void with_body(const TakeOrdered& value, Fn fn) {
  with_size(element_bytes_of(value.type), [fn](auto t) { fn(TakeOrderedBody<decltype(t)>()); });
}
template <class Fn>
void with_body(const CheckIndices& /*value*/, Fn fn) {
  fn(CheckIndicesBody());
}
template <class Fn>
void with_body(const ReportIndex& /*value*/, Fn fn) {
  fn(ReportIndexBody());
}
template <class Fn>
void with_body(const Take& value, Fn fn) {
  with_size(value.element_bytes, [fn](auto t) { fn(TakeBody<decltype(t)>()); });
}
template <class Fn>
void with_body(const ScatterAdd& value, Fn fn) {
  with_type(value.type, [fn](auto t) { fn(ScatterAddBody<decltype(t)>()); });
}
template <class Fn>
void with_body(const OneHot& /*value*/, Fn fn) {
  fn(OneHotBody());
}
template <class Fn>
void with_body(const Pick& value, Fn fn) {
  with_size(value.element_bytes, [fn](auto t) { fn(PickBody<decltype(t)>()); });
}
template <class Fn>
void with_body(const MaskLater& value, Fn fn) {
  with_float(value.type, [fn](auto t) { fn(MaskLaterBody<decltype(t)>()); });
}
template <class Fn>
void with_body(const Image& value, Fn fn) {
  with_float(value.type, [fn](auto t) { fn(ImageBody<decltype(t)>()); });
}
template <class Fn>
void with_body(const Draw& value, Fn fn) {
  with_type(value.type, [fn](auto t) { fn(DrawBody<decltype(t)>()); });
}
template <class Fn>
void with_body(const Product& value, Fn fn) {
  with_type(value.type, [fn](auto t) { fn(ProductBody<decltype(t)>()); });
}

// Calls with_body() for every body of a kernel.
template <class V, class Fn>
void with_every_body(Fn fn) {
  V value = {};
  for (int type = 0; type <= static_cast<int>(ElementType::kFloat64); ++type) {
    if constexpr (requires { value.type; }) value.type = static_cast<ElementType>(type);
    if constexpr (requires { value.element_bytes; }) value.element_bytes = 1 << (type % 4);
    if constexpr (IsSame<V, Map>::kValue) {
      for (int kind = 0; kind <= static_cast<int>(Map::Kind::kCopy); ++kind) {
        value.kind = static_cast<Map::Kind>(kind);
        with_body(value, fn);
      }
    } else if constexpr (IsSame<V, ReduceDims>::kValue) {
      for (int wide = 0; wide < 4; ++wide) {
        value.from_wide = (wide & 1) != 0;
        value.to_wide = (wide & 2) != 0;
        with_body(value, fn);
      }
    } else {
      with_body(value, fn);
    }
  }
}

}  // namespace tessera::cuda

#endif  // TESSERA_DEVICE_CUDA_MATH_BODIES_H_
