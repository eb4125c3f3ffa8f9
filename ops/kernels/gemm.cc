// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/gemm.h"

namespace tessera::kernels {
namespace {

enum class Set { kBaseline, kAvx2, kAvx512 };

Set find_set() {
  __builtin_cpu_init();
#ifndef TESSERA_WITHOUT_AVX512
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw")) {
    return Set::kAvx512;
  }
#endif
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Set::kAvx2;
  return Set::kBaseline;
}

Set instruction_set() {
  static const Set set = find_set();
  return set;
}

template <class T>
void multiply(const GemmSize& size, const T* a, const T* b, T* c) {
  switch (instruction_set()) {
#ifndef TESSERA_WITHOUT_AVX512
    case Set::kAvx512:
      return internal::gemm_avx512(size, a, b, c);
#endif
    case Set::kAvx2:
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

const char* gemm_instruction_set() {
  switch (instruction_set()) {
    case Set::kAvx512:
      return "avx512";
    case Set::kAvx2:
      return "avx2";
    default:
      return "baseline";
  }
}

}  // namespace tessera::kernels
