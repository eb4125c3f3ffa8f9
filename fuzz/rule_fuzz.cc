// SPDX-License-Identifier: Apache-2.0
//
// Any rule, and any operation, with operands and attributes near its sample's and with random
// layouts.
//
// - An operation is refused with a message, or has a plan that keeps the invariants of rule.h.
// - Layouts are inferred from accepted rules and plans. check_inference() checks the promises of
//   infer.h by a search of all assignments.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "fuzz/fuzz.h"
#include "ops/all_operations.h"
#include "ops/operand_type.h"
#include "tests/support/ops/rule_oracle.h"

namespace tessera {
namespace {

using fuzz::ByteReader;
using fuzz::require;

// A small number, or one far out of range.
int64_t read_number(ByteReader& bytes) {
  constexpr int64_t kFar[] = {std::numeric_limits<int64_t>::max(),
                              std::numeric_limits<int64_t>::min(), int64_t{1} << 40, -100, 255};
  if (bytes.below(16) == 15) return kFar[bytes.below(5)];
  return bytes.below(12) - 3;
}

Shape read_shape(ByteReader& bytes, Shape shape) {
  for (int64_t& size : shape) {
    if (bytes.below(3) == 2) size = std::max<int64_t>(0, read_number(bytes));
  }
  if (bytes.below(16) == 15) shape.push_back(1 + bytes.below(4));
  if (!shape.empty() && bytes.below(16) == 15) shape.pop_back();
  return shape;
}

// "dims=[0, 2]" with other numbers, and perhaps one more.
std::string read_attribute(ByteReader& bytes, absl::string_view sample) {
  std::string text;
  for (size_t i = 0; i < sample.size();) {
    size_t end = i + (sample[i] == '-' ? 1 : 0);
    while (end < sample.size() && absl::ascii_isdigit(sample[end])) ++end;
    int64_t number = 0;
    // Digits inside a name such as "f32" are not numbers.
    const bool is_number = (i == 0 || !absl::ascii_isalnum(sample[i - 1])) &&
                           absl::SimpleAtoi(sample.substr(i, end - i), &number);
    if (!is_number) {
      text += sample[i++];
      continue;
    }
    absl::StrAppend(&text, bytes.below(3) == 2 ? read_number(bytes) : number);
    if (bytes.below(16) == 15) absl::StrAppend(&text, ", ", read_number(bytes));
    i = end;
  }
  return text;
}

std::string read_attributes(ByteReader& bytes, const ops::Operation& operation) {
  std::vector<std::string> texts;
  for (const ops::AttributeSpec& spec : operation.attributes) {
    const bool is_needed = spec.otherwise == nullptr;
    const bool is_given = is_needed ? bytes.below(16) != 15 : bytes.coin();
    if (is_given) texts.push_back(read_attribute(bytes, spec.example_text()));
  }
  return absl::StrJoin(texts, "; ");
}

struct Request {
  const ops::Operation* operation;
  std::vector<Shape> shapes;
  std::vector<DType> dtypes;
  std::string attributes;

  std::string to_string() const {
    std::string text = operation->name;
    for (size_t i = 0; i < shapes.size(); ++i) {
      absl::StrAppend(&text, i == 0 ? " " : "; ", dtype_name(dtypes[i]), " ",
                      shape_to_string(shapes[i]));
    }
    return absl::StrCat(text, " with ", attributes);
  }
};

Request read_request(ByteReader& bytes) {
  const absl::Span<const ops::Operation* const> operations = ops::called_operations();
  const int number = bytes.below(static_cast<int>(operations.size()));
  Request request = {operations[number], {}, {}, {}};
  for (const ops::SampleOperand& operand : ops::sample_operands(*request.operation)) {
    request.shapes.push_back(read_shape(bytes, operand.shape));
    request.dtypes.push_back(bytes.below(16) == 15 ? static_cast<DType>(bytes.below(kNumDTypes))
                                                   : operand.dtype);
  }
  // One operand more, or one less.
  const int change = bytes.below(16);
  if (change == 15 && !request.shapes.empty()) {
    request.shapes.push_back(request.shapes.back());
    request.dtypes.push_back(request.dtypes.back());
  } else if (change == 14 && !request.shapes.empty()) {
    request.shapes.pop_back();
    request.dtypes.pop_back();
  }
  request.attributes = read_attributes(bytes, *request.operation);
  return request;
}

bool is_small(const Shape& shape) {
  return std::all_of(shape.begin(), shape.end(), [](int64_t size) { return size < 1000; });
}

// The plan of the operation, if it is accepted and layouts may be tried.
std::optional<ops::OpPlan> plan_of(const Request& request) {
  std::vector<ops::OperandType> operands;
  for (size_t i = 0; i < request.shapes.size(); ++i) {
    // No tensor has this shape and dtype.
    if (!validate_shape(request.shapes[i], request.dtypes[i]).ok()) return std::nullopt;
    operands.emplace_back(request.dtypes[i], request.shapes[i]);
  }
  const StatusOr<ops::AttributeTexts> attributes = ops::parse_attributes(request.attributes);
  const std::string subject = request.to_string();
  require(attributes.ok(), subject);
  const auto plan_once = [&] {
    return ops::plan_operation(request.operation->name, operands, *attributes);
  };
  StatusOr<ops::OpPlan> plan = plan_once();
  const std::string outcome = absl::StrCat(subject, ": ", plan.status().ToString());
  const StatusOr<ops::OpPlan> again = plan_once();
  require(plan.status() == again.status(), outcome);
  if (!plan.ok()) {
    require(absl::IsInvalidArgument(plan.status()) && !plan.status().message().empty(), outcome);
    return std::nullopt;
  }
  const Status valid = plan->rule.validate(request.shapes, plan->shape);
  require(valid.ok(), absl::StrCat(outcome, ": ", valid.ToString()));
  require(validate_shape(plan->shape, plan->dtype).ok(), outcome);
  require(plan->rule.to_string() == again->rule.to_string() && plan->shape == again->shape &&
              plan->dtype == again->dtype,
          outcome);
  const bool is_tried = !request.shapes.empty() && is_small(plan->shape) &&
                        std::all_of(request.shapes.begin(), request.shapes.end(), is_small);
  if (!is_tried) return std::nullopt;
  return *std::move(plan);
}

void check(const testing::RuleCase& given, bool is_searched, const std::string& subject) {
  const auto report = testing::check_inference(given, is_searched);
  require(report.ok(), absl::StrCat(subject, given.to_string(), ": ", report.status().ToString()));
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  fuzz::ByteReader bytes(data, size);
  const auto below = [&](int n) { return bytes.below(n); };
  const bool is_searched = bytes.below(4) != 3;
  if (bytes.coin()) {
    check(testing::make_rule_case(below, is_searched), is_searched, "");
    return 0;
  }
  const Request request = read_request(bytes);
  const std::optional<ops::OpPlan> plan = plan_of(request);
  if (!plan.has_value()) return 0;
  // Layouts of more dims are too many to list.
  const auto is_listed = [](const Shape& shape) { return shape.size() <= 4; };
  if (!is_listed(plan->shape) ||
      !std::all_of(request.shapes.begin(), request.shapes.end(), is_listed)) {
    return 0;
  }
  check(testing::add_layouts(plan->rule, request.shapes, plan->shape, below, is_searched),
        is_searched, absl::StrCat(request.to_string(), ": "));
  return 0;
}
