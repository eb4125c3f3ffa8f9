// SPDX-License-Identifier: Apache-2.0
#include "ops/all_operations.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/text.h"

namespace tessera::ops {
namespace {

Status check_number(const Operation& operation, size_t count) {
  const auto least = static_cast<size_t>(operation.arity.least);
  const auto most = static_cast<size_t>(operation.arity.most);
  if (count >= least && count <= most) return absl::OkStatus();
  const std::string takes = least == most      ? absl::StrCat(least)
                            : most - least > 1 ? absl::StrCat(least, " and more")
                                               : absl::StrCat(least, " or ", most);
  return refusal(operation.name, "takes ", takes, most == 1 ? " operand" : " operands", ", not ",
                 count);
}

// "f32 [8, 6]".
SampleOperand read_sample(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  const size_t space = text.find(' ');
  const StatusOr<DType> dtype = read_dtype(text.substr(0, space));
  StatusOr<Shape> shape = read_list(text.substr(space));
  TESSERA_CHECK(dtype.ok() && shape.ok(), "a sample is a dtype and a shape");
  return {*dtype, *std::move(shape)};
}

}  // namespace

absl::Span<const Operation* const> all_operations() {
  static const auto* const kOperations = [] {
    auto* const all = new std::vector<const Operation*>;
#define TESSERA_ADD_(name) all->push_back(&name);
#define TESSERA_ADD_ROW_(name, operands, dtypes, family) \
  all->push_back(&pointwise_operation(kernels::PointwiseOp::name));
    TESSERA_POINTWISE_OPS_(TESSERA_ADD_ROW_)
    TESSERA_OPERATIONS_(TESSERA_ADD_)
#undef TESSERA_ADD_
#undef TESSERA_ADD_ROW_
    return all;
  }();
  return *kOperations;
}

absl::Span<const Operation* const> called_operations() {
  static const auto* const kOperations = [] {
    auto* const called = new std::vector<const Operation*>;
    for (const Operation* const each : all_operations()) {
      if (each->sample != nullptr) called->push_back(each);
    }
    return called;
  }();
  return *kOperations;
}

StatusOr<const Operation*> find_operation(absl::string_view name) {
  std::vector<std::string> names;
  for (const Operation* const each : called_operations()) {
    if (each->name == name) return each;
    names.emplace_back(each->name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("operation ", in_quotes(name), " is unknown", did_you_mean(name, names)));
}

std::vector<SampleOperand> sample_operands(const Operation& operation) {
  std::vector<SampleOperand> operands;
  for (const absl::string_view each : absl::StrSplit(operation.sample, ';')) {
    operands.push_back(read_sample(each));
  }
  return operands;
}

std::string sample_attributes(const Operation& operation) {
  std::vector<std::string> all;
  for (const AttributeSpec& spec : operation.attributes) {
    if (spec.otherwise == nullptr) all.push_back(spec.example_text());
  }
  if (*operation.sample_attributes != '\0') all.emplace_back(operation.sample_attributes);
  return absl::StrJoin(all, "; ");
}

StatusOr<OpPlan> plan_sample(const Operation& operation) {
  const std::vector<SampleOperand> sample = sample_operands(operation);
  std::vector<OperandType> operands;
  for (const SampleOperand& each : sample) operands.emplace_back(each.dtype, each.shape);
  TESSERA_ASSIGN_OR_RETURN(const AttributeTexts attributes,
                           parse_attributes(sample_attributes(operation)));
  return plan_operation(operation.name, operands, attributes);
}

StatusOr<OpPlan> plan_operation(absl::string_view name, Operands operands,
                                const AttributeTexts& attributes) {
  TESSERA_ASSIGN_OR_RETURN(const Operation* const operation, find_operation(name));
  if (operation->plan == nullptr) {
    return refusal(operation->name, "made of ", operation->made_of,
                   ", each with a rule of its own; ask for one of them");
  }
  TESSERA_RETURN_IF_ERROR(check_number(*operation, operands.size()));
  TESSERA_ASSIGN_OR_RETURN(const Attributes read,
                           read_attributes(operation->name, operation->attributes, attributes));
  return operation->plan(operands, read);
}

}  // namespace tessera::ops
