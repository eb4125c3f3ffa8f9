// SPDX-License-Identifier: Apache-2.0
#include "distribute/strategy_state.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/dtype.h"
#include "base/exception_status.h"
#include "device/device.h"
#include "distribute/cross_device_ops.h"
#include "dtensor/device_op.h"
#include "layout/layout.h"
#include "mesh/mesh_runtime.h"

namespace tessera::distribute::internal {

DTensor failed_on(const Mesh& mesh, Status error) {
  return tessera::internal::failed_tensor(DType::kFloat32, {}, Layout::replicated(mesh, 0),
                                          std::move(error));
}

std::vector<DTensor> all_failed(absl::Span<const DTensor> tensors, const Status& error) {
  std::vector<DTensor> result;
  for (const DTensor& each : tensors) {
    result.push_back(
        tessera::internal::failed_tensor(each.dtype(), each.shape(), each.layout(), error));
  }
  return result;
}

DTensor tensor_of(const Mesh& mesh, absl::FunctionRef<DTensor()> fn) {
  const StatusOr<DTensor> tensor = call_guarded<StatusOr<DTensor>>(fn);
  return tensor.ok() ? *tensor : failed_on(mesh, tensor.status());
}

StrategyState::StrategyState(const Client& client, Mesh mesh, Mesh parameter_mesh,
                             StrategyOptions options)
    : Replicas(client, std::move(mesh)),
      parameter_mesh_(std::move(parameter_mesh)),
      options_(std::move(options)) {}

StatusOr<std::shared_ptr<StrategyState>> StrategyState::create(
    const Client& client, Mesh mesh, const std::vector<std::string>& replica_axes,
    StrategyOptions options, std::optional<Mesh> parameter_mesh) {
  if (!mesh.valid()) return tessera::internal::empty_handle("Strategy::create()", "Mesh");
  if (tessera::internal::runtime_of(mesh) == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("a strategy needs a live mesh; ", mesh.to_string(),
                     " is abstract: make it with create_mesh(client, ...)"));
  }
  if (replica_axes.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a strategy needs one replica axis or more of mesh ", mesh.to_string()));
  }
  if (options.cross_device_ops == nullptr) options.cross_device_ops = collective_all_reduce();
  const std::shared_ptr<CrossDeviceOps> ops = options.cross_device_ops;
  TESSERA_RETURN_IF_ERROR(call_guarded<Status>([&] { return ops->check(client, mesh); }));

  Mesh parameters = parameter_mesh.has_value() ? *std::move(parameter_mesh) : mesh;
  std::shared_ptr<StrategyState> state(
      new StrategyState(client, std::move(mesh), std::move(parameters), std::move(options)));
  TESSERA_RETURN_IF_ERROR(state->set_replicas(replica_axes));
  TESSERA_RETURN_IF_ERROR(state->options_over({}, state->options_.communication).status());
  TESSERA_ASSIGN_OR_RETURN(Exchange exchange,
                           Exchange::create(*state, ops->control_mesh(state->mesh())));
  state->exchange_.emplace(std::move(exchange));
  return state;
}

StatusOr<CommunicationOptions> StrategyState::options_over(const CommunicationOptions& base,
                                                           const CommunicationOptions& call) const {
  if (call.bytes_per_pack.has_value() && *call.bytes_per_pack < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("bytes_per_pack is ", *call.bytes_per_pack, "; it should be 0 or more"));
  }
  if (call.timeout.has_value() && *call.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeout is ", absl::FormatDuration(*call.timeout), "; it should be above 0"));
  }
  CommunicationOptions options = base;
  if (call.bytes_per_pack.has_value()) options.bytes_per_pack = call.bytes_per_pack;
  if (call.timeout.has_value()) options.timeout = call.timeout;
  if (call.implementation != CommunicationImplementation::kAuto) {
    options.implementation = call.implementation;
  }
  if (!call.name.empty()) options.name = call.name;
  const DeviceType type = client().devices()[*mesh().device_at(0)].type;
  if (options.implementation == CommunicationImplementation::kNccl && type == DeviceType::kCpu) {
    return absl::FailedPreconditionError("NCCL moves bytes between GPUs, and the devices are CPUs");
  }
  return options;
}

Status StrategyState::check_not_in_replica(const std::string& call, const char* counterpart) const {
  {
    std::lock_guard<std::mutex> lock(runs_mutex_);
    if (runs_.empty() || !runs_.back()()) return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      call, " is called in a replica function, where it would run once for each replica; use ",
      counterpart));
}

void StrategyState::push_run(std::function<bool()> is_in_replica) {
  std::lock_guard<std::mutex> lock(runs_mutex_);
  runs_.push_back(std::move(is_in_replica));
}
void StrategyState::pop_run() {
  std::lock_guard<std::mutex> lock(runs_mutex_);
  runs_.pop_back();
}

}  // namespace tessera::distribute::internal
