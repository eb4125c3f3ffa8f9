// SPDX-License-Identifier: Apache-2.0
//
// A Status as an Outcome of parameter_server.proto.
#ifndef TESSERA_DISTRIBUTE_OUTCOME_H_
#define TESSERA_DISTRIBUTE_OUTCOME_H_

#include "base/status.h"
#include "distribute/parameter_server.pb.h"

namespace tessera::distribute::internal {

void set_outcome(rpc::Outcome* outcome, const Status& status);
Status status_of(const rpc::Outcome& outcome);

}  // namespace tessera::distribute::internal

#endif  // TESSERA_DISTRIBUTE_OUTCOME_H_
