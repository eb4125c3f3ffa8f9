// SPDX-License-Identifier: Apache-2.0
//
// Each local function takes the pointers of its shards, which are to memory of the GPU, gives the
// device's stream a product or a kernel or both, and returns: nothing has been computed then, and
// no thread waits. Later work of the same stream runs after it.
#include "examples/digits_gpu/digits_math_gpu.h"

#include <cstdint>
#include <utility>

namespace tessera::examples {
namespace {

// A shard of two dims as a matrix of a product.
Matrix matrix(const ShardView<float>& shard) {
  return {shard.data.data(), shard.box.sizes[0], shard.box.sizes[1]};
}

Status hidden(GpuMath& gpu, LocalContext& local) {
  const auto x = matrix(local.input<float>(0));
  const auto w1 = matrix(local.input<float>(1));
  float* const hidden = local.output<float>().data.data();
  TESSERA_RETURN_IF_ERROR(gpu.multiply(x, w1, hidden, local.cuda_stream()));
  return gpu.launch(AddBiasRelu{.values = hidden,
                                .bias = local.input<float>(2).data.data(),
                                .rows = x.rows,
                                .cols = w1.cols},
                    local.cuda_stream());
}

Status product(GpuMath& gpu, LocalContext& local) {
  return gpu.multiply(matrix(local.input<float>(0)), matrix(local.input<float>(1)),
                      local.output<float>().data.data(), local.cuda_stream());
}

Status transposed_product(GpuMath& gpu, LocalContext& local) {
  return gpu.multiply(transposed(matrix(local.input<float>(0))), matrix(local.input<float>(1)),
                      local.output<float>().data.data(), local.cuda_stream());
}

Status softmax(GpuMath& gpu, LocalContext& local) {
  const auto logits = matrix(local.input<float>(0));
  return gpu.launch(AddBiasSoftmax{.logits = logits.data,
                                   .bias = local.input<float>(1).data.data(),
                                   .out = local.output<float>().data.data(),
                                   .rows = logits.rows,
                                   .cols = logits.cols},
                    local.cuda_stream());
}

Status d_hidden(GpuMath& gpu, LocalContext& local) {
  const auto d_logits = matrix(local.input<float>(0));
  const auto w2 = matrix(local.input<float>(1));
  const auto hidden = local.input<float>(2).data;
  float* const gradient = local.output<float>().data.data();
  TESSERA_RETURN_IF_ERROR(gpu.multiply(d_logits, transposed(w2), gradient, local.cuda_stream()));
  return gpu.launch(ReluGradient{.gradient = gradient,
                                 .activation = hidden.data(),
                                 .count = static_cast<int64_t>(hidden.size())},
                    local.cuda_stream());
}

Status sum_of_rows(GpuMath& gpu, LocalContext& local) {
  const auto values = matrix(local.input<float>(0));
  return gpu.launch(SumOfRows{.values = values.data,
                              .out = local.output<float>().data.data(),
                              .rows = values.rows,
                              .cols = values.cols},
                    local.cuda_stream());
}

Status count(GpuMath& gpu, LocalContext& local) {
  const auto p = matrix(local.input<float>(1));
  return gpu.launch(CountAnswers{.before = local.input<double>(0).data.data(),
                                 .p = p.data,
                                 .labels = local.input<int32_t>(2).data.data(),
                                 .out = local.output<double>().data.data(),
                                 .rows = p.rows,
                                 .cols = p.cols},
                    local.cuda_stream());
}

Status d_logits(float scale, GpuMath& gpu, LocalContext& local) {
  const auto p = matrix(local.input<float>(0));
  return gpu.launch(CrossEntropyGradient{.p = p.data,
                                         .labels = local.input<int32_t>(1).data.data(),
                                         .scale = scale,
                                         .out = local.output<float>().data.data(),
                                         .rows = p.rows,
                                         .cols = p.cols},
                    local.cuda_stream());
}

Status combine(float scale_a, float scale_b, GpuMath& gpu, LocalContext& local) {
  const auto a = local.input<float>(0).data;
  return gpu.launch(Combine{.a = a.data(),
                            .b = local.input<float>(1).data.data(),
                            .scale_a = scale_a,
                            .scale_b = scale_b,
                            .out = local.output<float>().data.data(),
                            .count = static_cast<int64_t>(a.size())},
                    local.cuda_stream());
}

}  // namespace

DigitsMath math_on_gpu(std::shared_ptr<GpuMath> gpu) {
  // A function from above as a function for local_map, with its arguments before the GPU and the
  // context.
  const auto on_gpu = [gpu = std::move(gpu)](auto fn, auto... values) -> LocalFn {
    return [gpu, fn, values...](LocalContext& local) { return fn(values..., *gpu, local); };
  };
  return {.hidden = on_gpu(hidden),
          .product = on_gpu(product),
          .transposed_product = on_gpu(transposed_product),
          .softmax = on_gpu(softmax),
          .d_hidden = on_gpu(d_hidden),
          .sum_of_rows = on_gpu(sum_of_rows),
          .count = on_gpu(count),
          .d_logits = [on_gpu](float scale) { return on_gpu(d_logits, scale); },
          .combine = [on_gpu](float a, float b) { return on_gpu(combine, a, b); }};
}

}  // namespace tessera::examples
