// SPDX-License-Identifier: Apache-2.0
//
// The page about strategies: a function for each replica, and a variable with a part on each.
//
//   bazel run //examples/guide:strategies
#include <iostream>

#include "tessera/tessera.h"

namespace {

using namespace tessera;
using distribute::DistributedVariable;
using distribute::PerReplica;
using distribute::ReplicaContext;
using distribute::Strategy;

Status page() {
  // 1. A replica on each local device.
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect({.num_local_devices = 4}));
  TESSERA_ASSIGN_OR_RETURN(const Strategy strategy, distribute::mirrored_strategy(client));
  std::cout << strategy.num_replicas_in_sync() << " replicas on " << strategy.mesh() << "\n";

  // 2. A variable with a part on each replica. Its value is the sum of the parts.
  TESSERA_ASSIGN_OR_RETURN(
      DistributedVariable seen,
      strategy.variable("seen", zeros<float>({}, Layout::replicated(strategy.mesh(), 0)),
                        {.synchronization = distribute::VariableSynchronization::kOnRead,
                         .aggregation = distribute::VariableAggregation::kSum}));

  // 3. The function runs once for each replica, on its part of the tensor.
  const DTensor rows = iota<float>({8, 2}, Layout::parse(strategy.mesh(), "[replica, -]"));
  const PerReplica sums = strategy.run(
      [&](ReplicaContext& replica, const DTensor& part) -> StatusOr<DTensor> {
        const auto num_rows = static_cast<double>(part.shape()[0]);
        TESSERA_RETURN_IF_ERROR(seen.assign_add(
            replica, zeros<float>({}, Layout::replicated(replica.mesh(), 0)) + num_rows));
        return replica.all_reduce(ReduceOp::kSum, ops::sum(part));
      },
      rows);

  // 4. Results of the replicas, and the value of the variable.
  for (const DTensor& local : strategy.local_results(sums)) {
    TESSERA_ASSIGN_OR_RETURN(const float sum, local.item<float>());
    std::cout << "the sum of all parts: " << sum << "\n";
  }
  TESSERA_ASSIGN_OR_RETURN(const float total, seen.value().item<float>());
  std::cout << total << " rows\n";
  return client.shutdown();
}

}  // namespace

int main() {
  const Status status = page();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
