// SPDX-License-Identifier: Apache-2.0
//
// DigitsMath: the computation of a device for DigitsNetwork, on its shards alone. DigitsNetwork
// splits tensors and sends them; so the network is the same on CPUs, where Eigen computes, and on
// GPUs, where cuBLASLt and kernels do.
//
//   local_map(layout, shape, DType::kFloat32, {a, b}, math.product)      a b on every device
//
// Each is a function for local_map, with its inputs in order. Matrices are f32; a shard may have no
// rows or no columns.
#ifndef TESSERA_EXAMPLES_DIGITS_GPU_DIGITS_MATH_H_
#define TESSERA_EXAMPLES_DIGITS_GPU_DIGITS_MATH_H_

#include <functional>

#include "tessera.h"

namespace tessera::examples {

struct DigitsMath {
  LocalFn hidden;              // x, W1, b1: relu(x W1 + b1)
  LocalFn product;             // a, b: a b
  LocalFn transposed_product;  // a, b: a^T b
  LocalFn softmax;             // logits, b2: softmax(logits + b2) of each row
  LocalFn d_hidden;            // d_logits, W2, hidden: d_logits W2^T where hidden > 0, else 0
  LocalFn sum_of_rows;         // a: a vector, the sum of each column
  LocalFn count;               // f64 tally, p, labels: the tally with these images added
  std::function<LocalFn(float scale)> d_logits;  // p, labels: scale (p - one_hot(labels))
  std::function<LocalFn(float scale_a, float scale_b)> combine;  // a, b: scale_a a + scale_b b
};

// By Eigen, on memory of the host. On GPUs: digits_math_gpu.h.
DigitsMath math_on_cpu();

}  // namespace tessera::examples

#endif  // TESSERA_EXAMPLES_DIGITS_GPU_DIGITS_MATH_H_
