// SPDX-License-Identifier: Apache-2.0
//
// Compiled once for each instruction set, with TESSERA_GEMM as the name of the function and Eigen
// as the name of a namespace of its own: templates of one name that are compiled with different
// flags would be merged by the linker.
#if !defined(TESSERA_WITHOUT_AVX512) || !defined(__AVX512F__)
#define EIGEN_DONT_PARALLELIZE
#include "Eigen/Core"
#include "ops/kernels/gemm.h"

namespace tessera::kernels::internal {
namespace {

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Those of a server CPU; they decide the blocks, and so the order of sums.
bool fix_cache_sizes() {
  Eigen::setCpuCacheSizes(32 << 10, 1 << 20, 32 << 20);
  return true;
}

template <class T>
void multiply(const GemmSize& size, const T* a, const T* b, T* c) {
  static const bool kFixed = fix_cache_sizes();
  static_cast<void>(kFixed);
  Eigen::Map<Matrix<T>> result(c, size.rows, size.columns);
  if (size.summed == 0) {
    result.setZero();
    return;
  }
  result.noalias() = Eigen::Map<const Matrix<T>>(a, size.rows, size.summed) *
                     Eigen::Map<const Matrix<T>>(b, size.summed, size.columns);
}

}  // namespace

void TESSERA_GEMM(const GemmSize& size, const float* a, const float* b, float* c) {
  multiply(size, a, b, c);
}
void TESSERA_GEMM(const GemmSize& size, const double* a, const double* b, double* c) {
  multiply(size, a, b, c);
}

}  // namespace tessera::kernels::internal

#endif  // no set that this build leaves out
