// SPDX-License-Identifier: Apache-2.0
#include "ops/contract.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "base/text.h"
#include "compute/cpu/contract.h"
#include "dtensor/device_op.h"
#include "ops/broadcast.h"
#include "ops/catalog_entries.h"
#include "ops/composite.h"
#include "ops/gradient.h"
#include "ops/moving.h"
#include "ops/op.h"
#include "ops/operand_type.h"
#include "ops/reductions.h"
#include "ops/shapes.h"

namespace tessera::ops {
namespace {

// Labels of the dims of an array; kNone for a dim of size 1 that is broadcast.
using kernels::Labels;
constexpr int kNone = -1;

bool contains(const Labels& labels, int label) {
  return std::find(labels.begin(), labels.end(), label) != labels.end();
}

// About 20 GFLOP/s.
constexpr double kSecondsPerProduct = 1e-10;

Status check_numbers(const char* name, absl::Span<const OperandType> operands) {
  TESSERA_RETURN_IF_ERROR(check_same_dtype(name, operands));
  if (operands[0].dtype() != DType::kBool) return absl::OkStatus();
  return refusal(name, "takes numbers, not bool; cast() first");
}

// The size of each label that the operands have.
std::vector<int64_t> label_sizes(const OperandType& a, const OperandType& b, const Labels& a_labels,
                                 const Labels& b_labels) {
  std::vector<int64_t> sizes;
  const auto note = [&sizes](const Labels& part, const Shape& shape) {
    for (size_t dim = 0; dim < part.size(); ++dim) {
      if (part[dim] == kNone) continue;
      sizes.resize(std::max<size_t>(sizes.size(), part[dim] + 1), 1);
      sizes[part[dim]] = shape[dim];
    }
  };
  note(a_labels, a.shape());
  note(b_labels, b.shape());
  return sizes;
}

// The product of two tensors. Each label is in the other tensor or in the result.
StatusOr<OpPlan> plan_product(const char* name, const OperandType& a, const OperandType& b,
                              const Labels& a_labels, const Labels& b_labels,
                              const Labels& labels) {
  TESSERA_RETURN_IF_ERROR(check_numbers(name, {a, b}));
  const DType dtype = a.dtype();
  const std::vector<int64_t> sizes = label_sizes(a, b, a_labels, b_labels);
  OpPlan plan;
  plan.dtype = dtype;
  for (size_t label = 0; label < sizes.size(); ++label) {
    plan.rule.add_factor(sizes[label], contains(labels, static_cast<int>(label))
                                           ? FactorKind::kPassed
                                           : FactorKind::kContracted);
  }
  for (const Labels* each : {&a_labels, &b_labels}) {
    RuleDims& dims = plan.rule.operands.emplace_back();
    for (const int label : *each) dims.push_back(label == kNone ? RuleDim() : RuleDim{label});
  }
  for (const int label : labels) {
    plan.rule.result.push_back({label});
    plan.shape.push_back(sizes[label]);
  }
  plan.rule.linearity = Linearity::kEach;
  plan.rule.reductions = kSums;
  plan.rule.seconds_per_point = kSecondsPerProduct;
  plan.kernel = [dtype, a_labels, b_labels, labels](const LocalCall& call) -> Status {
    return call.engine.contract(dtype, {call.in[0], call.in_boxes[0].sizes, a_labels},
                                {call.in[1], call.in_boxes[1].sizes, b_labels}, labels,
                                call.out_box.sizes, call.out);
  };
  return plan;
}

// The product of tensors whose labels are known to fit, and its gradient.
DTensor product(const char* name, const DTensor& a, const DTensor& b, const Labels& a_labels,
                const Labels& b_labels, const Labels& labels, const Out& out) {
  const DTensor operands[] = {a, b};
  std::vector<int64_t> attributes;
  for (const Labels* part : {&a_labels, &b_labels, &labels}) {
    attributes.push_back(static_cast<int64_t>(part->size()));
    attributes.insert(attributes.end(), part->begin(), part->end());
  }
  DTensor result = run({name, operands, attributes, out},
                       [&] { return plan_product(name, a, b, a_labels, b_labels, labels); });
  return differentiable(std::move(result), operands,
                        [name, a_labels, b_labels, labels](const GradientCall& call) -> Gradients {
                          Gradients gradients(2);
                          const Labels* const own[] = {&a_labels, &b_labels};
                          for (size_t i = 0; i < 2; ++i) {
                            if (!call.needed[i]) continue;
                            Labels named;
                            for (const int label : *own[i]) {
                              if (label != kNone) named.push_back(label);
                            }
                            const DTensor gradient =
                                product(name, call.cotangent, call.operands[1 - i], labels,
                                        *own[1 - i], named, {});
                            gradients[i] = named.size() == own[i]->size()
                                               ? gradient
                                               : reshape(gradient, call.operands[i].shape());
                          }
                          return gradients;
                        });
}

struct ProductLabels {
  Labels a, b, result;
};

// The labels of operands that may be multiplied; else InvalidArgument.
StatusOr<ProductLabels> matmul_labels(const OperandType& a, const OperandType& b) {
  TESSERA_RETURN_IF_ERROR(check_numbers("matmul", {a, b}));
  if (rank_of(a) == 0 || rank_of(b) == 0) {
    return refusal("matmul", "an operand has rank 0; mul() multiplies by a scalar");
  }
  std::vector<int64_t> sizes;
  const auto new_label = [&sizes](int64_t size) {
    sizes.push_back(size);
    return static_cast<int>(sizes.size()) - 1;
  };
  const int64_t k = a.shape().back();
  const int64_t b_k = rank_of(b) == 1 ? b.shape()[0] : b.shape()[rank_of(b) - 2];
  if (k != b_k) {
    return refusal("matmul", "shapes ", shape_to_string(a.shape()), " and ",
                   shape_to_string(b.shape()), " do not fit: ", k, " columns against ", b_k,
                   " rows");
  }
  const int summed = new_label(k);
  ProductLabels labels;
  const int64_t a_batch = std::max<int64_t>(rank_of(a) - 2, 0);
  const int64_t b_batch = std::max<int64_t>(rank_of(b) - 2, 0);
  const int64_t batch = std::max(a_batch, b_batch);
  for (int64_t dim = 0; dim < batch; ++dim) {
    const int64_t in_a = dim - (batch - a_batch);
    const int64_t in_b = dim - (batch - b_batch);
    const int64_t a_size = in_a < 0 ? 1 : a.shape()[in_a];
    const int64_t b_size = in_b < 0 ? 1 : b.shape()[in_b];
    if (a_size != b_size && a_size != 1 && b_size != 1) {
      return refusal("matmul", "batches of ", shape_to_string(a.shape()), " and ",
                     shape_to_string(b.shape()), " do not broadcast: ", a_size, " against ",
                     b_size);
    }
    const int label = new_label(a_size == 1 ? b_size : a_size);
    if (in_a >= 0) labels.a.push_back(a_size == sizes[label] ? label : kNone);
    if (in_b >= 0) labels.b.push_back(b_size == sizes[label] ? label : kNone);
    labels.result.push_back(label);
  }
  if (rank_of(a) > 1) {
    labels.a.push_back(new_label(a.shape()[rank_of(a) - 2]));
    labels.result.push_back(labels.a.back());
  }
  labels.a.push_back(summed);
  labels.b.push_back(summed);
  if (rank_of(b) > 1) {
    labels.b.push_back(new_label(b.shape().back()));
    labels.result.push_back(labels.b.back());
  }
  return labels;
}

// ---- einsum

struct Equation {
  std::vector<std::string> operands;
  std::string result;
};

StatusOr<Equation> parse_equation(absl::string_view text) {
  std::string dense;
  for (const char c : text) {
    if (c != ' ') dense += c;
  }
  const auto wrong = [&](const auto&... why) {
    return refusal("einsum", "equation ", quoted(text), ": ", why...);
  };
  if (absl::StrContains(dense, "...")) return wrong("\"...\" is not supported; name every dim");
  const std::vector<std::string> sides = absl::StrSplit(dense, "->");
  if (sides.size() > 2) return wrong("there are ", sides.size() - 1, " arrows; give one");
  Equation equation;
  equation.operands = absl::StrSplit(sides[0], ',');
  std::string all;
  for (const std::string& operand : equation.operands) all += operand;
  for (const char c : sides.size() == 2 ? all + sides[1] : all) {
    if (std::isalpha(static_cast<unsigned char>(c)) == 0) {
      return wrong(quoted(std::string(1, c)), " is not a letter");
    }
  }
  if (sides.size() == 2) {
    equation.result = sides[1];
  } else {
    std::sort(all.begin(), all.end());
    for (const char c : all) {
      if (std::count(all.begin(), all.end(), c) == 1) equation.result += c;
    }
  }
  std::vector<std::string> parts = equation.operands;
  parts.push_back(equation.result);
  for (const std::string& part : parts) {
    for (const char c : part) {
      if (std::count(part.begin(), part.end(), c) > 1) {
        return wrong("'", std::string(1, c), "' is twice in ", quoted(part),
                     "; diagonals are not supported");
      }
    }
  }
  for (const char c : equation.result) {
    if (!absl::StrContains(all, c)) {
      return wrong("'", std::string(1, c), "' is behind the arrow and in no operand");
    }
  }
  return equation;
}

// The sizes of letters; an error where an operand does not fit the equation.
StatusOr<std::array<int64_t, 128>> letter_sizes(const Equation& equation,
                                                absl::Span<const OperandType> operands) {
  if (equation.operands.size() != operands.size()) {
    return refusal("einsum", "the equation has ", equation.operands.size(), " operands, and ",
                   operands.size(), " are given");
  }
  std::array<int64_t, 128> sizes;
  sizes.fill(-1);
  for (size_t k = 0; k < operands.size(); ++k) {
    const std::string& letters = equation.operands[k];
    if (static_cast<int64_t>(letters.size()) != rank_of(operands[k])) {
      return refusal("einsum", quoted(letters), " has ", letters.size(), " letters for operand ", k,
                     " of rank ", rank_of(operands[k]));
    }
    for (size_t dim = 0; dim < letters.size(); ++dim) {
      int64_t& size = sizes[static_cast<size_t>(letters[dim])];
      const int64_t own = operands[k].shape()[dim];
      if (size >= 0 && size != own) {
        return refusal("einsum", "'", std::string(1, letters[dim]), "' is ", size, " and ", own);
      }
      size = own;
    }
  }
  return sizes;
}

// Sums over the letters that are not kept.
DTensor sum_letters(const DTensor& x, absl::string_view kept, std::string& letters) {
  std::vector<int64_t> dims;
  std::string left;
  for (size_t dim = 0; dim < letters.size(); ++dim) {
    if (absl::StrContains(kept, letters[dim])) {
      left += letters[dim];
    } else {
      dims.push_back(static_cast<int64_t>(dim));
    }
  }
  letters = left;
  return dims.empty() ? x : sum(x, dims);
}

// Labels for letters: equal letters have equal labels.
ProductLabels letter_labels(const std::string& a, const std::string& b, const std::string& result) {
  std::string known;
  for (const char c : a + b) {
    if (!absl::StrContains(known, c)) known += c;
  }
  const auto labels_of = [&known](const std::string& part) {
    Labels labels;
    for (const char c : part) labels.push_back(static_cast<int>(known.find(c)));
    return labels;
  };
  return {labels_of(a), labels_of(b), labels_of(result)};
}

DTensor product(const DTensor& a, const DTensor& b, const std::string& a_letters,
                const std::string& b_letters, const std::string& letters, const Out& out) {
  const ProductLabels labels = letter_labels(a_letters, b_letters, letters);
  return product("einsum", a, b, labels.a, labels.b, labels.result, out);
}

// The plan for two operands. Refused where a letter is in one operand alone.
StatusOr<OpPlan> plan_einsum(absl::string_view text, absl::Span<const OperandType> x) {
  TESSERA_ASSIGN_OR_RETURN(const Equation equation, parse_equation(text));
  TESSERA_RETURN_IF_ERROR(letter_sizes(equation, x).status());
  const std::string& a = equation.operands[0];
  const std::string& b = equation.operands[1];
  for (const char c : a + b) {
    if (absl::StrContains(equation.result, c)) continue;
    if (absl::StrContains(a, c) && absl::StrContains(b, c)) continue;
    return refusal("einsum", "'", std::string(1, c), "' is in one operand alone, which is summed ",
                   "over it first; ask for the rule of sum, and then without it");
  }
  const ProductLabels labels = letter_labels(a, b, equation.result);
  return plan_product("einsum", x[0], x[1], labels.a, labels.b, labels.result);
}

// One operand: its sums, in the order of the result's letters.
DTensor single(const DTensor& x, std::string letters, const std::string& result, const Out& out) {
  const DTensor summed = sum_letters(x, result, letters);
  std::vector<int64_t> permutation;
  for (const char c : result) permutation.push_back(static_cast<int64_t>(letters.find(c)));
  return transpose(summed, permutation, out);
}

// Operands of the equation's letters and sizes.
DTensor multiply(const Equation& equation, absl::Span<const DTensor> operands, const Out& out) {
  DTensor left = operands[0];
  std::string letters = equation.operands[0];
  for (size_t k = 1; k < operands.size(); ++k) {
    // The letters that are needed later on.
    std::string later = equation.result;
    for (size_t rest = k + 1; rest < operands.size(); ++rest) later += equation.operands[rest];
    std::string next = equation.operands[k];
    left = sum_letters(left, later + next, letters);
    const DTensor right = sum_letters(operands[k], later + letters, next);
    const bool is_last = k + 1 == operands.size();
    std::string joined = is_last ? equation.result : "";
    for (const char c : is_last ? "" : letters + next) {
      if (absl::StrContains(later, c) && !absl::StrContains(joined, c)) joined += c;
    }
    left = product(left, right, letters, next, joined, is_last ? out : Out());
    letters = joined;
  }
  return operands.size() == 1 ? single(left, letters, equation.result, out) : left;
}

// Whether multiply() makes the result by one operation that rounds.
bool is_one_step(const Equation& equation) {
  if (equation.operands.size() == 1) return true;
  const std::string& a = equation.operands[0];
  const std::string& b = equation.operands[1];
  const auto is_summed_alone = [&](const std::string& own, const std::string& other) {
    return std::any_of(own.begin(), own.end(), [&](char c) {
      return !absl::StrContains(other, c) && !absl::StrContains(equation.result, c);
    });
  };
  return equation.operands.size() == 2 && !is_summed_alone(a, b) && !is_summed_alone(b, a);
}

}  // namespace

DTensor matmul(const DTensor& a, const DTensor& b, const Out& out) {
  const DTensor operands[] = {a, b};
  Status status = internal::facts_of(a).error;
  status.Update(internal::facts_of(b).error);
  const StatusOr<ProductLabels> labels =
      status.ok() ? matmul_labels(a, b) : StatusOr<ProductLabels>(std::move(status));
  if (!labels.ok()) return refuse({"matmul", operands, {}, out}, labels.status());
  return product("matmul", a, b, labels->a, labels->b, labels->result, out);
}

DTensor einsum(absl::string_view equation, absl::Span<const DTensor> operands, const Out& out) {
  if (operands.empty()) {
    return internal::failed_tensor(DType::kFloat32, {}, absl::InvalidArgumentError("no operands"),
                                   refusal("einsum", "of no tensors; give one at least"));
  }
  const OpCall call = {"einsum", operands, {}, out};
  for (const DTensor& operand : operands) {
    if (!internal::facts_of(operand).error.ok()) return operand;
  }
  const StatusOr<Equation> parsed = parse_equation(equation);
  if (!parsed.ok()) return refuse(call, parsed.status());
  const Status sizes = letter_sizes(*parsed, types_of(operands)).status();
  if (!sizes.ok()) return refuse(call, sizes);
  const Status dtypes = check_same_dtype("einsum", types_of(operands));
  if (!dtypes.ok()) return refuse(call, dtypes);
  if (is_one_step(*parsed)) return multiply(*parsed, operands, out);
  return in_f32(operands, out, [&](absl::Span<const DTensor> wide, const Out& to) {
    return multiply(*parsed, wide, to);
  });
}

std::vector<CatalogEntry> contract_entries() {
  const auto matmul = [](Operands x, const Attributes&) -> StatusOr<OpPlan> {
    TESSERA_ASSIGN_OR_RETURN(const ProductLabels labels, matmul_labels(x[0], x[1]));
    return plan_product("matmul", x[0], x[1], labels.a, labels.b, labels.result);
  };
  return {
      {"matmul", 2, 2, {}, {}, {{DType::kFloat32, {8, 6}}, {DType::kFloat32, {6, 4}}}, matmul},
      {"einsum",
       2,
       2,
       {"equation=bij,bkj->bik"},
       {},
       {{DType::kFloat32, {4, 8, 6}}, {DType::kFloat32, {4, 2, 6}}},
       [](Operands x, const Attributes& attributes) {
         return plan_einsum(attributes.text("equation"), x);
       }},
  };
}

}  // namespace tessera::ops
