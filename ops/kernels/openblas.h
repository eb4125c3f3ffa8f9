// SPDX-License-Identifier: Apache-2.0
//
// OpenBLAS, for the products that it computes faster than Eigen: by CPUs with AVX2 and without
// AVX-512, where the second matrix does not fit into the caches next to the core. It is loaded at
// run time; without it Eigen computes them.
//
//   if (const OpenBlas* blas = openblas(); blas != nullptr && is_for_openblas(size, 4)) ...
//
// The flavour of Debian without threads. OpenBLAS has a list of CPUs by name, and is used only if
// it has chosen its kernels for AVX2: for a CPU that it does not know it may choose slow ones.
#ifndef TESSERA_OPS_KERNELS_OPENBLAS_H_
#define TESSERA_OPS_KERNELS_OPENBLAS_H_

#include <cstdint>

#include "ops/kernels/gemm.h"

namespace tessera::kernels {

// Thread-safe. As gemm(); `summed` is not 0. The bits depend on the sizes alone.
class OpenBlas {
 public:
  void gemm(const GemmSize& size, const GemmForm& form, const float* a, const float* b,
            float* c) const;
  void gemm(const GemmSize& size, const GemmForm& form, const double* a, const double* b,
            double* c) const;

 private:
  friend const OpenBlas* openblas();

  // cblas_sgemm and cblas_dgemm. Enumerations and sizes are of type int.
  template <class T>
  using Gemm = void (*)(int order, int a_form, int b_form, int rows, int columns, int summed,
                        T alpha, const T* a, int a_stride, const T* b, int b_stride, T beta, T* c,
                        int c_stride);
  template <class T>
  static void call(Gemm<T> gemm, const GemmSize& size, const GemmForm& form, const T* a, const T* b,
                   T* c);

  Gemm<float> sgemm_ = nullptr;
  Gemm<double> dgemm_ = nullptr;
};

// Null where OpenBLAS is not used.
const OpenBlas* openblas();

// Whether a product of elements of so many bytes is one of those of OpenBLAS. docs/internals/ops.md
// has the measurements.
constexpr bool is_for_openblas(const GemmSize& size, int64_t element_bytes) {
  constexpr int64_t kLeastBytes = 2 << 20;  // of the second matrix
  constexpr int64_t kLeastSummed = 128;
  constexpr int64_t kMost = INT32_MAX;
  return size.rows > 1 && size.summed >= kLeastSummed && size.rows <= kMost &&
         size.columns <= kMost && size.summed <= kMost &&
         size.summed * size.columns >= kLeastBytes / element_bytes;
}

}  // namespace tessera::kernels

#endif  // TESSERA_OPS_KERNELS_OPENBLAS_H_
