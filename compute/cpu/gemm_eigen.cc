// SPDX-License-Identifier: Apache-2.0
//
// Compiled once for each instruction set, with TESSERA_GEMM as the name of the function and Eigen
// as the name of a namespace of its own: templates of one name that are compiled with different
// flags would be merged by the linker.
#if !defined(TESSERA_WITHOUT_AVX512) || !defined(__AVX512F__)
#define EIGEN_DONT_PARALLELIZE
#include <cstdint>
#include <type_traits>

#include "Eigen/Core"
#include "compute/cpu/gemm.h"

namespace tessera::kernels::internal {
namespace {

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// The cache sizes of a server CPU, except the first, by which Eigen chooses how many terms it adds
// in registers before it writes to memory: with twice the size of the cache, large products take a
// tenth less time. The sizes decide the blocks, and so the order of sums.
bool fix_cache_sizes() {
  Eigen::setCpuCacheSizes(64 << 10, 1 << 20, 32 << 20);
  return true;
}

template <class T>
using Rows = Eigen::Map<const Matrix<T>>;

// c += a b, of arrays or of their transposes.
template <class A, class B, class C>
void add_product(const A& a, const B& b, C& c) {
  c.noalias() += a * b;
}

template <class T>
void multiply(const GemmSize& size, const GemmForm& form, const T* a, const T* b, T* c) {
  static const bool kFixed = fix_cache_sizes();
  static_cast<void>(kFixed);
  Eigen::Map<Matrix<T>> result(c, size.rows, size.columns);
  if (!form.adds) result.setZero();
  if (size.summed == 0) return;
  const Rows<T> left(a, form.is_a_transposed ? size.summed : size.rows,
                     form.is_a_transposed ? size.rows : size.summed);
  const Rows<T> right(b, form.is_b_transposed ? size.columns : size.summed,
                      form.is_b_transposed ? size.summed : size.columns);
  if constexpr (std::is_integral_v<T>) return add_product(left, right, result);
  if (form.is_a_transposed && form.is_b_transposed) {
    add_product(left.transpose(), right.transpose(), result);
  } else if (form.is_a_transposed) {
    add_product(left.transpose(), right, result);
  } else if (form.is_b_transposed) {
    add_product(left, right.transpose(), result);
  } else {
    add_product(left, right, result);
  }
}

}  // namespace

void TESSERA_GEMM(const GemmSize& size, const GemmForm& form, const float* a, const float* b,
                  float* c) {
  multiply(size, form, a, b, c);
}
void TESSERA_GEMM(const GemmSize& size, const GemmForm& form, const double* a, const double* b,
                  double* c) {
  multiply(size, form, a, b, c);
}
void TESSERA_GEMM(const GemmSize& size, const int32_t* a, const int32_t* b, int32_t* c) {
  multiply(size, {}, a, b, c);
}
void TESSERA_GEMM(const GemmSize& size, const int64_t* a, const int64_t* b, int64_t* c) {
  multiply(size, {}, a, b, c);
}

}  // namespace tessera::kernels::internal

#endif  // no set that this build leaves out
