// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/gemm.h"

#include "ops/kernels/instruction_set.h"

namespace tessera::kernels {
namespace {

template <class T>
void multiply(const GemmSize& size, const T* a, const T* b, T* c) {
  switch (best_instruction_set()) {
#ifndef TESSERA_WITHOUT_AVX512
    case InstructionSet::kAvx512:
      return internal::gemm_avx512(size, a, b, c);
#endif
    case InstructionSet::kAvx2:
      return internal::gemm_avx2(size, a, b, c);
    default:
      return internal::gemm_baseline(size, a, b, c);
  }
}

}  // namespace

void gemm(const GemmSize& size, const float* a, const float* b, float* c) {
  multiply(size, a, b, c);
}
void gemm(const GemmSize& size, const double* a, const double* b, double* c) {
  multiply(size, a, b, c);
}

}  // namespace tessera::kernels
