// SPDX-License-Identifier: Apache-2.0
//
// move_bytes: what one member of a collective reads and writes, once all have arrived.
#ifndef TESSERA_COLLECTIVES_HOST_MOVE_H_
#define TESSERA_COLLECTIVES_HOST_MOVE_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "base/status.h"
#include "collectives/call.h"

namespace tessera::host {

// The memory of one member, as this process sees it.
struct MemberMemory {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  const int64_t* send_counts = nullptr;  // all_to_all
};

// Does the part of the member at `position`. Parts of different members may run at the same time:
// no two write the same byte, and none reads what another one writes. InvalidArgument where an
// all_to_all's counts do not fit those of a peer.
Status move_bytes(const CollectiveCall& call, int position, absl::Span<const MemberMemory> members);

// Whether peers write into a member's out (and not only the member itself).
bool peers_write_out(OpKind kind);

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_MOVE_H_
