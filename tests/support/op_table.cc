// SPDX-License-Identifier: Apache-2.0
#include "tests/support/op_table.h"

#include <cstdint>
#include <vector>

#include "absl/strings/match.h"
#include "ops/contract.h"
#include "ops/nn.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/shapes.h"

namespace tessera::testing {
namespace {

using Table = std::map<std::string, RunOp>;

#define TESSERA_UNARY_(name)                                                                   \
  {                                                                                            \
#name, [](const OpCase&, Operands x, const ops::Out& out) { return ops::name(x[0], out); } \
  }
#define TESSERA_BINARY_(name)                                                                 \
  {                                                                                           \
#name, [](const OpCase& row, Operands x, const ops::Out& out) {                             \
      if (!row.has("scalar")) return ops::name(x[0], x[1], out);                                \
      const double scalar = row.real("scalar");                                                 \
      return row.has("scalar_side") ? ops::name(scalar, x[0], out)                              \
                                    : ops::name(x[0], scalar, out);                             \
    } \
  }

#define TESSERA_OP_(name, call)                                \
  {                                                            \
#name, []([[maybe_unused]] const OpCase& row, Operands x,  \
              const ops::Out& out) -> DTensor { return call; } \
  }
#define TESSERA_REDUCTION_(name)            \
  TESSERA_OP_(name,                         \
              ops::name(x[0], dims_of(row), \
                        row.has("keep_dims") ? ops::KeepDims::kYes : ops::KeepDims::kNo, out))
#define TESSERA_ALONG_(name) TESSERA_OP_(name, ops::name(x[0], row.integer("dim"), out))

std::vector<int64_t> integers_or_none(const OpCase& row, const std::string& attribute) {
  return row.has(attribute) ? row.integers(attribute) : std::vector<int64_t>();
}

ops::Dims dims_of(const OpCase& row) {
  return row.has("dims") ? ops::Dims(row.integers("dims")) : ops::Dims();
}

// Rows "name.0" and "name.1" are of the first and the second result.
bool is_second(const OpCase& row) { return absl::EndsWith(row.id, ".1"); }

DTensor top_k(const OpCase& row, const DTensor& x, const ops::Out& out) {
  const ops::TopK top = ops::top_k(x, row.integer("k"), row.integer("dim"), out);
  return is_second(row) ? top.indices : top.values;
}

DTensor split(const OpCase& row, const DTensor& x, const ops::Out& out) {
  return ops::split(x, row.integers("sizes"), row.integer("dim"), out)[is_second(row) ? 1 : 0];
}

ops::AttentionOptions attention_options(const OpCase& row) {
  ops::AttentionOptions options;
  options.causal = row.attributes.at("causal") == "true";
  if (row.has("scale")) options.scale = row.real("scale");
  return options;
}

// Attributes that conv2d and pools have in common, and how each is filled in.
template <class Options>
Options window_options(const OpCase& row) {
  Options options;
  const std::vector<int64_t> strides = row.integers("strides");
  const std::vector<int64_t> padding = row.integers("padding");
  for (int k = 0; k < 2; ++k) {
    options.strides[k] = strides[k];
    options.padding[k] = {padding[2 * k], padding[2 * k + 1]};
  }
  return options;
}
ops::Conv2dOptions conv2d_options(const OpCase& row) {
  auto options = window_options<ops::Conv2dOptions>(row);
  if (row.has("dilation")) {
    options.dilation = {row.integers("dilation")[0], row.integers("dilation")[1]};
  }
  return options;
}
ops::Pool2dOptions pool2d_options(const OpCase& row) {
  auto options = window_options<ops::Pool2dOptions>(row);
  options.window = {row.integers("window")[0], row.integers("window")[1]};
  return options;
}

Table elementwise() {
  return {
      TESSERA_UNARY_(neg),          TESSERA_UNARY_(abs),
      TESSERA_UNARY_(sign),         TESSERA_UNARY_(square),
      TESSERA_UNARY_(relu),         TESSERA_UNARY_(exp),
      TESSERA_UNARY_(expm1),        TESSERA_UNARY_(log),
      TESSERA_UNARY_(log1p),        TESSERA_UNARY_(sqrt),
      TESSERA_UNARY_(rsqrt),        TESSERA_UNARY_(reciprocal),
      TESSERA_UNARY_(sin),          TESSERA_UNARY_(cos),
      TESSERA_UNARY_(tanh),         TESSERA_UNARY_(sigmoid),
      TESSERA_UNARY_(gelu),         TESSERA_UNARY_(silu),
      TESSERA_UNARY_(erf),          TESSERA_UNARY_(softplus),
      TESSERA_UNARY_(floor),        TESSERA_UNARY_(ceil),
      TESSERA_UNARY_(round),        TESSERA_UNARY_(is_nan),
      TESSERA_UNARY_(logical_not),  TESSERA_BINARY_(add),
      TESSERA_BINARY_(sub),         TESSERA_BINARY_(mul),
      TESSERA_BINARY_(div),         TESSERA_BINARY_(floor_div),
      TESSERA_BINARY_(mod),         TESSERA_BINARY_(pow),
      TESSERA_BINARY_(maximum),     TESSERA_BINARY_(minimum),
      TESSERA_BINARY_(equal),       TESSERA_BINARY_(not_equal),
      TESSERA_BINARY_(less),        TESSERA_BINARY_(less_equal),
      TESSERA_BINARY_(greater),     TESSERA_BINARY_(greater_equal),
      TESSERA_BINARY_(logical_and), TESSERA_BINARY_(logical_or),
  };
}

Table others() {
  return {
      TESSERA_REDUCTION_(sum),
      TESSERA_REDUCTION_(mean),
      TESSERA_REDUCTION_(prod),
      TESSERA_REDUCTION_(max),
      TESSERA_REDUCTION_(min),
      TESSERA_REDUCTION_(all),
      TESSERA_REDUCTION_(any),
      TESSERA_REDUCTION_(var),
      TESSERA_REDUCTION_(norm),
      TESSERA_REDUCTION_(logsumexp),
      TESSERA_ALONG_(argmax),
      TESSERA_ALONG_(argmin),
      TESSERA_ALONG_(cumsum),
      TESSERA_ALONG_(sort),
      TESSERA_ALONG_(softmax),
      TESSERA_ALONG_(log_softmax),
      TESSERA_ALONG_(expand_dims),
      TESSERA_ALONG_(squeeze),
      TESSERA_OP_(select, ops::select(x[0], x[1], x[2], out)),
      TESSERA_OP_(clip, ops::clip(x[0], row.real("low"), row.real("high"), out)),
      TESSERA_OP_(cast, ops::cast(x[0], row.dtype, out)),
      TESSERA_OP_(top_k, top_k(row, x[0], out)),
      TESSERA_OP_(matmul, ops::matmul(x[0], x[1], out)),
      TESSERA_OP_(einsum, ops::einsum(row.attributes.at("equation"), x, out)),
      TESSERA_OP_(layer_norm, ops::layer_norm(x[0], x[1], x[2], row.real("epsilon"), out)),
      TESSERA_OP_(softmax_cross_entropy, ops::softmax_cross_entropy(x[0], x[1], out)),
      TESSERA_OP_(attention, ops::attention(x[0], x[1], x[2], attention_options(row), out)),
      TESSERA_OP_(transpose, ops::transpose(x[0], row.integers("permutation"), out)),
      TESSERA_OP_(reshape, ops::reshape(x[0], row.integers("shape"), out)),
      TESSERA_OP_(broadcast_to, ops::broadcast_to(x[0], row.integers("shape"), out)),
      TESSERA_OP_(concat, ops::concat(x, row.integer("dim"), out)),
      TESSERA_OP_(stack, ops::stack(x, row.integer("dim"), out)),
      TESSERA_OP_(split, split(row, x[0], out)),
      TESSERA_OP_(slice, ops::slice(x[0], row.integers("starts"), row.integers("limits"),
                                    integers_or_none(row, "strides"), out)),
      TESSERA_OP_(
          pad, ops::pad(x[0], row.integers("low"), row.integers("high"), row.real("value"), out)),
      TESSERA_OP_(flip, ops::flip(x[0], row.integers("dims"), out)),
      TESSERA_OP_(roll, ops::roll(x[0], row.integer("shift"), row.integer("dim"), out)),
      TESSERA_OP_(tile, ops::tile(x[0], row.integers("repeats"), out)),
      TESSERA_OP_(one_hot, ops::one_hot(x[0], row.integer("depth"), out)),
      TESSERA_OP_(take, ops::take(x[0], x[1], row.integer("dim"), out)),
      TESSERA_OP_(scatter_add, ops::scatter_add(x[0], x[1], x[2], row.integer("dim"), out)),
      TESSERA_OP_(conv2d, ops::conv2d(x[0], x[1], conv2d_options(row), out)),
      TESSERA_OP_(max_pool2d, ops::max_pool2d(x[0], pool2d_options(row), out)),
      TESSERA_OP_(avg_pool2d, ops::avg_pool2d(x[0], pool2d_options(row), out)),
  };
}

}  // namespace

const Table& op_table() {
  static const auto* const all = [] {
    auto* table = new Table(elementwise());
    table->merge(others());
    return table;
  }();
  return *all;
}

}  // namespace tessera::testing
