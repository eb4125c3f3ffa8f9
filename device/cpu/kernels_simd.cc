// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/kernels_simd.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "device/cpu/kernels_plain.h"

// Highway compiles this file once more for each of its targets. These two would be code for CPUs
// that are rare (SSSE3 without SSE4) or that gain nothing here (AVX-512 beyond its first form).
#if defined(__SANITIZE_THREAD__)  // which has nothing to find in instructions
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX2 | HWY_AVX3_DL | HWY_AVX3)
#elif defined(TESSERA_WITHOUT_AVX512)
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL | HWY_AVX3)
#else
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/kernels_simd.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

void reduce(const DenseReduction& reduction) { reduce_dense_plain(reduction); }
void copy(const RowCopy& row_copy) { copy_rows_plain(row_copy); }

#else

namespace hn = hwy::HWY_NAMESPACE;

// All memory is read and written as bytes: it need not be aligned to its elements.
using ByteTag = hn::ScalableTag<uint8_t>;
using Bytes = hn::Vec<ByteTag>;
constexpr size_t kVectorBytes = hn::MaxLanes(ByteTag());

template <class T>
using Tag = hn::Repartition<T, ByteTag>;

HWY_INLINE const uint8_t* as_uint8(const std::byte* p) {
  return reinterpret_cast<const uint8_t*>(p);
}
HWY_INLINE uint8_t* as_uint8(std::byte* p) { return reinterpret_cast<uint8_t*>(p); }

// Formats: the contents of a vector of bytes, and the type that accumulates them. Each has
//   Accumulator                of kVectorBytes of elements: some vectors of lanes of `Lane`
//   kAccumulators              vectors of an Accumulator
//   load(bytes)
//   store<Nans>(accumulator)   the bytes of the results; NaNs lose all bits but the sign in formats
//                              that are rounded
enum class Nans { kPossible, kNone };

template <class T>
struct Whole {
  using Lane = T;
  static constexpr size_t kAccumulators = 1;
  struct Accumulator {
    hn::Vec<Tag<T> > v[1];
  };
  static HWY_INLINE Accumulator load(const uint8_t* from) {
    return {{hn::BitCast(Tag<T>(), hn::LoadU(ByteTag(), from))}};
  }
  template <Nans>
  static HWY_INLINE Bytes store(const Accumulator& a) {
    return hn::BitCast(ByteTag(), a.v[0]);
  }
};

// The quiet NaN of f32 without any other bits, of the same sign.
HWY_INLINE hn::Vec<Tag<uint32_t> > canonical_nan(hn::Vec<Tag<uint32_t> > bits) {
  const Tag<uint32_t> du;
  return hn::Or(hn::And(bits, hn::Set(du, 0x80000000u)), hn::Set(du, 0x7FC00000u));
}

// bf16 is the upper half of f32, so each pair of elements is one 32-bit lane that becomes two: no
// lane ever moves.
struct BFloat16 {
  using Lane = float;
  static constexpr size_t kAccumulators = 2;
  struct Accumulator {
    hn::Vec<Tag<float> > v[2];  // elements of even and of odd index
  };
  static HWY_INLINE Accumulator load(const uint8_t* from) {
    const Tag<uint32_t> du;
    const auto pairs = hn::BitCast(du, hn::LoadU(ByteTag(), from));
    const auto odd = hn::And(pairs, hn::Set(du, 0xFFFF0000u));
    return {{hn::BitCast(Tag<float>(), hn::ShiftLeft<16>(pairs)), hn::BitCast(Tag<float>(), odd)}};
  }
  // The upper half of each lane is the nearest bf16; the lower half is unused.
  template <Nans nans>
  static HWY_INLINE hn::Vec<Tag<uint32_t> > round(hn::Vec<Tag<float> > v) {
    const Tag<uint32_t> du;
    const auto bits = hn::BitCast(du, v);
    const auto is_odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::Add(bits, hn::Add(is_odd, hn::Set(du, 0x7FFF)));
    if constexpr (nans == Nans::kNone) return rounded;
    return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), canonical_nan(bits), rounded);
  }
  template <Nans nans>
  static HWY_INLINE Bytes store(const Accumulator& a) {
    const Tag<uint16_t> d16;
    const auto even = hn::ShiftRight<16>(round<nans>(a.v[0]));
    const auto odd = round<nans>(a.v[1]);
    return hn::BitCast(ByteTag(), hn::OddEven(hn::BitCast(d16, odd), hn::BitCast(d16, even)));
  }
};

#if HWY_TARGET == HWY_SSE4
// No instruction converts f16 here: pairs of elements become lanes as pairs of bf16 do, by the
// arithmetic of f32.
struct Float16 {
  using Lane = float;
  static constexpr size_t kAccumulators = 2;
  struct Accumulator {
    hn::Vec<Tag<float> > v[2];  // elements of even and of odd index
  };
  // `half`: a 16-bit number in each lane.
  static HWY_INLINE hn::Vec<Tag<float> > promote(hn::Vec<Tag<uint32_t> > half) {
    const Tag<uint32_t> du;
    const Tag<float> df;
    const auto magnitude = hn::And(half, hn::Set(du, 0x7FFF));
    // 2^112 is the difference of the exponents of f16 and f32; it makes subnormals normal as well.
    const auto scaled =
        hn::Mul(hn::BitCast(df, hn::ShiftLeft<13>(magnitude)), hn::Set(df, 0x1p112f));
    // Infinities and NaN have the largest exponent in either type.
    const auto is_special = hn::Gt(magnitude, hn::Set(du, 0x7BFF));
    const auto special = hn::Or(hn::ShiftLeft<13>(magnitude), hn::Set(du, 0x7F800000u));
    const auto bits = hn::IfThenElse(is_special, special, hn::BitCast(du, scaled));
    const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(du, 0x8000)));
    return hn::BitCast(df, hn::Or(bits, sign));
  }
  static HWY_INLINE Accumulator load(const uint8_t* from) {
    const Tag<uint32_t> du;
    const auto pairs = hn::BitCast(du, hn::LoadU(ByteTag(), from));
    return {{promote(hn::And(pairs, hn::Set(du, 0xFFFF))), promote(hn::ShiftRight<16>(pairs))}};
  }
  static HWY_INLINE hn::Vec<Tag<uint32_t> > round(hn::Vec<Tag<float> > v) {
    const Tag<uint32_t> du;
    const Tag<float> df;
    const auto bits = hn::BitCast(du, v);
    const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFF));
    // Normal results: the exponent moves to its place in f16, and 13 bits are rounded away.
    const auto is_odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1));
    const auto moved = hn::Sub(hn::Add(magnitude, hn::Set(du, 0xFFF)), hn::Set(du, 112u << 23));
    const auto normal = hn::ShiftRight<13>(hn::Add(moved, is_odd));
    // Subnormal results: next to 0.5 the last bit of f32 equals the last bit of f16, so adding
    // rounds.
    const auto half = hn::Set(df, 0.5f);
    const auto subnormal =
        hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(df, magnitude), half)), hn::BitCast(du, half));
    // 65536 and more are infinite; those between 65520 and it become so by rounding.
    const auto special = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x7F800000u)),
                                        hn::Set(du, 0x7E00), hn::Set(du, 0x7C00));
    auto result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, 113u << 23)), subnormal, normal);
    result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, (143u << 23) - 1)), special, result);
    return hn::Or(result, hn::ShiftRight<16>(hn::And(bits, hn::Set(du, 0x80000000u))));
  }
  template <Nans>
  static HWY_INLINE Bytes store(const Accumulator& a) {
    return hn::BitCast(ByteTag(), hn::Or(round(a.v[0]), hn::ShiftLeft<16>(round(a.v[1]))));
  }
};
#else
struct Float16 {
  using Lane = float;
  static constexpr size_t kAccumulators = 2;
  struct Accumulator {
    hn::Vec<Tag<float> > v[2];  // elements of the lower and of the upper half
  };
  using HalfTag = hn::Rebind<hwy::float16_t, Tag<float> >;
  static HWY_INLINE hn::Vec<Tag<float> > promote(const uint8_t* from) {
    const hn::Repartition<uint8_t, HalfTag> bytes;
    return hn::PromoteTo(Tag<float>(), hn::BitCast(HalfTag(), hn::LoadU(bytes, from)));
  }
  static HWY_INLINE Accumulator load(const uint8_t* from) {
    return {{promote(from), promote(from + kVectorBytes / 2)}};
  }
  // The instruction keeps some bits of a NaN.
  template <Nans nans>
  static HWY_INLINE hn::Vec<hn::Rebind<uint16_t, Tag<float> > > round(hn::Vec<Tag<float> > v) {
    if constexpr (nans == Nans::kPossible) {
      const auto nan = canonical_nan(hn::BitCast(Tag<uint32_t>(), v));
      v = hn::IfThenElse(hn::IsNaN(v), hn::BitCast(Tag<float>(), nan), v);
    }
    return hn::BitCast(hn::Rebind<uint16_t, Tag<float> >(), hn::DemoteTo(HalfTag(), v));
  }
  template <Nans nans>
  static HWY_INLINE Bytes store(const Accumulator& a) {
    return hn::BitCast(ByteTag(),
                       hn::Combine(Tag<uint16_t>(), round<nans>(a.v[1]), round<nans>(a.v[0])));
  }
};
#endif

// The operation on each lane. `a` holds the terms before `b`. kSpreadsNan: a NaN in any term is a
// NaN in the result.
struct Sum {
  static constexpr bool kDivides = false;
  static constexpr bool kSpreadsNan = true;
  template <class D, class V>
  static HWY_INLINE V combine(D, V a, V b) {
    return hn::Add(a, b);
  }
};
struct Average : Sum {
  static constexpr bool kDivides = true;
};
struct Product {
  static constexpr bool kDivides = false;
  static constexpr bool kSpreadsNan = true;
  template <class D, class V>
  static HWY_INLINE V combine(D d, V a, V b) {
    using T = hn::TFromD<D>;
    if constexpr (sizeof(T) == 1) {
      // The odd bytes are multiplied where they are, with zeros below.
      const Tag<uint16_t> d16;
      const auto a16 = hn::BitCast(d16, a), b16 = hn::BitCast(d16, b);
      const auto low = hn::Set(d16, 0x00FF);
      const auto even = hn::And(hn::Mul(a16, b16), low);
      const auto odd = hn::Mul(hn::ShiftRight<8>(a16), hn::AndNot(low, b16));
      return hn::BitCast(d, hn::Or(even, odd));
    } else if constexpr (std::is_same_v<T, uint64_t>) {
      // Schoolbook, modulo 2^64: the two mixed products count for the upper halves alone.
      const Tag<uint32_t> d32;
      const auto a32 = hn::BitCast(d32, a), b32 = hn::BitCast(d32, b);
      const auto mixed = hn::BitCast(d, hn::Mul(a32, hn::Shuffle2301(b32)));
      const auto upper = hn::Add(mixed, hn::ShiftLeft<32>(mixed));
      return hn::Add(hn::MulEven(a32, b32), hn::And(upper, hn::Set(d, 0xFFFFFFFF00000000u)));
    } else {
      return hn::Mul(a, b);
    }
  }
};
// Min and max take `a` where both are equal (-0 and 0), and let a NaN lose against any number.
struct Min {
  static constexpr bool kDivides = false;
  static constexpr bool kSpreadsNan = false;
  template <class D, class V>
  static HWY_INLINE V combine(D, V a, V b) {
    if constexpr (hwy::IsFloat<hn::TFromD<D> >()) {
      return hn::IfThenElse(hn::Or(hn::Lt(b, a), hn::IsNaN(a)), b, a);
    } else {
      return hn::Min(a, b);
    }
  }
};
struct Max {
  static constexpr bool kDivides = false;
  static constexpr bool kSpreadsNan = false;
  template <class D, class V>
  static HWY_INLINE V combine(D, V a, V b) {
    if constexpr (hwy::IsFloat<hn::TFromD<D> >()) {
      return hn::IfThenElse(hn::Or(hn::Gt(b, a), hn::IsNaN(a)), b, a);
    } else {
      return hn::Max(a, b);
    }
  }
};

// As Op, and takes the first of two NaNs. Without this the compiler may swap the operands.
template <class Op>
struct FirstNan : Op {
  template <class D, class V>
  static HWY_INLINE V combine(D d, V a, V b) {
    using T = hn::TFromD<D>;
    const hn::Repartition<hwy::MakeUnsigned<T>, D> bits;
    constexpr int kQuietBit = sizeof(T) == 4 ? 22 : 51;
    const auto quiet = hn::Set(bits, hwy::MakeUnsigned<T>{1} << kQuietBit);
    const V first = hn::BitCast(d, hn::Or(hn::BitCast(bits, a), quiet));
    return hn::IfThenElse(hn::IsNaN(a), first, Op::combine(d, a, b));
  }
};

// A stream in memory is asked for this far ahead: the core's own prefetching starts anew at each
// page and row, and with streaming stores nothing else hides that.
constexpr size_t kPrefetchBytes = 512;
HWY_INLINE void prefetch(const uint8_t* from, size_t num_bytes) {
  for (size_t i = 0; i < num_bytes; i += 64) hwy::Prefetch(from + i);
}

HWY_INLINE bool is_aligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % kVectorBytes == 0;
}

// More terms than this are not read side by side, for a core follows only so many streams, but this
// many at a time, block by block; the accumulators of a block wait in the first-level cache.
constexpr size_t kTermsAtOnce = 8;
constexpr size_t kBlockBytes = 4096;

// Terms [first_term, end_term) of a block: bytes [begin, end) of all of them.
struct Part {
  size_t first_term;
  size_t end_term;
  size_t begin;
  size_t end;
};

template <class Format, class Op>
class Reducer {
 public:
  explicit HWY_INLINE Reducer(const DenseReduction& r) : r_(r) {}

  HWY_INLINE void run() {
    const size_t n = static_cast<size_t>(r_.num_bytes);
    const size_t head = r_.stores == Stores::kStreaming ? bytes_to_alignment() : 0;
    if (head > 0) run(0, std::min(head, n));
    if (head < n) run(head, n);
  }

 private:
  using Accumulator = typename Format::Accumulator;
  static constexpr size_t kUnroll = 8 / Format::kAccumulators;

  // Until the first output is aligned; 0 where it cannot be, between elements.
  HWY_INLINE size_t bytes_to_alignment() const {
    const size_t head = -reinterpret_cast<uintptr_t>(r_.outs[0]) % 64;
    return head % (sizeof(typename Format::Lane) / Format::kAccumulators) == 0 ? head : 0;
  }

  HWY_INLINE void run(size_t begin, size_t end) {
    const size_t num_terms = r_.terms.size();
    if (num_terms <= kTermsAtOnce) return run_part({0, num_terms, begin, end});
    for (size_t block = begin; block < end; block += kBlockBytes) {
      const size_t block_end = std::min(block + kBlockBytes, end);
      for (size_t term = 0; term < num_terms; term += kTermsAtOnce) {
        run_part({term, std::min(term + kTermsAtOnce, num_terms), block, block_end});
      }
    }
  }

  HWY_NOINLINE void run_part(const Part& part) {
    size_t i = part.begin;
    for (; i + kUnroll * kVectorBytes <= part.end; i += kUnroll * kVectorBytes) {
      step<kUnroll>(part, i);
    }
    for (; i + kVectorBytes <= part.end; i += kVectorBytes) step<1>(part, i);
    if (i < part.end) last_step(part, i);
  }

  template <class Combining>
  static HWY_INLINE void add(Accumulator& a, const Accumulator& b) {
    for (size_t v = 0; v < Format::kAccumulators; ++v) {
      a.v[v] = Combining::combine(Tag<typename Format::Lane>(), a.v[v], b.v[v]);
    }
  }

  // Whether the order of two NaNs can matter.
  static constexpr bool kOrdersNans = Op::kSpreadsNan && hwy::IsFloat<typename Format::Lane>();
  using Ordered = std::conditional_t<kOrdersNans, FirstNan<Op>, Op>;

  template <size_t num_vectors>
  static HWY_INLINE bool has_nan(const Accumulator (&a)[num_vectors]) {
    const Tag<typename Format::Lane> d;
    auto found = hn::IsNaN(a[0].v[0]);
    for (size_t u = 0; u < num_vectors; ++u) {
      for (size_t v = 0; v < Format::kAccumulators; ++v) {
        if (u + v > 0) found = hn::Or(found, hn::IsNaN(a[u].v[v]));
      }
    }
    return !hn::AllFalse(d, found);
  }

  // The stored accumulators of a block, for byte `i`.
  HWY_INLINE uint8_t* waiting(const Part& part, size_t i) {
    return waiting_ + (i - part.begin) * Format::kAccumulators;
  }
  HWY_INLINE void load_waiting(const Part& part, size_t i, Accumulator& a) {
    for (size_t v = 0; v < Format::kAccumulators; ++v) {
      a.v[v] = hn::BitCast(Tag<typename Format::Lane>(),
                           hn::Load(ByteTag(), waiting(part, i) + v * kVectorBytes));
    }
  }
  HWY_INLINE void store_waiting(const Part& part, size_t i, const Accumulator& a) {
    for (size_t v = 0; v < Format::kAccumulators; ++v) {
      hn::Store(hn::BitCast(ByteTag(), a.v[v]), ByteTag(), waiting(part, i) + v * kVectorBytes);
    }
  }

  template <Nans nans>
  HWY_INLINE Bytes finished(Accumulator a) const {
    if constexpr (Op::kDivides) {
      using T = typename Format::Lane;
      const auto divisor = hn::Set(Tag<T>(), static_cast<T>(r_.terms.size()));
      for (size_t v = 0; v < Format::kAccumulators; ++v) a.v[v] = hn::Div(a.v[v], divisor);
    }
    return Format::template store<nans>(a);
  }

  // num_vectors vectors from byte `i` on: all terms of the part, then every output.
  template <size_t num_vectors>
  HWY_INLINE void step(const Part& part, size_t i) {
    // NaNs are rare: where one came out, the vectors are done once more, in order.
    if (HWY_LIKELY(step_with<Op>(part, i, Vectors<num_vectors>()))) return;
    for (size_t u = 0; u < num_vectors; ++u) ordered_step(part, i + u * kVectorBytes);
  }
  HWY_NOINLINE void ordered_step(const Part& part, size_t i) {
    step_with<Ordered>(part, i, Vectors<1>());
  }

  template <size_t n>
  using Vectors = std::integral_constant<size_t, n>;

  // False, and nothing is written, where NaNs have to be combined in order.
  template <class Combining, size_t num_vectors>
  HWY_INLINE bool step_with(const Part& part, size_t i, Vectors<num_vectors>) {
    Accumulator a[num_vectors];
    size_t term = part.first_term;
    if (term == 0) {
      const uint8_t* from = as_uint8(r_.terms[term++]) + i;
      if (prefetches_) prefetch(from + kPrefetchBytes, num_vectors * kVectorBytes);
      for (size_t u = 0; u < num_vectors; ++u) a[u] = Format::load(from + u * kVectorBytes);
    } else {
      for (size_t u = 0; u < num_vectors; ++u) load_waiting(part, i + u * kVectorBytes, a[u]);
    }
    for (; term < part.end_term; ++term) {
      const uint8_t* from = as_uint8(r_.terms[term]) + i;
      if (prefetches_) prefetch(from + kPrefetchBytes, num_vectors * kVectorBytes);
      for (size_t u = 0; u < num_vectors; ++u) {
        add<Combining>(a[u], Format::load(from + u * kVectorBytes));
      }
    }
    constexpr bool kGivesUp = kOrdersNans && !std::is_same_v<Combining, Ordered>;
    if constexpr (kGivesUp) {
      if (HWY_UNLIKELY(has_nan(a))) return false;
    }
    if (part.end_term < r_.terms.size()) {
      for (size_t u = 0; u < num_vectors; ++u) store_waiting(part, i + u * kVectorBytes, a[u]);
      return true;
    }
    Bytes results[num_vectors];
    for (size_t u = 0; u < num_vectors; ++u) {
      results[u] = finished < kGivesUp ? Nans::kNone : Nans::kPossible > (a[u]);
    }
    for (std::byte* out : r_.outs) {
      uint8_t* to = as_uint8(out) + i;
      if (r_.stores == Stores::kStreaming && is_aligned(to)) {
        for (size_t u = 0; u < num_vectors; ++u) {
          hn::Stream(results[u], ByteTag(), to + u * kVectorBytes);
        }
      } else {
        for (size_t u = 0; u < num_vectors; ++u) {
          hn::StoreU(results[u], ByteTag(), to + u * kVectorBytes);
        }
      }
    }
    return true;
  }

  // Less than a vector.
  HWY_INLINE void last_step(const Part& part, size_t i) {
    const size_t n = part.end - i;
    alignas(64) uint8_t padded[kVectorBytes] = {};
    Accumulator a;
    size_t term = part.first_term;
    if (term == 0) {
      std::memcpy(padded, r_.terms[term++] + i, n);
      a = Format::load(padded);
    } else {
      load_waiting(part, i, a);
    }
    for (; term < part.end_term; ++term) {
      std::memcpy(padded, r_.terms[term] + i, n);
      add<Ordered>(a, Format::load(padded));
    }
    if (part.end_term < r_.terms.size()) return store_waiting(part, i, a);
    hn::Store(finished<Nans::kPossible>(a), ByteTag(), padded);
    for (std::byte* out : r_.outs) std::memcpy(out + i, padded, n);
  }

  const DenseReduction& r_;
  // No prefetch where terms are read block by block: most of the memory ahead then belongs to
  // another block.
  const bool prefetches_ = r_.stores == Stores::kStreaming && r_.terms.size() <= kTermsAtOnce;
  alignas(64) uint8_t waiting_[(kBlockBytes + kVectorBytes) * Format::kAccumulators];
};

template <class Format, class Op>
HWY_NOINLINE void reduce_as(const DenseReduction& r) {
  Reducer<Format, Op>(r).run();
}

template <class Format>
void reduce_float(const DenseReduction& r) {
  switch (r.op) {
    case ReduceOp::kSum:
      return reduce_as<Format, Sum>(r);
    case ReduceOp::kProd:
      return reduce_as<Format, Product>(r);
    case ReduceOp::kMin:
      return reduce_as<Format, Min>(r);
    case ReduceOp::kMax:
      return reduce_as<Format, Max>(r);
    case ReduceOp::kAvg:
      return reduce_as<Format, Average>(r);
  }
}

// Sums and products that wrap do not know of a sign.
template <class T>
void reduce_integer(const DenseReduction& r) {
  using U = std::make_unsigned_t<T>;
  switch (r.op) {
    case ReduceOp::kSum:
      return reduce_as<Whole<U>, Sum>(r);
    case ReduceOp::kProd:
      return reduce_as<Whole<U>, Product>(r);
    case ReduceOp::kMin:
      return reduce_as<Whole<T>, Min>(r);
    case ReduceOp::kMax:
      return reduce_as<Whole<T>, Max>(r);
    case ReduceOp::kAvg:
      return;  // validate_reduction refuses it
  }
}

void reduce(const DenseReduction& r) {
  switch (r.dtype) {
    case DType::kBool:
    case DType::kUint8:
      return reduce_integer<uint8_t>(r);
    case DType::kInt8:
      return reduce_integer<int8_t>(r);
    case DType::kInt32:
      return reduce_integer<int32_t>(r);
    case DType::kInt64:
      return reduce_integer<int64_t>(r);
    case DType::kFloat16:
      return reduce_float<Float16>(r);
    case DType::kBFloat16:
      return reduce_float<BFloat16>(r);
    case DType::kFloat32:
      return reduce_float<Whole<float> >(r);
    case DType::kFloat64:
      return reduce_float<Whole<double> >(r);
  }
}

// Rows of one word each: a load and a store, without a call.
template <class Word>
void copy_words(const RowCopy& c) {
  std::byte* to = c.to;
  const std::byte* from = c.from;
  int64_t row = 0;
  // Addresses that do not wait for each other.
  constexpr int kUnroll = 8;
  for (; row + kUnroll <= c.num_rows; row += kUnroll) {
    Word words[kUnroll];
    for (int k = 0; k < kUnroll; ++k)
      std::memcpy(&words[k], from + k * c.from_stride, sizeof(Word));
    for (int k = 0; k < kUnroll; ++k) std::memcpy(to + k * c.to_stride, &words[k], sizeof(Word));
    from += kUnroll * c.from_stride;
    to += kUnroll * c.to_stride;
  }
  for (; row < c.num_rows; ++row) {
    std::memcpy(to, from, sizeof(Word));
    to += c.to_stride;
    from += c.from_stride;
  }
}

struct Word128 {
  uint64_t words[2];
};

// Rows of at least one vector. The last vector of a row reaches back into the one before it.
void copy_vectors(const RowCopy& c) {
  const size_t n = static_cast<size_t>(c.row_bytes);
  for (int64_t row = 0; row < c.num_rows; ++row) {
    uint8_t* to = as_uint8(c.to + row * c.to_stride);
    const uint8_t* from = as_uint8(c.from + row * c.from_stride);
    for (size_t i = 0; i + kVectorBytes < n; i += kVectorBytes) {
      hn::StoreU(hn::LoadU(ByteTag(), from + i), ByteTag(), to + i);
    }
    const size_t last = n - kVectorBytes;
    hn::StoreU(hn::LoadU(ByteTag(), from + last), ByteTag(), to + last);
  }
}

void stream(uint8_t* to, const uint8_t* from, size_t n) {
  const size_t head = std::min<size_t>(-reinterpret_cast<uintptr_t>(to) % 64, n);
  std::memcpy(to, from, head);
  size_t i = head;
  for (; i + 4 * kVectorBytes <= n; i += 4 * kVectorBytes) {
    prefetch(from + i + kPrefetchBytes, 4 * kVectorBytes);
    Bytes v[4];
    for (size_t u = 0; u < 4; ++u) v[u] = hn::LoadU(ByteTag(), from + i + u * kVectorBytes);
    for (size_t u = 0; u < 4; ++u) hn::Stream(v[u], ByteTag(), to + i + u * kVectorBytes);
  }
  std::memcpy(to + i, from + i, n - i);
}

// From here on a call of memcpy is worth its price, for it knows the machine best.
constexpr int64_t kLongRowBytes = 512;

void copy(const RowCopy& c) {
  if (c.stores == Stores::kStreaming) {
    for (int64_t row = 0; row < c.num_rows; ++row) {
      const uint8_t* from = as_uint8(c.from + row * c.from_stride);
      if (row + 1 < c.num_rows) prefetch(from + c.from_stride, kPrefetchBytes / 2);
      stream(as_uint8(c.to + row * c.to_stride), from, static_cast<size_t>(c.row_bytes));
    }
    return;
  }
  switch (c.row_bytes) {
    case 1:
      return copy_words<uint8_t>(c);
    case 2:
      return copy_words<uint16_t>(c);
    case 4:
      return copy_words<uint32_t>(c);
    case 8:
      return copy_words<uint64_t>(c);
    case 16:
      return copy_words<Word128>(c);
  }
  const bool is_short = c.row_bytes < static_cast<int64_t>(kVectorBytes);
  return is_short || c.row_bytes >= kLongRowBytes ? copy_rows_plain(c) : copy_vectors(c);
}

#endif  // a target with vectors

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {

HWY_EXPORT(reduce);
HWY_EXPORT(copy);

namespace {

// Sums from memory are as fast as the memory with AVX2 already, and there 512-bit loads and stores
// took 10 to 35 % longer (docs/performance.md). In the caches AVX-512 gains.
bool find_memory_by_avx2() {
  const int64_t sets = hwy::SupportedTargets();
  return (sets & HWY_AVX2) != 0 && (sets & (HWY_AVX3 | HWY_AVX3_DL)) != 0;
}

bool& memory_by_avx2() {
  static bool is_so = find_memory_by_avx2();
  return is_so;
}

}  // namespace

void reduce_dense(const DenseReduction& reduction) {
#if HWY_TARGETS & HWY_AVX2
  if (reduction.stores == Stores::kStreaming && memory_by_avx2()) return N_AVX2::reduce(reduction);
#endif
  HWY_DYNAMIC_DISPATCH(reduce)(reduction);
}
void copy_rows(const RowCopy& row_copy) { HWY_DYNAMIC_DISPATCH(copy)(row_copy); }
void fence_stores() { hwy::FlushStream(); }

std::vector<int64_t> instruction_sets() { return hwy::SupportedAndGeneratedTargets(); }

absl::string_view instruction_set_name(int64_t instruction_set) {
  return hwy::TargetName(instruction_set);
}

void use_instruction_set(int64_t instruction_set) {
  hwy::SetSupportedTargetsForTest(instruction_set);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  memory_by_avx2() = find_memory_by_avx2();
}

}  // namespace tessera::cpu
#endif
