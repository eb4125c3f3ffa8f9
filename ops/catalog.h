// SPDX-License-Identifier: Apache-2.0
//
// The catalog: the plan of each operation by name, from dtypes and shapes, without tensors.
//
//   const Shape a = {1024, 512}, b = {512, 2048};
//   const OperandType operands[] = {{DType::kFloat32, a}, {DType::kFloat32, b}};
//   StatusOr<OpPlan> plan = plan_operation("matmul", operands, {});
//   plan->rule.to_string()   [a, b] [b, c] -> [a, c]; b contracted (sum)
//
// tools/plan shows layouts from these plans, and the table of docs/internals/ops.md is made of
// them. Each file of operations lists its own (catalog_entries.h); catalog() joins the lists.
#ifndef TESSERA_OPS_CATALOG_H_
#define TESSERA_OPS_CATALOG_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "ops/op.h"
#include "ops/operand_type.h"
#include "ops/scalar.h"

namespace tessera::ops {

// The attributes of a call, by the names of tests/facts/ops.md.
class Attributes {
 public:
  Attributes() = default;
  // "dims=[0, 2]; keep_dims", "equation=ik,kj->ij", "padding=[[1, 1], [0, 0]]". InvalidArgument for
  // an attribute that is given twice or has no name.
  static StatusOr<Attributes> parse(absl::string_view text);

  bool has(const std::string& name) const { return values_.contains(name); }
  std::vector<std::string> names() const;
  // "" where there is none.
  std::string text(const std::string& name) const;
  // InvalidArgument "attribute dim=x is not a whole number" where it is something else.
  StatusOr<int64_t> integer(const std::string& name) const;
  StatusOr<Scalar> scalar(const std::string& name) const;
  // The numbers of nested lists, one after the other; none where the attribute is not given.
  StatusOr<std::vector<int64_t>> integers(const std::string& name) const;
  // As integers(), for a list of `count` numbers; `otherwise` where it is not given.
  StatusOr<std::vector<int64_t>> integers(const std::string& name, size_t count,
                                          std::vector<int64_t> otherwise) const;

 private:
  std::map<std::string, std::string> values_;
};

struct SampleOperand {
  DType dtype;
  Shape shape;
};
using PlanFunction =
    std::function<StatusOr<OpPlan>(absl::Span<const OperandType> operands, const Attributes&)>;

struct CatalogEntry {
  std::string name;
  // How many operands a call has.
  int least_operands;
  int most_operands;
  // Attributes, each with a value for example: "dim=0".
  std::vector<std::string> needed;
  std::vector<std::string> optional;
  // Operands of a call with the attributes needed, and those beside them.
  std::vector<SampleOperand> sample;
  // Null where the operation is composed of others, which `made_of` names. An operation with both a
  // plan and `made_of` is composed only where the dim that it works along is split.
  PlanFunction plan;
  std::string made_of = {};
  std::string sample_attributes = {};

  // "dim=1; k=2", of the sample.
  std::string attributes_of_sample() const;
};

// All operations, in the order of the headers.
absl::Span<const CatalogEntry> catalog();

// InvalidArgument for a name that is unknown (with the nearest one) or of a composed operation, for
// a wrong number of operands, for attributes that are unknown, missing or malformed, and for what
// the operation itself refuses.
StatusOr<OpPlan> plan_operation(absl::string_view name, absl::Span<const OperandType> operands,
                                const Attributes& attributes);

}  // namespace tessera::ops

#endif  // TESSERA_OPS_CATALOG_H_
