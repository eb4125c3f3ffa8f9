// SPDX-License-Identifier: Apache-2.0
//
// A Status as an Outcome of parameter_server.proto.
#ifndef TESSERA_DISTRIBUTE_OUTCOME_H_
#define TESSERA_DISTRIBUTE_OUTCOME_H_

#include "base/status.h"
#include "distribute/parameter_server.pb.h"

namespace tessera::distribute::internal {

void set_outcome(rpc::Outcome* outcome, const Status& status);
// Internal where the message is not one of set_outcome(): it has no code, or one that is unknown.
Status status_of(const rpc::Outcome& outcome);

// What to do where an answer of another task is not what this build sends.
inline constexpr char kSameBuild[] =
    "build all tasks of the cluster from one Tessera; where they are, report this as a bug of "
    "Tessera";

}  // namespace tessera::distribute::internal

#endif  // TESSERA_DISTRIBUTE_OUTCOME_H_
