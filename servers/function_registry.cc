// SPDX-License-Identifier: Apache-2.0
#include "servers/function_registry.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/reduce_op.h"
#include "base/text.h"
#include "dtensor/to_host.h"
#include "layout/layout.h"
#include "servers/host_copy.h"
#include "servers/parameter_servers.h"
#include "servers/tensor_message.h"
#include "servers/worker_datasets.h"

namespace tessera::distribute {

DTensor WorkerContext::pull(const RemoteVariable& variable) {
  const StatusOr<internal::TensorBytes> value =
      servers_.read(internal::VariableAccess::place(variable));
  return internal::to_tensor(value, variable.dtype(), variable.shape(), mesh_);
}

Status WorkerContext::push_add(const RemoteVariable& variable, const DTensor& delta) {
  TESSERA_RETURN_IF_ERROR(with_context(validate_reduction(ReduceOp::kSum, variable.dtype()),
                                       absl::StrCat("push_add to ", quoted(variable.name()))));
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
        absl::StrCat(kind == PushKind::kAdd ? "push_add" : "push", " to ", quoted(variable.name()),
                     ", which is ", dtype_name(variable.dtype()), " of shape ",
                     shape_to_string(variable.shape()), ": got ", dtype_name(value.dtype()),
                     " of shape ", shape_to_string(value.shape())));
  }
  TESSERA_ASSIGN_OR_RETURN(tessera::internal::RawShard whole,
                           tessera::internal::to_host_raw(value));
  pushes_.push_back({kind, variable, std::move(whole)});
  return absl::OkStatus();
}

StatusOr<std::optional<input::Batch>> WorkerContext::next(const RemoteDataset& dataset) {
  return datasets_.next(internal::RemoteDatasetAccess::place(dataset));
}

namespace {

template <class Fn>
using Registered = std::map<std::string, Fn, std::less<>>;

// `what`: its kind in messages, as "function".
template <class Fn>
Status add_to(Registered<Fn>* registered, absl::string_view what, std::string name, Fn fn) {
  if (name.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("a ", what, " needs a name that is not empty"));
  }
  if (!fn) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " ", quoted(name), " is empty; give a function that can be called"));
  }
  const auto [it, is_new] = registered->try_emplace(std::move(name), std::move(fn));
  if (is_new) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(what, " ", quoted(it->first),
                                               " is in the registry; give each a name of its own"));
}

template <class Fn>
std::vector<std::string> names_of(const Registered<Fn>& registered) {
  std::vector<std::string> result;
  for (const auto& [name, fn] : registered) result.push_back(name);
  return result;
}

template <class Fn>
const Fn* find_in(const Registered<Fn>& registered, absl::string_view name) {
  const auto it = registered.find(std::string(name));
  return it == registered.end() ? nullptr : &it->second;
}

}  // namespace

Status FunctionRegistry::add(std::string name, Function fn) {
  return add_to(&functions_, "function", std::move(name), std::move(fn));
}
Status FunctionRegistry::add_dataset(std::string name, DatasetFunction fn) {
  return add_to(&datasets_, "data set", std::move(name), std::move(fn));
}

std::vector<std::string> FunctionRegistry::names() const { return names_of(functions_); }
std::vector<std::string> FunctionRegistry::dataset_names() const { return names_of(datasets_); }

const FunctionRegistry::Function* FunctionRegistry::find(absl::string_view name) const {
  return find_in(functions_, name);
}
const FunctionRegistry::DatasetFunction* FunctionRegistry::find_dataset(
    absl::string_view name) const {
  return find_in(datasets_, name);
}

}  // namespace tessera::distribute
