// SPDX-License-Identifier: Apache-2.0
//
// The kernels of 03_digits: plain values that say what to compute, each with the work of one item.
//
//   AddBiasRelu{.values = hidden, .bias = b1, .rows = 8, .cols = 48}     384 items, one per element
//
// Compiled twice: digits_kernels.cu runs the items on a GPU, one thread per item; the fake of tests
// (fake_gpu_math.h) runs them on the host, one after another. Matrices are row-major. Items of
// one kernel write different elements, and each adds in an order of its own that is always the
// same: so the same shards give the same bits.
#ifndef TESSERA_EXAMPLES_DIGITS_GPU_DIGITS_KERNELS_H_
#define TESSERA_EXAMPLES_DIGITS_GPU_DIGITS_KERNELS_H_

#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define TESSERA_DIGITS_BODY __host__ __device__ inline
#else
#define TESSERA_DIGITS_BODY inline
#endif

namespace tessera::examples {

// values = max(values + bias, 0), the bias of its column. An item is an element.
struct AddBiasRelu {
  float* values;
  const float* bias;
  int64_t rows, cols;

  TESSERA_DIGITS_BODY int64_t num_items() const { return rows * cols; }
  TESSERA_DIGITS_BODY void run(int64_t i) const {
    const float sum = values[i] + bias[i % cols];
    values[i] = sum > 0.0f ? sum : 0.0f;
  }
};

// out = softmax(logits + bias), of each row. The largest entry is taken off first, so that exp
// stays finite. An item is a row.
struct AddBiasSoftmax {
  const float* logits;
  const float* bias;
  float* out;
  int64_t rows, cols;

  TESSERA_DIGITS_BODY int64_t num_items() const { return rows; }
  TESSERA_DIGITS_BODY void run(int64_t row) const {
    const float* const from = logits + row * cols;
    float* const to = out + row * cols;
    float most = from[0] + bias[0];
    for (int64_t c = 1; c < cols; ++c) {
      const float logit = from[c] + bias[c];
      most = logit > most ? logit : most;
    }
    float total = 0.0f;
    for (int64_t c = 0; c < cols; ++c) total += to[c] = expf(from[c] + bias[c] - most);
    for (int64_t c = 0; c < cols; ++c) to[c] /= total;
  }
};

// out = scale (p - one_hot(labels)): the gradient of the loss by the logits. An item is an element.
struct CrossEntropyGradient {
  const float* p;
  const int32_t* labels;
  float scale;
  float* out;
  int64_t rows, cols;

  TESSERA_DIGITS_BODY int64_t num_items() const { return rows * cols; }
  TESSERA_DIGITS_BODY void run(int64_t i) const {
    const float expected = i % cols == labels[i / cols] ? 1.0f : 0.0f;
    out[i] = scale * (p[i] - expected);
  }
};

// gradient = 0 where relu was flat. An item is an element.
struct ReluGradient {
  float* gradient;
  const float* activation;
  int64_t count;

  TESSERA_DIGITS_BODY int64_t num_items() const { return count; }
  TESSERA_DIGITS_BODY void run(int64_t i) const {
    if (!(activation[i] > 0.0f)) gradient[i] = 0.0f;
  }
};

// out[c] = the sum of column c; zeros where there are no rows. An item is a column.
struct SumOfRows {
  const float* values;
  float* out;
  int64_t rows, cols;

  TESSERA_DIGITS_BODY int64_t num_items() const { return cols; }
  TESSERA_DIGITS_BODY void run(int64_t c) const {
    float sum = 0.0f;
    for (int64_t row = 0; row < rows; ++row) sum += values[row * cols + c];
    out[c] = sum;
  }
};

// out = scale_a a + scale_b b. An item is an element.
struct Combine {
  const float* a;
  const float* b;
  float scale_a, scale_b;
  float* out;
  int64_t count;

  TESSERA_DIGITS_BODY int64_t num_items() const { return count; }
  TESSERA_DIGITS_BODY void run(int64_t i) const { out[i] = scale_a * a[i] + scale_b * b[i]; }
};

// out[0] = before[0] + the loss of all rows, out[1] = before[1] + the rows whose largest p is that
// of the label. An item is one of the two sums: a thread each is enough for batches of these sizes.
struct CountAnswers {
  const double* before;
  const float* p;
  const int32_t* labels;
  double* out;
  int64_t rows, cols;

  TESSERA_DIGITS_BODY int64_t num_items() const { return 2; }
  TESSERA_DIGITS_BODY void run(int64_t which) const {
    double sum = before[which];
    for (int64_t row = 0; row < rows; ++row) {
      sum += which == 0 ? loss_of(row) : is_right(row) ? 1.0 : 0.0;
    }
    out[which] = sum;
  }
  TESSERA_DIGITS_BODY double loss_of(int64_t row) const {
    const double chance = p[row * cols + labels[row]];
    return -log(chance > 1e-30 ? chance : 1e-30);
  }
  TESSERA_DIGITS_BODY bool is_right(int64_t row) const {
    int64_t best = 0;
    for (int64_t c = 1; c < cols; ++c) {
      if (p[row * cols + c] > p[row * cols + best]) best = c;
    }
    return best == labels[row];
  }
};

// Gives the kernel, of at least one item, to a stream of the current GPU; returns a cudaError_t as
// a number. Defined in digits_kernels.cu, for each of the above.
template <class Kernel>
int launch_digits_kernel(const Kernel& kernel, void* stream);

}  // namespace tessera::examples

#endif  // TESSERA_EXAMPLES_DIGITS_GPU_DIGITS_KERNELS_H_
