// SPDX-License-Identifier: Apache-2.0
//
// PendingPush: a push that a worker sends to the parameter servers after its function.
#ifndef TESSERA_SERVERS_PENDING_PUSH_H_
#define TESSERA_SERVERS_PENDING_PUSH_H_

#include "dtensor/dtensor.h"
#include "servers/push_ledger.h"
#include "servers/remote_variable.h"

namespace tessera::distribute::internal {

// Waits until its function has returned OK.
struct PendingPush {
  PushKind kind;
  RemoteVariable variable;
  tessera::internal::RawShard value;  // the whole tensor
};

}  // namespace tessera::distribute::internal

#endif  // TESSERA_SERVERS_PENDING_PUSH_H_
