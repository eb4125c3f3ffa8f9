// SPDX-License-Identifier: Apache-2.0
#include "servers/wire.h"

#include <cstddef>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/text.h"
#include "servers/remote_dataset.h"
#include "servers/remote_variable.h"
#include "servers/variable_place.h"

namespace tessera::distribute::internal {

namespace {

// DType has 8 bits, so a number is checked before the conversion.
StatusOr<DType> dtype_of(int number) {
  if (number >= 0 && number < kNumDTypes) return static_cast<DType>(number);
  return absl::InvalidArgumentError(absl::StrCat(number, " is not the number of an element type"));
}

// Checks a place from the wire: each index in it must name a shard or a server.
Status check_place(const VariablePlace& place, int num_ps) {
  TESSERA_RETURN_IF_ERROR(validate_shape(place.shape, place.dtype));
  const auto num_shards = static_cast<int64_t>(place.rows.size());
  int64_t left = place.shape.empty() ? 1 : place.shape[0];
  bool is_whole = num_shards > 0 && num_shards == static_cast<int64_t>(place.ps.size());
  for (const int64_t rows : place.rows) {
    is_whole = is_whole && rows >= 0 && rows <= left;
    if (is_whole) left -= rows;
  }
  if (!is_whole || left != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "its shards, of ", absl::StrJoin(place.rows, ", "), " rows on ", place.ps.size(),
        " parameter servers, do not make up shape ", shape_to_string(place.shape)));
  }
  for (const int ps : place.ps) {
    if (ps >= 0 && ps < num_ps) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("a shard is on ps ", ps, ", and the cluster has ", num_ps));
  }
  return absl::OkStatus();
}

}  // namespace

void set_array(rpc::Array* message, const HostArray& array) {
  message->set_dtype(static_cast<int>(array.dtype));
  message->mutable_shape()->Assign(array.shape.begin(), array.shape.end());
  message->set_data(array.bytes.data(), array.bytes.size());
}

StatusOr<HostArray> array_of(const rpc::Array& message) {
  TESSERA_ASSIGN_OR_RETURN(const DType dtype, dtype_of(message.dtype()));
  HostArray array = {
      .dtype = dtype, .shape = Shape(message.shape().begin(), message.shape().end()), .bytes = {}};
  const auto* const data = reinterpret_cast<const std::byte*>(message.data().data());
  array.bytes.assign(data, data + message.data().size());
  TESSERA_RETURN_IF_ERROR(array.validate());
  return array;
}

StatusOr<HostArray> array_of(const rpc::CreateRequest::Head& head, const TensorBytes& data) {
  TESSERA_ASSIGN_OR_RETURN(const DType dtype, dtype_of(head.dtype()));
  HostArray array = {.dtype = dtype,
                     .shape = Shape(head.shape().begin(), head.shape().end()),
                     .bytes = std::vector<std::byte>(static_cast<size_t>(data.size()))};
  data.copy_to(array.bytes.data());
  TESSERA_RETURN_IF_ERROR(array.validate());
  return array;
}

void set_spec(google::protobuf::RepeatedPtrField<rpc::TensorSpec>* messages,
              absl::Span<const input::TensorSpec> spec) {
  for (const input::TensorSpec& tensor : spec) {
    rpc::TensorSpec* const message = messages->Add();
    message->set_dtype(static_cast<int>(tensor.dtype));
    message->mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
  }
}

StatusOr<std::vector<input::TensorSpec>> spec_of(
    const google::protobuf::RepeatedPtrField<rpc::TensorSpec>& messages) {
  std::vector<input::TensorSpec> spec;
  for (const rpc::TensorSpec& message : messages) {
    TESSERA_ASSIGN_OR_RETURN(const DType dtype, dtype_of(message.dtype()));
    spec.push_back({dtype, Shape(message.shape().begin(), message.shape().end())});
    for (const int64_t size : message.shape()) {
      if (size >= -1) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("a spec has size ", size, "; a size is 0 or more, or -1 for any"));
    }
  }
  return spec;
}

void set_dataset(rpc::Dataset* message, const DatasetPlace& place) {
  message->set_name(place.name);
  message->set_number(place.number);
  message->set_num_workers(place.num_workers);
  set_spec(message->mutable_spec(), place.spec);
}

StatusOr<DatasetPlace> dataset_of(const rpc::Dataset& message, uint64_t chief) {
  DatasetPlace place = {.name = message.name(),
                        .chief = chief,
                        .number = message.number(),
                        .num_workers = message.num_workers()};
  if (place.num_workers < 1) {
    return absl::InvalidArgumentError(absl::StrCat("data set ", in_quotes(place.name),
                                                   " is dealt to ", place.num_workers, " workers"));
  }
  TESSERA_ASSIGN_OR_RETURN(place.spec, spec_of(message.spec()));
  return place;
}

void set_argument(rpc::Argument* message, const Argument& argument) {
  if (const auto* array = std::get_if<HostArray>(&argument)) {
    set_array(message->mutable_array(), *array);
    return;
  }
  if (const auto* dataset = std::get_if<RemoteDataset>(&argument)) {
    set_dataset(message->mutable_dataset(), RemoteDatasetAccess::place(*dataset));
    return;
  }
  const VariablePlace& place = VariableAccess::place(std::get<RemoteVariable>(argument));
  rpc::Variable* const variable = message->mutable_variable();
  variable->set_name(place.name);
  variable->set_number(place.number);
  variable->set_dtype(static_cast<int>(place.dtype));
  variable->mutable_shape()->Assign(place.shape.begin(), place.shape.end());
  variable->mutable_rows()->Assign(place.rows.begin(), place.rows.end());
  variable->mutable_ps()->Assign(place.ps.begin(), place.ps.end());
}

StatusOr<Argument> argument_of(const rpc::Argument& message, uint64_t chief, int num_ps) {
  if (message.has_array()) {
    TESSERA_ASSIGN_OR_RETURN(HostArray array, array_of(message.array()));
    return Argument(std::move(array));
  }
  if (message.has_dataset()) {
    TESSERA_ASSIGN_OR_RETURN(DatasetPlace place, dataset_of(message.dataset(), chief));
    return Argument(RemoteDatasetAccess::make(std::move(place)));
  }
  if (!message.has_variable()) {
    return absl::InvalidArgumentError("it is neither an array nor a data set nor a variable");
  }
  const rpc::Variable& variable = message.variable();
  TESSERA_ASSIGN_OR_RETURN(const DType dtype, dtype_of(variable.dtype()));
  VariablePlace place = {.name = variable.name(),
                         .dtype = dtype,
                         .shape = Shape(variable.shape().begin(), variable.shape().end()),
                         .chief = chief,
                         .number = variable.number(),
                         .rows = {variable.rows().begin(), variable.rows().end()},
                         .ps = {variable.ps().begin(), variable.ps().end()}};
  TESSERA_RETURN_IF_ERROR(
      with_context(check_place(place, num_ps), absl::StrCat("variable ", in_quotes(place.name))));
  return Argument(VariableAccess::make(std::move(place)));
}

void set_update(rpc::UpdateRequest* message, const ServerUpdate& update) {
  message->set_number(update.number);
  for (const ServerUpdate::Commit& commit : update.commits) {
    rpc::UpdateRequest::Commit* const added = message->add_commits();
    added->set_worker(commit.run.worker);
    added->set_session(commit.run.session);
    added->set_run(commit.run.run);
    added->set_num_pushes(commit.num_pushes);
  }
  for (const ServerUpdate::Closed& closed : update.closed) {
    rpc::UpdateRequest::Closed* const added = message->add_closed();
    added->set_worker(closed.worker);
    added->set_session(closed.session);
  }
}

ServerUpdate update_of(const rpc::UpdateRequest& message) {
  ServerUpdate update = {.number = message.number()};
  for (const rpc::UpdateRequest::Commit& commit : message.commits()) {
    update.commits.push_back(
        {{.worker = commit.worker(), .session = commit.session(), .run = commit.run()},
         commit.num_pushes()});
  }
  for (const rpc::UpdateRequest::Closed& closed : message.closed()) {
    update.closed.push_back({closed.worker(), closed.session()});
  }
  return update;
}

}  // namespace tessera::distribute::internal
