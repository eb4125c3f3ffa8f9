// SPDX-License-Identifier: Apache-2.0
#include "ops/broadcast.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "ops/operation.h"

namespace tessera::ops {

StatusOr<Shape> broadcast_shapes(const char* name, absl::Span<const OperandType> operands) {
  size_t rank = 0;
  for (const OperandType& operand : operands) rank = std::max(rank, operand.shape().size());
  Shape shape(rank, 1);
  for (const OperandType& operand : operands) {
    const size_t before = rank - operand.shape().size();
    for (size_t dim = 0; dim < operand.shape().size(); ++dim) {
      const int64_t size = operand.shape()[dim];
      int64_t& common = shape[before + dim];
      if (common == 1) common = size;
      if (size != common && size != 1) {
        std::vector<std::string> shapes;
        for (const OperandType& each : operands) shapes.push_back(shape_to_string(each.shape()));
        return refusal(name, "shapes ", absl::StrJoin(shapes, " and "), " do not broadcast: ", size,
                       " against ", common);
      }
    }
  }
  return shape;
}

Rule broadcast_rule(absl::Span<const OperandType> operands, const Shape& shape) {
  Rule rule;
  for (const int64_t size : shape) rule.result.push_back({rule.add_factor(size)});
  for (const OperandType& operand : operands) {
    RuleDims& dims = rule.operands.emplace_back();
    const size_t before = shape.size() - operand.shape().size();
    for (size_t dim = 0; dim < operand.shape().size(); ++dim) {
      const bool is_broadcast = operand.shape()[dim] != shape[before + dim];
      dims.push_back(is_broadcast ? RuleDim() : rule.result[before + dim]);
    }
  }
  // Every factor of the result is in an operand: some operand has a dim of its size.
  return rule;
}

absl::InlinedVector<int64_t, 8> broadcast_strides(absl::Span<const int64_t> sizes,
                                                  absl::Span<const int64_t> result_sizes) {
  const absl::InlinedVector<int64_t, 8> dense = dense_strides(sizes);
  absl::InlinedVector<int64_t, 8> strides(result_sizes.size(), 0);
  const size_t before = result_sizes.size() - sizes.size();
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] != 1) strides[before + dim] = dense[dim];
  }
  return strides;
}

Status check_same_dtype(const char* name, absl::Span<const OperandType> operands) {
  for (const OperandType& operand : operands) {
    if (operand.dtype() == operands[0].dtype()) continue;
    return refusal(name, "operands are ", dtype_name(operands[0].dtype()), " and ",
                   dtype_name(operand.dtype()), "; cast() one of them");
  }
  return absl::OkStatus();
}

}  // namespace tessera::ops
