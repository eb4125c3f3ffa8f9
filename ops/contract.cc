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
#include "ops/all_operations.h"
#include "ops/apply.h"
#include "ops/broadcast.h"
#include "ops/composite.h"
#include "ops/moving.h"
#include "ops/operand_type.h"
#include "ops/operation.h"
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

struct ProductLabels {
  Labels a, b, result;
};

// The product of two tensors. Each label is in the other tensor or in the result.
StatusOr<OpPlan> plan_product(const char* name, const OperandType& a, const OperandType& b,
                              const ProductLabels& product) {
  const auto& [a_labels, b_labels, labels] = product;
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
  plan.kernel = [dtype, product](const LocalCall& call) -> Status {
    return call.engine.contract(dtype, {call.in[0], call.in_boxes[0].sizes, product.a},
                                {call.in[1], call.in_boxes[1].sizes, product.b}, product.result,
                                call.out_box.sizes, call.out);
  };
  return plan;
}

// The product of tensors whose labels are known to fit.
constexpr AttributeSpec kProductAttributes[] = {{"a", AttributeKind::kInts, "[0, 1]"},
                                                {"b", AttributeKind::kInts, "[1, 2]"},
                                                {"result", AttributeKind::kInts, "[0, 2]"}};

Labels read_labels(const Attributes& attributes, absl::string_view name) {
  const std::vector<int64_t>& numbers = attributes.integers(name);
  return Labels(numbers.begin(), numbers.end());
}

StatusOr<OpPlan> plan_of_labels(Operands x, const Attributes& attributes) {
  return plan_product("einsum", x[0], x[1],
                      {read_labels(attributes, "a"), read_labels(attributes, "b"),
                       read_labels(attributes, "result")});
}

DTensor product(const DTensor& a, const DTensor& b, const ProductLabels& labels, const Out& out) {
  const auto numbers = [](const Labels& part) {
    return std::vector<int64_t>(part.begin(), part.end());
  };
  return only(
      apply(kProduct, {a, b}, {numbers(labels.a), numbers(labels.b), numbers(labels.result)}, out));
}

// Each gradient is the product of the cotangent and the other operand.
Gradients gradients_of_product(const GradientCall& call, const ProductLabels& labels) {
  Gradients gradients(2);
  const Labels* const own[] = {&labels.a, &labels.b};
  for (size_t i = 0; i < 2; ++i) {
    if (!call.needed[i]) continue;
    Labels named;
    for (const int label : *own[i]) {
      if (label != kNone) named.push_back(label);
    }
    const DTensor gradient =
        product(call.cotangent, call.operands[1 - i], {labels.result, *own[1 - i], named}, {});
    gradients[i] =
        named.size() == own[i]->size() ? gradient : reshape(gradient, call.operands[i].shape());
  }
  return gradients;
}

Gradients product_gradient(const GradientCall& call) {
  return gradients_of_product(call,
                              {read_labels(call.attributes, "a"), read_labels(call.attributes, "b"),
                               read_labels(call.attributes, "result")});
}

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

StatusOr<OpPlan> plan_matmul(Operands x, const Attributes&) {
  TESSERA_ASSIGN_OR_RETURN(const ProductLabels labels, matmul_labels(x[0], x[1]));
  return plan_product("matmul", x[0], x[1], labels);
}

Gradients matmul_gradient(const GradientCall& call) {
  return gradients_of_product(call, *matmul_labels(call.operands[0], call.operands[1]));
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
    return refusal("einsum", "equation ", in_quotes(text), ": ", why...);
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
      return wrong(in_quotes(std::string(1, c)), " is not a letter");
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
        return wrong("'", std::string(1, c), "' is twice in ", in_quotes(part),
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
      return refusal("einsum", in_quotes(letters), " has ", letters.size(), " letters for operand ",
                     k, " of rank ", rank_of(operands[k]));
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

// The plan for two operands. Refused where a letter is in one operand alone.
StatusOr<OpPlan> plan_einsum(Operands x, const Attributes& attributes) {
  if (x.size() != 2) return refusal("einsum", "takes 2 operands, not ", x.size());
  TESSERA_ASSIGN_OR_RETURN(const Equation equation, parse_equation(attributes.text("equation")));
  TESSERA_RETURN_IF_ERROR(letter_sizes(equation, x).status());
  const std::string& a = equation.operands[0];
  const std::string& b = equation.operands[1];
  for (const char c : a + b) {
    if (absl::StrContains(equation.result, c)) continue;
    if (absl::StrContains(a, c) && absl::StrContains(b, c)) continue;
    return refusal("einsum", "'", std::string(1, c), "' is in one operand alone, which is summed ",
                   "over it first; ask for the rule of sum, and then without it");
  }
  return plan_product("einsum", x[0], x[1], letter_labels(a, b, equation.result));
}

Gradients einsum_gradient(const GradientCall& call) {
  const Equation equation = *parse_equation(call.attributes.text("equation"));
  return gradients_of_product(
      call, letter_labels(equation.operands[0], equation.operands[1], equation.result));
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
    left = product(left, right, letter_labels(letters, next, joined), is_last ? out : Out());
    letters = joined;
  }
  return operands.size() == 1 ? single(left, letters, equation.result, out) : left;
}

// Whether the product of two operands is all.
bool is_one_step(const Equation& equation) {
  const std::string& a = equation.operands[0];
  const std::string& b = equation.operands[1];
  const auto is_summed_alone = [&](const std::string& own, const std::string& other) {
    return std::any_of(own.begin(), own.end(), [&](char c) {
      return !absl::StrContains(other, c) && !absl::StrContains(equation.result, c);
    });
  };
  return equation.operands.size() == 2 && !is_summed_alone(a, b) && !is_summed_alone(b, a);
}

// The product, and sums before it, where one product does not do.
Results einsum_parts(const OpCall& call) {
  const StatusOr<Equation> equation = parse_equation(call.attributes.text("equation"));
  if (!equation.ok()) return refuse(call, equation.status());
  const OperandTypes types = types_of(call.operands);
  Status status = letter_sizes(*equation, types).status();
  if (status.ok()) status = check_same_dtype("einsum", types);
  if (!status.ok()) return refuse(call, std::move(status));
  if (call.operands.size() == 1) return {multiply(*equation, call.operands, call.out)};
  if (is_one_step(*equation)) return {};
  return {in_f32(call.operands, call.out, [&](absl::Span<const DTensor> wide, const Out& to) {
    return multiply(*equation, wide, to);
  })};
}

constexpr AttributeSpec kEquation[] = {{"equation", AttributeKind::kText, "bij,bkj->bik"}};

}  // namespace

constinit const Operation kMatmul = {.name = "matmul",
                                     .arity = {2, 2},
                                     .plan = plan_matmul,
                                     .gradient = matmul_gradient,
                                     .sample = "f32 [8, 6]; f32 [6, 4]"};
constinit const Operation kEinsum = {.name = "einsum",
                                     .arity = {1, Arity::kMany},
                                     .attributes = kEquation,
                                     .plan = plan_einsum,
                                     .gradient = einsum_gradient,
                                     .parts = einsum_parts,
                                     .sample = "f32 [4, 8, 6]; f32 [4, 2, 6]"};
constinit const Operation kProduct = {.name = "einsum of labels",
                                      .arity = {2, 2},
                                      .attributes = kProductAttributes,
                                      .plan = plan_of_labels,
                                      .gradient = product_gradient};

DTensor matmul(const DTensor& a, const DTensor& b, const Out& out) {
  return only(apply(kMatmul, {a, b}, {}, out));
}

DTensor einsum(absl::string_view equation, absl::Span<const DTensor> operands, const Out& out) {
  if (operands.empty()) {
    return internal::failed_tensor(DType::kFloat32, {}, absl::InvalidArgumentError("no operands"),
                                   refusal("einsum", "of no tensors; give one at least"));
  }
  return only(apply(kEinsum, operands, {std::string(equation)}, out));
}

}  // namespace tessera::ops
