// SPDX-License-Identifier: Apache-2.0
//
// The common part of the oracle, elementwise operations, and reductions.
#include "tests/support/ops/oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace tessera::testing {
namespace oracle {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

using Unary = double (*)(double);
using Binary = double (*)(double, double);

Dense unary(const Dense& x, DType dtype, Unary fn) {
  return make(dtype, x.shape, [&](const Index& i) { return fn(at(x, i)); });
}

// The tensor, or the scalar of the row in its place.
Dense binary(const OpCase& row, absl::Span<const Dense> x, bool gives_bool, Binary fn) {
  const DType dtype = gives_bool ? DType::kBool : x[0].dtype;
  if (row.has("scalar")) {
    const double scalar = row.real("scalar");
    const bool is_left = row.has("scalar_side");
    return make(dtype, x[0].shape, [&](const Index& i) {
      return is_left ? fn(scalar, at(x[0], i)) : fn(at(x[0], i), scalar);
    });
  }
  return make(dtype, broadcast_shape(x[0].shape, x[1].shape),
              [&](const Index& i) { return fn(at_broadcast(x[0], i), at_broadcast(x[1], i)); });
}

Oracle of_unary(Unary fn) {
  return [fn](const OpCase&, absl::Span<const Dense> x) { return unary(x[0], x[0].dtype, fn); };
}
Oracle of_unary_to_bool(Unary fn) {
  return [fn](const OpCase&, absl::Span<const Dense> x) { return unary(x[0], DType::kBool, fn); };
}
Oracle of_binary(Binary fn) {
  return [fn](const OpCase& row, absl::Span<const Dense> x) { return binary(row, x, false, fn); };
}
Oracle of_binary_to_bool(Binary fn) {
  return [fn](const OpCase& row, absl::Span<const Dense> x) { return binary(row, x, true, fn); };
}

double gelu(double v) { return v / 2 * (1 + std::erf(v / std::sqrt(2.0))); }
double half_to_even(double v) {
  const double below = std::floor(v);
  if (v - below != 0.5) return std::floor(v + 0.5);
  return std::fmod(below, 2) == 0 ? below : below + 1;
}
double floor_div(double a, double b) { return std::floor(a / b); }

// A float becomes an integer by truncation.
Dense cast(const OpCase& row, const Dense& x) {
  return make(row.dtype, x.shape, [&](const Index& i) {
    const double v = at(x, i);
    if (row.dtype == DType::kBool) return v != 0 ? 1.0 : 0.0;
    return is_floating_point(row.dtype) ? v : std::trunc(v);
  });
}

// Whether the row reduces each dim; all where the row names none.
std::vector<bool> reduced_dims(const OpCase& row, size_t rank) {
  std::vector<bool> reduced(rank, !row.has("dims"));
  if (!row.has("dims")) return reduced;
  for (const int64_t dim : row.integers("dims")) reduced[dim_of(dim, rank)] = true;
  return reduced;
}

// Applies fn to the elements that are reduced to one.
Dense reduce(const OpCase& row, const Dense& x, DType dtype,
             const std::function<double(const Values&)>& fn) {
  const std::vector<bool> reduced = reduced_dims(row, x.shape.size());
  const bool keeps = row.has("keep_dims");
  Shape shape;
  Shape inner(x.shape.size(), 1);
  for (size_t dim = 0; dim < x.shape.size(); ++dim) {
    if (reduced[dim]) inner[dim] = x.shape[dim];
    if (!reduced[dim] || keeps) shape.push_back(reduced[dim] ? 1 : x.shape[dim]);
  }
  return make(dtype, shape, [&](const Index& i) {
    Index outer(x.shape.size(), 0);
    for (size_t dim = 0, next = 0; dim < x.shape.size(); ++dim) {
      if (!reduced[dim] || keeps) outer[dim] = i[next++];
    }
    Values values;
    for_each_index(inner, [&](const Index& k) {
      Index sum = outer;
      for (size_t dim = 0; dim < sum.size(); ++dim) sum[dim] += k[dim];
      values.push_back(at(x, sum));
    });
    return fn(values);
  });
}

double sum_of(const Values& v) { return std::accumulate(v.begin(), v.end(), 0.0); }
double mean_of(const Values& v) { return sum_of(v) / static_cast<double>(v.size()); }
double product_of(const Values& v) {
  return std::accumulate(v.begin(), v.end(), 1.0, std::multiplies<>());
}
double largest_of(const Values& v) {
  double largest = kNan;
  for (const double each : v) largest = std::fmax(largest, each);
  return largest;
}
double smallest_of(const Values& v) {
  double smallest = kNan;
  for (const double each : v) smallest = std::fmin(smallest, each);
  return smallest;
}
double all_of(const Values& v) {
  return std::all_of(v.begin(), v.end(), [](double each) { return each != 0; });
}
double any_of(const Values& v) {
  return std::any_of(v.begin(), v.end(), [](double each) { return each != 0; });
}
double variance_of(const Values& v) {
  double squares = 0;
  for (const double each : v) squares += (each - mean_of(v)) * (each - mean_of(v));
  return squares / static_cast<double>(v.size());
}
double norm_of(const Values& v) {
  double squares = 0;
  for (const double each : v) squares += each * each;
  return std::sqrt(squares);
}
double logsumexp_of(const Values& v) {
  double sum = 0;
  for (const double each : v) sum += std::exp(each);
  return std::log(sum);
}

Oracle of_reduction(double (*fn)(const Values&)) {
  return [fn](const OpCase& row, absl::Span<const Dense> x) {
    return reduce(row, x[0], x[0].dtype, fn);
  };
}

// The first of the values that `better` puts before all others.
template <class Better>
int64_t first_best(const Values& values, Better better) {
  int64_t best = 0;
  for (size_t k = 1; k < values.size(); ++k) {
    if (better(values[k], values[best])) best = static_cast<int64_t>(k);
  }
  return best;
}

Dense arg_best(const OpCase& row, const Dense& x, bool is_max) {
  const int64_t dim = dim_of(row.integer("dim"), x.shape.size());
  Shape shape = x.shape;
  shape.erase(shape.begin() + dim);
  return make(DType::kInt64, shape, [&](Index i) {
    i.insert(i.begin() + dim, 0);
    const Values values = line(x, dim, i);
    return static_cast<double>(is_max ? first_best(values, std::greater<>())
                                      : first_best(values, std::less<>()));
  });
}

Dense cumsum(const OpCase& row, const Dense& x) {
  const int64_t dim = dim_of(row.integer("dim"), x.shape.size());
  return make(x.dtype, x.shape, [&](const Index& i) {
    const Values values = line(x, dim, i);
    return sum_of(Values(values.begin(), values.begin() + i[dim] + 1));
  });
}

Dense sort(const OpCase& row, const Dense& x) {
  const int64_t dim = dim_of(row.integer("dim"), x.shape.size());
  return make(x.dtype, x.shape, [&](const Index& i) {
    Values values = line(x, dim, i);
    std::sort(values.begin(), values.end());
    return values[i[dim]];
  });
}

// Values, or of a row ".1" indices.
Dense top_k(const OpCase& row, const Dense& x) {
  const int64_t dim = dim_of(row.integer("dim"), x.shape.size());
  const bool gives_indices = row.id.size() > 2 && row.id.substr(row.id.size() - 2) == ".1";
  Shape shape = x.shape;
  shape[dim] = row.integer("k");
  return make(gives_indices ? DType::kInt64 : x.dtype, shape, [&](const Index& i) {
    const Values values = line(x, dim, with(i, dim, 0));
    std::vector<int64_t> order(values.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return values[a] > values[b]; });
    const int64_t index = order[i[dim]];
    return gives_indices ? static_cast<double>(index) : values[index];
  });
}

}  // namespace

void for_each_index(const Shape& shape, const std::function<void(const Index&)>& fn) {
  Index index(shape.size(), 0);
  for (int64_t left = num_elements(shape); left > 0; --left) {
    fn(index);
    for (size_t dim = shape.size(); dim-- > 0;) {
      if (++index[dim] < shape[dim]) break;
      index[dim] = 0;
    }
  }
}

double at(const Dense& x, const Index& index) {
  int64_t flat = 0;
  for (size_t dim = 0; dim < x.shape.size(); ++dim) flat = flat * x.shape[dim] + index[dim];
  return x.data.at(flat);
}

double at_broadcast(const Dense& x, const Index& index) {
  Index own(index.end() - static_cast<int64_t>(x.shape.size()), index.end());
  for (size_t dim = 0; dim < own.size(); ++dim) {
    if (x.shape[dim] == 1) own[dim] = 0;
  }
  return at(x, own);
}

Dense make(DType dtype, const Shape& shape, const std::function<double(const Index&)>& element) {
  Dense result = {dtype, shape, {}};
  for_each_index(shape, [&](const Index& index) { result.data.push_back(element(index)); });
  return result;
}

int64_t dim_of(int64_t dim, size_t rank) {
  return dim < 0 ? dim + static_cast<int64_t>(rank) : dim;
}

Values line(const Dense& x, int64_t dim, Index index) {
  Values values;
  for (index[dim] = 0; index[dim] < x.shape[dim]; ++index[dim]) values.push_back(at(x, index));
  return values;
}

Index with(Index index, int64_t dim, int64_t coordinate) {
  index[dim] = coordinate;
  return index;
}

Shape broadcast_shape(const Shape& a, const Shape& b) {
  Shape shape(std::max(a.size(), b.size()), 1);
  for (const Shape* each : {&a, &b}) {
    const size_t first = shape.size() - each->size();
    for (size_t dim = 0; dim < each->size(); ++dim) {
      if ((*each)[dim] != 1) shape[first + dim] = (*each)[dim];
    }
  }
  return shape;
}

std::map<std::string, Oracle> pointwise() {
  return {
      {"neg", of_unary([](double v) { return -v; })},
      {"abs", of_unary([](double v) { return v < 0 ? -v : v; })},
      {"sign", of_unary([](double v) { return v > 0   ? 1.0
                                              : v < 0 ? -1.0
                                                      : 0.0; })},
      {"square", of_unary([](double v) { return v * v; })},
      {"relu", of_unary([](double v) { return v > 0 ? v : 0.0; })},
      {"exp", of_unary([](double v) { return std::exp(v); })},
      {"expm1", of_unary([](double v) { return std::expm1(v); })},
      {"log", of_unary([](double v) { return std::log(v); })},
      {"log1p", of_unary([](double v) { return std::log1p(v); })},
      {"sqrt", of_unary([](double v) { return std::sqrt(v); })},
      {"rsqrt", of_unary([](double v) { return 1 / std::sqrt(v); })},
      {"reciprocal", of_unary([](double v) { return 1 / v; })},
      {"sin", of_unary([](double v) { return std::sin(v); })},
      {"cos", of_unary([](double v) { return std::cos(v); })},
      {"tanh", of_unary([](double v) { return std::tanh(v); })},
      {"sigmoid", of_unary([](double v) { return 1 / (1 + std::exp(-v)); })},
      {"gelu", of_unary(gelu)},
      {"silu", of_unary([](double v) { return v / (1 + std::exp(-v)); })},
      {"erf", of_unary([](double v) { return std::erf(v); })},
      {"softplus", of_unary([](double v) { return std::log1p(std::exp(v)); })},
      {"floor", of_unary([](double v) { return std::floor(v); })},
      {"ceil", of_unary([](double v) { return std::ceil(v); })},
      {"round", of_unary(half_to_even)},
      {"is_nan", of_unary_to_bool([](double v) { return v != v ? 1.0 : 0.0; })},
      {"logical_not", of_unary_to_bool([](double v) { return v == 0 ? 1.0 : 0.0; })},
      {"add", of_binary([](double a, double b) { return a + b; })},
      {"sub", of_binary([](double a, double b) { return a - b; })},
      {"mul", of_binary([](double a, double b) { return a * b; })},
      {"div", of_binary([](double a, double b) { return a / b; })},
      {"mul_or_zero", of_binary([](double a, double b) { return a == 0 || b == 0 ? 0.0 : a * b; })},
      {"div_or_zero",
       of_binary([](double a, double b) { return a == 0 || std::isinf(b) ? 0.0 : a / b; })},
      {"floor_div", of_binary(floor_div)},
      {"mod", of_binary([](double a, double b) { return a - floor_div(a, b) * b; })},
      {"pow", of_binary([](double a, double b) { return std::pow(a, b); })},
      {"maximum", of_binary([](double a, double b) { return std::fmax(a, b); })},
      {"minimum", of_binary([](double a, double b) { return std::fmin(a, b); })},
      {"equal", of_binary_to_bool([](double a, double b) { return a == b ? 1.0 : 0.0; })},
      {"not_equal", of_binary_to_bool([](double a, double b) { return a != b ? 1.0 : 0.0; })},
      {"less", of_binary_to_bool([](double a, double b) { return a < b ? 1.0 : 0.0; })},
      {"less_equal", of_binary_to_bool([](double a, double b) { return a <= b ? 1.0 : 0.0; })},
      {"greater", of_binary_to_bool([](double a, double b) { return a > b ? 1.0 : 0.0; })},
      {"greater_equal", of_binary_to_bool([](double a, double b) { return a >= b ? 1.0 : 0.0; })},
      {"logical_and", of_binary_to_bool([](double a, double b) { return a * b != 0 ? 1.0 : 0.0; })},
      {"logical_or", of_binary_to_bool([](double a, double b) { return a + b != 0 ? 1.0 : 0.0; })},
      {"cast", [](const OpCase& row, absl::Span<const Dense> x) { return cast(row, x[0]); }},
      {"clip",
       [](const OpCase& row, absl::Span<const Dense> x) {
         return make(x[0].dtype, x[0].shape, [&](const Index& i) {
           return std::min(std::max(at(x[0], i), row.real("low")), row.real("high"));
         });
       }},
      {"select",
       [](const OpCase&, absl::Span<const Dense> x) {
         const Shape shape = broadcast_shape(x[0].shape, broadcast_shape(x[1].shape, x[2].shape));
         return make(x[1].dtype, shape, [&](const Index& i) {
           return at_broadcast(x[0], i) != 0 ? at_broadcast(x[1], i) : at_broadcast(x[2], i);
         });
       }},
  };
}

std::map<std::string, Oracle> reductions() {
  return {
      {"sum", of_reduction(sum_of)},
      {"mean", of_reduction(mean_of)},
      {"prod", of_reduction(product_of)},
      {"max", of_reduction(largest_of)},
      {"min", of_reduction(smallest_of)},
      {"all", of_reduction(all_of)},
      {"any", of_reduction(any_of)},
      {"var", of_reduction(variance_of)},
      {"norm", of_reduction(norm_of)},
      {"logsumexp", of_reduction(logsumexp_of)},
      {"argmax",
       [](const OpCase& row, absl::Span<const Dense> x) { return arg_best(row, x[0], true); }},
      {"argmin",
       [](const OpCase& row, absl::Span<const Dense> x) { return arg_best(row, x[0], false); }},
      {"cumsum", [](const OpCase& row, absl::Span<const Dense> x) { return cumsum(row, x[0]); }},
      {"sort", [](const OpCase& row, absl::Span<const Dense> x) { return sort(row, x[0]); }},
      {"top_k", [](const OpCase& row, absl::Span<const Dense> x) { return top_k(row, x[0]); }},
  };
}

}  // namespace oracle

StatusOr<Dense> dense_operand(const OpOperand& operand) {
  Dense dense = {operand.dtype, operand.shape, {}};
  for (int64_t i = 0; i < num_elements(operand.shape); ++i) {
    TESSERA_ASSIGN_OR_RETURN(double value, formula_at(operand.formula, i));
    if (operand.dtype == DType::kBool) value = value != 0 ? 1 : 0;
    dense.data.push_back(value);
  }
  return dense;
}

const std::map<std::string, Oracle>& op_oracle() {
  static const auto* const all = [] {
    auto* table = new std::map<std::string, Oracle>(oracle::pointwise());
    table->merge(oracle::reductions());
    table->merge(oracle::movements());
    table->merge(oracle::functions());
    table->merge(oracle::products());
    table->merge(oracle::networks());
    return table;
  }();
  return *all;
}

}  // namespace tessera::testing
