// SPDX-License-Identifier: Apache-2.0
//
// The local functions of DigitsNetwork on CPUs: a shard is an Eigen matrix.
#include "examples/digits_gpu/digits_math.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "Eigen/Core"

namespace tessera::examples {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// A shard as an Eigen matrix; a vector as a matrix of one row.
Eigen::Map<const Matrix> matrix(const ShardView<float>& shard) {
  return {shard.data.data(), shard.shape.size() == 1 ? 1 : shard.shape[0], shard.shape.back()};
}
Eigen::Map<Matrix> matrix(const MutableShardView<float>& shard) {
  return {shard.data.data(), shard.shape.size() == 1 ? 1 : shard.shape[0], shard.shape.back()};
}

void hidden(LocalContext& local) {
  const auto x = matrix(local.input<float>(0));
  const auto w1 = matrix(local.input<float>(1));
  const auto b1 = matrix(local.input<float>(2));
  auto hidden = matrix(local.output<float>());
  hidden.noalias() = x * w1;
  hidden = (hidden.rowwise() + b1.row(0)).cwiseMax(0.0f);
}

void product(LocalContext& local) {
  matrix(local.output<float>()).noalias() =
      matrix(local.input<float>(0)) * matrix(local.input<float>(1));
}

void transposed_product(LocalContext& local) {
  matrix(local.output<float>()).noalias() =
      matrix(local.input<float>(0)).transpose() * matrix(local.input<float>(1));
}

// A row an image. The largest entry is taken off first, so that exp stays finite.
Matrix softmax_of(const Matrix& logits) {
  Matrix p = logits.colwise() - logits.rowwise().maxCoeff();
  p = p.array().exp().matrix();
  const Eigen::ArrayXf sums = p.rowwise().sum().array();
  return (p.array().colwise() / sums).matrix();
}

void softmax(LocalContext& local) {
  const auto logits = matrix(local.input<float>(0));
  const auto b2 = matrix(local.input<float>(1));
  matrix(local.output<float>()) = softmax_of(logits.rowwise() + b2.row(0));
}

void d_hidden(LocalContext& local) {
  const auto w2 = matrix(local.input<float>(1));
  const auto h = matrix(local.input<float>(2));
  auto d = matrix(local.output<float>());
  d.noalias() = matrix(local.input<float>(0)) * w2.transpose();
  d = (h.array() > 0.0f).select(d, 0.0f);
}

void sum_of_rows(LocalContext& local) {
  matrix(local.output<float>()) = matrix(local.input<float>(0)).colwise().sum();
}

void count(LocalContext& local) {
  const auto before = local.input<double>(0).data;
  const auto p = matrix(local.input<float>(1));
  const auto labels = local.input<int32_t>(2).data;
  auto tally = local.output<double>().data;
  std::copy(before.begin(), before.end(), tally.begin());
  for (size_t row = 0; row < labels.size(); ++row) {
    Eigen::Index best;
    p.row(row).maxCoeff(&best);
    tally[0] -= std::log(std::max(double{p(row, labels[row])}, 1e-30));
    tally[1] += best == labels[row];
  }
}

LocalFn d_logits(float scale) {
  return [scale](LocalContext& local) {
    const auto labels = local.input<int32_t>(1).data;
    auto d = matrix(local.output<float>());
    d = matrix(local.input<float>(0));
    for (size_t row = 0; row < labels.size(); ++row) d(row, labels[row]) -= 1.0f;
    d *= scale;
  };
}

LocalFn combine(float scale_a, float scale_b) {
  return [scale_a, scale_b](LocalContext& local) {
    matrix(local.output<float>()) =
        scale_a * matrix(local.input<float>(0)) + scale_b * matrix(local.input<float>(1));
  };
}

}  // namespace

DigitsMath math_on_cpu() {
  return {.hidden = hidden,
          .product = product,
          .transposed_product = transposed_product,
          .softmax = softmax,
          .d_hidden = d_hidden,
          .sum_of_rows = sum_of_rows,
          .count = count,
          .d_logits = d_logits,
          .combine = combine};
}

}  // namespace tessera::examples
