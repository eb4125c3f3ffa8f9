// SPDX-License-Identifier: Apache-2.0
//
// StrategyState: the replicas and options of a strategy, and the exchange of calls between its
// clients. reductions.h and replica_run.h compute with it. Internal to distribute/.
//
// Constant once created, except for the list of runs, which a mutex guards, and the exchange, which
// one thread at a time uses.
#ifndef TESSERA_DISTRIBUTE_STRATEGY_STATE_H_
#define TESSERA_DISTRIBUTE_STRATEGY_STATE_H_

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "base/public.h"
#include "base/status.h"
#include "distribute/exchange.h"
#include "distribute/options.h"
#include "distribute/replicas.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "mesh/mesh.h"

namespace tessera::distribute::internal {

// A tensor on the mesh that has nothing but the error.
DTensor failed_on(const Mesh& mesh, Status error);
// Tensors of the same dtypes, shapes and layouts, which carry the error.
std::vector<DTensor> all_failed(absl::Span<const DTensor> tensors, const Status& error);
// The tensor that a user's function returns; an exception becomes the error of the tensor.
DTensor tensor_of(const Mesh& mesh, absl::FunctionRef<DTensor()> fn);

class TESSERA_INTERNAL StrategyState : public Replicas,
                                       public std::enable_shared_from_this<StrategyState> {
 public:
  static StatusOr<std::shared_ptr<StrategyState>> create(
      const Client& client, Mesh mesh, const std::vector<std::string>& replica_axes,
      StrategyOptions options, std::optional<Mesh> parameter_mesh);

  const Mesh& parameter_mesh() const { return parameter_mesh_; }
  const StrategyOptions& options() const { return options_; }
  const Exchange& exchange() const { return *exchange_; }

  // The options of a call: its own, else the strategy's. InvalidArgument for values out of their
  // range, FailedPrecondition for kNccl on CPU devices.
  StatusOr<CommunicationOptions> options_of(const CommunicationOptions& call) const {
    return options_over(options_.communication, call);
  }
  // As options_of(), over `base`, such as the options of a run.
  StatusOr<CommunicationOptions> options_over(const CommunicationOptions& base,
                                              const CommunicationOptions& call) const;

  // FailedPrecondition where the calling thread runs a replica function, and no merge_call(); names
  // the function to call there instead.
  Status check_not_in_replica(const std::string& call, const char* counterpart) const;
  // A run calls push_run() as it begins, and pop_run() as it ends; runs are nested.
  // `is_in_replica`: whether the calling thread runs a replica function of the run.
  void push_run(std::function<bool()> is_in_replica);
  void pop_run();

 private:
  StrategyState(const Client& client, Mesh mesh, Mesh parameter_mesh, StrategyOptions options);

  const Mesh parameter_mesh_;
  const StrategyOptions options_;
  std::optional<Exchange> exchange_;  // set by create()

  mutable std::mutex runs_mutex_;
  std::vector<std::function<bool()>> runs_;  // guarded by runs_mutex_; the innermost last
};

}  // namespace tessera::distribute::internal

#endif  // TESSERA_DISTRIBUTE_STRATEGY_STATE_H_
