// SPDX-License-Identifier: Apache-2.0
//
// Operations of neural networks. They take floats of one dtype. f16 and bf16 are computed in f32,
// and results and gradients are rounded once, under every layout.
//
// softmax, log_softmax and layer_norm keep a dim split that they reduce along: only the maxima and
// sums of rows are all-reduced. softmax_cross_entropy, and attention over split keys, drop those
// axes from the result. A split height or width of conv2d and the pools stays split.
#ifndef TESSERA_OPS_NN_H_
#define TESSERA_OPS_NN_H_

#include <array>
#include <cstdint>
#include <optional>

#include "base/public.h"
#include "dtensor/dtensor.h"
#include "ops/out.h"

namespace TESSERA_PUBLIC tessera {
namespace ops {

// exp(x) / sum(exp(x)) along the dim, and its logarithm, without overflow.
DTensor softmax(const DTensor& x, int64_t dim, const Out& out = {});
DTensor log_softmax(const DTensor& x, int64_t dim, const Out& out = {});

// (x - mean) / sqrt(variance + epsilon) * scale + bias over the last dim; scale and bias have its
// size.
DTensor layer_norm(const DTensor& x, const DTensor& scale, const DTensor& bias, double epsilon,
                   const Out& out = {});

// -log(softmax(logits)[label]) for each example, over the last dim. Labels are class indices (i32
// or i64, of the shape of logits without the last dim; a label out of range is OutOfRange in the
// result) or probabilities (of the shape and dtype of logits).
DTensor softmax_cross_entropy(const DTensor& logits, const DTensor& labels, const Out& out = {});

struct AttentionOptions {
  // A query sees no key after the key that it is aligned with; the last query and key are aligned.
  bool causal = false;
  // Scales the products of queries and keys; unset: 1/sqrt(depth).
  std::optional<double> scale = {};
};
// softmax(q k^T scale) v. q is [batch, heads, queries, depth], k and v [batch, heads, keys, depth].
DTensor attention(const DTensor& q, const DTensor& k, const DTensor& v,
                  const AttentionOptions& options = {}, const Out& out = {});

// By [height, width]; padding before and after each.
struct Conv2dOptions {
  std::array<int64_t, 2> strides = {1, 1};
  std::array<std::array<int64_t, 2>, 2> padding = {};
  std::array<int64_t, 2> dilation = {1, 1};
};
// x is [batch, height, width, in], filter [height, width, in, out].
DTensor conv2d(const DTensor& x, const DTensor& filter, const Conv2dOptions& options = {},
               const Out& out = {});

struct Pool2dOptions {
  std::array<int64_t, 2> window = {2, 2};
  std::array<int64_t, 2> strides = {2, 2};
  std::array<std::array<int64_t, 2>, 2> padding = {};
};
// The largest element, and the mean, of each window of x, which is [batch, height, width,
// channels]. Padding counts for neither; a window of padding alone is InvalidArgument.
DTensor max_pool2d(const DTensor& x, const Pool2dOptions& options = {}, const Out& out = {});
DTensor avg_pool2d(const DTensor& x, const Pool2dOptions& options = {}, const Out& out = {});

}  // namespace ops
}  // namespace tessera

#endif  // TESSERA_OPS_NN_H_
