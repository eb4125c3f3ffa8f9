// SPDX-License-Identifier: Apache-2.0
#include "tests/support/ops/table.h"

#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "dtensor/local_map.h"
#include "dtensor/relayout.h"
#include "layout/layout.h"
#include "ops/all_operations.h"
#include "ops/apply.h"
#include "ops/attributes.h"
#include "ops/creation.h"
#include "ops/elementwise.h"
#include "ops/local_gradient.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

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

// ---- Tensors of no operands

int64_t integer_or(const OpCase& row, const char* attribute, int64_t otherwise) {
  return row.has(attribute) ? row.integer(attribute) : otherwise;
}
double real_or(const OpCase& row, const char* attribute, double otherwise) {
  return row.has(attribute) ? row.real(attribute) : otherwise;
}

template <class T>
DTensor create(const OpCase& row, const StatusOr<Layout>& layout) {
  if (row.op == "eye") {
    const int64_t rows = row.integer("rows");
    return eye<T>(rows, integer_or(row, "columns", rows), layout, integer_or(row, "diagonal", 0));
  }
  if constexpr (std::is_same_v<T, bool>) {
    return full<T>({}, false, absl::InvalidArgumentError(absl::StrCat(row.op, " of bool")));
  } else if (row.op == "arange") {
    if constexpr (std::is_integral_v<T>) {
      return arange<T>(integer_or(row, "start", 0), row.integer("limit"),
                       integer_or(row, "step", 1), layout);
    } else {
      return arange<T>(real_or(row, "start", 0), row.real("limit"), real_or(row, "step", 1),
                       layout);
    }
  } else if constexpr (std::is_integral_v<T>) {
    return full<T>({}, T(0), absl::InvalidArgumentError(absl::StrCat(row.op, " of integers")));
  } else {
    const bool is_excluded = row.has("endpoint") && row.attributes.at("endpoint") == "false";
    return linspace<T>(row.real("start"), row.real("limit"), row.integer("count"), layout,
                       is_excluded ? Endpoint::kExcluded : Endpoint::kIncluded);
  }
}

// Rows "name.0" and "name.1" are of the first and the second result.
size_t result_of(const OpCase& row) { return absl::EndsWith(row.id, ".1") ? 1 : 0; }

}  // namespace

bool is_creation(const std::string& name) {
  return name == "arange" || name == "linspace" || name == "eye";
}

DTensor run_row(const OpCase& row, Operands x, const ops::Out& out) {
  if (is_creation(row.op)) {
    const DType dtype = *ops::read_dtype(row.attributes.at("dtype"));
    return visit_dtype(dtype, [&]<class T>() { return create<T>(row, out.layout->layout()); });
  }
  if (row.op == "elementwise") return function_of_elements(x, out);
  if (row.op == "local_map") return function_of_shards(x, out);
  const StatusOr<const ops::Operation*> operation = ops::find_operation(row.op);
  if (!operation.ok()) return relayout(x[0], operation.status());
  StatusOr<ops::Attributes> attributes =
      ops::read_attributes((*operation)->name, (*operation)->attributes, row.attributes);
  if (!attributes.ok()) return relayout(x[0], attributes.status());
  const ops::Results results = ops::apply(**operation, x, attributes->values(), out);
  // A refused call has one result.
  return results.size() == 1 ? results[0] : results[result_of(row)];
}

bool is_operation(const std::string& name) {
  return name == "elementwise" || name == "local_map" || ops::find_operation(name).ok();
}

std::vector<std::string> operation_names() {
  std::vector<std::string> names = {"elementwise", "local_map"};
  for (const ops::Operation* const each : ops::called_operations()) names.emplace_back(each->name);
  return names;
}

}  // namespace tessera::testing
