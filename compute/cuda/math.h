// SPDX-License-Identifier: Apache-2.0
//
// The kernels of operations, as plain values that a host makes and a kernel reads. They are what
// the functions of Engine (compute/engine.h) need; CudaEngine makes them.
//
// math_bodies.h says what one item of each does; math_launch.cu runs the items on a GPU, and the
// fake on the host, with the same code. Every kernel has at least one item.
//
// nvcc reads this header: it includes nothing but the language's integers.
#ifndef TESSERA_COMPUTE_CUDA_MATH_H_
#define TESSERA_COMPUTE_CUDA_MATH_H_

#include <cstddef>
#include <cstdint>

#include "compute/optimizer_math.h"
#include "compute/pointwise_ops.h"
#include "device/cuda/kernels.h"
#include "device/kernel_body.h"

namespace tessera::cuda {

inline constexpr int kMaxDims = 8;

// A row-major index space, outermost dim first. Rank 0 has one element.
struct Space {
  int32_t num_dims = 0;
  int64_t sizes[kMaxDims] = {};
};

// Elements that a thread maps at once, of a type of so many bytes: 16 bytes of them, at most 8.
TESSERA_KERNEL_BODY constexpr int map_pack(int64_t element_bytes) {
  return element_bytes > 2 ? static_cast<int>(kVectorBytes / element_bytes) : 8;
}

// An operand of a Map: an array by strides in elements, which may be 0 or negative; or one element.
struct MapOperand {
  const std::byte* data = nullptr;  // null: the element
  alignas(8) uint8_t element[8] = {};
  int64_t run_stride = 0;          // along a run; 0 of the element
  int64_t strides[kMaxDims] = {};  // of the outer dims, innermost first
};

// out[i] = f(operands[i]...), into a dense array. plan_map() (map_plan.h) makes it.
//
// The innermost dim is a run; `outer` are the others, innermost first. An item is up to map_pack()
// elements of one run. Where is_packed, they are neighbours, and all arrays are aligned so that a
// whole pack is one vector:
//   run of 11, packs of 4     item 0: 0 1 2 3    item 1: 4 5 6 7    item 2: 8 9 10
// Else they are 2^spacing_log2 elements apart, so that neighbouring threads have neighbours:
//   spacing 4                 item 0: 0 4 8      item 1: 1 5 9      item 2: 2 6 10   item 3: 3 7
struct Map {
  enum class Kind : uint8_t {
    kPointwise,  // op(a) or op(a, b); gives bool where the op does
    kSelect,     // a ? b : c, where a is of bool
    kClip,       // of a, from b to c
    kCopy,       // a
  };
  Kind kind = Kind::kCopy;
  kernels::PointwiseOp op = kernels::PointwiseOp::neg;
  ElementType type = ElementType::kFloat32;  // of the operands; a condition is bool
  bool is_packed = false;
  int32_t spacing_log2 = 0;
  int32_t num_operands = 1;
  int32_t num_outer = 0;
  uint32_t run_elements = 1;
  Divisor items_per_run;
  Divisor outer[kMaxDims];
  MapOperand in[3];
  std::byte* out = nullptr;
  uint64_t num_items = 0;  // fewer than 2^31
};

// out[k][c] = the reduction of chunk c of the terms of kept index k; out[c][k] where the kept index
// runs fastest in memory. A large reduction takes several passes, whose intermediate results have
// the type of computation.
//
// A thread loads packs, `pack` neighbours in memory: terms of one result, or where the kept index
// runs fastest, a term of each of `pack` results. An item is a chunk of a result or of a pack of
// results, which `lanes` threads of a block compute:
//
//   terms a to h in packs of 2, by 2 lanes       lane 0               lane 1
//   a lane adds every second pack                a + e, b + f         c + g, d + h
//   then the sums within the pack, by halves     (a + e) + (b + f)    (c + g) + (d + h)
//   then lanes are added in pairs: next_distance() in math_bodies.h
//
// Where the kept index runs fastest, a lane adds every second term. CudaEngine chooses pack, lanes
// and chunks by the type and the sizes alone, so the same call gives the same bits on every GPU.
struct ReduceDims {
  ElementType from = ElementType::kFloat32;
  ElementType to = ElementType::kFloat32;  // `from`; or f16, bf16 or f32, of any of the three
  Reduction op = Reduction::kSum;          // kAvg adds; the divisor makes it an average
  bool kept_is_fastest = false;
  int32_t pack = 1;   // 1, or reduce_pack_of() the size of an element of `from`
  int32_t lanes = 1;  // a power of two, at most kReduceThreads
  Space kept;
  int64_t kept_strides[kMaxDims] = {};
  Space reduced;
  int64_t reduced_strides[kMaxDims] = {};
  int64_t num_kept = 1;
  int64_t num_packs = 1;    // of each result; where the kept index runs fastest, of one term each
  int32_t chunk_packs = 1;  // the last chunk may have fewer
  int64_t num_chunks = 1;
  double divisor = 1;             // of floats
  const std::byte* in = nullptr;  // aligned to packs
  std::byte* out = nullptr;
  uint64_t num_items = 0;
};
// Threads of a block of such a kernel.
inline constexpr int kReduceThreads = 256;
// Elements of a vector of 16 bytes; 1 of 8 bytes, which is wide enough.
constexpr int32_t reduce_pack_of(int64_t element_bytes) {
  return element_bytes == 8 ? 1 : static_cast<int32_t>(16 / element_bytes);
}

// An array seen as [outer, size, inner].
struct LineShape {
  int64_t outer = 1;
  int64_t size = 1;
  int64_t inner = 1;
};
// Which indices the elements have, as kernels::LineIndices.
struct LineNumbers {
  int64_t first = 0;
  const int64_t* array = nullptr;
};

// Elements [first, first + count) of the inclusive sums along lines. An item is one line.
struct CumSum {
  ElementType type = ElementType::kFloat32;
  LineShape lines;
  int64_t first = 0;
  int64_t count = 0;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  uint64_t num_items = 0;
};

// The index of the largest or smallest element of each line. An item is one line.
struct ArgExtreme {
  ElementType type = ElementType::kFloat32;
  bool is_max = false;
  LineShape lines;
  LineNumbers numbers;
  const std::byte* in = nullptr;
  int64_t* out = nullptr;
  uint64_t num_items = 0;
};

// One pass of a merge sort of the indices of each line: runs of `width` indices in order become
// runs of twice as many. Equal elements are in the order of their indices. An item is one index.
struct MergePass {
  ElementType type = ElementType::kFloat32;
  bool is_descending = false;
  LineShape lines;
  int64_t width = 1;
  const std::byte* in = nullptr;  // the elements
  const int64_t* from = nullptr;  // [outer, inner, size]; null: 0, 1, ... in each line
  int64_t* to = nullptr;
  uint64_t num_items = 0;
};

// The first `count` elements of each line in an order. An item is one element.
struct TakeOrdered {
  ElementType type = ElementType::kFloat32;
  LineShape lines;
  LineNumbers numbers;
  int64_t count = 0;
  const std::byte* in = nullptr;
  const int64_t* order = nullptr;  // as MergePass
  std::byte* values = nullptr;     // values, indices, or both
  int64_t* indices = nullptr;
  uint64_t num_items = 0;
};

struct IndexArray {
  bool is_64 = false;  // i64, else i32
  const std::byte* data = nullptr;
  int64_t count = 0;
};

// *first_wrong = min(*first_wrong, number of each index that is not in [0, whole)). An item is one
// index.
struct CheckIndices {
  IndexArray indices;
  int64_t whole = 0;
  uint64_t* first_wrong = nullptr;
  uint64_t num_items = 0;
};

// The finding of CheckIndices, for the host: out[0] is *first_wrong, out[1] that index. One item.
struct ReportIndex {
  IndexArray indices;
  const uint64_t* first_wrong = nullptr;
  int64_t* out = nullptr;
  uint64_t num_items = 1;
};

// out[o][k] = lines[o][indices[k] - first]; zeros for what is not there. An item is one element.
struct Take {
  int32_t element_bytes = 4;
  LineShape lines;
  IndexArray indices;
  int64_t first = 0;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  uint64_t num_items = 0;
};

// out[o][p] = in[o][p] + the sum of updates[o][k] for the k with indices[k] = first + p, in the
// order of k. `order` has the numbers of indices in the order of their values. An item is one
// element of the result.
struct ScatterAdd {
  ElementType type = ElementType::kFloat32;
  LineShape lines;
  IndexArray indices;
  const int64_t* order = nullptr;  // null: 0, 1, ...
  int64_t first = 0;
  const std::byte* in = nullptr;  // null: zeros
  const std::byte* updates = nullptr;
  std::byte* out = nullptr;
  uint64_t num_items = 0;
};

// out[k][i] = indices[k] == i, in f32.
struct OneHot {
  IndexArray indices;
  int64_t depth = 0;
  float* out = nullptr;
  uint64_t num_items = 0;
};

// Element indices[i] - first of row i; zero for what is not there. An item is one row.
struct Pick {
  int32_t element_bytes = 4;
  IndexArray indices;
  int64_t columns = 0;
  int64_t first = 0;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  uint64_t num_items = 0;
};

// Copies [lines, queries, keys], with -infinity where key > query + shift.
struct MaskLater {
  ElementType type = ElementType::kFloat32;
  int64_t queries = 0;
  int64_t keys = 0;
  int64_t shift = 0;  // of the first query and the first key that are here
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  uint64_t num_items = 0;
};

// Functions of images, as ImageKind of compute/engine.h by the same numbers. An item is one element
// of the result.
enum class ImageFunction : uint8_t {
  kConv,
  kConvByX,
  kConvByFilter,
  kAvgPool,
  kAvgPoolByX,
  kMaxPool,
  kMaxPoolByValues,
};
struct ImageWindow {
  int64_t size = 1;
  int64_t stride = 1;
  int64_t dilation = 1;
  int64_t before = 0;
};
// A part of an image, or a filter.
struct ImagePart {
  const std::byte* data = nullptr;
  int64_t offsets[4] = {};
  int64_t sizes[4] = {};
};
struct Image {
  ImageFunction function = ImageFunction::kConv;
  ElementType type = ElementType::kFloat32;
  ImageWindow height;
  ImageWindow width;
  int64_t rows = 0;
  int64_t columns = 0;
  ImagePart a;
  ImagePart b;
  int64_t out_offsets[4] = {};
  int64_t out_sizes[4] = {};
  std::byte* out = nullptr;
  uint64_t num_items = 0;
};

// Random numbers, as RandomKind of compute/random_spec.h by the same numbers. An item is one
// element.
enum class Distribution : uint8_t {
  kBits,
  kUniform,
  kNormal,
  kTruncatedNormal,
  kBernoulli,
  kInteger,
  kPermutation,
};
struct Draw {
  Distribution distribution = Distribution::kBits;
  ElementType type = ElementType::kFloat32;
  uint32_t key[2] = {};
  double a = 0;
  double b = 1;
  double low = -2;
  double high = 2;
  int64_t least = 0;
  uint64_t range = 0;
  Space space;                     // the box
  int64_t strides[kMaxDims] = {};  // of the flat index in the whole tensor
  uint64_t first = 0;              // the flat index of the box's first element
  std::byte* out = nullptr;
  uint64_t num_items = 0;
};

// c[n] = a[n] b[n]: c is dense and row-major; a is [rows, summed], b [summed, columns], by strides
// in elements. An item is one element of c. The order of the sum is that of the summed index.
struct Product {
  ElementType type = ElementType::kInt32;
  int64_t batch = 1;
  int64_t rows = 1;
  int64_t columns = 1;
  int64_t summed = 1;
  const std::byte* a = nullptr;
  int64_t a_batch_stride = 0;
  int64_t a_row_stride = 0;
  int64_t a_summed_stride = 0;
  const std::byte* b = nullptr;
  int64_t b_batch_stride = 0;
  int64_t b_summed_stride = 0;
  int64_t b_column_stride = 0;
  std::byte* c = nullptr;
  uint64_t num_items = 0;
};

// X(type of the kernel)
// One step of an optimizer. An item is one element.
struct Step {
  // The type of the value and the gradient. The state of the rule is f32 where this is a half type.
  ElementType type = ElementType::kFloat32;
  kernels::OptimizerStep step;
  const std::byte* gradient = nullptr;
  // The value, and what the rule remembers; an old and its new array may be the same.
  const std::byte* from[1 + kernels::kMaxStepSlots] = {};
  std::byte* to[1 + kernels::kMaxStepSlots] = {};
  uint64_t num_items = 0;
};

#define TESSERA_MATH_KERNELS_(X) \
  X(Map)                         \
  X(ReduceDims)                  \
  X(CumSum)                      \
  X(ArgExtreme)                  \
  X(MergePass)                   \
  X(TakeOrdered)                 \
  X(CheckIndices)                \
  X(ReportIndex)                 \
  X(Take)                        \
  X(ScatterAdd)                  \
  X(OneHot)                      \
  X(Pick)                        \
  X(MaskLater)                   \
  X(Image)                       \
  X(Draw)                        \
  X(Step)                        \
  X(Product)

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_CUDA_MATH_H_
