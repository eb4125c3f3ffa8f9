// SPDX-License-Identifier: Apache-2.0
//
// gemm(): products of matrices on one device, by Eigen compiled for several instruction sets, and
// some by OpenBLAS (openblas.h).
//
// The bits depend on the sizes and on the machine alone (its instruction set, and whether it has
// OpenBLAS): the sizes of the caches, by which Eigen cuts matrices into blocks, are fixed. One
// thread. What it reaches: docs/internals/ops.md.
#ifndef TESSERA_OPS_KERNELS_GEMM_H_
#define TESSERA_OPS_KERNELS_GEMM_H_

#include <cstdint>

namespace tessera::kernels {

struct GemmSize {
  int64_t rows;
  int64_t columns;
  int64_t summed;
};
struct GemmForm {
  bool is_a_transposed = false;  // a is [summed, rows]
  bool is_b_transposed = false;  // b is [columns, summed]
  bool adds = false;             // to what c holds
};
// c = a b, dense and row-major; a is [rows, summed], b [summed, columns]. Sizes may be 0. Integers
// wrap.
void gemm(const GemmSize& size, const GemmForm& form, const float* a, const float* b, float* c);
void gemm(const GemmSize& size, const GemmForm& form, const double* a, const double* b, double* c);
void gemm(const GemmSize& size, const int32_t* a, const int32_t* b, int32_t* c);
void gemm(const GemmSize& size, const int64_t* a, const int64_t* b, int64_t* c);

namespace internal {
// One for each instruction set, in gemm_eigen.cc.
#define TESSERA_GEMM_(name)                                                                        \
  void name(const GemmSize& size, const GemmForm& form, const float* a, const float* b, float* c); \
  void name(const GemmSize& size, const GemmForm& form, const double* a, const double* b,          \
            double* c);                                                                            \
  void name(const GemmSize& size, const int32_t* a, const int32_t* b, int32_t* c);                 \
  void name(const GemmSize& size, const int64_t* a, const int64_t* b, int64_t* c);
TESSERA_GEMM_(gemm_baseline)
TESSERA_GEMM_(gemm_avx2)
TESSERA_GEMM_(gemm_avx512)
#undef TESSERA_GEMM_
}  // namespace internal

}  // namespace tessera::kernels

#endif  // TESSERA_OPS_KERNELS_GEMM_H_
