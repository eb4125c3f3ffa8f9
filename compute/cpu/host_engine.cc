// SPDX-License-Identifier: Apache-2.0
#include "compute/cpu/host_engine.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <vector>

#include "absl/types/span.h"
#include "base/check.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "compute/cpu/contract.h"
#include "compute/cpu/index.h"
#include "compute/cpu/nn.h"
#include "compute/cpu/optimizer.h"
#include "compute/cpu/philox.h"
#include "compute/cpu/pointwise.h"
#include "compute/cpu/reduce.h"
#include "compute/cpu/rows.h"

namespace tessera::kernels {
namespace {

class HostEngine final : public Engine {
 public:
  explicit HostEngine(const Arithmetic& arithmetic) : arithmetic_(arithmetic) {}
  const Arithmetic& arithmetic() const { return arithmetic_; }

  Status pointwise(PointwiseOp op, DType dtype, absl::Span<const Strided> operands,
                   absl::Span<const int64_t> sizes, std::byte* out) override {
    kernels::pointwise(arithmetic_.set, op, dtype, operands, sizes, out);
    return absl::OkStatus();
  }
  Status select(DType dtype, const Strided& condition, const Strided& a, const Strided& b,
                absl::Span<const int64_t> sizes, std::byte* out) override {
    kernels::select(dtype, condition, a, b, sizes, out);
    return absl::OkStatus();
  }
  Status clip(DType dtype, const std::byte* in, const std::byte* low, const std::byte* high,
              int64_t num_elements, std::byte* out) override {
    kernels::clip(dtype, in, low, high, num_elements, out);
    return absl::OkStatus();
  }
  Status copy_strided(DType dtype, const Strided& in, absl::Span<const int64_t> sizes,
                      std::byte* out) override {
    kernels::copy_strided(dtype, in, sizes, out);
    return absl::OkStatus();
  }
  Status cast(DType from, DType to, const std::byte* in, std::byte* out,
              int64_t num_elements) override {
    kernels::cast(from, to, in, out, num_elements);
    return absl::OkStatus();
  }

  Status contract(DType dtype, const Labelled& a, const Labelled& b, const Labels& labels,
                  absl::Span<const int64_t> sizes, std::byte* out) override {
    kernels::contract(arithmetic_, dtype, a, b, labels, sizes, out);
    return absl::OkStatus();
  }

  Status reduce_dims(ReduceOp op, DType dtype, const std::byte* in, absl::Span<const int64_t> sizes,
                     const std::vector<bool>& is_reduced, double divisor, std::byte* out) override {
    kernels::reduce_dims(op, dtype, in, sizes, is_reduced, divisor, out);
    return absl::OkStatus();
  }
  Status cumsum(DType dtype, const std::byte* in, const Lines& lines, int64_t first, int64_t count,
                std::byte* out) override {
    kernels::cumsum(dtype, in, lines, first, count, out);
    return absl::OkStatus();
  }
  Status arg_extreme(bool is_max, DType dtype, const std::byte* in, const Lines& lines,
                     const LineIndices& numbers, int64_t* out) override {
    kernels::arg_extreme(is_max, dtype, in, lines, numbers, out);
    return absl::OkStatus();
  }
  Status sort_lines(bool is_descending, DType dtype, const std::byte* in, const Lines& lines,
                    const LineIndices& numbers, int64_t count, std::byte* values,
                    int64_t* indices) override {
    kernels::sort_lines(is_descending, dtype, in, lines, numbers, count, values, indices);
    return absl::OkStatus();
  }

  Status place_box(int64_t element_bytes, const std::byte* in, const Box& in_box,
                   const std::vector<int64_t>& begin, const Box& out_box, std::byte* out) override {
    kernels::place_box(element_bytes, in, in_box, begin, out_box, out);
    return absl::OkStatus();
  }
  Status fill(DType dtype, const std::byte* element, std::byte* out,
              int64_t num_elements) override {
    kernels::fill(dtype, element, out, num_elements);
    return absl::OkStatus();
  }
  Status take(int64_t element_bytes, const std::byte* in, const Lines& lines, const DimPart& part,
              const Indices& indices, std::byte* out) override {
    return kernels::take(element_bytes, in, lines, part, indices, out);
  }
  Status scatter_add(DType dtype, const std::byte* in, const Lines& lines, const DimPart& part,
                     const Indices& indices, const std::byte* updates, std::byte* out) override {
    const auto bytes =
        static_cast<size_t>(lines.outer * lines.size * lines.inner * dtype_size(dtype));
    if (bytes != 0 && in != nullptr) std::memcpy(out, in, bytes);
    if (bytes != 0 && in == nullptr) std::memset(out, 0, bytes);
    return kernels::scatter_add(dtype, out, lines, part, indices, updates);
  }
  Status one_hot(const Indices& indices, int64_t depth, float* out) override {
    kernels::one_hot(indices, depth, out);
    return absl::OkStatus();
  }

  Status rows(const RowCall& call, DType dtype, absl::Span<const std::byte* const> in,
              std::byte* out) override {
    kernels::rows(arithmetic_.set, call, dtype, in, out);
    return absl::OkStatus();
  }

  Status image(const ImageCall& call, DType dtype, const BoxArray& a, const BoxArray* b,
               const Box& out_box, std::byte* out) override {
    const Window& height = call.height;
    const Window& width = call.width;
    switch (call.kind) {
      case ImageKind::kConv:
        conv2d(arithmetic_, dtype, a, *b, height, width, out_box, out);
        break;
      case ImageKind::kConvByX:
        conv2d_by_x(arithmetic_, dtype, a, *b, height, width, out_box, out);
        break;
      case ImageKind::kConvByFilter:
        conv2d_by_filter(arithmetic_, dtype, a, *b, height, width, out_box, out);
        break;
      case ImageKind::kAvgPool:
        avg_pool2d(dtype, a, height, width, out_box, out);
        break;
      case ImageKind::kAvgPoolByX:
        avg_pool2d_by_x(dtype, a, height, width, call.rows, call.columns, out_box, out);
        break;
      case ImageKind::kMaxPool:
        max_pool2d(dtype, a, *b, height, width, out_box, out);
        break;
      case ImageKind::kMaxPoolByValues:
        max_pool2d_by_values(dtype, a, *b, height, width, out_box, out);
        break;
    }
    return absl::OkStatus();
  }
  Status mask_later(DType dtype, const std::byte* in, const Box& box, int64_t shift,
                    std::byte* out) override {
    kernels::mask_later(dtype, in, box, shift, out);
    return absl::OkStatus();
  }
  Status pick(DType dtype, const std::byte* in, const Box& box, const DimPart& part,
              const Indices& indices, std::byte* out) override {
    return kernels::pick(dtype, in, box, part, indices, out);
  }

  Status optimizer_step(const OptimizerStep& step, DType dtype, const StepArrays& arrays,
                        int64_t num_elements) override {
    kernels::optimizer_step(step, dtype, arrays, num_elements);
    return absl::OkStatus();
  }

  Status random_box(const RandomSpec& spec, DType dtype, const Shape& shape, const Box& box,
                    std::byte* out) override {
    kernels::random_box(spec, dtype, shape, box, out);
    return absl::OkStatus();
  }

 private:
  const Arithmetic arithmetic_;
};

}  // namespace

Engine& host_engine(const Arithmetic& arithmetic) {
  static HostEngine engines[] = {
      HostEngine({InstructionSet::kBaseline}), HostEngine({InstructionSet::kAvx2}),
      HostEngine({InstructionSet::kAvx2, true}), HostEngine({InstructionSet::kAvx512})};
  const auto found =
      std::find_if(std::begin(engines), std::end(engines),
                   [&](const HostEngine& engine) { return engine.arithmetic() == arithmetic; });
  TESSERA_CHECK(found != std::end(engines), "each Arithmetic has an engine");
  return *found;
}

}  // namespace tessera::kernels
