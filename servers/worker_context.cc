// SPDX-License-Identifier: Apache-2.0
#include "servers/worker_context.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/text.h"
#include "dtensor/to_host.h"
#include "servers/handle_access.h"
#include "servers/host_copy.h"
#include "servers/parameter_servers.h"
#include "servers/pending_push.h"
#include "servers/push_ledger.h"
#include "servers/tensor_message.h"
#include "servers/worker_datasets.h"

namespace tessera::distribute {

WorkerContext::WorkerContext(int worker, int attempt, Mesh mesh,
                             internal::ParameterServers& servers,
                             internal::WorkerDatasets& datasets)
    : worker_(worker),
      attempt_(attempt),
      mesh_(std::move(mesh)),
      servers_(servers),
      datasets_(datasets) {}
WorkerContext::~WorkerContext() = default;

DTensor WorkerContext::pull(const RemoteVariable& variable) {
  const StatusOr<internal::TensorBytes> value =
      servers_.read(internal::VariableAccess::place(variable));
  return internal::to_tensor(value, variable.dtype(), variable.shape(), mesh_);
}

Status WorkerContext::push_add(const RemoteVariable& variable, const DTensor& delta) {
  TESSERA_RETURN_IF_ERROR(with_context(validate_reduction(ReduceOp::kSum, variable.dtype()),
                                       absl::StrCat("push_add to ", in_quotes(variable.name()))));
  return add_push(PushKind::kAdd, variable, delta);
}

Status WorkerContext::push(const RemoteVariable& variable, const DTensor& value) {
  return add_push(PushKind::kAssign, variable, value);
}

Status WorkerContext::add_push(PushKind kind, const RemoteVariable& variable,
                               const DTensor& value) {
  TESSERA_RETURN_IF_ERROR(value.status());
  if (value.dtype() != variable.dtype() || value.shape() != variable.shape()) {
    return absl::InvalidArgumentError(
        absl::StrCat(kind == PushKind::kAdd ? "push_add" : "push", " to ",
                     in_quotes(variable.name()), ", which is ", dtype_name(variable.dtype()),
                     " of shape ", shape_to_string(variable.shape()), ": got ",
                     dtype_name(value.dtype()), " of shape ", shape_to_string(value.shape())));
  }
  TESSERA_ASSIGN_OR_RETURN(tessera::internal::RawShard whole,
                           tessera::internal::to_host_raw(value));
  pushes_.push_back({kind, variable, std::move(whole)});
  return absl::OkStatus();
}

StatusOr<std::optional<input::Batch>> WorkerContext::next(const RemoteDataset& dataset) {
  return datasets_.next(internal::RemoteDatasetAccess::place(dataset));
}

}  // namespace tessera::distribute
