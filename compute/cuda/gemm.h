// SPDX-License-Identifier: Apache-2.0
//
// Gemm: products of matrices in memory of a GPU, as plain values.
//
//   c[n] = a[n] b[n] for n in [0, batch); c is dense and row-major
#ifndef TESSERA_COMPUTE_CUDA_GEMM_H_
#define TESSERA_COMPUTE_CUDA_GEMM_H_

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "base/status.h"
#include "compute/cuda/math.h"

namespace tessera::cuda {

struct Gemm {
  // One matrix for each index of the batch, row-major, or stored transposed.
  struct Matrix {
    const std::byte* data = nullptr;
    bool is_transposed = false;
    int64_t leading_stride = 1;  // elements from one row, or column if transposed, to the next
    int64_t batch_stride = 0;
  };

  // Numbers. f16 and bf16 accumulate in f32; f32 is not computed in shorter types.
  ElementType type = ElementType::kFloat32;
  // None is 0.
  int64_t batch = 1;
  int64_t rows = 1;
  int64_t columns = 1;
  int64_t summed = 1;
  Matrix a;  // [rows, summed]
  Matrix b;  // [summed, columns]
  std::byte* c = nullptr;
};

// Gives a product memory of the current GPU beside the matrices: at least so many bytes, aligned to
// 256, for work that the product's stream gets before MathApi::multiply() returns.
// ResourceExhausted where there is no more.
using WorkspaceSource = absl::FunctionRef<StatusOr<std::byte*>(uint64_t size_bytes)>;

// The kernel that computes the same, one thread for each element.
inline Product product_of(const Gemm& gemm) {
  Product product;
  product.type = gemm.type;
  product.batch = gemm.batch;
  product.rows = gemm.rows;
  product.columns = gemm.columns;
  product.summed = gemm.summed;
  product.a = gemm.a.data;
  product.a_batch_stride = gemm.a.batch_stride;
  product.a_row_stride = gemm.a.is_transposed ? 1 : gemm.a.leading_stride;
  product.a_summed_stride = gemm.a.is_transposed ? gemm.a.leading_stride : 1;
  product.b = gemm.b.data;
  product.b_batch_stride = gemm.b.batch_stride;
  product.b_summed_stride = gemm.b.is_transposed ? 1 : gemm.b.leading_stride;
  product.b_column_stride = gemm.b.is_transposed ? gemm.b.leading_stride : 1;
  product.c = gemm.c;
  product.num_items = static_cast<uint64_t>(gemm.batch * gemm.rows * gemm.columns);
  return product;
}

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_CUDA_GEMM_H_
