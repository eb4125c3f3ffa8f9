// SPDX-License-Identifier: Apache-2.0
//
// GpuMath: the GPU work of local functions of 03_digits: matrix products by cuBLASLt, and the
// kernels of digits_kernels.h.
//
//   [gpu](LocalContext& local) -> Status {                      // y = x w
//     const auto x = local.input<float>(0), w = local.input<float>(1);
//     return gpu->multiply(matrix(x), matrix(w), local.output<float>().data.data(),
//                          local.cuda_stream());
//   }
//
// Both give the stream work and return; pointers are to memory of the stream's GPU, which is the
// calling thread's current GPU, as in local functions. Neither takes memory of the GPU.
//
// Two implementations: open_gpu_math(), and the fake of tests (fake_gpu_math.h) over the fake of
// the CUDA runtime. digits_gpu_test.cc holds both to one table.
//
// Thread-safe: the devices of a client call it at the same time. It lives until its client's work
// is done.
#ifndef TESSERA_EXAMPLES_DIGITS_GPU_GPU_MATH_H_
#define TESSERA_EXAMPLES_DIGITS_GPU_GPU_MATH_H_

#include <cstdint>
#include <memory>
#include <string>
#include <variant>

#include "examples/digits_gpu/digits_kernels.h"
#include "tessera.h"

namespace tessera::examples {

// A matrix of a product: row-major in memory, or stored transposed.
struct Matrix {
  const float* data;
  int64_t rows, cols;  // of the matrix that is multiplied
  bool is_transposed = false;
};

inline Matrix transposed(const Matrix& matrix) {
  return {matrix.data, matrix.cols, matrix.rows, !matrix.is_transposed};
}

// A product as BLAS takes it, whose matrices are column-major: d = op(a) op(b), where op transposes
// or does not. d has m rows and n columns, and an element of it k terms; `ld` is from one column to
// the next. Neither m, n nor k is 0.
struct Gemm {
  bool transpose_a, transpose_b;
  int64_t m, n, k;
  const float* a;
  int64_t lda;
  const float* b;
  int64_t ldb;
  float* d;
  int64_t ldd;
};

using DigitsKernel = std::variant<AddBiasRelu, AddBiasSoftmax, CrossEntropyGradient, ReluGradient,
                                  SumOfRows, Combine, CountAnswers>;

class GpuMath {
 public:
  virtual ~GpuMath() = default;

  // out = a b, row-major, in f32 throughout; zeros where there are no terms. The old contents of
  // `out` do not count. InvalidArgument where a has not as many columns as b has rows.
  Status multiply(const Matrix& a, const Matrix& b, float* out, void* stream);
  // Runs a kernel; does nothing where it has no items.
  Status launch(const DigitsKernel& kernel, void* stream);

 private:
  virtual Status run_gemm(const Gemm& gemm, void* stream) = 0;
  // Requires a kernel of at least one item.
  virtual Status run_kernel(const DigitsKernel& kernel, void* stream) = 0;
};

// The GPUs of this machine. Loads cuBLASLt, 500 MB that programs do not link: they start without
// it, and need it only to multiply on GPUs. Unimplemented, with what to install, where it is not
// there, and in a build without the CUDA toolkit. `cublaslt`: another library than the system's.
StatusOr<std::shared_ptr<GpuMath>> open_gpu_math(const std::string& cublaslt = "");

// Whether this build has the part that calls cuBLASLt.
bool has_cublaslt();

}  // namespace tessera::examples

#endif  // TESSERA_EXAMPLES_DIGITS_GPU_GPU_MATH_H_
