// SPDX-License-Identifier: Apache-2.0
//
// Gradients at the edges of functions: at 0, -0, 1 and -1, at their bounds and infinities, at equal
// elements, and at elements that a program does not use. Every differentiable operation of
// small_ops.h, with random layouts of its operands, up to the third derivative:
//
//   finite    operands of edges: where the value is finite, no derivative is NaN, and the first
//             one equals the derivative for whole operands
//   infinite  also with infinities, for elementwise operations, where the value is a number
//   unused    elements of the result that select() does not take: all derivatives are 0, whatever
//             the operands are
//   steep     an infinite cotangent, of elementwise operations: the gradient is no NaN
//
// $TESSERA_OPS_SAMPLES says how often each row is tried: 2, and 1 under sanitizers. Then situations
// that users reported, with the values that are right.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "ops/nn.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/tape.h"
#include "tests/support/forked.h"
#include "tests/support/matchers.h"
#include "tests/support/ops/cases.h"
#include "tests/support/ops/every_layout.h"
#include "tests/support/ops/small_ops.h"
#include "tests/support/ops/table.h"
#include "tests/support/sanitizers.h"
#include "tests/support/seed.h"

namespace tessera::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr const char* kMeshes[] = {"{x=1}", "{x=2}", "{x=3}", "{x=4, y=2}"};
// -2 and 3 are the bounds of clip.
constexpr double kEdges[] = {0, -0.0, 1, -1, 2, -2, 3, 0.5};

int samples() {
  const char* text = std::getenv("TESSERA_OPS_SAMPLES");
  int count = 0;
  if (text != nullptr && absl::SimpleAtoi(text, &count)) return count;
  return kSanitized ? 1 : 2;
}

const std::set<std::string>& elementwise_ops() {
  static const auto* const ops = new std::set<std::string>{
      "neg",         "abs",   "square",     "relu",    "exp",     "expm1", "log",         "log1p",
      "sqrt",        "rsqrt", "reciprocal", "sin",     "cos",     "tanh",  "sigmoid",     "gelu",
      "silu",        "erf",   "softplus",   "add",     "sub",     "mul",   "mul_or_zero", "div",
      "div_or_zero", "mod",   "pow",        "maximum", "minimum", "clip",  "select",      "cast"};
  return *ops;
}

// The values of operands; the f64 operands are sources.
using Values = std::vector<std::vector<double>>;
// By order of the derivative and source.
using Derivatives = std::vector<Values>;

enum class Use { kAll, kHalf, kSteep };

class Edges {
 public:
  Edges(const Client& client, std::mt19937_64& random) : client_(client), random_(random) {}

  // Empty where the row has no gradient.
  StatusOr<std::string> check(const OpCase& row) {
    std::string failures;
    const bool is_elementwise = elementwise_ops().count(row.op) != 0;
    const auto note = [&](const char* what, const Status& status) {
      if (!status.ok()) absl::StrAppend(&failures, row.id, " ", what, ": ", status.message(), "\n");
    };
    note("finite", check_numbers(row, false));
    if (is_elementwise && has_one_shape(row)) {
      note("infinite", check_numbers(row, true));
      note("unused", check_unused(row));
      note("steep", check_steep(row));
    }
    return failures;
  }
  int num_derivatives() const { return num_derivatives_; }

 private:
  static bool has_one_shape(const OpCase& row) {
    for (const OpOperand& each : row.operands) {
      if (each.shape != row.operands[0].shape) return false;
    }
    return true;
  }

  StatusOr<Mesh> mesh(const std::string& text) {
    const auto known = meshes_.find(text);
    if (known != meshes_.end()) return known->second;
    TESSERA_ASSIGN_OR_RETURN(const Mesh parsed, Mesh::parse(text));
    std::vector<MeshAxis> axes(parsed.axes().begin(), parsed.axes().end());
    std::vector<int> devices(parsed.size());
    for (size_t i = 0; i < devices.size(); ++i) devices[i] = static_cast<int>(i);
    TESSERA_ASSIGN_OR_RETURN(const Mesh made, create_mesh(client_, axes, devices));
    meshes_.emplace(text, made);
    return made;
  }

  // Edges, or the same one everywhere.
  std::vector<double> edges(int64_t count, bool has_infinities) {
    std::vector<double> choices(std::begin(kEdges), std::end(kEdges));
    if (has_infinities) choices.insert(choices.end(), {kInf, -kInf, 1e300, -1e300, 1e-320});
    const bool is_equal = !has_infinities && random_() % 3 == 0;
    double value = choices[random_() % choices.size()];
    std::vector<double> values;
    for (int64_t i = 0; i < count; ++i) {
      if (!is_equal) value = choices[random_() % choices.size()];
      values.push_back(value);
    }
    return values;
  }
  StatusOr<Values> operands_of(const OpCase& row, bool has_infinities) {
    Values values;
    for (const OpOperand& operand : row.operands) {
      const int64_t count = num_elements(operand.shape);
      if (operand.dtype == DType::kFloat64) {
        values.push_back(edges(count, has_infinities));
        continue;
      }
      std::vector<double>& of = values.emplace_back();
      for (int64_t i = 0; i < count; ++i) {
        TESSERA_ASSIGN_OR_RETURN(const double value, formula_at(operand.formula, i));
        of.push_back(value);
      }
    }
    return values;
  }

  // The value, then the derivatives of order 1 to 3 by the sources of what `use` makes of it.
  StatusOr<Derivatives> derivatives(const OpCase& row, const Values& values, const Mesh& on,
                                    bool is_split, Use use, int order) {
    Tape tape;
    std::vector<DTensor> operands;
    std::vector<DTensor> sources;
    for (size_t i = 0; i < values.size(); ++i) {
      const OpOperand& operand = row.operands[i];
      const std::vector<Layout> all =
          every_layout(on, static_cast<int>(operand.shape.size()), operand.dtype);
      const Layout layout = is_split
                                ? all[random_() % all.size()]
                                : *Layout::replicated(on, static_cast<int>(operand.shape.size()));
      // A term of a partial layout is an edge, too.
      const DTensor made = ops::cast(
          from_host<double>(values[i], operand.shape, layout.without_partial()), operand.dtype);
      const bool is_source = operand.dtype == DType::kFloat64;
      operands.push_back(is_source ? tape.watch(made) : made);
      if (is_source) sources.push_back(operands.back());
    }
    const DTensor result = run_row(row, operands, {});
    TESSERA_RETURN_IF_ERROR(result.status());
    Derivatives found(1);
    if (result.dtype() != DType::kFloat64) return found;
    TESSERA_ASSIGN_OR_RETURN(found[0].emplace_back(), host(result));
    DTensor used = result;
    if (use == Use::kHalf) {
      const DTensor numbers = iota<int64_t>(result.shape(), result.layout().without_partial());
      const DTensor is_even = ops::equal(ops::mod(numbers, 2), 0);
      used = ops::select(is_even, result,
                         zeros<double>(result.shape(), result.layout().without_partial()));
    }
    if (use == Use::kSteep) used = ops::mul(used, kInf);
    DTensor target = ops::sum(used);
    for (int k = 1; k <= order; ++k) {
      const std::vector<DTensor> gradients = tape.gradient(target, sources, {.keep = true});
      Values& of = found.emplace_back();
      for (const DTensor& each : gradients) {
        TESSERA_RETURN_IF_ERROR(each.status());
        TESSERA_ASSIGN_OR_RETURN(of.emplace_back(), host(each));
        num_derivatives_ += static_cast<int>(of.back().size());
      }
      // By one source alone: infinite derivatives by several may have two signs.
      target = ops::sum(gradients[random_() % gradients.size()]);
    }
    return found;
  }
  static StatusOr<std::vector<double>> host(const DTensor& tensor) {
    TESSERA_ASSIGN_OR_RETURN(HostTensor<double> host, tensor.to_host<double>());
    return std::move(host.data);
  }

  static std::string describe(const Values& values) {
    std::vector<std::string> texts;
    for (const std::vector<double>& each : values) texts.push_back(absl::StrJoin(each, " "));
    return absl::StrJoin(texts, "; ");
  }

  Status check_numbers(const OpCase& row, bool has_infinities) {
    TESSERA_ASSIGN_OR_RETURN(const Mesh on, mesh(kMeshes[random_() % std::size(kMeshes)]));
    TESSERA_ASSIGN_OR_RETURN(const Values values, operands_of(row, has_infinities));
    TESSERA_ASSIGN_OR_RETURN(const Derivatives split,
                             derivatives(row, values, on, true, Use::kAll, 3));
    TESSERA_ASSIGN_OR_RETURN(const Derivatives whole,
                             derivatives(row, values, on, false, Use::kAll, 1));
    if (split.size() == 1) return absl::OkStatus();  // a result of integers
    const std::vector<double>& value = split[0][0];
    bool is_finite = true;
    for (const double each : value) is_finite &= std::isfinite(each);
    // Elements of elementwise operations stand by themselves. With broadcast operands, infinite
    // derivatives are added up, which may have two signs.
    const bool is_elementwise = elementwise_ops().count(row.op) != 0;
    const bool by_element = is_elementwise && has_one_shape(row);
    if (!is_finite && !by_element) return absl::OkStatus();
    const size_t num_orders = is_elementwise && !by_element ? 2 : split.size();
    for (size_t order = 1; order < num_orders; ++order) {
      for (size_t s = 0; s < split[order].size(); ++s) {
        for (size_t i = 0; i < split[order][s].size(); ++i) {
          if (by_element && std::isnan(value[i])) continue;
          const double got = split[order][s][i];
          TESSERA_REQUIRE(!std::isnan(got), "derivative ", order, " by source ", s, ", element ", i,
                          " is NaN at ", describe(values));
          if (order > 1) continue;
          const double expected = whole[1][s][i];
          TESSERA_REQUIRE(got == expected ||
                              std::abs(got - expected) <= 1e-9 * std::max(1.0, std::abs(expected)),
                          "the gradient by source ", s, ", element ", i, " is ", got, ", whole ",
                          expected, " at ", describe(values));
        }
      }
    }
    return absl::OkStatus();
  }

  Status check_unused(const OpCase& row) {
    TESSERA_ASSIGN_OR_RETURN(const Mesh on, mesh(kMeshes[random_() % std::size(kMeshes)]));
    TESSERA_ASSIGN_OR_RETURN(const Values values, operands_of(row, true));
    TESSERA_ASSIGN_OR_RETURN(const Derivatives found,
                             derivatives(row, values, on, true, Use::kHalf, 3));
    for (size_t order = 1; order < found.size(); ++order) {
      for (const std::vector<double>& each : found[order]) {
        for (size_t i = 1; i < each.size(); i += 2) {
          TESSERA_REQUIRE(each[i] == 0, "derivative ", order, ", element ", i, " is ", each[i],
                          " at ", describe(values));
        }
      }
    }
    return absl::OkStatus();
  }

  Status check_steep(const OpCase& row) {
    TESSERA_ASSIGN_OR_RETURN(const Mesh on, mesh(kMeshes[random_() % std::size(kMeshes)]));
    TESSERA_ASSIGN_OR_RETURN(const Values values, operands_of(row, false));
    TESSERA_ASSIGN_OR_RETURN(const Derivatives found,
                             derivatives(row, values, on, true, Use::kSteep, 1));
    for (const std::vector<double>& each : found[1]) {
      for (size_t i = 0; i < each.size(); ++i) {
        if (std::isnan(found[0][0][i])) continue;
        TESSERA_REQUIRE(!std::isnan(each[i]), "element ", i, " is NaN at ", describe(values));
      }
    }
    return absl::OkStatus();
  }

  const Client& client_;
  std::mt19937_64& random_;
  std::map<std::string, Mesh> meshes_;
  int num_derivatives_ = 0;
};

bool has_gradient(const OpCase& row) {
  if (row.op == "elementwise" || row.op == "local_map") return false;
  static const std::set<std::string> kWithout = {"argmax",     "argmin",  "one_hot",      "top_k.1",
                                                 "is_nan",     "equal",   "not_equal",    "less",
                                                 "less_equal", "greater", "greater_equal"};
  if (kWithout.count(row.op) != 0) return false;
  if (row.op == "cast" && row.dtype != DType::kFloat64) return false;
  for (const OpOperand& each : row.operands) {
    if (each.dtype == DType::kFloat64) return true;
  }
  return false;
}

TEST(OpsEdgesTest, NoDerivativeIsNaNWhereThereIsOne) {
  std::mt19937_64 random(test_seed());
  TESSERA_ASSERT_OK_AND_ASSIGN(Client client, Client::connect({.num_local_devices = 8}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<OpCase> rows, small_op_cases());
  Edges edges(client, random);
  std::string failures;
  int num_rows = 0;
  for (const OpCase& row : rows) {
    if (!has_gradient(row)) continue;
    ++num_rows;
    for (int k = 0; k < samples(); ++k) {
      TESSERA_ASSERT_OK_AND_ASSIGN(const std::string found, edges.check(row));
      absl::StrAppend(&failures, found);
    }
  }
  std::cout << edges.num_derivatives() << " derivatives of " << num_rows << " rows\n";
  EXPECT_GT(num_rows, 100);
  EXPECT_EQ(failures, "");
}

// ---- Situations that users reported

class ReportedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TESSERA_ASSERT_OK_AND_ASSIGN(Client client, Client::connect({.num_local_devices = 4}));
    TESSERA_ASSERT_OK_AND_ASSIGN(mesh_, create_mesh(client, {{"x", 4}}));
  }

  template <class T>
  DTensor make(const std::vector<T>& values, const Shape& shape, const char* layout) const {
    return from_host<T>(values, shape, Layout::parse(*mesh_, layout));
  }
  // The gradient of fn(x).
  template <class T, class Fn>
  static std::vector<T> gradient_of(const DTensor& x, Fn fn) {
    Tape tape;
    const DTensor watched = tape.watch(x);
    const StatusOr<HostTensor<T>> host =
        tape.gradient(ops::sum(fn(watched)), {watched})[0].template to_host<T>();
    EXPECT_THAT(host.status(), IsOk());
    return host.ok() ? host->data : std::vector<T>();
  }

  std::optional<Mesh> mesh_;
};

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::NanSensitiveDoubleEq;

TEST_F(ReportedTest, ZeroToThePowerOfX) {  // pytorch#27134
  const DTensor exponents = make<double>({2, 1, 0, 0.5}, {4}, "[x]");
  EXPECT_THAT(gradient_of<double>(exponents, [](const DTensor& x) { return ops::pow(0.0, x); }),
              ElementsAre(0, 0, 0, 0));
  const DTensor bases = make<double>({0, 0, 0, 0}, {4}, "[-]");
  EXPECT_THAT(gradient_of<double>(exponents, [&](const DTensor& x) { return ops::pow(bases, x); }),
              ElementsAre(0, 0, 0, 0));
  // By the base: b a^(b - 1).
  EXPECT_THAT(gradient_of<double>(bases, [&](const DTensor& a) { return ops::pow(a, exponents); }),
              ElementsAre(0, 1, 0, kInf));
  EXPECT_THAT(gradient_of<double>(bases, [](const DTensor& a) { return ops::pow(a, 0); }),
              ElementsAre(0, 0, 0, 0));
}

TEST_F(ReportedTest, NormAtZero) {  // pytorch#2421
  EXPECT_THAT(gradient_of<float>(make<float>({0, 0, 0}, {3}, "[x]"),
                                 [](const DTensor& x) { return ops::norm(x); }),
              ElementsAre(0, 0, 0));
  const std::vector<float> of_rows =
      gradient_of<float>(make<float>({0, 0, 0, 3, 4, 0}, {2, 3}, "[-, x]"),
                         [](const DTensor& x) { return ops::norm(x, {1}); });
  EXPECT_THAT(of_rows, ElementsAre(0, 0, 0, FloatNear(0.6F, 1e-6F), FloatNear(0.8F, 1e-6F), 0));
}

TEST_F(ReportedTest, ProductsOutOfRange) {  // burn#5533
  const float inf = std::numeric_limits<float>::infinity();
  const auto product = [](const DTensor& x) { return ops::prod(x); };
  for (const char* layout : {"[-]", "[x]"}) {
    EXPECT_THAT(gradient_of<float>(make<float>({1e20F, 1e20F, 0, 2}, {4}, layout), product),
                ElementsAre(0, 0, inf, 0));
    EXPECT_THAT(
        gradient_of<float>(make<float>({1e30F, 1e30F, 1e-30F, 1e-30F}, {4}, layout), product),
        ElementsAre(1e-30F, 1e-30F, 1e30F, 1e30F));
    EXPECT_THAT(gradient_of<float>(make<float>({inf, 2}, {2}, layout), product),
                ElementsAre(2, inf));
  }
}

// Second and third derivatives of a product, also by elements that are 0.
TEST_F(ReportedTest, HigherDerivativesOfProducts) {
  for (const char* layout : {"[-]", "[x]"}) {
    Tape tape;
    const DTensor x = tape.watch(make<double>({0, 0, 3, 5}, {4}, layout));
    const DTensor weights = make<double>({1, 10, 100, 1000}, {4}, "[-]");
    const GradientOptions keep = {.keep = true};
    const DTensor first = tape.gradient(ops::prod(x), {x}, keep)[0];
    const DTensor second = tape.gradient(ops::sum(first * weights), {x}, keep)[0];
    const DTensor third = tape.gradient(ops::sum(second), {x}, keep)[0];
    TESSERA_ASSERT_OK_AND_ASSIGN(const HostTensor<double> a, first.to_host<double>());
    TESSERA_ASSERT_OK_AND_ASSIGN(const HostTensor<double> b, second.to_host<double>());
    TESSERA_ASSERT_OK_AND_ASSIGN(const HostTensor<double> c, third.to_host<double>());
    EXPECT_THAT(a.data, ElementsAre(0, 0, 0, 0));
    // The sum over i of w_i times the product of all elements but i and k.
    EXPECT_THAT(b.data, ElementsAre(10 * 15, 1 * 15, 0, 0));
    // The sum over i and k of w_i times the product of all but i, k and m.
    EXPECT_THAT(c.data, ElementsAre(10 * 8 + 100 * 5 + 1000 * 3, 1 * 8 + 100 * 5 + 1000 * 3, 11 * 5,
                                    11 * 3));
  }
}

TEST_F(ReportedTest, AttentionOfQueriesBeforeTheFirstKey) {  // pytorch#41508
  for (const char* layout : {"[-, -, -, -]", "[-, -, x, -]"}) {
    Tape tape;
    const DTensor q = tape.watch(make<float>({1, 2, 3}, {1, 1, 3, 1}, layout));
    const DTensor k = tape.watch(make<float>({1, 2}, {1, 1, 2, 1}, "[-, -, -, -]"));
    const DTensor v = tape.watch(make<float>({10, 20}, {1, 1, 2, 1}, "[-, -, -, -]"));
    const DTensor y = ops::attention(q, k, v, {.causal = true});
    TESSERA_ASSERT_OK_AND_ASSIGN(const HostTensor<float> value, y.to_host<float>());
    EXPECT_THAT(value.data, ElementsAre(0, FloatNear(10, 1e-4F), FloatNear(19.5257F, 1e-4F)));
    const std::vector<DTensor> gradients = tape.gradient(ops::sum(y), {q, k, v});
    for (const DTensor& each : gradients) {
      TESSERA_ASSERT_OK_AND_ASSIGN(const HostTensor<float> host, each.to_host<float>());
      for (const float element : host.data) EXPECT_TRUE(std::isfinite(element));
    }
    TESSERA_ASSERT_OK_AND_ASSIGN(const HostTensor<float> by_v, gradients[2].to_host<float>());
    EXPECT_THAT(by_v.data, ElementsAre(FloatNear(1.0474F, 1e-4F), FloatNear(0.9526F, 1e-4F)));
    TESSERA_ASSERT_OK_AND_ASSIGN(const HostTensor<float> by_q, gradients[0].to_host<float>());
    EXPECT_EQ(by_q.data[0], 0);
  }
}

TEST_F(ReportedTest, PoolsOverPaddingAlone) {  // FastNN#5
  const DTensor x = make<float>({1}, {1, 1, 1, 1}, "[-, -, -, -]");
  const ops::Pool2dOptions options = {
      .window = {1, 3}, .strides = {1, 3}, .padding = {{{0, 0}, {3, 2}}}};
  for (const auto& [name, y] :
       std::map<std::string, DTensor>{{"avg_pool2d", ops::avg_pool2d(x, options)},
                                      {"max_pool2d", ops::max_pool2d(x, options)}}) {
    EXPECT_THAT(
        y.status(),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 absl::StrCat(name,
                              ": window 0 along dim 2 has padding alone: windows of 3, "
                              "stride 3, padding 3 and 2, over 1 elements; pad by less than "
                              "the window")));
  }
}

// An infinite cotangent, or an infinite element, reaches no branch that was not taken.
TEST_F(ReportedTest, InfinitiesStayInTheBranchThatWasTaken) {
  const DTensor x = make<double>({-1, 2, 0, 5}, {4}, "[x]");
  const DTensor is_positive = ops::greater(x, 0);
  const auto times_infinity = [](const DTensor& y) { return ops::mul(y, kInf); };
  EXPECT_THAT(
      gradient_of<double>(x, [&](const DTensor& a) { return times_infinity(ops::relu(a)); }),
      ElementsAre(0, kInf, 0, kInf));
  EXPECT_THAT(
      gradient_of<double>(x, [&](const DTensor& a) { return times_infinity(ops::clip(a, 0, 3)); }),
      ElementsAre(0, kInf, kInf, 0));
  EXPECT_THAT(
      gradient_of<double>(
          x, [&](const DTensor& a) { return times_infinity(ops::select(is_positive, a, x)); }),
      ElementsAre(0, kInf, 0, kInf));
  EXPECT_THAT(
      gradient_of<double>(x, [&](const DTensor& a) { return times_infinity(ops::maximum(a, 1)); }),
      ElementsAre(0, kInf, 0, kInf));
  // The logarithm of a number that is not positive is not used.
  EXPECT_THAT(gradient_of<double>(
                  x, [&](const DTensor& a) { return ops::select(is_positive, ops::log(a), a); }),
              ElementsAre(1, 0.5, 1, NanSensitiveDoubleEq(0.2)));
  const DTensor large = make<double>({1000, -kInf, kInf, 1}, {4}, "[x]");
  EXPECT_THAT(gradient_of<double>(large,
                                  [&](const DTensor& a) {
                                    return ops::select(ops::less(large, 10), ops::exp(a), a);
                                  }),
              ElementsAre(1, 0, 1, NanSensitiveDoubleEq(std::exp(1.0))));
  // Numbers that softmax made 0.
  const DTensor steep_first = make<double>({kInf, 3, 1}, {3}, "[-]");
  const DTensor steep_last = make<double>({0, 3, kInf}, {3}, "[-]");
  for (const char* layout : {"[-]", "[x]"}) {
    const DTensor scores = make<double>({-kInf, 0, 0}, {3}, layout);
    const auto softmax = [&](const DTensor& a) { return ops::softmax(a, 0) * steep_first; };
    EXPECT_THAT(gradient_of<double>(scores, softmax), ElementsAre(0, 0.5, -0.5));
    const auto log_softmax = [&](const DTensor& a) { return ops::log_softmax(a, 0) * steep_last; };
    EXPECT_EQ(gradient_of<double>(scores, log_softmax)[0], 0);
  }
  // maximum ignores NaN, so its result is the other operand.
  const DTensor nans = make<double>({kNaN, kNaN, 7, 1}, {4}, "[x]");
  EXPECT_THAT(gradient_of<double>(x, [&](const DTensor& a) { return ops::maximum(a, nans); }),
              ElementsAre(1, 1, 0, 1));
}

}  // namespace
}  // namespace tessera::testing
