// SPDX-License-Identifier: Apache-2.0
#include "ops/rule.h"

#include <algorithm>
#include <utility>

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

Status check_dims(const Rule& rule, const RuleDims& dims, const Shape& shape,
                  std::vector<bool>& found) {
  if (dims.size() != shape.size()) {
    return absl::InternalError(absl::StrCat("rule ", rule.to_string(), ": ", dims.size(),
                                            " dims for shape ", shape_to_string(shape)));
  }
  found.assign(rule.factors.size(), false);
  for (size_t dim = 0; dim < dims.size(); ++dim) {
    int64_t size = 1;
    bool is_moved = false;
    for (const int factor : dims[dim]) {
      if (found[factor]) {
        return absl::InternalError(absl::StrCat("rule ", rule.to_string(), ": factor ",
                                                factor_names(rule)[factor], " twice in ",
                                                dims_to_string(dims, factor_names(rule))));
      }
      found[factor] = true;
      size *= rule.factors[factor].size;
      is_moved = is_moved || rule.factors[factor].kind == FactorKind::kMoved;
    }
    if (is_moved ? dims[dim].size() > 1 : !dims[dim].empty() && size != shape[dim]) {
      return absl::InternalError(absl::StrCat("rule ", rule.to_string(), ": dim ", dim,
                                              " has factors of ", size, " for shape ",
                                              shape_to_string(shape)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

int Rule::add_factor(int64_t size, FactorKind kind) {
  factors.push_back({kind, size});
  return static_cast<int>(factors.size()) - 1;
}

Status Rule::validate(absl::Span<const Shape> operand_shapes, const Shape& result_shape) const {
  if (operands.size() != operand_shapes.size()) {
    return absl::InternalError(
        absl::StrCat("rule ", to_string(), " for ", operand_shapes.size(), " operands"));
  }
  std::vector<bool> found;
  std::vector<bool> in_operands(factors.size(), false);
  for (size_t i = 0; i < operands.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(check_dims(*this, operands[i], operand_shapes[i], found));
    for (size_t f = 0; f < factors.size(); ++f) in_operands[f] = in_operands[f] || found[f];
  }
  TESSERA_RETURN_IF_ERROR(check_dims(*this, result, result_shape, found));
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
  for (const FactorKind kind : {FactorKind::kContracted, FactorKind::kMoved, FactorKind::kWhole}) {
    std::vector<std::string> names;
    for (size_t f = 0; f < factors.size(); ++f) {
      if (factors[f].kind == kind) names.push_back(letters[f]);
    }
    if (names.empty()) continue;
    absl::StrAppend(&text, "; ", absl::StrJoin(names, ", "),
                    kind == FactorKind::kWhole ? " whole"
                    : kind == FactorKind::kMoved
                        ? " moved"
                        : absl::StrCat(" contracted (", reduce_op_name(contraction), ")"));
  }
  return text;
}

}  // namespace tessera::ops
