// SPDX-License-Identifier: Apache-2.0
//
// Gradients at the edges of functions: situations that users reported, with the values that are
// right.
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/shape.h"
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
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

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
  // NaN is ignored by maximum, so that the other operand is what it gives.
  const DTensor nans = make<double>({kNaN, kNaN, 7, 1}, {4}, "[x]");
  EXPECT_THAT(gradient_of<double>(x, [&](const DTensor& a) { return ops::maximum(a, nans); }),
              ElementsAre(1, 1, 0, 1));
}

}  // namespace
}  // namespace tessera::testing
