// SPDX-License-Identifier: Apache-2.0
//
// move_bytes: what one member of a collective reads and writes, once all have arrived.
#ifndef TESSERA_COLLECTIVES_HOST_MOVE_H_
#define TESSERA_COLLECTIVES_HOST_MOVE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "collectives/call.h"

namespace tessera::host {

// The memory of one member, as this process sees it.
struct MemberMemory {
  const std::byte* in = nullptr;
  int64_t in_count = 0;
  std::byte* out = nullptr;
  // Where needs_peer_counts(), both_counts() of the member's call; else what
  // DeviceMover::encode_request() gives.
  const int64_t* counts = nullptr;
  const std::byte* board = nullptr;  // of a DeviceMover: what the member wrote when it arrived
};

// Whether members have to tell each other their counts: of an all_to_all, where not all parts are
// equal.
bool needs_peer_counts(const CollectiveCall& call);
// What the member sends to each, then what it receives.
std::vector<int64_t> both_counts(const CollectiveCall& call);

// Does the part of the member at `position`. Parts of different members may run at the same time:
// no two write the same byte, and none reads what another one writes. InvalidArgument, before a
// byte moves and in the same words for every member, where counts of an all_to_all do not match;
// for this member alone, where a pull does not fit what its source holds. Without the label.
Status move_bytes(const CollectiveCall& call, int position, absl::Span<const MemberMemory> members);

// A member's part, for the GPU movers. Counts are elements.
//
// Of a reduction without boxes: the chunk of all inputs that the member adds. An all_reduce's or a
// reduce's is about 1 / P of the whole, cut at 64-byte lines.
struct Chunk {
  int64_t first;
  int64_t count;
};
Chunk own_chunk(const CollectiveCall& call, int position, size_t num_members);

// Members of a group whose lists need no memory from the heap.
inline constexpr size_t kInlineMembers = 16;
// Where the sum of the chunk is written: to the same place of every output that wants it; a
// reduce_scatter's is the member's own output. Empty: nowhere.
using Outputs = absl::InlinedVector<std::byte*, kInlineMembers>;
Outputs chunk_outputs(const CollectiveCall& call, int position,
                      absl::Span<const MemberMemory> members);

// Of broadcast, gather, scatter, all_gather, all_to_all and messages: what the member copies to its
// own output. It begins with itself, so that not all read the same input at the same time.
struct PieceCopy {
  int source;
  int64_t from;
  int64_t to;
  int64_t count;
};
using PieceCopies = absl::InlinedVector<PieceCopy, kInlineMembers>;
PieceCopies own_copies(const CollectiveCall& call, int position,
                       absl::Span<const MemberMemory> members);

// The errors of move_bytes() with the label before them, for the GPU movers.
Status check_part(const CollectiveCall& call, absl::Span<const MemberMemory> members);

// Bytes that all members together write, which decides how they store them. The same for every
// member, except for an exchange: a member knows only its own pulls, and assumes the same of the
// others.
int64_t bytes_written(const CollectiveCall& call, absl::Span<const MemberMemory> members);

// Whether peers write into the out of the member at `position` (and not only the member itself).
bool peers_write_out(const CollectiveCall& call, int position);

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_MOVE_H_
