// SPDX-License-Identifier: Apache-2.0
//
// What holds for every operation: names, samples, rules, and refusals of calls by text.
#include <cstdint>
#include <iterator>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "compute/pointwise_ops.h"
#include "dtensor/dtensor.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ops/all_operations.h"
#include "ops/attributes.h"
#include "ops/operand_type.h"
#include "ops/operation.h"
#include "ops/out.h"
#include "ops/pointwise.h"
#include "ops/scalar.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

using ops::Operation;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The operations that users call.
class EveryOperationTest : public ::testing::TestWithParam<const Operation*> {
 protected:
  const Operation& operation() const { return *GetParam(); }
  std::vector<ops::OperandType> types() const {
    std::vector<ops::OperandType> types;
    for (const ops::SampleOperand& operand : operands_) {
      types.emplace_back(operand.dtype, operand.shape);
    }
    return types;
  }
  StatusOr<ops::OpPlan> plan_with(const std::vector<ops::OperandType>& types,
                                  const std::string& attributes) const {
    TESSERA_ASSIGN_OR_RETURN(const ops::AttributeTexts texts, ops::parse_attributes(attributes));
    return ops::plan_operation(operation().name, types, texts);
  }

  const std::vector<ops::SampleOperand> operands_ = ops::sample_operands(operation());
};

INSTANTIATE_TEST_SUITE_P(Operations, EveryOperationTest,
                         ::testing::ValuesIn(ops::called_operations()),
                         [](const auto& info) { return std::string(info.param->name); });

// Clients that have to agree compare names.
TEST(AllOperationsTest, HaveNamesOfTheirOwn) {
  std::set<std::string> names;
  for (const Operation* const each : ops::all_operations()) {
    EXPECT_TRUE(names.insert(each->name).second) << each->name;
    EXPECT_LE(each->arity.least, each->arity.most) << each->name;
  }
  EXPECT_GT(names.size(), 90);
}

TEST_P(EveryOperationTest, HasASampleThatItTakes) {
  const auto count = static_cast<int>(operands_.size());
  EXPECT_GE(count, operation().arity.least);
  EXPECT_LE(count, operation().arity.most);
  const StatusOr<ops::AttributeTexts> texts =
      ops::parse_attributes(ops::sample_attributes(operation()));
  ASSERT_THAT(texts, IsOk());
  const StatusOr<ops::Attributes> attributes =
      ops::read_attributes(operation().name, operation().attributes, *texts);
  ASSERT_THAT(attributes, IsOk());
  EXPECT_TRUE(attributes->are_comparable());
  EXPECT_EQ(*attributes, *ops::read_attributes(operation().name, operation().attributes, *texts));
}

TEST_P(EveryOperationTest, HasAPlanWhoseRuleFitsTheSample) {
  if (operation().plan == nullptr) {
    ASSERT_NE(operation().parts, nullptr);
    EXPECT_STRNE(operation().made_of, "");
    EXPECT_THAT(ops::plan_sample(operation()),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("made of ", operation().made_of))));
    return;
  }
  const StatusOr<ops::OpPlan> plan = ops::plan_sample(operation());
  ASSERT_THAT(plan, IsOk());
  std::vector<Shape> shapes;
  for (const ops::SampleOperand& operand : operands_) shapes.push_back(operand.shape);
  EXPECT_THAT(plan->rule.validate(shapes, plan->shape), IsOk());
  EXPECT_NE(plan->kernel, nullptr);
  // A plan depends on types and attributes alone.
  EXPECT_EQ(plan->rule.to_string(), ops::plan_sample(operation())->rule.to_string());
}

TEST_P(EveryOperationTest, NamesItselfWhereACallIsRefused) {
  if (operation().plan == nullptr) return;
  const std::string attributes = ops::sample_attributes(operation());
  const auto refused = [&](const char* text) {
    return StatusIs(absl::StatusCode::kInvalidArgument,
                    AllOf(StartsWith(absl::StrCat(operation().name, ": ")), HasSubstr(text)));
  };
  EXPECT_THAT(plan_with({}, attributes), refused("not 0"));
  if (operation().arity.most != ops::Arity::kMany) {
    const std::vector<ops::OperandType> many(operation().arity.most + 1, types()[0]);
    EXPECT_THAT(plan_with(many, attributes), refused("takes "));
  }
  EXPECT_THAT(plan_with(types(), absl::StrCat(attributes, "; colour=red")),
              refused("has no attribute \"colour\""));
  for (const ops::AttributeSpec& spec : operation().attributes) {
    if (spec.otherwise != nullptr) continue;
    EXPECT_THAT(plan_with(types(), ""), refused("is missing; give one, as in "));
    break;
  }
}

// ops/pointwise.h declares, in words, a function for each row of the list that kernels are made of.
#define TESSERA_FUNCTION_1_(name) static_cast<Unary>(&ops::name),
#define TESSERA_FUNCTION_2_(name)                                        \
  static_cast<Binary>(&ops::name), static_cast<ScalarRight>(&ops::name), \
      static_cast<ScalarLeft>(&ops::name),
#define TESSERA_FUNCTION_(name, operands, dtypes, family) TESSERA_FUNCTION_##operands##_(name)
TEST(PointwiseTest, HasAFunctionOfEachRow) {
  using ops::Out;
  using ops::Scalar;
  using Unary = DTensor (*)(const DTensor&, const Out&);
  using Binary = DTensor (*)(const DTensor&, const DTensor&, const Out&);
  using ScalarRight = DTensor (*)(const DTensor&, const Scalar&, const Out&);
  using ScalarLeft = DTensor (*)(const Scalar&, const DTensor&, const Out&);
  const std::variant<Unary, Binary, ScalarRight, ScalarLeft> kFunctions[] = {
      TESSERA_POINTWISE_OPS_(TESSERA_FUNCTION_)};
  EXPECT_GT(std::size(kFunctions), 80);
}

// ---- Attributes

constexpr ops::AttributeSpec kSpecs[] = {
    {"count", ops::AttributeKind::kInt, "2"},
    {"rate", ops::AttributeKind::kReal, "0.5", "0.25"},
    {"keep", ops::AttributeKind::kFlag, "", ""},
    {"dtype", ops::AttributeKind::kDType, "bf16", "f32"},
    {"sizes", ops::AttributeKind::kInts, "[1, 2]", "", 2},
    {"value", ops::AttributeKind::kScalar, "3", "1.5"},
    {"side", ops::AttributeKind::kText, "left", "right"},
};

StatusOr<ops::Attributes> read(const std::string& text) {
  TESSERA_ASSIGN_OR_RETURN(const ops::AttributeTexts texts, ops::parse_attributes(text));
  return ops::read_attributes("op", kSpecs, texts);
}

TEST(AttributesTest, HaveTheirDefaultsWhereATextGivesNone) {
  const StatusOr<ops::Attributes> attributes = read("count=7");
  ASSERT_THAT(attributes, IsOk());
  EXPECT_EQ(attributes->integer("count"), 7);
  EXPECT_EQ(attributes->real("rate"), 0.25);
  EXPECT_FALSE(attributes->flag("keep"));
  EXPECT_EQ(attributes->dtype("dtype"), DType::kFloat32);
  EXPECT_FALSE(attributes->has("sizes"));
  EXPECT_EQ(attributes->text("side"), "right");
  EXPECT_EQ(attributes->to_string(),
            "count=7; rate=0.25; keep=false; dtype=f32; value=1.5; side=right");
}

TEST(AttributesTest, ReadEveryKind) {
  const StatusOr<ops::Attributes> attributes =
      read("count=-1; rate=2; keep; dtype=i64; sizes=[3, 4]; value=9; side=left");
  ASSERT_THAT(attributes, IsOk());
  EXPECT_EQ(attributes->to_string(),
            "count=-1; rate=2; keep=true; dtype=i64; sizes=[3, 4]; value=9; side=left");
  // Members of a fetch agree by this text.
  EXPECT_THAT(read("count=1; value=0.1234567")->to_string(), HasSubstr("value=0.1234567;"));
}

struct RefusedText {
  const char* text;
  const char* message;
};
constexpr RefusedText kRefusedTexts[] = {
    {"", "op: attribute count is missing; give one, as in count=2"},
    {"count=x", "attribute count=x is not a whole number"},
    {"count=1; rate=fast", "attribute rate=fast is not a number"},
    {"count=1; keep=perhaps", "attribute keep=perhaps is neither true nor false"},
    {"count=1; dtype=f23", "attribute dtype=f23 is none of \"bool\""},
    {"count=1; sizes=[a]", "attribute sizes=[a] is not a list of whole numbers, as [0, 2]"},
    {"count=1; sizes=[1]", "attribute sizes=[1] has 1 numbers, not 2"},
    {"count=1; value=v", "attribute value=v is not a number"},
    {"count=1; =2", "attribute \"=2\" has no name; give one, as in dim=0"},
    {"count=1; count=2", "attribute count is given twice"},
    {"count=1; sides=left", "op: has no attribute \"sides\"; it has \"count\""},
};

TEST(AttributesTest, RefuseTextsThatAreNoValues) {
  for (const RefusedText& row : kRefusedTexts) {
    EXPECT_THAT(read(row.text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(row.message)))
        << row.text;
  }
}

// A decision about one call must not be used for another.
TEST(AttributesTest, AreEqualWhereTheirBitsAre) {
  const auto rate = [](double value) { return ops::Attributes({&kSpecs[1], 1}, {value}); };
  EXPECT_EQ(rate(0.5), rate(0.5));
  EXPECT_FALSE(rate(0.0) == rate(-0.0));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(rate(nan), rate(nan));
  const auto value = [](const ops::Scalar& scalar) {
    return ops::Attributes({&kSpecs[5], 1}, {scalar});
  };
  EXPECT_FALSE(value(1) == value(1.0));
  const auto sizes = [](std::vector<int64_t> list) {
    return ops::Attributes({&kSpecs[4], 1}, {std::move(list)});
  };
  EXPECT_FALSE(sizes({1, 2}) == sizes({2, 1}));
}

}  // namespace
}  // namespace tessera::testing
