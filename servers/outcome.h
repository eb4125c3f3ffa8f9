// SPDX-License-Identifier: Apache-2.0
//
// Converts between Status and the Outcome of parameter_server.proto.
#ifndef TESSERA_SERVERS_OUTCOME_H_
#define TESSERA_SERVERS_OUTCOME_H_

#include "base/status.h"
#include "tessera/servers/parameter_server.pb.h"

namespace tessera::distribute::internal {

void set_outcome(rpc::Outcome* outcome, const Status& status);
// Internal for a message without a code or with an unknown code, which set_outcome() does not
// write.
Status status_of(const rpc::Outcome& outcome);

// The advice for an answer that this build does not send.
inline constexpr char kSameBuild[] =
    "build all tasks of the cluster from one Tessera; where they are, report this as a bug of "
    "Tessera";

}  // namespace tessera::distribute::internal

#endif  // TESSERA_SERVERS_OUTCOME_H_
