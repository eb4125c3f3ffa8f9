// SPDX-License-Identifier: Apache-2.0
//
// FunctionRegistry: the functions that a chief can schedule on workers, by name.
//
//   FunctionRegistry functions;
//   functions.add("add", [](WorkerContext& context, absl::Span<const Argument> args)
//                            -> StatusOr<std::vector<DTensor>> {
//     const RemoteVariable& v = std::get<RemoteVariable>(args[0]);
//     TESSERA_RETURN_IF_ERROR(context.push_add(v, ones<float>({}, ...)));
//     return std::vector<DTensor>{context.pull(v)};
//   });
//   functions.add_dataset("train", [](const InputContext& context) -> StatusOr<input::Dataset> {
//     return images.shard(context.num_input_pipelines, context.input_pipeline_id).batch(64);
//   });
//   Server::start(cluster, functions);
//
// No code travels: main builds the same registry in the program of every worker, and the chief
// compares the names of all workers before it uses one.
//
// A function runs at least once for each closure, and may run again on another worker after the
// loss of the first. Its pushes count once: they are kept aside until the function has returned OK,
// and become visible together on all parameter servers (closure_scheduler.h). So do its reads from
// per-worker data sets: the batches of a call that fails, or that is given up, are read by the next
// call of its worker. Other effects, such as files, are the function's own.
#ifndef TESSERA_SERVERS_FUNCTION_REGISTRY_H_
#define TESSERA_SERVERS_FUNCTION_REGISTRY_H_

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/host_array.h"
#include "base/status.h"
#include "dtensor/dtensor.h"
#include "input/dataset.h"
#include "input/input_context.h"
#include "input/loader.h"
#include "mesh/mesh.h"
#include "servers/push_ledger.h"
#include "servers/remote_dataset.h"
#include "servers/remote_variable.h"

namespace tessera::distribute {

namespace internal {

class ParameterServers;
class WorkerDatasets;
class WorkerRunner;

// A push that waits until its function has returned OK.
struct PendingPush {
  PushKind kind;
  RemoteVariable variable;
  tessera::internal::RawShard value;  // the whole tensor
};

}  // namespace internal

// Argument of a registered function; lives as long as its call. Used by one thread at a time.
class WorkerContext {
 public:
  WorkerContext(const WorkerContext&) = delete;
  WorkerContext& operator=(const WorkerContext&) = delete;

  int worker_index() const { return worker_; }
  int attempt() const { return attempt_; }  // at this closure, from 1
  // {device=n}, the devices of this worker: $TESSERA_LOCAL_DEVICES CPU devices, 1 by default.
  const Mesh& mesh() const { return mesh_; }

  // The value, replicated over mesh(). It includes the pushes of all closures that are done, and
  // none of this call. Pulls of one shard are atomic; of several they are not. A tensor that
  // carries Unavailable where a parameter server does not answer.
  DTensor pull(const RemoteVariable& variable);
  // Adds `delta` to the variable, or replaces its value, once this function has returned OK.
  // InvalidArgument for another dtype or shape, and for push_add of bool. `delta` may have any
  // layout; partial terms are reduced.
  Status push_add(const RemoteVariable& variable, const DTensor& delta);
  Status push(const RemoteVariable& variable, const DTensor& value);

  // The next batch of this worker, split along dim 0 over the devices of mesh(); nothing at the
  // end, as often as asked. Reads from where the last call of this worker that counts has ended.
  // InvalidArgument for a data set that is not an argument of this call. An error of the data set
  // names its element; further calls return it too, and the position stays before it.
  StatusOr<std::optional<input::Batch>> next(const RemoteDataset& dataset);

 private:
  friend class internal::WorkerRunner;
  WorkerContext(int worker, int attempt, Mesh mesh, internal::ParameterServers& servers,
                internal::WorkerDatasets& datasets)
      : worker_(worker),
        attempt_(attempt),
        mesh_(std::move(mesh)),
        servers_(servers),
        datasets_(datasets) {}
  Status add_push(PushKind kind, const RemoteVariable& variable, const DTensor& value);

  const int worker_;
  const int attempt_;
  const Mesh mesh_;
  internal::ParameterServers& servers_;
  internal::WorkerDatasets& datasets_;
  std::vector<internal::PendingPush> pushes_;
};

using Argument = std::variant<HostArray, RemoteVariable, RemoteDataset>;

// A value. Results are DTensors over context.mesh(), which travel to the chief whole.
class FunctionRegistry {
 public:
  using Function =
      std::function<StatusOr<std::vector<DTensor>>(WorkerContext&, absl::Span<const Argument>)>;

  // Makes a per-worker data set: called once on each worker, with the number of workers as
  // pipelines, the worker's index as the pipeline's, and one replica. Returns batches.
  using DatasetFunction = std::function<StatusOr<input::Dataset>(const InputContext&)>;

  // InvalidArgument for an empty name or function, AlreadyExists for a name that is there.
  Status add(std::string name, Function fn);
  // As add(). A data set may have the name of a function.
  Status add_dataset(std::string name, DatasetFunction fn);

  // In order.
  std::vector<std::string> names() const;
  std::vector<std::string> dataset_names() const;
  // Null where there is none.
  const Function* find(absl::string_view name) const;
  const DatasetFunction* find_dataset(absl::string_view name) const;

 private:
  std::map<std::string, Function, std::less<>> functions_;
  std::map<std::string, DatasetFunction, std::less<>> datasets_;
};

}  // namespace tessera::distribute

#endif  // TESSERA_SERVERS_FUNCTION_REGISTRY_H_
