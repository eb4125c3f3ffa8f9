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
// The wire carries no code: main builds the same registry in the program of every worker, and the
// chief compares the names of all workers before it uses any of them.
//
// A function runs at least once for each closure, and may run again on another worker after the
// loss of the first.
//
// - Pushes count once: they are kept aside until the function has returned OK, and become visible
//   together on all parameter servers.
// - Reads from per-worker data sets count once too: the worker's next call reads the batches of a
//   call that failed or was given up.
// - Other effects, such as files, are the function's responsibility.
#ifndef TESSERA_SERVERS_FUNCTION_REGISTRY_H_
#define TESSERA_SERVERS_FUNCTION_REGISTRY_H_

#include <functional>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/host_array.h"
#include "base/public.h"
#include "base/status.h"
#include "dtensor/dtensor.h"
#include "input/dataset.h"
#include "input/input_context.h"
#include "servers/remote_dataset.h"
#include "servers/remote_variable.h"

namespace TESSERA_PUBLIC tessera {
namespace distribute {

class WorkerContext;  // worker_context.h

using Argument = std::variant<HostArray, RemoteVariable, RemoteDataset>;

// A value. A function's results are DTensors over context.mesh(); the chief receives the whole
// tensors.
class FunctionRegistry {
 public:
  using Function =
      std::function<StatusOr<std::vector<DTensor>>(WorkerContext&, absl::Span<const Argument>)>;

  // Makes a per-worker data set, which must have batches. Called once on each worker, with the
  // number of workers as pipelines, the worker's index as the pipeline's, and one replica.
  using DatasetFunction = std::function<StatusOr<input::Dataset>(const InputContext&)>;

  // InvalidArgument for an empty name or function, AlreadyExists for a name that is in use.
  Status add(std::string name, Function fn);
  // Fails as add() does. A data set may have the name of a function.
  Status add_dataset(std::string name, DatasetFunction fn);

  // Sorted.
  std::vector<std::string> names() const;
  std::vector<std::string> dataset_names() const;
  // Null if there is no such function.
  const Function* find(absl::string_view name) const;
  const DatasetFunction* find_dataset(absl::string_view name) const;

 private:
  std::map<std::string, Function, std::less<>> functions_;
  std::map<std::string, DatasetFunction, std::less<>> datasets_;
};

}  // namespace distribute
}  // namespace tessera

#endif  // TESSERA_SERVERS_FUNCTION_REGISTRY_H_
