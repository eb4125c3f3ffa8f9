// SPDX-License-Identifier: Apache-2.0
#include "tests/support/ops/table.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "dtensor/local_map.h"
#include "dtensor/relayout.h"
#include "layout/layout.h"
#include "ops/contract.h"
#include "ops/elementwise.h"
#include "ops/local_gradient.h"
#include "ops/nn.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/shapes.h"
#include "tests/support/tensors.h"

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

// ---- Functions of the caller

// A function of one, two or three tensors: a^2 - 2a; ab - a; ak for a positive integer k, else b.
DTensor function_of_elements(Operands x, const ops::Out& out) {
  if (x.size() == 1) return ops::elementwise([](double a) { return a * a - 2 * a; }, x[0], out);
  if (x.size() == 2) {
    return ops::elementwise([](double a, double b) { return a * b - a; }, x[0], x[1], out);
  }
  return ops::elementwise([](double a, int32_t k, double b) { return k > 0 ? a * k : b; }, x[0],
                          x[1], x[2], out);
}

// The input times 1 + the sum of the coordinates of its element.
void weigh(LocalContext& local, int input) {
  const absl::Span<const double> in = local.input<double>(input).data;
  const absl::Span<double> out = local.output<double>().data;
  for_each_element(local.output_box(), [&](const std::vector<int64_t>& index, int64_t place) {
    double weight = 1;
    for (const int64_t coordinate : index) weight += static_cast<double>(coordinate);
    out[place] = in[place] * weight;
  });
}

// Linear: the terms of a sum or an average stay terms.
DTensor weighed(const DTensor& x) {
  const std::optional<ReduceOp> op = x.layout().partial_op();
  const bool stays = !op.has_value() || op == ReduceOp::kSum || op == ReduceOp::kAvg;
  const Layout whole = x.layout().without_partial();
  const Layout layout = stays ? x.layout() : whole;
  // The inputs of the gradient are x, the result and the cotangent.
  return local_map(layout, x.shape(), DType::kFloat64, {relayout(x, layout)},
                   [](LocalContext& local) { weigh(local, 0); },
                   {LocalGradient{whole, [](LocalContext& local) { weigh(local, 2); }}});
}

// Writes a b to `out`, where each of them may be stored transposed.
enum class Side { kPlain, kTransposed };
void multiply(const ShardView<double>& a, Side a_side, const ShardView<double>& b, Side b_side,
              const MutableShardView<double>& out) {
  const int64_t summed = a.shape[a_side == Side::kPlain ? 1 : 0];
  const auto at = [](const ShardView<double>& x, Side side, int64_t i, int64_t j) {
    return side == Side::kPlain ? x.data[i * x.shape[1] + j] : x.data[j * x.shape[1] + i];
  };
  for (int64_t i = 0; i < out.shape[0]; ++i) {
    for (int64_t j = 0; j < out.shape[1]; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < summed; ++k) sum += at(a, a_side, i, k) * at(b, b_side, k, j);
      out.data[i * out.shape[1] + j] = sum;
    }
  }
}

// A product of matrices: a as it is split, b by its rows as a by its columns, and the result a
// term for each part of these.
StatusOr<DTensor> local_product(const DTensor& given, const DTensor& b) {
  const DTensor a = relayout(given, given.layout().without_partial());
  const DimSharding& rows = a.layout().dims()[0];
  const DimSharding& columns = a.layout().dims()[1];
  const Mesh& mesh = a.layout().mesh();
  const auto layout_of = [&mesh](const DimSharding& rows,
                                 const DimSharding& terms) -> StatusOr<Layout> {
    TESSERA_ASSIGN_OR_RETURN(const Layout layout, Layout::create(mesh, {rows, {}}));
    return terms.empty() ? layout : layout.with_partial(terms);
  };
  TESSERA_ASSIGN_OR_RETURN(const Layout b_layout, layout_of(columns, {}));
  TESSERA_ASSIGN_OR_RETURN(const Layout b_terms, layout_of(columns, rows));
  TESSERA_ASSIGN_OR_RETURN(const Layout layout, layout_of(rows, columns));
  const auto forward = [](LocalContext& local) {
    multiply(local.input<double>(0), Side::kPlain, local.input<double>(1), Side::kPlain,
             local.output<double>());
  };
  // Inputs are a, b, the result and the cotangent.
  const auto by_a = [](LocalContext& local) {
    multiply(local.input<double>(3), Side::kPlain, local.input<double>(1), Side::kTransposed,
             local.output<double>());
  };
  const auto by_b = [](LocalContext& local) {
    multiply(local.input<double>(0), Side::kTransposed, local.input<double>(3), Side::kPlain,
             local.output<double>());
  };
  return local_map(layout, {a.shape()[0], b.shape()[1]}, DType::kFloat64,
                   {a, relayout(b, b_layout)}, forward,
                   {LocalGradient{a.layout(), by_a}, LocalGradient{b_terms, by_b}});
}

DTensor function_of_shards(Operands x, const ops::Out& out) {
  const StatusOr<DTensor> result = x.size() == 1 ? weighed(x[0]) : local_product(x[0], x[1]);
  if (!result.ok()) return relayout(x[0], result.status());
  return out.layout.has_value() ? relayout(*result, *out.layout) : *result;
}

Table elementwise() {
  return {
      TESSERA_UNARY_(neg),          TESSERA_UNARY_(abs),          TESSERA_UNARY_(sign),
      TESSERA_UNARY_(square),       TESSERA_UNARY_(relu),         TESSERA_UNARY_(exp),
      TESSERA_UNARY_(expm1),        TESSERA_UNARY_(log),          TESSERA_UNARY_(log1p),
      TESSERA_UNARY_(sqrt),         TESSERA_UNARY_(rsqrt),        TESSERA_UNARY_(reciprocal),
      TESSERA_UNARY_(sin),          TESSERA_UNARY_(cos),          TESSERA_UNARY_(tanh),
      TESSERA_UNARY_(sigmoid),      TESSERA_UNARY_(gelu),         TESSERA_UNARY_(silu),
      TESSERA_UNARY_(erf),          TESSERA_UNARY_(softplus),     TESSERA_UNARY_(floor),
      TESSERA_UNARY_(ceil),         TESSERA_UNARY_(round),        TESSERA_UNARY_(is_nan),
      TESSERA_UNARY_(logical_not),  TESSERA_BINARY_(add),         TESSERA_BINARY_(sub),
      TESSERA_BINARY_(mul),         TESSERA_BINARY_(mul_or_zero), TESSERA_BINARY_(div_or_zero),
      TESSERA_BINARY_(div),         TESSERA_BINARY_(floor_div),   TESSERA_BINARY_(mod),
      TESSERA_BINARY_(pow),         TESSERA_BINARY_(maximum),     TESSERA_BINARY_(minimum),
      TESSERA_BINARY_(equal),       TESSERA_BINARY_(not_equal),   TESSERA_BINARY_(less),
      TESSERA_BINARY_(less_equal),  TESSERA_BINARY_(greater),     TESSERA_BINARY_(greater_equal),
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
      TESSERA_OP_(elementwise, function_of_elements(x, out)),
      TESSERA_OP_(local_map, function_of_shards(x, out)),
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
