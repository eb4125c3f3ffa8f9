// SPDX-License-Identifier: Apache-2.0
#include "ops/elementwise.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/exception_status.h"
#include "base/shape.h"
#include "base/status.h"
#include "ops/all_operations.h"
#include "ops/apply.h"
#include "ops/broadcast.h"
#include "ops/operand_type.h"
#include "ops/operation.h"

namespace tessera::internal {
namespace {

using ops::broadcast_rule;
using ops::broadcast_shapes;
using ops::broadcast_strides;
using ops::LocalCall;
using ops::OperandType;
using ops::OpPlan;
using ops::refusal;

constexpr char kName[] = "elementwise";

Status check_tensors(const ElementFunction& function, absl::Span<const OperandType> tensors) {
  if (function.fn == nullptr) {
    return refusal(kName, "the function is empty; give one that can be called");
  }
  if (function.dtypes.size() != tensors.size()) {
    return refusal(kName, "the function takes ", function.dtypes.size(), " elements, and ",
                   tensors.size(), " tensors were given");
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].dtype() == function.dtypes[i]) continue;
    return refusal(kName, "the function takes ", dtype_name(function.dtypes[i]), " of operand ", i,
                   ", which is ", dtype_name(tensors[i].dtype()), "; cast() it");
  }
  return absl::OkStatus();
}

// An exception must not leave the thread of a device: that would end the process.
Status call_loop(const ElementFunction& function, absl::Span<const kernels::Strided> in,
                 const LocalCall& call) {
  try {
    function.loop(function.fn.get(), in, call.out_box.sizes, call.out);
  } catch (...) {
    return with_context(exception_status(), "elementwise");
  }
  return absl::OkStatus();
}

constexpr ops::AttributeSpec kFunctionAttribute[] = {
    {"function", ops::AttributeKind::kFunction, ""}};

StatusOr<OpPlan> plan_elementwise(ops::Operands tensors, const ops::Attributes& attributes) {
  const auto& function = attributes.function<ElementFunction>("function");
  TESSERA_RETURN_IF_ERROR(check_tensors(function, tensors));
  TESSERA_ASSIGN_OR_RETURN(Shape shape, broadcast_shapes(kName, tensors));
  const auto kernel = [function](const LocalCall& call) -> Status {
    absl::InlinedVector<absl::InlinedVector<int64_t, 8>, 4> strides;
    for (const Box& box : call.in_boxes) {
      strides.push_back(broadcast_strides(box.sizes, call.out_box.sizes));
    }
    absl::InlinedVector<kernels::Strided, 4> in;
    for (size_t k = 0; k < call.in.size(); ++k) in.push_back({call.in[k], strides[k]});
    return call_loop(function, in, call);
  };
  return OpPlan{broadcast_rule(tensors, shape), function.result, std::move(shape), kernel};
}

}  // namespace

DTensor run_elementwise(ElementFunction function, absl::Span<const DTensor> tensors,
                        const ops::Out& out) {
  std::vector<int64_t> identity = std::move(function.identity);
  return ops::only(
      apply(ops::kElementwise, tensors,
            {ops::FunctionAttribute{std::make_shared<const ElementFunction>(std::move(function)),
                                    std::move(identity)}},
            out));
}

}  // namespace tessera::internal

namespace tessera::ops {

constinit const Operation kElementwise = {
    .name = "elementwise",
    .arity = {1, Arity::kMany},
    .attributes = internal::kFunctionAttribute,
    .plan = internal::plan_elementwise,
    .gradient = Gradient::refused(
        "gradient: elementwise has no gradient of its function; give one by custom_gradient()"),
    .needs_host = true,
    .calls_user = true};

}  // namespace tessera::ops
