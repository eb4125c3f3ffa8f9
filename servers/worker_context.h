// SPDX-License-Identifier: Apache-2.0
//
// WorkerContext: gives a function of a FunctionRegistry its worker's mesh, variables and per-worker
// data sets.
//
//   const DTensor value = context.pull(variable);
//   TESSERA_RETURN_IF_ERROR(context.push_add(variable, gradient_of(value)));
#ifndef TESSERA_SERVERS_WORKER_CONTEXT_H_
#define TESSERA_SERVERS_WORKER_CONTEXT_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "base/public.h"
#include "base/status.h"
#include "dtensor/dtensor.h"
#include "input/loader.h"
#include "mesh/mesh.h"
#include "servers/remote_dataset.h"
#include "servers/remote_variable.h"

namespace TESSERA_PUBLIC tessera {
namespace distribute {

enum class PushKind : uint8_t;  // Internal.

namespace internal {
struct PendingPush;
class ParameterServers;
class WorkerDatasets;
class WorkerRunner;
}  // namespace internal

// The context of one call of a registered function. Lives as long as the call. Used by one thread
// at a time.
class WorkerContext {
 public:
  WorkerContext(const WorkerContext&) = delete;
  WorkerContext& operator=(const WorkerContext&) = delete;

  int worker_index() const { return worker_; }
  int attempt() const { return attempt_; }  // number of this attempt at the closure, from 1
  // {device=n}: all devices of this worker, $TESSERA_LOCAL_DEVICES CPU devices, 1 by default.
  const Mesh& mesh() const { return mesh_; }

  // The value, replicated over mesh(). It includes the pushes of all closures that are done, and
  // none of this call. A pull of one shard is atomic; a pull of several shards is not. If a
  // parameter server does not answer, the tensor carries Unavailable.
  DTensor pull(const RemoteVariable& variable);
  // Adds `delta` to the variable, or replaces its value, once this function has returned OK.
  // `delta` may have any layout; partial terms are reduced. InvalidArgument for another dtype or
  // shape, and for push_add of bool.
  Status push_add(const RemoteVariable& variable, const DTensor& delta);
  Status push(const RemoteVariable& variable, const DTensor& value);

  // Returns the next batch of this worker, split along dim 0 over the devices of mesh(). At the end
  // every call returns nothing. The first call reads from the position after the worker's last call
  // that counts.
  //
  // - InvalidArgument: the data set is not an argument of this call.
  // - An error of the data set names its element. Further calls return it too, and the position
  //   stays before the element.
  StatusOr<std::optional<input::Batch>> next(const RemoteDataset& dataset);

 private:
  friend class internal::WorkerRunner;
  WorkerContext(int worker, int attempt, Mesh mesh, internal::ParameterServers& servers,
                internal::WorkerDatasets& datasets);
  ~WorkerContext();
  Status add_push(PushKind kind, const RemoteVariable& variable, const DTensor& value);

  const int worker_;
  const int attempt_;
  const Mesh mesh_;
  internal::ParameterServers& servers_;
  internal::WorkerDatasets& datasets_;
  std::vector<internal::PendingPush> pushes_;
};

}  // namespace distribute
}  // namespace tessera

#endif  // TESSERA_SERVERS_WORKER_CONTEXT_H_
