// SPDX-License-Identifier: Apache-2.0
//
// Layout inference: the invariants of ops/infer.h, for all layouts of the operands of a matrix
// product on small meshes, against a search that shares no code with it.
#include "ops/infer.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "ops/decision.h"
#include "ops/operation.h"
#include "ops/rule.h"
#include "relayout/plan.h"
#include "tests/support/matchers.h"
#include "tests/support/ops/rule_oracle.h"
#include "tests/support/sanitizers.h"
#include "tests/support/seed.h"
#include "tests/support/tensors.h"

namespace tessera::ops {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

constexpr DType kDType = DType::kFloat32;

// [m, k] [k, n] -> [m, n].
struct Product {
  int64_t m, k, n;

  Rule rule() const {
    Rule rule;
    const int row = rule.add_factor(m);
    const int summed = rule.add_factor(k, FactorKind::kContracted);
    const int column = rule.add_factor(n);
    rule.operands = {{{row}, {summed}}, {{summed}, {column}}};
    rule.result = {{row}, {column}};
    rule.linearity = Linearity::kEach;
    rule.reductions = kSums;
    return rule;
  }
  std::vector<Shape> shapes() const { return {{m, k}, {k, n}}; }
  Shape result() const { return {m, n}; }
};

Layout layout(const char* mesh, const std::string& text) {
  return *Layout::parse(*Mesh::parse(mesh), text);
}

struct AgreedCase {
  const char* mesh;
  const char* a;
  const char* b;
  const char* result;
};

TEST(InferTest, OperandsThatAgreeAreNotMoved) {
  const Product product = {7, 5, 9};
  const std::vector<Shape> shapes = product.shapes();
  const AgreedCase cases[] = {
      {"{x=2, y=2}", "[x, -]", "[-, y]", "[x, y]"},
      {"{x=2, y=2}", "[-, x]", "[x, -]", "[-, -] sum{x}"},
      {"{x=2, y=2}", "[x, y]", "[y, -]", "[x, -] sum{y}"},
      {"{x=2, y=2}", "[-, -] sum{x}", "[-, y]", "[-, y] sum{x}"},
      {"{x=2, y=2}", "[-, y] sum{x}", "[y, -]", "[-, -] sum{x,y}"},
      {"{x=4}", "[x:(1)2, x:(2)2]", "[x:(2)2, -]", "[x:(1)2, -] sum{x:(2)2}"},
  };
  for (const AgreedCase& each : cases) {
    const Layout a = layout(each.mesh, each.a);
    const Layout b = layout(each.mesh, each.b);
    const auto found = infer(product.rule(), {{a, shapes[0], kDType}, {b, shapes[1], kDType}},
                             product.result(), kDType, std::nullopt);
    ASSERT_THAT(found, IsOk()) << each.a << " " << each.b;
    EXPECT_FALSE(found->is_contested) << each.a << " " << each.b;
    EXPECT_EQ(found->result.to_string(), each.result) << each.a << " " << each.b;
    const std::pair<Layout, Shape> from[] = {{a, shapes[0]}, {b, shapes[1]}};
    for (int i = 0; i < 2; ++i) {
      const auto plan = plan_relayout(from[i].first, found->operands[i], from[i].second, kDType);
      ASSERT_THAT(plan, IsOk());
      EXPECT_EQ(plan->max_received_bytes(), 0) << each.a << " " << each.b;
    }
  }
}

// ---- The slow search: all layouts of the operands, by their texts.

// The axes of a dim, "x" or "x,y"; empty where it is not split.
std::string axes(const Layout& layout, int dim) {
  std::string text;
  for (const std::string& axis : layout.dims()[dim]) absl::StrAppend(&text, axis, ",");
  return text;
}

bool begins_with(const std::string& text, const std::string& prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

double seconds(const Layout& from, const Layout& to, const Shape& shape) {
  return absl::ToDoubleSeconds(plan_relayout(from, to, shape, kDType)->predicted_time());
}

// The layout that a pair of layouts makes, or nothing where the kernels cannot use it: m, k and n
// are split by `a` and `b` alike, and no axis has two uses.
std::optional<Layout> product_of(const Layout& a, const Layout& b) {
  if (axes(a, 1) != axes(b, 0)) return std::nullopt;
  std::vector<std::string> used;
  std::vector<std::string> partial;
  const auto use = [&](const DimSharding& list) {
    used.insert(used.end(), list.begin(), list.end());
  };
  use(a.dims()[0]);
  use(a.dims()[1]);
  use(b.dims()[1]);
  partial = a.dims()[1];
  for (const Layout* each : {&a, &b}) {
    for (const MeshAxis& axis : each->mesh().axes()) {
      for (const SubAxis& part : each->partial_axes()) {
        if (each->mesh().axes()[part.axis].name != axis.name) continue;
        used.push_back(axis.name);
        partial.push_back(axis.name);
      }
    }
  }
  std::sort(used.begin(), used.end());
  if (std::adjacent_find(used.begin(), used.end()) != used.end()) return std::nullopt;
  StatusOr<Layout> result = Layout::create(a.mesh(), {a.dims()[0], b.dims()[1]});
  if (result.ok() && !partial.empty()) result = result->with_partial(partial);
  return result.ok() ? std::make_optional(*result) : std::nullopt;
}

// Whether a dim may be split so: as a prefix of a list that an operand wants.
bool is_wanted(const std::string& list, const std::vector<std::string>& wanted) {
  return list.empty() || std::any_of(wanted.begin(), wanted.end(), [&](const std::string& each) {
           return begins_with(each, list);
         });
}

double product_seconds(const Product& size, const Layout& a, const Layout& b,
                       const Layout& result) {
  const auto part = [](int64_t whole, int64_t shards) {
    return static_cast<double>((whole + shards - 1) / shards);
  };
  double arithmetic = size.rule().seconds_per_point;
  arithmetic *= part(size.m, a.num_shards(0));
  arithmetic *= part(size.k, a.num_shards(1));
  arithmetic *= part(size.n, b.num_shards(1));
  if (!result.is_partial()) return arithmetic;
  std::vector<DimSharding> dims = {result.dims()[0], result.dims()[1]};
  for (const SubAxis& axis : result.partial_axes()) {
    dims[0].push_back(result.mesh().axes()[axis.axis].name);
  }
  return arithmetic + seconds(result, *Layout::create(result.mesh(), dims), size.result());
}

TEST(InferTest, NoAssignmentTakesLessTime) {
  const Product product = {6, 4, 5};
  const Rule rule = product.rule();
  const std::vector<Shape> shapes = product.shapes();
  const Mesh mesh = *Mesh::parse("{x=2, y=3}");
  const std::vector<Layout> layouts = testing::all_layouts(mesh, 2, true);
  int num_contested = 0;
  for (const Layout& a : layouts) {
    for (const Layout& b : layouts) {
      const auto found = infer(rule, {{a, shapes[0], kDType}, {b, shapes[1], kDType}},
                               product.result(), kDType, std::nullopt);
      ASSERT_THAT(found, IsOk()) << a << " " << b;
      const auto made = product_of(found->operands[0], found->operands[1]);
      ASSERT_TRUE(made.has_value()) << a << " " << b;
      EXPECT_EQ(found->result, *made) << a << " " << b;
      if (!found->is_contested) continue;
      ++num_contested;
      double least = -1;
      for (const Layout& to_a : layouts) {
        if (to_a.is_partial() && to_a.partial_axes() != a.partial_axes()) continue;
        if (!is_wanted(axes(to_a, 0), {axes(a, 0)})) continue;
        if (!is_wanted(axes(to_a, 1), {axes(a, 1), axes(b, 0)})) continue;
        for (const Layout& to_b : layouts) {
          if (to_b.is_partial() && to_b.partial_axes() != b.partial_axes()) continue;
          if (!is_wanted(axes(to_b, 1), {axes(b, 1)})) continue;
          const auto result = product_of(to_a, to_b);
          if (!result.has_value()) continue;
          const double time = seconds(a, to_a, shapes[0]) + seconds(b, to_b, shapes[1]) +
                              product_seconds(product, to_a, to_b, *result);
          if (least < 0 || time < least) least = time;
        }
      }
      EXPECT_NEAR(absl::ToDoubleSeconds(found->predicted_time), least, 1e-9) << a << " " << b;
    }
  }
  EXPECT_GT(num_contested, 100);
}

// Rules of up to four factors of all kinds and three operands. $TESSERA_INFER_RULES says how many.
TEST(InferTest, RandomRules) {
  std::mt19937_64 random(testing::test_seed());
  const char* text = std::getenv("TESSERA_INFER_RULES");
  int num_rules = testing::kSanitized ? 300 : 3000;
  if (text != nullptr) {
    ASSERT_TRUE(absl::SimpleAtoi(text, &num_rules)) << "TESSERA_INFER_RULES=" << text;
  }
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  int num_contested = 0;
  int64_t num_feasible = 0;
  for (int k = 0; k < num_rules; ++k) {
    // One in four on a mesh with sub-axes, without the search.
    const bool is_searched = below(4) != 0;
    const testing::RuleCase given = testing::make_rule_case(below, is_searched);
    const auto report = testing::check_inference(given, is_searched);
    ASSERT_THAT(report, IsOk()) << given.to_string();
    num_contested += report->is_contested ? 1 : 0;
    num_feasible += report->num_feasible;
  }
  std::cout << num_contested << " of " << num_rules << " contested, " << num_feasible
            << " assignments compared\n";
  EXPECT_GT(num_contested, num_rules / 10);
  EXPECT_LT(num_contested, num_rules * 9 / 10);
}

TEST(InferTest, AskedLayoutDecides) {
  const Product product = {8, 8, 8};
  const std::vector<Shape> shapes = product.shapes();
  const Layout whole = layout("{x=2, y=2}", "[-, -]");
  const Layout out = layout("{x=2, y=2}", "[x, y]");
  const auto found = infer(product.rule(), {{whole, shapes[0], kDType}, {whole, shapes[1], kDType}},
                           product.result(), kDType, out);
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(found->result, out);
  EXPECT_EQ(found->operands[0].to_string(), "[x, -]");
  EXPECT_EQ(found->operands[1].to_string(), "[-, y]");
}

// Halves and thirds of an axis of 6 are no digits of one number: no layout is partial along both.
TEST(InferTest, PartialAxesThatDoNotFitTogether) {
  Rule rule;
  const int row = rule.add_factor(5);
  rule.operands = {{{row}}, {{row}}};
  rule.result = {{row}};
  rule.linearity = Linearity::kJoint;
  rule.reductions = kSums;
  const Layout halves = layout("{x=6}", "[-] sum{x:(1)2}");
  const Layout thirds = layout("{x=6}", "[-] sum{x:(1)3}");
  const Shape shape = {5};
  const auto found =
      infer(rule, {{halves, shape, kDType}, {thirds, shape, kDType}}, shape, kDType, std::nullopt);
  ASSERT_THAT(found, IsOk());
  EXPECT_TRUE(found->is_contested);
  EXPECT_EQ(found->operands[0], found->operands[1]);
  EXPECT_EQ(found->result, found->operands[0]);
}

TEST(InferTest, ManyDevices) {
  const Product product = {65536, 4096, 65536};
  const std::vector<Shape> shapes = product.shapes();
  const Layout a = layout("{data=256, model=256}", "[data, model]");
  const Layout b = layout("{data=256, model=256}", "[data, model]");
  const auto found = infer(product.rule(), {{a, shapes[0], kDType}, {b, shapes[1], kDType}},
                           product.result(), kDType, std::nullopt);
  ASSERT_THAT(found, IsOk());
  EXPECT_TRUE(found->is_contested);
  EXPECT_GT(found->predicted_time, absl::ZeroDuration());
}

// 16 operands on six axes, as of concat(): the dim 0 of each is at its own place of the result.
TEST(InferTest, TheSearchHasALimit) {
  constexpr int kNumOperands = 16;
  const std::vector<std::string> axes = {"a", "b", "c", "d", "e", "f"};
  const auto axis = [&](int number) { return axes[number % axes.size()]; };
  std::vector<Layout> layouts;
  for (int i = 0; i < kNumOperands; ++i) {
    layouts.push_back(layout("{a=2, b=2, c=2, d=2, e=2, f=2}",
                             absl::StrCat("[(", axis(i), ",", axis(i + 1), "), ", axis(i + 3),
                                          ", -, ", axis(i + 5), "]")));
  }
  const Shape shape = {16, 16, 16, 16};
  const Shape result = {16 * kNumOperands, 16, 16, 16};
  Rule rule;
  for (const int64_t size : result) rule.result.push_back({rule.add_factor(size)});
  std::vector<Operand> operands;
  for (int i = 0; i < kNumOperands; ++i) {
    rule.operands.push_back(rule.result);
    rule.moved.push_back({i, 0, {1, -16 * i, -16 * i}});
    operands.push_back({layouts[i], shape, kDType});
  }
  const auto found = infer(rule, operands, result, kDType, std::nullopt);
  ASSERT_THAT(found, IsOk());
  EXPECT_TRUE(found->is_contested);
  EXPECT_TRUE(found->is_limited);
  // Some rounds of changes of one factor come after the limit.
  const int most = most_alternatives(kNumOperands);
  EXPECT_GE(found->num_alternatives, most);
  EXPECT_LE(found->num_alternatives, 3 * most);
  const auto again = infer(rule, operands, result, kDType, std::nullopt);
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(again->result, found->result);
  const OpPlan plan = {rule, kDType, result, nullptr};
  const auto decided = decide_layouts("concat", plan, operands, std::nullopt, {});
  ASSERT_THAT(decided, IsOk());
  EXPECT_THAT(decided->explanation,
              HasSubstr(absl::StrCat("  the best of ", found->num_alternatives,
                                     " assignments of axes that were tried, "
                                     "predicted ")));
}

TEST(RuleTest, Texts) {
  Rule rule = Product{6, 4, 5}.rule();
  EXPECT_EQ(rule.to_string(), "[a, b] [b, c] -> [a, c]; b contracted (sum)");
  rule.moved.push_back({0, 0, {1, -1, 1}});
  rule.factors[2].kind = FactorKind::kWhole;
  EXPECT_EQ(rule.to_string(), "[a, b] [b, c] -> [a, c]; b contracted (sum); a moved; c whole");
}

TEST(RuleTest, MistakesOfAnOperation) {
  const Product product = {6, 4, 5};
  const std::vector<Shape> shapes = product.shapes();
  EXPECT_THAT(product.rule().validate(shapes, product.result()), IsOk());
  const auto internal = [](const char* text) {
    return StatusIs(absl::StatusCode::kInternal, HasSubstr(text));
  };
  EXPECT_THAT(product.rule().validate({shapes[0]}, product.result()), internal("for 1 operands"));
  EXPECT_THAT(product.rule().validate(shapes, {6}), internal("2 dims for shape [6]"));
  EXPECT_THAT(product.rule().validate(shapes, {6, 6}), internal("dim 1 has factors of 5"));
  Rule rule = product.rule();
  rule.moved.push_back({2, 0, {}});
  EXPECT_THAT(rule.validate(shapes, product.result()),
              internal("operand 2 has no dim 0 of one factor that could be moved"));
  rule = product.rule();
  rule.operands[0][1] = {0};
  EXPECT_THAT(rule.validate(shapes, product.result()), internal("factor a twice in [a, a]"));
  rule = product.rule();
  rule.result[0] = {1};
  EXPECT_THAT(rule.validate(shapes, {4, 5}), internal("factor b is contracted and in the result"));
  rule = product.rule();
  rule.result[0] = {rule.add_factor(6)};
  EXPECT_THAT(rule.validate(shapes, product.result()), internal("factor d is in no operand"));
}

}  // namespace
}  // namespace tessera::ops
