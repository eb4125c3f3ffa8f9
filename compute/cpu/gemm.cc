// SPDX-License-Identifier: Apache-2.0
#include "compute/cpu/gemm.h"

#include "device/arithmetic.h"

namespace tessera::kernels {
namespace {

template <class... Args>
void multiply(InstructionSet set, Args... args) {
  switch (set) {
#ifndef TESSERA_WITHOUT_AVX512
    case InstructionSet::kAvx512:
      return internal::gemm_avx512(args...);
#endif
    case InstructionSet::kAvx2:
      return internal::gemm_avx2(args...);
    default:
      return internal::gemm_baseline(args...);
  }
}

template <class T>
void multiply_floats(const Arithmetic& arithmetic, const GemmSize& size, const GemmForm& form,
                     const T* a, const T* b, T* c) {
  if (arithmetic.uses_openblas && is_for_openblas(size, sizeof(T))) {
    return internal::gemm_openblas(size, form, a, b, c);
  }
  multiply(arithmetic.set, size, form, a, b, c);
}

template <class T>
void multiply_by_cblas(CblasGemm<T> gemm, const GemmSize& size, const GemmForm& form, const T* a,
                       const T* b, T* c) {
  constexpr int kRowMajor = 101;
  constexpr int kAsIs = 111;
  constexpr int kTransposed = 112;
  const auto rows = static_cast<int>(size.rows);
  const auto columns = static_cast<int>(size.columns);
  const auto summed = static_cast<int>(size.summed);
  gemm(kRowMajor, form.is_a_transposed ? kTransposed : kAsIs,
       form.is_b_transposed ? kTransposed : kAsIs, rows, columns, summed, T(1), a,
       form.is_a_transposed ? rows : summed, b, form.is_b_transposed ? summed : columns,
       T(form.adds ? 1 : 0), c, columns);
}

}  // namespace

void gemm(const Arithmetic& arithmetic, const GemmSize& size, const GemmForm& form, const float* a,
          const float* b, float* c) {
  multiply_floats(arithmetic, size, form, a, b, c);
}
void gemm(const Arithmetic& arithmetic, const GemmSize& size, const GemmForm& form, const double* a,
          const double* b, double* c) {
  multiply_floats(arithmetic, size, form, a, b, c);
}
void gemm(const Arithmetic& arithmetic, const GemmSize& size, const int32_t* a, const int32_t* b,
          int32_t* c) {
  multiply(arithmetic.set, size, a, b, c);
}
void gemm(const Arithmetic& arithmetic, const GemmSize& size, const int64_t* a, const int64_t* b,
          int64_t* c) {
  multiply(arithmetic.set, size, a, b, c);
}

namespace internal {

void gemm_openblas(const GemmSize& size, const GemmForm& form, const float* a, const float* b,
                   float* c) {
  multiply_by_cblas(openblas()->sgemm, size, form, a, b, c);
}
void gemm_openblas(const GemmSize& size, const GemmForm& form, const double* a, const double* b,
                   double* c) {
  multiply_by_cblas(openblas()->dgemm, size, form, a, b, c);
}

}  // namespace internal
}  // namespace tessera::kernels
