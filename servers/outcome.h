// SPDX-License-Identifier: Apache-2.0
//
// A Status as an Outcome of parameter_server.proto.
#ifndef TESSERA_SERVERS_OUTCOME_H_
#define TESSERA_SERVERS_OUTCOME_H_

#include "base/status.h"
#include "servers/parameter_server.pb.h"

namespace tessera::distribute::internal {

void set_outcome(rpc::Outcome* outcome, const Status& status);
// Internal where set_outcome() cannot have written the message: it has no code, or an unknown code.
Status status_of(const rpc::Outcome& outcome);

// The advice where another task sends an answer that this build would not send.
inline constexpr char kSameBuild[] =
    "build all tasks of the cluster from one Tessera; where they are, report this as a bug of "
    "Tessera";

}  // namespace tessera::distribute::internal

#endif  // TESSERA_SERVERS_OUTCOME_H_
