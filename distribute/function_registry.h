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
//   Server::start(cluster, functions);
//
// No code travels: main builds the same registry in the program of every worker, and the chief
// compares the names of all workers before it uses one.
//
// A function runs at least once for each closure, and may run again on another worker after the
// loss of the first. What it pushes counts once: pushes are kept aside until the function has
// returned OK, and become visible together on all parameter servers (closure_scheduler.h). Other
// effects, such as files, are the function's own.
#ifndef TESSERA_DISTRIBUTE_FUNCTION_REGISTRY_H_
#define TESSERA_DISTRIBUTE_FUNCTION_REGISTRY_H_

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/host_array.h"
#include "base/status.h"
#include "distribute/push_ledger.h"
#include "distribute/remote_variable.h"
#include "dtensor/dtensor.h"
#include "mesh/mesh.h"

namespace tessera::distribute {

namespace internal {

class ParameterServers;
class WorkerRunner;

// A push that waits until its function has returned OK: the bytes of the whole variable.
struct PendingPush {
  PushKind kind;
  RemoteVariable variable;
  HostArray value;
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

  // The value, replicated over mesh(). It has what all closures that are done have pushed, and
  // nothing that this call has. Pulls of one shard are atomic; of several they are not. A tensor
  // that carries Unavailable where a parameter server does not answer.
  DTensor pull(const RemoteVariable& variable);
  // Adds `delta` to the variable, or replaces its value, once this function has returned OK.
  // InvalidArgument for another dtype or shape, and for push_add of bool. `delta` may have any
  // layout; partial terms are reduced.
  Status push_add(const RemoteVariable& variable, const DTensor& delta);
  Status push(const RemoteVariable& variable, const DTensor& value);

 private:
  friend class internal::WorkerRunner;
  WorkerContext(int worker, int attempt, Mesh mesh, internal::ParameterServers& servers)
      : worker_(worker), attempt_(attempt), mesh_(std::move(mesh)), servers_(servers) {}
  Status add_push(PushKind kind, const RemoteVariable& variable, const DTensor& value);

  const int worker_;
  const int attempt_;
  const Mesh mesh_;
  internal::ParameterServers& servers_;
  std::vector<internal::PendingPush> pushes_;
};

using Argument = std::variant<HostArray, RemoteVariable>;

// A value. Results are DTensors over context.mesh(), which travel to the chief whole.
class FunctionRegistry {
 public:
  using Function =
      std::function<StatusOr<std::vector<DTensor>>(WorkerContext&, absl::Span<const Argument>)>;

  // InvalidArgument for an empty name or function, AlreadyExists for a name that is there.
  Status add(std::string name, Function fn);

  // In order.
  std::vector<std::string> names() const;
  // Null where there is none.
  const Function* find(absl::string_view name) const;

 private:
  std::map<std::string, Function, std::less<>> functions_;
};

}  // namespace tessera::distribute

#endif  // TESSERA_DISTRIBUTE_FUNCTION_REGISTRY_H_
