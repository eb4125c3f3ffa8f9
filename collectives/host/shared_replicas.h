// SPDX-License-Identifier: Apache-2.0
//
// SharedReplicas: the additional steps of a run of a Collective with replicas: the first replica
// lends memory, the others hold it (replica_loans.h).
//
//   lend()    the lender, before it arrives: allocates the memory
//     | all members fill it
//   hold()    a holder, before it counts itself as finished: the lender keeps the block until then
//     | the run has succeeded
//   adopt()   the output of the run shares the memory
//
// Threads: used for one member's run, on its running thread.
#ifndef TESSERA_COLLECTIVES_HOST_SHARED_REPLICAS_H_
#define TESSERA_COLLECTIVES_HOST_SHARED_REPLICAS_H_

#include <cstddef>
#include <optional>

#include "base/status.h"
#include "collectives/host/host_group.h"
#include "collectives/host/replica_loans.h"
#include "collectives/host/run.h"

namespace tessera::host {

class SharedReplicas {
 public:
  // Makes the memory of all replicas, where the member is the first of them, the run's output.
  Status lend(const HostGroup& group, Run& run);
  // Makes the member a holder of `contents`. Not for the lender.
  void hold(const HostGroup& group, const Run& run, std::byte* contents);
  void adopt(Run& run);

 private:
  std::optional<ReplicaLoans::Replica> replica_;  // until the output has it
};

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_SHARED_REPLICAS_H_
