// SPDX-License-Identifier: Apache-2.0
#include "ops/elementwise.h"

#include <optional>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/exception_status.h"
#include "base/shape.h"
#include "base/status.h"
#include "ops/broadcast.h"
#include "ops/gradient.h"
#include "ops/op.h"
#include "ops/operand_type.h"

namespace tessera::internal {
namespace {

using ops::broadcast_rule;
using ops::broadcast_shapes;
using ops::broadcast_strides;
using ops::GradientCall;
using ops::Gradients;
using ops::LocalCall;
using ops::OpCall;
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

StatusOr<OpPlan> plan_elementwise(const ElementFunction& function,
                                  absl::Span<const OperandType> tensors) {
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
  OpCall call = {kName, tensors, function.identity, out};
  call.is_cached = !function.identity.empty();
  call.needs_host = true;
  DTensor result =
      ops::run(call, [&] { return plan_elementwise(function, ops::types_of(tensors)); });
  return ops::differentiable(
      std::move(result), tensors, [](const GradientCall& gradient) -> Gradients {
        const Status error = absl::InvalidArgumentError(
            "gradient: elementwise has no gradient of its function; give one by custom_gradient()");
        Gradients failed;
        for (const DTensor& operand : gradient.operands) {
          failed.push_back(
              failed_tensor(operand.dtype(), operand.shape(), operand.layout(), error));
        }
        return failed;
      });
}

}  // namespace tessera::internal
