// SPDX-License-Identifier: Apache-2.0
//
// Internal. The part of a Cluster that a launcher's variables give by themselves.
#ifndef TESSERA_JOB_CLUSTER_CLUSTER_LAUNCHERS_H_
#define TESSERA_JOB_CLUSTER_CLUSTER_LAUNCHERS_H_

#include "base/status.h"
#include "job/cluster/cluster.h"
#include "job/environment/launch_form.h"

namespace tessera::cluster {

// Ids, local ids and the coordinator, without a spec. TESSERA_COORDINATOR wins; without it, and
// where the form has no address either, the coordinator is empty. FailedPrecondition if no mark of
// the form is set: not under `command`.
StatusOr<Cluster> read_launcher(const LaunchForm& form, const char* command,
                                const EnvironmentLookup& lookup);

}  // namespace tessera::cluster

#endif  // TESSERA_JOB_CLUSTER_CLUSTER_LAUNCHERS_H_
