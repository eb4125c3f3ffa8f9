// SPDX-License-Identifier: Apache-2.0
//
// The bodies of the kernels of math.h: what one item does. Compiled twice, as kernel_bodies.h is.
// with_body() finds the body for the types that a value names.
//
// Numerics are those of compute/cpu: f16 and bf16 are computed in f32 and rounded once; integers
// wrap; min, max and searches ignore NaN.
#ifndef TESSERA_COMPUTE_CUDA_MATH_BODIES_H_
#define TESSERA_COMPUTE_CUDA_MATH_BODIES_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "compute/cuda/body_types.h"
#include "compute/cuda/draw_bodies.h"
#include "compute/cuda/image_bodies.h"
#include "compute/cuda/math.h"
#include "compute/pointwise_math.h"
#include "device/cuda/kernel_bodies.h"
#include "device/number_math.h"

namespace tessera::cuda {

using kernels::DTypes;
using kernels::OpFamily;
using kernels::PointwiseOp;

// ---- Map

// The Math of pointwise_math.h: functions of C++, which nvcc has for GPUs too.
struct CudaMath {
#define TESSERA_FUNCTION_(name)                  \
  template <class... W>                          \
  static TESSERA_KERNEL_BODY auto name(W... x) { \
    return std::name(x...);                      \
  }
  TESSERA_LIBRARY_MATH_(TESSERA_FUNCTION_, TESSERA_FUNCTION_)
  TESSERA_EXACT_MATH_(TESSERA_FUNCTION_, TESSERA_FUNCTION_)
#undef TESSERA_FUNCTION_
};

// Where the elements of an item are. The last items of a run may have fewer than others, or none.
template <int kOperands>
struct MapPlace {
  int64_t from[kOperands];  // of the first, in elements
  int64_t to;
  int32_t count;
};

template <int kPack, int kOperands>
TESSERA_KERNEL_BODY MapPlace<kOperands> place_of(const Map& map, uint32_t item) {
  MapPlace<kOperands> place;
  uint32_t run = divide(item, map.items_per_run);
  const uint32_t within = item - run * map.items_per_run.divisor;
  const uint32_t spacing = uint32_t{1} << map.spacing_log2;
  const uint32_t first = (within >> map.spacing_log2) * spacing * kPack + (within & (spacing - 1));
  const uint32_t rest = first < map.run_elements ? map.run_elements - first : 0;
  const uint32_t count = (rest + spacing - 1) >> map.spacing_log2;
  place.count = static_cast<int32_t>(count < kPack ? count : kPack);
  place.to = static_cast<int64_t>(run) * map.run_elements + first;
  for (int k = 0; k < kOperands; ++k) place.from[k] = first * map.in[k].run_stride;
  for (int dim = 0; dim < map.num_outer; ++dim) {
    const uint32_t quotient = divide(run, map.outer[dim]);
    const int64_t index = run - quotient * map.outer[dim].divisor;
    for (int k = 0; k < kOperands; ++k) place.from[k] += index * map.in[k].strides[dim];
    run = quotient;
  }
  return place;
}

// The elements of an operand; zeros beyond the last.
template <class T, int kPack>
TESSERA_KERNEL_BODY Elements<T, kPack> load_pack(const Map& map, const MapOperand& in, int64_t from,
                                                 int32_t count) {
  Elements<T, kPack> pack = {};
  if (in.run_stride != 0) {
    const T* data = reinterpret_cast<const T*>(in.data) + from;
    if (map.is_packed && count == kPack) return *reinterpret_cast<const Elements<T, kPack>*>(data);
    const int64_t step = in.run_stride << map.spacing_log2;
    for (int e = 0; e < kPack; ++e) {
      if (e < count) pack.elements[e] = data[e * step];
    }
    return pack;
  }
  if (count == 0) return pack;
  const T same = in.data == nullptr ? *reinterpret_cast<const T*>(in.element)
                                    : reinterpret_cast<const T*>(in.data)[from];
  for (int e = 0; e < kPack; ++e) pack.elements[e] = same;
  return pack;
}

template <class T, int kPack>
TESSERA_KERNEL_BODY void store_pack(const Map& map, int64_t to, int32_t count,
                                    const Elements<T, kPack>& pack) {
  T* out = reinterpret_cast<T*>(map.out) + to;
  if (map.is_packed && count == kPack) {
    *reinterpret_cast<Elements<T, kPack>*>(out) = pack;
    return;
  }
  for (int e = 0; e < kPack; ++e) {
    if (e < count) out[static_cast<int64_t>(e) << map.spacing_log2] = pack.elements[e];
  }
}

// The formula is a constant in each loop, and all loads are before the branch on the op: one branch
// for a pack, which puts off no load.
template <class T, OpFamily kFamily>
struct PointwiseBody {
  using W = Computed<T>;
  static constexpr int kPack = map_pack(sizeof(T));
  using Pack = Elements<T, kPack>;
  using Out = std::conditional_t<kFamily == OpFamily::kPredicate, uint8_t, T>;

  // An op of one operand has a zero as the other. An op of another family gives nothing.
  static TESSERA_KERNEL_BODY void item(const Map& map, int64_t i) {
    const auto place = place_of<kPack, 2>(map, static_cast<uint32_t>(i));
    const Pack a = load_pack<T, kPack>(map, map.in[0], place.from[0], place.count);
    const Pack b = load_pack<T, kPack>(map, map.in[1], place.from[1], place.count);
    Elements<Out, kPack> out = {};
    switch (map.op) {
#define TESSERA_APPLY_(name, operands, dtypes, family)                                    \
  case PointwiseOp::name:                                                                 \
    if constexpr (OpFamily::family == kFamily && kernels::takes<W>(DTypes::dtypes)) {     \
      apply<operands>(a, b, &out,                                                         \
                      [](auto... x) { return kernels::formulas::name<CudaMath>(x...); }); \
    }                                                                                     \
    break;
      TESSERA_POINTWISE_OPS_(TESSERA_APPLY_)
#undef TESSERA_APPLY_
    }
    store_pack<Out, kPack>(map, place.to, place.count, out);
  }

  template <int kOperands, class Formula>
  static TESSERA_KERNEL_BODY void apply(const Pack& a, const Pack& b, Elements<Out, kPack>* out,
                                        Formula formula) {
    for (int e = 0; e < kPack; ++e) {
      const W x = Wide<T>::of(a.elements[e]);
      if constexpr (kOperands == 1) {
        out->elements[e] = result_of(formula(x));
      } else {
        out->elements[e] = result_of(formula(x, Wide<T>::of(b.elements[e])));
      }
    }
  }
  static TESSERA_KERNEL_BODY Out result_of(bool value) { return value ? 1 : 0; }
  static TESSERA_KERNEL_BODY Out result_of(W value) { return Wide<T>::back(value); }
};
template <class T>
struct ClipBody {
  static TESSERA_KERNEL_BODY void item(const Map& map, int64_t i) {
    constexpr int kPack = map_pack(sizeof(T));
    const auto place = place_of<kPack, 3>(map, static_cast<uint32_t>(i));
    auto pack = load_pack<T, kPack>(map, map.in[0], place.from[0], place.count);
    const auto lows = load_pack<T, kPack>(map, map.in[1], place.from[1], place.count);
    const auto highs = load_pack<T, kPack>(map, map.in[2], place.from[2], place.count);
    for (int e = 0; e < kPack; ++e) {
      const T value = pack.elements[e];
      const T low = lows.elements[e];
      const T high = highs.elements[e];
      // A comparison with NaN is false.
      pack.elements[e] = Wide<T>::of(value) < Wide<T>::of(low)    ? low
                         : Wide<T>::of(value) > Wide<T>::of(high) ? high
                                                                  : value;
    }
    store_pack<T, kPack>(map, place.to, place.count, pack);
  }
};
// `T` stands for all types of its size.
template <class T>
struct CopyBody {
  static TESSERA_KERNEL_BODY void item(const Map& map, int64_t i) {
    constexpr int kPack = map_pack(sizeof(T));
    const auto place = place_of<kPack, 1>(map, static_cast<uint32_t>(i));
    store_pack<T, kPack>(map, place.to, place.count,
                         load_pack<T, kPack>(map, map.in[0], place.from[0], place.count));
  }
};
template <class T>
struct SelectBody {
  static TESSERA_KERNEL_BODY void item(const Map& map, int64_t i) {
    constexpr int kPack = map_pack(sizeof(T));
    const auto place = place_of<kPack, 3>(map, static_cast<uint32_t>(i));
    const auto takes = load_pack<uint8_t, kPack>(map, map.in[0], place.from[0], place.count);
    const auto a = load_pack<T, kPack>(map, map.in[1], place.from[1], place.count);
    auto pack = load_pack<T, kPack>(map, map.in[2], place.from[2], place.count);
    for (int e = 0; e < kPack; ++e) {
      if (takes.elements[e] != 0) pack.elements[e] = a.elements[e];
    }
    store_pack<T, kPack>(map, place.to, place.count, pack);
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
      if constexpr (std::is_floating_point_v<W>) {
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

// The order in which the totals of lanes are added: lanes that are 16, 8, 4, 2 and 1 apart, which a
// warp does by shuffles, then those that are 32, 64 and 128 apart. Fewer than 32 lanes begin with
// half of them.
TESSERA_KERNEL_BODY int first_distance(int lanes) { return lanes > 32 ? 16 : lanes / 2; }
TESSERA_KERNEL_BODY int next_distance(int distance) {
  return distance >= 32 ? 2 * distance : distance > 1 ? distance / 2 : 32;
}
// Whether the lane adds the total of lane + distance to its own.
TESSERA_KERNEL_BODY bool takes_total(int lane, int distance) {
  return distance < 32 ? lane % 32 < distance : lane % (2 * distance) == 0;
}

// part() is what one lane adds of an item. add_to() adds two parts, in the order of distances
// above, and give() writes the total. Lanes are threads on a GPU and a loop in the fake.
template <class In, Reduction kOp, int kPack>
struct ReduceBody {
  using W = Computed<In>;
  using Pack = Elements<In, kPack>;
  // A total for each result of a pack; only the first counts where packs are terms of one result.
  using Part = Elements<W, kPack>;

  static TESSERA_KERNEL_BODY Part part(const ReduceDims& reduce, int64_t item, int lane) {
    const bool columns = reduce.kept_is_fastest;
    const Divided at = divided(item, columns ? reduce.num_kept / kPack : reduce.num_chunks);
    const int64_t kept = columns ? at.remainder * kPack : at.quotient;
    const int64_t chunk = columns ? at.quotient : at.remainder;
    const int64_t begin = chunk * reduce.chunk_packs;
    const int64_t rest = reduce.num_packs - begin;
    const int count = rest < reduce.chunk_packs ? static_cast<int>(rest) : reduce.chunk_packs;
    const int64_t from = offset_of(reduce.kept, reduce.kept_strides, kept);
    const int64_t terms = columns ? 1 : kPack;  // of a result in each pack
    const In* const in = reinterpret_cast<const In*>(reduce.in);
    Part part;
    for (W& total : part.elements) total = identity_of<W>(reduce.from, kOp);
    if (reduce.reduced.num_dims <= 1) {
      constexpr int kLoads = kPack > 8 ? 4 : 8;
      const int64_t step = reduce.lanes * terms * reduce.reduced_strides[0];
      int64_t next = from + (begin + lane) * terms * reduce.reduced_strides[0];
      add_packs<kLoads>(part, in, lane, count, reduce.lanes, [&next, step](int /*p*/) {
        const int64_t place = next;
        next += step;
        return place;
      });
    } else {
      add_packs<2>(part, in, lane, count, reduce.lanes, [&](int p) {
        return from + offset_of(reduce.reduced, reduce.reduced_strides, (begin + p) * terms);
      });
    }
    if (!columns) {
      for (int half = kPack / 2; half > 0; half /= 2) {
        for (int e = 0; e < half; ++e) {
          part.elements[e] = joined(part.elements[e], part.elements[e + half]);
        }
      }
    }
    return part;
  }

  static TESSERA_KERNEL_BODY W joined(W a, W b) { return combine(kOp, a, b); }
  static TESSERA_KERNEL_BODY void add_to(Part& part, const Part& other) {
    for (int e = 0; e < kPack; ++e) part.elements[e] = joined(part.elements[e], other.elements[e]);
  }

  static TESSERA_KERNEL_BODY void give(const ReduceDims& reduce, int64_t item, Part part) {
    if constexpr (std::is_floating_point_v<W>) {
      if (reduce.divisor != 1) {
        for (W& total : part.elements) total /= static_cast<W>(reduce.divisor);
      }
    }
    if constexpr (std::is_same_v<W, float>) {
      if (reduce.to == ElementType::kFloat16) return store_part<Half>(reduce, item, part);
      if (reduce.to == ElementType::kBFloat16) return store_part<BFloat16>(reduce, item, part);
    }
    store_part<W>(reduce, item, part);
  }

 private:
  // Adds packs first, first + lanes, ... below `count`. place_of() says where each begins and is
  // called in this order. kLoads loads are in flight before the first is added.
  template <int kLoads, class PlaceOf>
  static TESSERA_KERNEL_BODY void add_packs(Part& part, const In* in, int first, int count,
                                            int lanes, PlaceOf place_of) {
    for (int p = first; p < count; p += kLoads * lanes) {
      Pack packs[kLoads];
      for (int k = 0; k < kLoads; ++k) {
        const int64_t place = place_of(p + k * lanes);
        if (p + k * lanes < count) packs[k] = pack_at(in + place);
      }
      for (int k = 0; k < kLoads; ++k) {
        if (p + k * lanes < count) add_pack(part, packs[k]);
      }
    }
  }
  static TESSERA_KERNEL_BODY Pack pack_at(const In* place) {
    return *reinterpret_cast<const Pack*>(place);
  }
  static TESSERA_KERNEL_BODY void add_pack(Part& part, const Pack& pack) {
    for (int e = 0; e < kPack; ++e) {
      part.elements[e] = joined(part.elements[e], Wide<In>::of(pack.elements[e]));
    }
  }

  template <class To>
  static TESSERA_KERNEL_BODY void store_part(const ReduceDims& reduce, int64_t item,
                                             const Part& part) {
    if (!reduce.kept_is_fastest) return store<To>(reduce.out, item, part.elements[0]);
    Elements<To, kPack> results;
    for (int e = 0; e < kPack; ++e) results.elements[e] = Wide<To>::back(part.elements[e]);
    if (reinterpret_cast<uintptr_t>(reduce.out) % alignof(Elements<To, kPack>) == 0) {
      reinterpret_cast<Elements<To, kPack>*>(reduce.out)[item] = results;
      return;
    }
    for (int e = 0; e < kPack; ++e) {
      reinterpret_cast<To*>(reduce.out)[item * kPack + e] = results.elements[e];
    }
  }
};

template <class T>
struct CumSumBody {
  static TESSERA_KERNEL_BODY void item(const CumSum& sums, int64_t i) {
    const Divided at = divided(i, sums.lines.inner);
    const int64_t from = at.quotient * sums.lines.size * sums.lines.inner + at.remainder;
    const int64_t to = at.quotient * sums.count * sums.lines.inner + at.remainder;
    // As on the host: f32 accumulates in f64.
    using A = std::conditional_t<std::is_same_v<T, float>, double, Computed<T>>;
    A total = 0;
    for (int64_t k = 0; k < sums.first + sums.count; ++k) {
      total = kernels::wrapped_sum(total,
                                   static_cast<A>(load<T>(sums.in, from + k * sums.lines.inner)));
      if (k < sums.first) continue;
      store<T>(sums.out, to + (k - sums.first) * sums.lines.inner, static_cast<Computed<T>>(total));
    }
  }
};

// Whether a comes before b, NaN last.
template <class W>
TESSERA_KERNEL_BODY bool is_before(bool is_descending, W a, W b) {
  if (b != b) return a == a;
  return is_descending ? a > b : a < b;
}

// The index of element number k of a line, which is at `place` in the array.
TESSERA_KERNEL_BODY int64_t number_of(const LineNumbers& numbers, int64_t k, int64_t place) {
  return numbers.array == nullptr ? numbers.first + k : numbers.array[place];
}

template <class T>
struct ArgExtremeBody {
  static TESSERA_KERNEL_BODY void item(const ArgExtreme& search, int64_t i) {
    const Divided at = divided(i, search.lines.inner);
    const int64_t from = at.quotient * search.lines.size * search.lines.inner + at.remainder;
    int64_t best = number_of(search.numbers, 0, from);
    Computed<T> value = load<T>(search.in, from);
    for (int64_t k = 1; k < search.lines.size; ++k) {
      const int64_t place = from + k * search.lines.inner;
      const Computed<T> next = load<T>(search.in, place);
      const int64_t number = number_of(search.numbers, k, place);
      const bool is_equal = !is_before(search.is_max, value, next) && number < best;
      if (!is_equal && !is_before(search.is_max, next, value)) continue;
      best = number;
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
    const int64_t from = (place.quotient * take.lines.size + k) * take.lines.inner + at.remainder;
    if (take.indices != nullptr) take.indices[i] = number_of(take.numbers, k, from);
    if (take.values == nullptr) return;
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
    // Finds the first number whose index is not below `index`.
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
    Computed<T> total = scatter.in == nullptr ? Computed<T>(0) : load<T>(scatter.in, i);
    for (; least < count; ++least) {
      const int64_t k = number_at(scatter, least);
      if (index_at(scatter.indices, k) != index) break;
      const int64_t from = (line.quotient * count + k) * scatter.lines.inner + at.remainder;
      total = kernels::wrapped_sum(total, load<T>(scatter.updates, from));
    }
    store<T>(scatter.out, i, total);
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
      sum = kernels::wrapped_sum(
          sum, kernels::wrapped_product(load<T>(product.a, a + k * product.a_summed_stride),
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

// ---- Step

template <kernels::StepRule kRule, class T>
struct StepBody {
  static TESSERA_KERNEL_BODY void item(const Step& step, int64_t i) {
    using W = Computed<T>;
    constexpr int kNumSlots = kernels::num_step_slots(kRule);
    W value = load<T>(step.from[0], i);
    // The slots remember values of the computed type.
    W first = kNumSlots > 0 ? load<W>(step.from[1], i) : W(0);
    W second = kNumSlots > 1 ? load<W>(step.from[2], i) : W(0);
    kernels::step_element<kRule>(kernels::numbers_as<W>(step.step.numbers),
                                 load<T>(step.gradient, i), value, first, second);
    store<T>(step.to[0], i, value);
    if (kNumSlots > 0) store<W>(step.to[1], i, first);
    if (kNumSlots > 1) store<W>(step.to[2], i, second);
  }
};

// Calls fn with the body of a family, if the family has ops that take the type.
template <class T, OpFamily kFamily, class Fn>
void with_family(Fn fn) {
#define TESSERA_OR_TAKES_(name, operands, dtypes, family) \
  || (OpFamily::family == kFamily && kernels::takes<Computed<T>>(DTypes::dtypes))
  if constexpr (false TESSERA_POINTWISE_OPS_(TESSERA_OR_TAKES_)) fn(PointwiseBody<T, kFamily>());
#undef TESSERA_OR_TAKES_
}
template <class T, class Fn>
void with_op(PointwiseOp op, Fn fn) {
  switch (kernels::family_of(op)) {
    case OpFamily::kArithmetic:
      return with_family<T, OpFamily::kArithmetic>(fn);
    case OpFamily::kFunction:
      return with_family<T, OpFamily::kFunction>(fn);
    case OpFamily::kRareFunction:
      return with_family<T, OpFamily::kRareFunction>(fn);
    case OpFamily::kPredicate:
      return with_family<T, OpFamily::kPredicate>(fn);
  }
}
template <class Fn>
void with_body(const Map& map, Fn fn) {
  switch (map.kind) {
    case Map::Kind::kPointwise:
      return with_type(map.type, [fn, &map](auto t) { with_op<decltype(t)>(map.op, fn); });
    case Map::Kind::kClip:
      return with_type(map.type, [fn](auto t) { fn(ClipBody<decltype(t)>()); });
    case Map::Kind::kSelect:
      return with_size(element_bytes_of(map.type), [fn](auto t) { fn(SelectBody<decltype(t)>()); });
    case Map::Kind::kCopy:
      return with_size(element_bytes_of(map.type), [fn](auto t) { fn(CopyBody<decltype(t)>()); });
  }
}
template <class In, int kPack, class Fn>
void with_reduction(Reduction op, Fn fn) {
  switch (op) {
    case Reduction::kSum:
    case Reduction::kAvg:
      return fn(ReduceBody<In, Reduction::kSum, kPack>());
    case Reduction::kProd:
      return fn(ReduceBody<In, Reduction::kProd, kPack>());
    case Reduction::kMin:
      return fn(ReduceBody<In, Reduction::kMin, kPack>());
    case Reduction::kMax:
      return fn(ReduceBody<In, Reduction::kMax, kPack>());
  }
}
template <class Fn>
void with_body(const ReduceDims& reduce, Fn fn) {
  with_type(reduce.from, [fn, &reduce](auto t) {
    using In = decltype(t);
    if (reduce.pack == 1) return with_reduction<In, 1>(reduce.op, fn);
    with_reduction<In, reduce_pack_of(sizeof(In))>(reduce.op, fn);
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
void with_body(const Step& value, Fn fn) {
  with_float(value.type, [fn, &value](auto t) {
    using T = decltype(t);
    using kernels::StepRule;
    switch (value.step.rule) {
      case StepRule::kSgd:
        return fn(StepBody<StepRule::kSgd, T>());
      case StepRule::kMomentum:
        return fn(StepBody<StepRule::kMomentum, T>());
      case StepRule::kNesterov:
        return fn(StepBody<StepRule::kNesterov, T>());
      case StepRule::kAdam:
        return fn(StepBody<StepRule::kAdam, T>());
      case StepRule::kAdagrad:
        return fn(StepBody<StepRule::kAdagrad, T>());
    }
  });
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
    if constexpr (std::is_same_v<V, Map>) {
      for (int kind = 0; kind <= static_cast<int>(Map::Kind::kCopy); ++kind) {
        value.kind = static_cast<Map::Kind>(kind);
        // One op of each family.
        for (const PointwiseOp op :
             {PointwiseOp::add, PointwiseOp::exp, PointwiseOp::pow, PointwiseOp::equal}) {
          value.op = op;
          with_body(value, fn);
        }
      }
    } else if constexpr (std::is_same_v<V, ReduceDims>) {
      value.from = static_cast<ElementType>(type);
      for (int op = 0; op <= static_cast<int>(Reduction::kMax); ++op) {
        value.op = static_cast<Reduction>(op);
        for (value.pack = 1; value.pack <= 2; ++value.pack) with_body(value, fn);
      }
    } else if constexpr (std::is_same_v<V, Step>) {
      for (int rule = 0; rule < kernels::kNumStepRules; ++rule) {
        value.step.rule = static_cast<kernels::StepRule>(rule);
        with_body(value, fn);
      }
    } else {
      with_body(value, fn);
    }
  }
}

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_CUDA_MATH_BODIES_H_
