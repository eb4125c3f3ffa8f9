// SPDX-License-Identifier: Apache-2.0
#include "ops/local_gradient.h"

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/device_op.h"
#include "dtensor/relayout.h"
#include "ops/all_operations.h"
#include "ops/operation.h"
#include "ops/tape.h"
#include "ops/tape_graph.h"

namespace tessera {
namespace {

using ops::GradientCall;
using ops::Gradients;
using LocalGradients = std::vector<std::optional<LocalGradient>>;

Status check_gradients(absl::Span<const DTensor> inputs, const LocalGradients& gradients) {
  if (gradients.size() != inputs.size()) {
    return absl::InvalidArgumentError(absl::StrCat("local_map: ", gradients.size(),
                                                   " gradients for ", inputs.size(),
                                                   " inputs; give std::nullopt where one is zero"));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!gradients[i].has_value() || is_floating_point(inputs[i].dtype())) continue;
    return absl::InvalidArgumentError(absl::StrCat("local_map: input ", i, " is ",
                                                   dtype_name(inputs[i].dtype()),
                                                   ", which has no gradient; give std::nullopt"));
  }
  return absl::OkStatus();
}

constexpr ops::AttributeSpec kGradientsAttribute[] = {
    {"gradients", ops::AttributeKind::kFunction, ""}};

Gradients local_gradient(const GradientCall& call) {
  const auto& gradients = call.attributes.function<LocalGradients>("gradients");
  std::vector<DTensor> known;
  for (const DTensor& operand : call.operands) known.push_back(stop_gradient(operand));
  known.push_back(stop_gradient(call.result));
  known.push_back(stop_gradient(relayout(call.cotangent, call.result.layout().without_partial())));
  Gradients found(gradients.size());
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].has_value() || !call.needed[i]) continue;
    found[i] = local_map(gradients[i]->layout, call.operands[i].shape(), call.operands[i].dtype(),
                         known, gradients[i]->fn);
  }
  return found;
}

}  // namespace

constinit const ops::Operation ops::kLocalMap = {.name = "local_map",
                                                 .arity = {0, ops::Arity::kMany},
                                                 .attributes = kGradientsAttribute,
                                                 .gradient = local_gradient};

DTensor local_map(LayoutArg out_layout, const Shape& out_shape, DType out_dtype,
                  absl::Span<const DTensor> inputs, LocalFn fn, LocalGradients gradients) {
  if (Status status = check_gradients(inputs, gradients); !status.ok()) {
    return internal::failed_tensor(out_dtype, out_shape, out_layout, std::move(status));
  }
  std::vector<DTensor> stopped;
  for (const DTensor& input : inputs) stopped.push_back(stop_gradient(input));
  DTensor result = local_map(out_layout, out_shape, out_dtype, stopped, std::move(fn));
  const ops::Attributes attributes(
      kGradientsAttribute,
      {ops::FunctionAttribute{std::make_shared<const LocalGradients>(std::move(gradients)), {}}});
  return ops::record(ops::kLocalMap, inputs, attributes, std::move(result));
}

}  // namespace tessera
