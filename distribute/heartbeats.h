// SPDX-License-Identifier: Apache-2.0
//
// Heartbeats between the chief and its tasks.
#ifndef TESSERA_DISTRIBUTE_HEARTBEATS_H_
#define TESSERA_DISTRIBUTE_HEARTBEATS_H_

#include "absl/time/time.h"

namespace tessera::distribute {

// Between heartbeats of the chief to each task, and how many may be missed in a row.
inline constexpr absl::Duration kHeartbeatInterval = absl::Milliseconds(400);
inline constexpr int kMissedHeartbeats = 3;

}  // namespace tessera::distribute

#endif  // TESSERA_DISTRIBUTE_HEARTBEATS_H_
