// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/gemm.h"

#include "ops/kernels/instruction_set.h"
#include "ops/kernels/openblas.h"

namespace tessera::kernels {
namespace {

// The product by the best instruction set.
template <class... Args>
void multiply(Args... args) {
  switch (best_instruction_set()) {
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
void multiply_floats(const GemmSize& size, const GemmForm& form, const T* a, const T* b, T* c) {
  if (is_for_openblas(size, sizeof(T))) {
    if (const OpenBlas* const blas = openblas()) return blas->gemm(size, form, a, b, c);
  }
  multiply(size, form, a, b, c);
}

}  // namespace

void gemm(const GemmSize& size, const GemmForm& form, const float* a, const float* b, float* c) {
  multiply_floats(size, form, a, b, c);
}
void gemm(const GemmSize& size, const GemmForm& form, const double* a, const double* b, double* c) {
  multiply_floats(size, form, a, b, c);
}
void gemm(const GemmSize& size, const int32_t* a, const int32_t* b, int32_t* c) {
  multiply(size, a, b, c);
}
void gemm(const GemmSize& size, const int64_t* a, const int64_t* b, int64_t* c) {
  multiply(size, a, b, c);
}

}  // namespace tessera::kernels
