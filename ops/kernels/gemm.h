// SPDX-License-Identifier: Apache-2.0
//
// gemm(): products of matrices on one device, by Eigen compiled for several instruction sets.
//
// The bits depend on the sizes and the instruction set alone: the sizes of the caches, by which
// Eigen cuts matrices into blocks, are fixed. One thread. What it reaches: docs/internals/ops.md.
#ifndef TESSERA_OPS_KERNELS_GEMM_H_
#define TESSERA_OPS_KERNELS_GEMM_H_

#include <cstdint>

namespace tessera::kernels {

struct GemmSize {
  int64_t rows;
  int64_t columns;
  int64_t summed;
};
// c = a b, dense and row-major; a is [rows, summed], b [summed, columns]. Sizes may be 0.
void gemm(const GemmSize& size, const float* a, const float* b, float* c);
void gemm(const GemmSize& size, const double* a, const double* b, double* c);

namespace internal {
// One for each instruction set, in gemm_eigen.cc.
#define TESSERA_GEMM_(name)                                                  \
  void name(const GemmSize& size, const float* a, const float* b, float* c); \
  void name(const GemmSize& size, const double* a, const double* b, double* c);
TESSERA_GEMM_(gemm_baseline)
TESSERA_GEMM_(gemm_avx2)
TESSERA_GEMM_(gemm_avx512)
#undef TESSERA_GEMM_
}  // namespace internal

}  // namespace tessera::kernels

#endif  // TESSERA_OPS_KERNELS_GEMM_H_
