// SPDX-License-Identifier: Apache-2.0
//
// Runs are computed in blocks that fit the cache, by loops.h: a block of an operand that is dense
// and needs no conversion is read where it is, any other is first copied next to each other.
#include "compute/cpu/pointwise.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "Eigen/Core"
#include "base/check.h"
#include "compute/cpu/loops.h"
#include "compute/cpu/strided_walk.h"
#include "device/number_math.h"

namespace tessera::kernels {
namespace {

constexpr PointwiseInfo kInfos[] = {
#define TESSERA_INFO_(name, operands, dtypes, family) {#name, DTypes::dtypes},
    TESSERA_POINTWISE_OPS_(TESSERA_INFO_)
#undef TESSERA_INFO_
};

constexpr int64_t kBlock = 512;

template <class T>
constexpr bool kIsHalf = std::is_same_v<T, Eigen::half> || std::is_same_v<T, Eigen::bfloat16>;
// The type that elements of T are computed in.
template <class T>
using Computed = std::conditional_t<kIsHalf<T>, float, T>;

template <class T>
constexpr LoopType loop_type() {
  if constexpr (std::is_same_v<T, bool>) return LoopType::kBool;
  if constexpr (std::is_same_v<T, int8_t>) return LoopType::kInt8;
  if constexpr (std::is_same_v<T, uint8_t>) return LoopType::kUint8;
  if constexpr (std::is_same_v<T, int32_t>) return LoopType::kInt32;
  if constexpr (std::is_same_v<T, int64_t>) return LoopType::kInt64;
  if constexpr (std::is_same_v<T, double>) return LoopType::kFloat64;
  return LoopType::kFloat32;
}
template <class T>
constexpr HalfType kHalfType =
    std::is_same_v<T, Eigen::half> ? HalfType::kFloat16 : HalfType::kBFloat16;

constexpr int64_t whole_lanes(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// One operand as it is walked through: its blocks, next to each other and in the type of
// computation, with a multiple of kLanes elements, of which those past the end are any numbers.
template <class T>
class OperandBlocks {
 public:
  // The operand's elements at `n` places, `stride` elements apart.
  const Computed<T>* load(const T* from, int64_t stride, int64_t n) {
    if (stride == 0) return repeat(from, n);
    filled_from_ = nullptr;
    if constexpr (kIsHalf<T>) {
      const T* dense = from;
      if (stride != 1) {
        for (int64_t i = 0; i < n; ++i) gathered_[i] = from[i * stride];
        dense = gathered_;
      }
      loops().widen(kHalfType<T>, reinterpret_cast<const uint16_t*>(dense), block_, n);
    } else {
      if (stride == 1 && n % kLanes == 0) return from;
      for (int64_t i = 0; i < n; ++i) block_[i] = from[i * stride];
    }
    std::fill(block_ + n, block_ + whole_lanes(n), Computed<T>(1));
    return block_;
  }

 private:
  // One element, which the blocks of a run have in common.
  const Computed<T>* repeat(const T* from, int64_t n) {
    if (filled_from_ != from || filled_ < n) {
      std::fill_n(block_, whole_lanes(n), static_cast<Computed<T>>(*from));
      filled_from_ = from;
      filled_ = n;
    }
    return block_;
  }

  struct Nothing {};
  Computed<T> block_[kBlock];
  std::conditional_t<kIsHalf<T>, T[kBlock], Nothing> gathered_;
  const T* filled_from_ = nullptr;
  int64_t filled_ = 0;
};

template <class T>
void pointwise_of(const Loops& loops, PointwiseOp op, absl::Span<const Strided> operands,
                  absl::Span<const int64_t> sizes, std::byte* out) {
  absl::InlinedVector<absl::Span<const int64_t>, 2> strides;
  for (const Strided& operand : operands) strides.push_back(operand.strides);
  StridedWalk walk(sizes, strides);
  const auto out_bytes = static_cast<int64_t>(gives_bool(op) ? sizeof(bool) : sizeof(T));
  OperandBlocks<T> blocks[2];
  Computed<T> result[kBlock];
  walk.for_each_run([&](absl::Span<const int64_t> offsets) {
    for (int64_t begin = 0; begin < walk.run(); begin += kBlock) {
      const int64_t n = std::min(kBlock, walk.run() - begin);
      const Computed<T>* loaded[2] = {nullptr, nullptr};
      for (size_t k = 0; k < operands.size(); ++k) {
        const int64_t stride = walk.run_stride(k);
        loaded[k] = blocks[k].load(
            reinterpret_cast<const T*>(operands[k].data) + offsets[k] + begin * stride, stride, n);
      }
      const bool narrows = kIsHalf<T> && !gives_bool(op);
      const bool is_direct = n % kLanes == 0 && !narrows;
      void* const to = is_direct ? static_cast<void*>(out) : result;
      const bool is_done =
          loops.pointwise(op, loop_type<T>(), loaded[0], loaded[1], to, whole_lanes(n));
      TESSERA_CHECK(is_done, "the operation takes the dtype");
      if constexpr (kIsHalf<T>) {
        if (narrows) loops.narrow(kHalfType<T>, result, reinterpret_cast<uint16_t*>(out), n);
      }
      if (!is_direct && !narrows) std::memcpy(out, result, n * out_bytes);
      out += n * out_bytes;
    }
  });
}

// out[i][k] = in[i + k * stride], a transposed matrix. A tile is read and written by whole lines of
// memory, through a copy: lines that are a power of two apart would drive each other out of the
// cache if they were used again.
template <class T>
void transpose_tiles(const T* in, int64_t stride, int64_t rows, int64_t columns, T* out,
                     int64_t out_stride) {
  constexpr int64_t kTile = sizeof(T) <= 4 ? 64 : 32;
  T tile[kTile][kTile];
  for (int64_t column = 0; column < columns; column += kTile) {
    const int64_t num_columns = std::min(kTile, columns - column);
    for (int64_t row = 0; row < rows; row += kTile) {
      const int64_t num_rows = std::min(kTile, rows - row);
      for (int64_t k = 0; k < num_columns; ++k) {
        std::memcpy(tile[k], in + row + (column + k) * stride, num_rows * sizeof(T));
      }
      for (int64_t i = 0; i < num_rows; ++i) {
        T* const to = out + (row + i) * out_stride + column;
        for (int64_t k = 0; k < num_columns; ++k) to[k] = tile[k][i];
      }
    }
  }
}

// Elements of `T` stand for all dtypes of their size.
template <class T>
void copy_of(const Strided& in, absl::Span<const int64_t> sizes, std::byte* out) {
  const T* const from = reinterpret_cast<const T*>(in.data);
  T* to = reinterpret_cast<T*>(out);
  // A dim whose elements are next to each other in the source is walked through together with the
  // last one.
  const int last = static_cast<int>(sizes.size()) - 1;
  int next = last;
  while (next >= 0 && (in.strides[next] != 1 || sizes[next] == 1)) --next;
  if (next >= 0 && next != last && in.strides[last] != 0) {
    const absl::InlinedVector<int64_t, 8> dense = dense_strides(sizes);
    absl::InlinedVector<int64_t, 8> outer(sizes.begin(), sizes.end());
    outer[next] = outer[last] = 1;
    StridedWalk walk(outer, {in.strides, dense});
    walk.for_each_run([&](absl::Span<const int64_t> offsets) {
      for (int64_t i = 0; i < walk.run(); ++i) {
        transpose_tiles(from + offsets[0] + i * walk.run_stride(0), in.strides[last], sizes[next],
                        sizes[last], to + offsets[1] + i * walk.run_stride(1), dense[next]);
      }
    });
    return;
  }
  StridedWalk walk(sizes, {in.strides});
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

// The elements of a run of one operand of select(), next to each other.
template <class T>
const T* gather(const T* from, int64_t stride, int64_t n, T* block) {
  if (stride == 1) return from;
  for (int64_t i = 0; i < n; ++i) block[i] = from[i * stride];
  return block;
}

template <class T>
void select_of(const Strided& condition, const Strided& a, const Strided& b,
               absl::Span<const int64_t> sizes, std::byte* out) {
  StridedWalk walk(sizes, {condition.strides, a.strides, b.strides});
  T* to = reinterpret_cast<T*>(out);
  uint8_t conditions[kBlock];
  T blocks[2][kBlock];
  walk.for_each_run([&](absl::Span<const int64_t> offsets) {
    for (int64_t begin = 0; begin < walk.run(); begin += kBlock) {
      const int64_t n = std::min(kBlock, walk.run() - begin);
      const auto operand = [&]<class U>(const Strided& array, size_t k, U* block) {
        const int64_t stride = walk.run_stride(k);
        return gather(reinterpret_cast<const U*>(array.data) + offsets[k] + begin * stride, stride,
                      n, block);
      };
      loops().select(sizeof(T), operand(condition, 0, conditions), operand(a, 1, blocks[0]),
                     operand(b, 2, blocks[1]), to, n);
      to += n;
    }
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

// The f32 that a half type is rounded from, so that the number is rounded once.
template <class From>
float to_be_narrowed(From from) {
  if constexpr (std::is_same_v<From, double>) {
    return odd_float(from);
  } else if constexpr (std::is_integral_v<From> && sizeof(From) > 2) {
    return odd_float(static_cast<int64_t>(from));
  } else {
    return static_cast<float>(from);
  }
}

template <class From, class To>
void cast_of(const std::byte* in, std::byte* out, int64_t n) {
  const From* const from = reinterpret_cast<const From*>(in);
  To* const to = reinterpret_cast<To*>(out);
  if constexpr (kIsHalf<To>) {
    float wide[kBlock];
    for (int64_t begin = 0; begin < n; begin += kBlock) {
      const int64_t size = std::min(kBlock, n - begin);
      for (int64_t i = 0; i < size; ++i) {
        wide[i] = to_be_narrowed(static_cast<Computed<From>>(from[begin + i]));
      }
      loops().narrow(kHalfType<To>, wide, reinterpret_cast<uint16_t*>(to + begin), size);
    }
  } else {
    for (int64_t i = 0; i < n; ++i) {
      to[i] = cast_element<To>(static_cast<Computed<From>>(from[i]));
    }
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

void pointwise(InstructionSet set, PointwiseOp op, DType dtype, absl::Span<const Strided> operands,
               absl::Span<const int64_t> sizes, std::byte* out) {
  visit_dtype(dtype, [&]<class T>() { pointwise_of<T>(loops(set), op, operands, sizes, out); });
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
  const auto half = [](DType dtype) {
    return dtype == DType::kFloat16 ? HalfType::kFloat16 : HalfType::kBFloat16;
  };
  const auto is_half = [](DType dtype) {
    return dtype == DType::kFloat16 || dtype == DType::kBFloat16;
  };
  if (from == DType::kFloat32 && is_half(to)) {
    return loops().narrow(half(to), reinterpret_cast<const float*>(in),
                          reinterpret_cast<uint16_t*>(out), num_elements);
  }
  if (is_half(from) && to == DType::kFloat32) {
    return loops().widen(half(from), reinterpret_cast<const uint16_t*>(in),
                         reinterpret_cast<float*>(out), num_elements);
  }
  visit_dtype(from, [&]<class From>() {
    visit_dtype(to, [&]<class To>() { cast_of<From, To>(in, out, num_elements); });
  });
}

}  // namespace tessera::kernels
