// SPDX-License-Identifier: Apache-2.0
#include "ops/rule.h"

#include <algorithm>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera::ops {
namespace {

// By factor: "a", ..., "z", "f26", ... in the order in which operands and result have them.
using FactorNames = std::vector<std::string>;
FactorNames factor_names(const Rule& rule) {
  FactorNames names(rule.factors.size());
  int known = 0;
  const auto name = [&](int factor) {
    if (!names[factor].empty()) return;
    names[factor] =
        known < 26 ? std::string(1, static_cast<char>('a' + known)) : absl::StrCat("f", known);
    ++known;
  };
  const auto name_all = [&](const RuleDims& dims) {
    for (const RuleDim& dim : dims) {
      for (const int factor : dim) name(factor);
    }
  };
  for (const RuleDims& dims : rule.operands) name_all(dims);
  name_all(rule.result);
  for (size_t f = 0; f < names.size(); ++f) name(static_cast<int>(f));
  return names;
}

std::string dims_to_string(const RuleDims& dims, const FactorNames& names) {
  std::vector<std::string> texts;
  for (const RuleDim& dim : dims) {
    std::string text;
    for (const int factor : dim) text += names[factor];
    texts.push_back(text.empty() ? "1" : text);
  }
  return absl::StrCat("[", absl::StrJoin(texts, ", "), "]");
}

// The number of the result where operands are numbered.
constexpr int kResult = -1;
Status check_dims(const Rule& rule, int operand, const RuleDims& dims, const Shape& shape,
                  std::vector<bool>& found) {
  if (dims.size() != shape.size()) {
    return absl::InternalError(absl::StrCat("rule ", rule.to_string(), ": ", dims.size(),
                                            " dims for shape ", shape_to_string(shape)));
  }
  found.assign(rule.factors.size(), false);
  for (size_t dim = 0; dim < dims.size(); ++dim) {
    int64_t size = 1;
    const bool is_moved =
        operand != kResult && rule.reach(operand, static_cast<int>(dim)) != nullptr;
    for (const int factor : dims[dim]) {
      if (found[factor]) {
        return absl::InternalError(absl::StrCat("rule ", rule.to_string(), ": factor ",
                                                factor_names(rule)[factor], " twice in ",
                                                dims_to_string(dims, factor_names(rule))));
      }
      found[factor] = true;
      size *= rule.factors[factor].size;
    }
    if (is_moved ? dims[dim].size() != 1 : !dims[dim].empty() && size != shape[dim]) {
      return absl::InternalError(absl::StrCat("rule ", rule.to_string(), ": dim ", dim,
                                              " has factors of ", size, " for shape ",
                                              shape_to_string(shape)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::pair<int64_t, int64_t> Reach::of(int64_t begin, int64_t end, int64_t size) const {
  if (begin >= end || size == 0) return {0, 0};
  const auto floor_div = [](int64_t n, int64_t d) { return n / d - (n % d < 0 ? 1 : 0); };
  const int64_t low = scale < 0 ? end - 1 : begin;
  const int64_t high = scale < 0 ? begin : end - 1;
  int64_t from = floor_div(low * scale + first, divisor);
  int64_t to = floor_div(high * scale + last, divisor) + 1;
  if (is_periodic) return to - from < size ? std::pair(from, to) : std::pair(int64_t{0}, size);
  from = std::clamp<int64_t>(from, 0, size);
  to = std::clamp<int64_t>(to, 0, size);
  return from < to ? std::pair(from, to) : std::pair<int64_t, int64_t>(0, 0);
}

const Reach* Rule::reach(int operand, int dim) const {
  for (const MovedDim& each : moved) {
    if (each.operand == operand && each.dim == dim) return &each.reach;
  }
  return nullptr;
}

int Rule::add_factor(int64_t size, FactorKind kind) {
  factors.push_back({kind, size});
  return static_cast<int>(factors.size()) - 1;
}

Status Rule::validate(absl::Span<const Shape> operand_shapes, const Shape& result_shape) const {
  if (operands.size() != operand_shapes.size()) {
    return absl::InternalError(
        absl::StrCat("rule ", to_string(), " for ", operand_shapes.size(), " operands"));
  }
  for (const MovedDim& each : moved) {
    const bool exists = each.operand < static_cast<int>(operands.size()) &&
                        each.dim < static_cast<int>(operands[each.operand].size());
    if (exists && operands[each.operand][each.dim].size() == 1 && each.reach.divisor > 0) continue;
    return absl::InternalError(absl::StrCat("rule: operand ", each.operand, " has no dim ",
                                            each.dim, " of one factor that could be moved"));
  }
  std::vector<bool> found;
  std::vector<bool> in_operands(factors.size(), false);
  for (size_t i = 0; i < operands.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(
        check_dims(*this, static_cast<int>(i), operands[i], operand_shapes[i], found));
    for (size_t f = 0; f < factors.size(); ++f) in_operands[f] = in_operands[f] || found[f];
  }
  TESSERA_RETURN_IF_ERROR(check_dims(*this, kResult, result, result_shape, found));
  for (size_t f = 0; f < factors.size(); ++f) {
    const bool is_contracted = factors[f].kind == FactorKind::kContracted;
    const bool is_new = found[f] && !in_operands[f] && factors[f].kind != FactorKind::kWhole;
    if ((is_contracted && found[f]) || is_new) {
      return absl::InternalError(
          absl::StrCat("rule ", to_string(), ": factor ", factor_names(*this)[f],
                       is_contracted ? " is contracted and in the result" : " is in no operand"));
    }
  }
  return absl::OkStatus();
}

std::string Rule::to_string() const {
  const FactorNames letters = factor_names(*this);
  std::string text = absl::StrJoin(operands, " ", [&](std::string* out, const RuleDims& dims) {
    absl::StrAppend(out, dims_to_string(dims, letters));
  });
  absl::StrAppend(&text, " -> ", dims_to_string(result, letters));
  const auto add = [&](const std::string& what, absl::FunctionRef<bool(int factor)> is_so) {
    std::vector<std::string> names;
    for (size_t f = 0; f < factors.size(); ++f) {
      if (is_so(static_cast<int>(f))) names.push_back(letters[f]);
    }
    if (!names.empty()) absl::StrAppend(&text, "; ", absl::StrJoin(names, ", "), what);
  };
  add(absl::StrCat(" contracted (", reduce_op_name(contraction), ")"),
      [&](int f) { return factors[f].kind == FactorKind::kContracted; });
  add(" moved", [&](int f) {
    return std::any_of(moved.begin(), moved.end(), [&](const MovedDim& each) {
      return operands[each.operand][each.dim][0] == f;
    });
  });
  add(" whole", [&](int f) { return factors[f].kind == FactorKind::kWhole; });
  return text;
}

}  // namespace tessera::ops
