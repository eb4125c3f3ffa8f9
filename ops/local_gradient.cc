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

// What the record of one result holds.
struct Recorded {
  std::shared_ptr<const LocalGradients> gradients;
  std::vector<DTensor> results;  // of the call, without traces
  size_t index;                  // of the result
};

constexpr ops::AttributeSpec kGradientsAttribute[] = {
    {"gradients", ops::AttributeKind::kFunction, ""}};

// The cotangents of all results where only that of result `index` is known.
std::vector<DTensor> cotangents_of(const Recorded& recorded, const DTensor& cotangent) {
  std::vector<DTensor> cotangents;
  for (size_t k = 0; k < recorded.results.size(); ++k) {
    const DTensor& result = recorded.results[k];
    const StatusOr<Layout> layout = result.layout().without_partial();
    const std::byte zero[8] = {};
    cotangents.push_back(k == recorded.index
                             ? stop_gradient(relayout(cotangent, layout))
                             : internal::full_raw(result.dtype(), result.shape(), layout, zero));
  }
  return cotangents;
}

Gradients local_gradient(const GradientCall& call) {
  const auto& recorded = call.attributes.function<Recorded>("gradients");
  const LocalGradients& gradients = *recorded.gradients;
  std::vector<DTensor> known;
  for (const DTensor& operand : call.operands) known.push_back(stop_gradient(operand));
  known.insert(known.end(), recorded.results.begin(), recorded.results.end());
  for (DTensor& each : cotangents_of(recorded, call.cotangent)) known.push_back(std::move(each));
  Gradients found(gradients.size());
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].has_value() || !call.needed[i]) continue;
    found[i] = local_map(gradients[i]->layout, call.operands[i].shape(), call.operands[i].dtype(),
                         known, gradients[i]->fn);
  }
  return found;
}

std::vector<DTensor> stopped(absl::Span<const DTensor> inputs) {
  std::vector<DTensor> known;
  for (const DTensor& input : inputs) known.push_back(stop_gradient(input));
  return known;
}

// Records the results of a call, which have no traces.
void record_results(absl::Span<const DTensor> inputs, LocalGradients gradients,
                    std::vector<DTensor>& results) {
  const auto shared = std::make_shared<const LocalGradients>(std::move(gradients));
  const std::vector<DTensor> traceless = results;
  for (size_t k = 0; k < results.size(); ++k) {
    const ops::Attributes attributes(
        kGradientsAttribute,
        {ops::FunctionAttribute{std::make_shared<const Recorded>(Recorded{shared, traceless, k}),
                                {}}});
    results[k] = ops::record(ops::kLocalMap, inputs, attributes, std::move(results[k]));
  }
}

}  // namespace

constinit const ops::Operation ops::kLocalMap = {.name = "local_map",
                                                 .arity = {0, ops::Arity::kMany},
                                                 .attributes = kGradientsAttribute,
                                                 .gradient = local_gradient};

DTensor local_map(const LayoutArg& out_layout, const Shape& out_shape, DType out_dtype,
                  absl::Span<const DTensor> inputs, LocalFn fn, LocalGradients gradients) {
  const LocalOutput output = {out_layout, out_shape, out_dtype};
  return std::move(local_map({&output, 1}, inputs, std::move(fn), std::move(gradients))[0]);
}

std::vector<DTensor> local_map(absl::Span<const LocalOutput> outputs,
                               absl::Span<const DTensor> inputs, LocalFn fn,
                               LocalGradients gradients) {
  std::vector<DTensor> results;
  if (Status status = check_gradients(inputs, gradients); !status.ok()) {
    for (const LocalOutput& each : outputs) {
      results.push_back(
          internal::failed_tensor(each.dtype, each.shape, each.layout.layout(), status));
    }
    return results;
  }
  results = local_map(outputs, stopped(inputs), std::move(fn));
  record_results(inputs, std::move(gradients), results);
  return results;
}

}  // namespace tessera
