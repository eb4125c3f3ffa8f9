// SPDX-License-Identifier: Apache-2.0
//
// CudaEngine: the Engine of a CudaDevice: kernels of math.h, products by MathApi::multiply(), and
// copies, all given to the device's stream.
//
// Nothing waits for the GPU. Scratch memory is of the device's pool, and goes back to it when its
// last user was given to the stream, which orders what reuses it.
//
// An index that is out of range is found by the GPU. The call succeeds, with zeros for that index;
// a report goes to pinned memory, and CudaDevice::add_check() has it read: the error is that of the
// op's result, and of what is computed from it.
#ifndef TESSERA_COMPUTE_CUDA_CUDA_ENGINE_H_
#define TESSERA_COMPUTE_CUDA_CUDA_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "compute/cuda/math.h"
#include "compute/cuda/math_api.h"
#include "compute/engine.h"
#include "device/buffer.h"

namespace tessera::cuda {

class CudaDevice;

struct CudaEngineOptions {
  // The most threads that compute one result of a reduction, a power of two up to kReduceThreads,
  // and the most packs that one of them adds, 2 or more. Small ones let tests reach many passes.
  int32_t most_lanes = kReduceThreads;
  int32_t most_packs = 256;
  // Elements of one kernel of map(): items are numbered by 31 bits. Tests use few.
  int64_t most_elements = int64_t{1} << 30;
};

class CudaEngine final : public Engine {
 public:
  // Loads the kernels on the device's GPU, and makes the engine that the device has from then on.
  static Status add_to(CudaDevice& device, std::shared_ptr<MathApi> math);

  // The device must outlive it, and its GPU have the kernels of `math`.
  CudaEngine(CudaDevice& device, std::shared_ptr<MathApi> math,
             const CudaEngineOptions& options = {})
      : device_(device), math_(std::move(math)), options_(options) {}

  Status pointwise(kernels::PointwiseOp op, DType dtype,
                   absl::Span<const kernels::Strided> operands, absl::Span<const int64_t> sizes,
                   std::byte* out) override;
  Status select(DType dtype, const kernels::Strided& condition, const kernels::Strided& a,
                const kernels::Strided& b, absl::Span<const int64_t> sizes,
                std::byte* out) override;
  Status clip(DType dtype, const std::byte* in, const std::byte* low, const std::byte* high,
              int64_t num_elements, std::byte* out) override;
  Status copy_strided(DType dtype, const kernels::Strided& in, absl::Span<const int64_t> sizes,
                      std::byte* out) override;
  Status cast(DType from, DType to, const std::byte* in, std::byte* out,
              int64_t num_elements) override;
  Status contract(DType dtype, const kernels::Labelled& a, const kernels::Labelled& b,
                  const kernels::Labels& labels, absl::Span<const int64_t> sizes,
                  std::byte* out) override;
  Status reduce_dims(ReduceOp op, DType dtype, const std::byte* in, absl::Span<const int64_t> sizes,
                     const std::vector<bool>& is_reduced, double divisor, std::byte* out) override;
  Status cumsum(DType dtype, const std::byte* in, const kernels::Lines& lines, int64_t first,
                int64_t count, std::byte* out) override;
  Status arg_extreme(bool is_max, DType dtype, const std::byte* in, const kernels::Lines& lines,
                     const kernels::LineIndices& numbers, int64_t* out) override;
  Status sort_lines(bool is_descending, DType dtype, const std::byte* in,
                    const kernels::Lines& lines, const kernels::LineIndices& numbers, int64_t count,
                    std::byte* values, int64_t* indices) override;
  Status place_box(int64_t element_bytes, const std::byte* in, const Box& in_box,
                   const std::vector<int64_t>& begin, const Box& out_box, std::byte* out) override;
  Status fill(DType dtype, const std::byte* element, std::byte* out, int64_t num_elements) override;
  Status take(int64_t element_bytes, const std::byte* in, const kernels::Lines& lines,
              const kernels::DimPart& part, const kernels::Indices& indices,
              std::byte* out) override;
  Status scatter_add(DType dtype, const std::byte* in, const kernels::Lines& lines,
                     const kernels::DimPart& part, const kernels::Indices& indices,
                     const std::byte* updates, std::byte* out) override;
  Status one_hot(const kernels::Indices& indices, int64_t depth, float* out) override;
  Status image(const kernels::ImageCall& call, DType dtype, const kernels::BoxArray& a,
               const kernels::BoxArray* b, const Box& out_box, std::byte* out) override;
  Status mask_later(DType dtype, const std::byte* in, const Box& box, int64_t shift,
                    std::byte* out) override;
  Status pick(DType dtype, const std::byte* in, const Box& box, const kernels::DimPart& part,
              const kernels::Indices& indices, std::byte* out) override;
  Status optimizer_step(const kernels::OptimizerStep& step, DType dtype,
                        const kernels::StepArrays& arrays, int64_t num_elements) override;
  Status random_box(const kernels::RandomSpec& spec, DType dtype, const Shape& shape,
                    const Box& box, std::byte* out) override;

 private:
  using Scratch = std::shared_ptr<Buffer>;
  // Memory until the handle goes, and what the stream gets after that may reuse it.
  StatusOr<Scratch> scratch(int64_t size_bytes) const;
  // Launches it if it has items.
  template <class Value>
  Status launch(const Value& value);
  Status map(const Map& kind, absl::Span<const kernels::Strided> operands,
             absl::Span<const int64_t> sizes, std::byte* out);
  Status reduce_levels(ReduceDims level, DType dtype, int64_t num_terms, std::byte* out);
  // The order of the elements of each line, as MergePass has it; null of lines of one element.
  StatusOr<Scratch> sorted_order(bool is_descending, DType dtype, const std::byte* in,
                                 const LineShape& lines);
  // Reports the first index that is not in [0, whole).
  Status check_indices(const IndexArray& indices, int64_t whole);

  CudaDevice& device_;
  const std::shared_ptr<MathApi> math_;
  const CudaEngineOptions options_;
};

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_CUDA_CUDA_ENGINE_H_
