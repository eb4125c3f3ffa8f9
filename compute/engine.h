// SPDX-License-Identifier: Apache-2.0
//
// Engine: what a device computes with: the functions of dense arrays in its memory that operations
// are made of. They know no layouts.
//
//   return call.engine.pointwise(PointwiseOp::add, dtype, {a, b}, sizes, call.out);
//
// Engines: threads of the host (compute/cpu/host_engine.h), for devices that use its memory; and
// the engine of a device that computes by itself (LocalDevice::engine()). They differ in speed and
// in roundings, not in meaning, which is as the headers of compute/cpu say for each function; a
// test runs every row of the tables of facts on each.
//
// Arrays are memory of the device, dense and row-major where no strides are given. `sizes`, strides
// and single elements are memory of the host, which is the caller's again after the call. Calls are
// made by tasks of the device's stream; a device that computes by itself does it later, in the
// order of its stream.
//
// An error that depends on values in memory (an index that is out of range) is the status of the
// call where the host computes. Elsewhere it is an error of what finish() ends, see LocalDevice.
#ifndef TESSERA_COMPUTE_ENGINE_H_
#define TESSERA_COMPUTE_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "compute/contraction.h"
#include "compute/optimizer_math.h"
#include "compute/pointwise_ops.h"
#include "compute/random_spec.h"
#include "compute/strided.h"

namespace tessera {
namespace kernels {

// An array seen as [outer, size, inner].
struct Lines {
  int64_t outer;
  int64_t size;
  int64_t inner;
};

// Indices of i32 or i64.
struct Indices {
  DType dtype;
  const std::byte* data;
  int64_t count;
};
// A part of a dim: its first index, and the size of the whole dim.
struct DimPart {
  int64_t first;
  int64_t whole;
};

// A dense array of a box.
struct BoxArray {
  const std::byte* data;
  const Box& box;
};

// Which indices the elements of lines have: `first` and those after it in each line, or those of an
// array of as many numbers.
struct LineIndices {
  int64_t first = 0;
  const int64_t* array = nullptr;
};

// A window along a dim, as it moves over it.
struct Window {
  int64_t size = 1;
  int64_t stride = 1;
  int64_t dilation = 1;
  int64_t before = 0;  // padding
  int64_t after = 0;
};

// Functions of images, [batch, height, width, channels], and windows that move over them. `a` and
// `b` are their operands.
enum class ImageKind : uint8_t {
  kConv,             // the convolution of image a by filter b, [height, width, in, out]
  kConvByX,          // the gradient of the sum of the convolution times a, by the image
  kConvByFilter,     // the same by the filter: of image a, and b
  kAvgPool,          // the means of windows of image a
  kAvgPoolByX,       // the gradient of their sum times a
  kMaxPool,          // what b holds where image a is largest in each window, the first of equals
  kMaxPoolByValues,  // the gradient of their sum times b, by the values, of image a
};
struct ImageCall {
  ImageKind kind;
  Window height;
  Window width;
  // For kAvgPoolByX: the heights and widths of the image.
  int64_t rows = 0;
  int64_t columns = 0;
};

// Functions of the rows of arrays, [count, size].
enum class RowKind : uint8_t {
  kSoftmax,             // of x
  kLogSoftmax,          // of x
  kSoftmaxGradient,     // of the result y and c: the gradient of the sum of y c
  kLogSoftmaxGradient,  // the same
  kNormalize,           // of x, and rows scale and bias: (x - mean) / sqrt(variance + epsilon)
                        // times scale plus bias; of x alone without them
  kNormalizeGradient,   // of x and c: the gradient of the sum of c times the above of x alone
};
struct RowCall {
  RowKind kind;
  int64_t count;
  int64_t size;
  double epsilon = 0;
};

// The arrays of a step of an optimizer: the value, and what the rule remembers. Old and new ones
// may be the same memory, each by itself.
struct StepArrays {
  const std::byte* gradient = nullptr;
  const std::byte* from[1 + kMaxStepSlots] = {};
  std::byte* to[1 + kMaxStepSlots] = {};
};

// OutOfRange: the index, which is number `number` of a device's, is not in a dim of `whole`.
Status index_error(int64_t index, int64_t number, int64_t whole);

}  // namespace kernels

// Thread-safe. The functions of the same names in compute/cpu/ say what each computes.
class Engine {
 public:
  virtual ~Engine() = default;

  // ---- pointwise.h
  virtual Status pointwise(kernels::PointwiseOp op, DType dtype,
                           absl::Span<const kernels::Strided> operands,
                           absl::Span<const int64_t> sizes, std::byte* out) = 0;
  virtual Status select(DType dtype, const kernels::Strided& condition, const kernels::Strided& a,
                        const kernels::Strided& b, absl::Span<const int64_t> sizes,
                        std::byte* out) = 0;
  // `low` and `high` are elements in memory of the host.
  virtual Status clip(DType dtype, const std::byte* in, const std::byte* low, const std::byte* high,
                      int64_t num_elements, std::byte* out) = 0;
  virtual Status copy_strided(DType dtype, const kernels::Strided& in,
                              absl::Span<const int64_t> sizes, std::byte* out) = 0;
  virtual Status cast(DType from, DType to, const std::byte* in, std::byte* out,
                      int64_t num_elements) = 0;

  // ---- contract.h
  virtual Status contract(DType dtype, const kernels::Labelled& a, const kernels::Labelled& b,
                          const kernels::Labels& labels, absl::Span<const int64_t> sizes,
                          std::byte* out) = 0;

  // ---- reduce.h
  virtual Status reduce_dims(ReduceOp op, DType dtype, const std::byte* in,
                             absl::Span<const int64_t> sizes, const std::vector<bool>& is_reduced,
                             double divisor, std::byte* out) = 0;
  virtual Status cumsum(DType dtype, const std::byte* in, const kernels::Lines& lines,
                        int64_t first, int64_t count, std::byte* out) = 0;
  virtual Status arg_extreme(bool is_max, DType dtype, const std::byte* in,
                             const kernels::Lines& lines, const kernels::LineIndices& numbers,
                             int64_t* out) = 0;
  virtual Status sort_lines(bool is_descending, DType dtype, const std::byte* in,
                            const kernels::Lines& lines, const kernels::LineIndices& numbers,
                            int64_t count, std::byte* values, int64_t* indices) = 0;

  // ---- index.h
  virtual Status place_box(int64_t element_bytes, const std::byte* in, const Box& in_box,
                           const std::vector<int64_t>& begin, const Box& out_box,
                           std::byte* out) = 0;
  // `element` is in memory of the host.
  virtual Status fill(DType dtype, const std::byte* element, std::byte* out,
                      int64_t num_elements) = 0;
  virtual Status take(int64_t element_bytes, const std::byte* in, const kernels::Lines& lines,
                      const kernels::DimPart& part, const kernels::Indices& indices,
                      std::byte* out) = 0;
  // `out` is first made a copy of `in`, or zeros where that is null.
  virtual Status scatter_add(DType dtype, const std::byte* in, const kernels::Lines& lines,
                             const kernels::DimPart& part, const kernels::Indices& indices,
                             const std::byte* updates, std::byte* out) = 0;
  virtual Status one_hot(const kernels::Indices& indices, int64_t depth, float* out) = 0;

  // ---- rows.h Only on the host: elsewhere operations of rows are made of other operations.
  virtual Status rows(const kernels::RowCall& call, DType dtype,
                      absl::Span<const std::byte* const> in, std::byte* out);

  // ---- nn.h
  // `b` is null where the kind has one operand.
  virtual Status image(const kernels::ImageCall& call, DType dtype, const kernels::BoxArray& a,
                       const kernels::BoxArray* b, const Box& out_box, std::byte* out) = 0;
  virtual Status mask_later(DType dtype, const std::byte* in, const Box& box, int64_t shift,
                            std::byte* out) = 0;
  virtual Status pick(DType dtype, const std::byte* in, const Box& box,
                      const kernels::DimPart& part, const kernels::Indices& indices,
                      std::byte* out) = 0;

  // ---- optimizer.h For dense arrays of floats.
  virtual Status optimizer_step(const kernels::OptimizerStep& step, DType dtype,
                                const kernels::StepArrays& arrays, int64_t num_elements) = 0;

  // ---- philox.h
  virtual Status random_box(const kernels::RandomSpec& spec, DType dtype, const Shape& shape,
                            const Box& box, std::byte* out) = 0;
};

inline Status Engine::rows(const kernels::RowCall&, DType, absl::Span<const std::byte* const>,
                           std::byte*) {
  return absl::UnimplementedError("rows: computed by the host alone");
}

}  // namespace tessera

#endif  // TESSERA_COMPUTE_ENGINE_H_
