// SPDX-License-Identifier: Apache-2.0
//
// Any text as the equation of an einsum, with operands that mostly fit it. This file derives from
// the letters whether the equation is accepted, and its result; a refusal has a message.
//
// The first bytes decide the size of each letter, and which misfit the operands have. The rest is
// the equation.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "fuzz/fuzz.h"
#include "ops/all_operations.h"
#include "ops/operand_type.h"
#include "ops/rule.h"

namespace tessera {
namespace {

using fuzz::ByteReader;
using fuzz::require;

bool is_letter(char c) { return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z'); }
bool has(const std::string& text, char c) { return text.find(c) != std::string::npos; }

// The parts of an equation, without blanks: the operands before the arrow, split at commas, and the
// result behind it, if there is an arrow.
struct Parts {
  std::vector<std::string> operands = {""};
  std::optional<std::string> result;
  bool has_one_arrow_at_most = true;
};

Parts parts_of(absl::string_view text) {
  std::string dense;
  std::copy_if(text.begin(), text.end(), std::back_inserter(dense),
               [](char c) { return c != ' '; });
  Parts parts;
  for (size_t i = 0; i < dense.size(); ++i) {
    if (dense.compare(i, 2, "->") == 0) {
      parts.has_one_arrow_at_most = !parts.result.has_value();
      if (!parts.has_one_arrow_at_most) break;
      parts.result.emplace();
      ++i;
    } else if (parts.result.has_value()) {
      *parts.result += dense[i];
    } else if (dense[i] == ',') {
      parts.operands.emplace_back();
    } else {
      parts.operands.back() += dense[i];
    }
  }
  return parts;
}

// The letters of the result, or nothing if the equation is invalid.
std::optional<std::string> result_of(const Parts& parts) {
  std::string all;
  for (const std::string& operand : parts.operands) all += operand;
  std::string result;
  if (parts.result.has_value()) {
    result = *parts.result;
  } else {
    for (int c = 'A'; c <= 'z'; ++c) {
      if (std::count(all.begin(), all.end(), static_cast<char>(c)) == 1) {
        result += static_cast<char>(c);
      }
    }
  }
  if (!parts.has_one_arrow_at_most) return std::nullopt;
  std::vector<std::string> texts = parts.operands;
  texts.push_back(result);
  for (const std::string& part : texts) {
    for (const char c : part) {
      if (!is_letter(c) || std::count(part.begin(), part.end(), c) > 1) return std::nullopt;
    }
  }
  for (const char c : result) {
    if (!has(all, c)) return std::nullopt;
  }
  return result;
}

// Whether plan_operation() plans the equation: it has two operands, and sums over no letter that
// only one of them has. Requires a valid equation.
bool is_one_product(const Parts& parts, const std::string& result) {
  if (parts.operands.size() != 2) return false;
  const auto& [a, b] = std::array{parts.operands[0], parts.operands[1]};
  for (const char c : a + b) {
    if (!has(result, c) && !(has(a, c) && has(b, c))) return false;
  }
  return true;
}

// How the operands do not fit.
enum class Misfit { kNone, kSize, kRank, kDType };

struct Call {
  std::vector<Shape> shapes;
  std::vector<DType> dtypes;
  Misfit misfit = Misfit::kNone;
};

// Operands with the sizes of their letters, except for the misfit.
Call make_call(const Parts& parts, const std::array<int64_t, 8>& sizes, Misfit misfit) {
  Call call;
  for (const std::string& letters : parts.operands) {
    Shape& shape = call.shapes.emplace_back();
    for (const char c : letters) shape.push_back(sizes[static_cast<uint8_t>(c) % sizes.size()]);
    call.dtypes.push_back(DType::kFloat32);
  }
  const auto& last = parts.operands.back();
  const bool is_shared =
      parts.operands.size() == 2 && !last.empty() && has(parts.operands[0], last.back());
  if (misfit == Misfit::kRank) {
    call.shapes.back().push_back(3);
  } else if (misfit == Misfit::kSize && is_shared) {
    call.shapes.back().back() += 1;
  } else if (misfit == Misfit::kDType) {
    call.dtypes.back() = DType::kInt32;
  } else {
    return call;
  }
  call.misfit = misfit;
  return call;
}

void check_accepted(const Parts& parts, const std::string& result, const Call& call,
                    const ops::OpPlan& plan, const std::string& subject) {
  require(plan.rule.validate(call.shapes, plan.shape).ok(), subject);
  require(plan.dtype == call.dtypes[0] && plan.shape.size() == result.size(), subject);
  for (size_t dim = 0; dim < result.size(); ++dim) {
    for (size_t k = 0; k < 2; ++k) {
      const size_t place = parts.operands[k].find(result[dim]);
      if (place == std::string::npos) continue;
      require(call.shapes[k][place] == plan.shape[dim], subject);
      require(plan.rule.operands[k][place] == plan.rule.result[dim], subject);
    }
  }
  for (const char c : parts.operands[0]) {
    if (has(result, c)) continue;
    const int factor = plan.rule.operands[0][parts.operands[0].find(c)][0];
    require(plan.rule.factors[factor].kind == ops::FactorKind::kContracted, subject);
    require(plan.rule.operands[1][parts.operands[1].find(c)][0] == factor, subject);
  }
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  constexpr size_t kHeaderBytes = 9;
  if (size < kHeaderBytes) return 0;
  fuzz::ByteReader bytes(data, kHeaderBytes);
  std::array<int64_t, 8> sizes;
  for (int64_t& each : sizes) each = bytes.below(7);
  const auto misfit = static_cast<Misfit>(std::max(0, bytes.below(12) - 8));
  const std::string text(reinterpret_cast<const char*>(data) + kHeaderBytes, size - kHeaderBytes);

  const StatusOr<ops::AttributeTexts> attributes =
      ops::parse_attributes(absl::StrCat("equation=", text));
  // "equation=a;b" has two attributes, and "equation=a;equation=b" is an error.
  const bool is_equation = !has(text, ';');
  require(attributes.ok() || !is_equation, text);
  if (!attributes.ok() || attributes->size() != 1 || !attributes->contains("equation")) return 0;
  const std::string equation = attributes->at("equation");

  const Parts parts = parts_of(equation);
  const Call call = make_call(parts, sizes, misfit);
  std::vector<ops::OperandType> operands;
  for (size_t i = 0; i < call.shapes.size(); ++i) {
    operands.emplace_back(call.dtypes[i], call.shapes[i]);
  }
  const StatusOr<ops::OpPlan> plan = ops::plan_operation("einsum", operands, *attributes);
  const std::optional<std::string> result = result_of(parts);
  const bool is_accepted =
      result.has_value() && is_one_product(parts, *result) && call.misfit == Misfit::kNone;
  const std::string subject = absl::StrCat("\"", equation, "\", of ", call.shapes.size(),
                                           " operands: ", plan.status().ToString());
  require(plan.ok() == is_accepted, subject);
  if (plan.ok()) {
    check_accepted(parts, *result, call, *plan, subject);
  } else {
    require(absl::IsInvalidArgument(plan.status()) &&
                absl::StartsWith(plan.status().message(), "einsum: "),
            subject);
  }
  return 0;
}
