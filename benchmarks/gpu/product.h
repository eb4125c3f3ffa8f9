// SPDX-License-Identifier: Apache-2.0
//
// Product: d = a b of square matrices of bf16, row-major, with sums in f32, as cuBLASLt does it.
//
//   TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Product> product, make(*api, 8192));
//   product->multiply(a, b, d, stream);      the bare call: nothing else is left to do
//
// All work that does not depend on the memory is done beforehand. Two implementations: cuBLASLt's
// own and a double on the streams of FakeCuda.
#ifndef TESSERA_BENCHMARKS_GPU_PRODUCT_H_
#define TESSERA_BENCHMARKS_GPU_PRODUCT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/status.h"
#include "device/cuda/api.h"

namespace tessera::benchmarks {

class Product {
 public:
  virtual ~Product() = default;
  // Gives the stream of GPU 0, which is the thread's current GPU, the product, and returns. For one
  // thread and one stream at a time.
  virtual Status multiply(const std::byte* a, const std::byte* b, std::byte* d, void* stream) = 0;
};

// For matrices of n rows, on GPU 0, which is the thread's current one. The Api outlives it.
using MakeProduct =
    std::function<StatusOr<std::shared_ptr<Product>>(cuda::Api& api, int64_t num_rows)>;

// Unimplemented without the toolkit's header at build time, or the library at run time.
StatusOr<std::shared_ptr<Product>> make_cublaslt_product(cuda::Api& api, int64_t num_rows);
// Requires an Api that is a FakeCuda.
StatusOr<std::shared_ptr<Product>> make_product_with_fakes(cuda::Api& api, int64_t num_rows);

}  // namespace tessera::benchmarks

#endif  // TESSERA_BENCHMARKS_GPU_PRODUCT_H_
