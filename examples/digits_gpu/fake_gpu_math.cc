// SPDX-License-Identifier: Apache-2.0
#include "examples/digits_gpu/fake_gpu_math.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tessera::examples {
namespace {

// (begin, number of bytes).
using Range = std::pair<const std::byte*, uint64_t>;

template <class T>
Range range(const T* data, int64_t count) {
  return {reinterpret_cast<const std::byte*>(data), static_cast<uint64_t>(count) * sizeof(T)};
}

// The memory that a kernel reads and writes.
std::vector<Range> touched(const AddBiasRelu& k) {
  return {range(k.values, k.rows * k.cols), range(k.bias, k.cols)};
}
std::vector<Range> touched(const AddBiasSoftmax& k) {
  return {range(k.logits, k.rows * k.cols), range(k.bias, k.cols), range(k.out, k.rows * k.cols)};
}
std::vector<Range> touched(const CrossEntropyGradient& k) {
  return {range(k.p, k.rows * k.cols), range(k.labels, k.rows), range(k.out, k.rows * k.cols)};
}
std::vector<Range> touched(const ReluGradient& k) {
  return {range(k.gradient, k.count), range(k.activation, k.count)};
}
std::vector<Range> touched(const SumOfRows& k) {
  return {range(k.values, k.rows * k.cols), range(k.out, k.cols)};
}
std::vector<Range> touched(const Combine& k) {
  return {range(k.a, k.count), range(k.b, k.count), range(k.out, k.count)};
}
std::vector<Range> touched(const CountAnswers& k) {
  return {range(k.before, 2), range(k.p, k.rows * k.cols), range(k.labels, k.rows),
          range(k.out, 2)};
}

// From the first element of a matrix that is column-major to its last one.
Range range_of_columns(const float* data, int64_t rows, int64_t cols, int64_t ld) {
  return range(data, (cols - 1) * ld + rows);
}

// Element (row, col) of the matrix, or of one stored transposed.
float element(const float* data, int64_t ld, bool transpose, int64_t row, int64_t col) {
  return transpose ? data[row * ld + col] : data[col * ld + row];
}

void run(const Gemm& g) {
  for (int64_t col = 0; col < g.n; ++col) {
    for (int64_t row = 0; row < g.m; ++row) {
      float sum = 0.0f;
      for (int64_t i = 0; i < g.k; ++i) {
        sum +=
            element(g.a, g.lda, g.transpose_a, row, i) * element(g.b, g.ldb, g.transpose_b, i, col);
      }
      g.d[col * g.ldd + row] = sum;
    }
  }
}

class FakeGpuMath : public GpuMath {
 public:
  explicit FakeGpuMath(std::shared_ptr<cuda::FakeCuda> cuda) : cuda_(std::move(cuda)) {}

 private:
  Status run_gemm(const Gemm& g, void* stream) override {
    const int64_t rows_a = g.transpose_a ? g.k : g.m;
    const int64_t rows_b = g.transpose_b ? g.n : g.k;
    if (g.m < 1 || g.n < 1 || g.k < 1 || g.lda < rows_a || g.ldb < rows_b || g.ldd < g.m) {
      return absl::InternalError(absl::StrCat("the fake of cuBLASLt: m ", g.m, ", n ", g.n, ", k ",
                                              g.k, ", leading dimensions ", g.lda, ", ", g.ldb,
                                              " and ", g.ldd));
    }
    return enqueue(
        "cublasLtMatmul",
        {range_of_columns(g.a, rows_a, g.m + g.k - rows_a, g.lda),
         range_of_columns(g.b, rows_b, g.k + g.n - rows_b, g.ldb),
         range_of_columns(g.d, g.m, g.n, g.ldd)},
        [g] { run(g); }, stream);
  }

  Status run_kernel(const DigitsKernel& kernel, void* stream) override {
    return std::visit(
        [&](const auto& values) {
          return enqueue(
              "launch", touched(values),
              [values] {
                for (int64_t i = 0; i < values.num_items(); ++i) values.run(i);
              },
              stream);
        },
        kernel);
  }

  Status enqueue(absl::string_view function, std::vector<Range> memory, std::function<void()> work,
                 void* stream) {
    // A range without bytes may have no address either.
    std::erase_if(memory, [](const Range& range) { return range.second == 0; });
    return cuda_->enqueue_work(function, memory, std::move(work),
                               static_cast<cuda::StreamHandle>(stream));
  }

  const std::shared_ptr<cuda::FakeCuda> cuda_;
};

}  // namespace

std::shared_ptr<GpuMath> fake_gpu_math(std::shared_ptr<cuda::FakeCuda> cuda) {
  return std::make_shared<FakeGpuMath>(std::move(cuda));
}

}  // namespace tessera::examples
