// SPDX-License-Identifier: Apache-2.0
//
// gemm(): products of matrices on one device, by Eigen compiled for several instruction sets, and
// some by OpenBLAS.
//
// The bits depend on the sizes and on the Arithmetic alone: the sizes of the caches, by which Eigen
// cuts matrices into blocks, are fixed. One thread. For its speed see docs/internals/ops.md.
#ifndef TESSERA_COMPUTE_CPU_GEMM_H_
#define TESSERA_COMPUTE_CPU_GEMM_H_

#include <cstdint>

namespace tessera {

struct Arithmetic;  // device/arithmetic.h, whose functions must not be compiled with these flags

namespace kernels {

struct GemmSize {
  int64_t rows;
  int64_t columns;
  int64_t summed;
};
struct GemmForm {
  bool is_a_transposed = false;  // a is [summed, rows]
  bool is_b_transposed = false;  // b is [columns, summed]
  bool adds = false;             // to the elements of c
};
// c = a b, dense and row-major; a is [rows, summed], b [summed, columns]. Sizes may be 0. Integers
// wrap.
void gemm(const Arithmetic& arithmetic, const GemmSize& size, const GemmForm& form, const float* a,
          const float* b, float* c);
void gemm(const Arithmetic& arithmetic, const GemmSize& size, const GemmForm& form, const double* a,
          const double* b, double* c);
void gemm(const Arithmetic& arithmetic, const GemmSize& size, const int32_t* a, const int32_t* b,
          int32_t* c);
void gemm(const Arithmetic& arithmetic, const GemmSize& size, const int64_t* a, const int64_t* b,
          int64_t* c);

// Whether OpenBLAS computes a product of elements of so many bytes faster than Eigen: the second
// matrix does not fit into the caches next to the core. docs/internals/ops.md has the measurements.
constexpr bool is_for_openblas(const GemmSize& size, int64_t element_bytes) {
  constexpr int64_t kLeastBytes = 2 << 20;  // of the second matrix
  constexpr int64_t kLeastSummed = 128;
  constexpr int64_t kMost = INT32_MAX;
  return size.rows > 1 && size.summed >= kLeastSummed && size.rows <= kMost &&
         size.columns <= kMost && size.summed <= kMost &&
         size.summed * size.columns >= kLeastBytes / element_bytes;
}

namespace internal {
// One function for each instruction set, in gemm_eigen.cc.
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
// Require openblas(), and a sum of at least one term.
void gemm_openblas(const GemmSize& size, const GemmForm& form, const float* a, const float* b,
                   float* c);
void gemm_openblas(const GemmSize& size, const GemmForm& form, const double* a, const double* b,
                   double* c);
}  // namespace internal

}  // namespace kernels
}  // namespace tessera

#endif  // TESSERA_COMPUTE_CPU_GEMM_H_
