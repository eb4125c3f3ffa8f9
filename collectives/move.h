// SPDX-License-Identifier: Apache-2.0
//
// move_bytes: does what the Collective of one member says, once all members have arrived.
#ifndef TESSERA_COLLECTIVES_MOVE_H_
#define TESSERA_COLLECTIVES_MOVE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "collectives/collective.h"
#include "collectives/label.h"
#include "device/cpu/kernels.h"

namespace tessera {

// The memory of one member, as this process sees it.
struct MemberMemory {
  const std::byte* in = nullptr;
  int64_t in_count = 0;
  std::byte* out = nullptr;
  // Where Collective::needs_peer_counts(), own_counts() of the member; else what
  // DeviceMover::encode_request() gives.
  const int64_t* counts = nullptr;
  const std::byte* board = nullptr;  // of a DeviceMover: what the member wrote when it arrived
};

// Members of a group whose lists need no memory from the heap.
inline constexpr size_t kInlineMembers = 16;

// The two halves of move_bytes() for a caller that finds the sources itself. copy_pulls(): `pulls`
// in place of the collective's own; members[source] holds what a pull says.
void copy_pulls(const Collective& collective, absl::Span<const BoxPull> pulls,
                absl::Span<const MemberMemory> members);
// Reduces the box of the collective's reduction, which is not empty: terms[k] is what member k
// holds of it. A box of rank 1 goes into all `outs`, which begin with it; any other box into the
// member's own output outs[0], which holds the collective's out_box().
void reduce_terms(const Collective& collective, absl::Span<const cpu::ConstBoxView> terms,
                  absl::Span<std::byte* const> outs);

// Executes the Collective of one member with the kernels of the CPU. InvalidArgument, without the
// label, as checked_pulls() and check_terms() say.
Status move_bytes(const Collective& collective, absl::Span<const MemberMemory> members);

// The boxes that the member pulls; `made` as in Collective::pulls(). InvalidArgument, before a byte
// moves: where the counts of an all_to_all do not match, the same for every member; where a pull
// does not fit what its source passed, for this member alone.
StatusOr<absl::Span<const BoxPull>> checked_pulls(const Collective& collective,
                                                  absl::Span<const MemberMemory> members,
                                                  std::vector<BoxPull>& made);
// InvalidArgument for this member alone, where a reduction does not fit what the members passed.
Status check_terms(const Collective& collective, absl::Span<const MemberMemory> members);

// The errors of both with the label before them, for the GPU movers.
Status check_part(const Collective& collective, const Label& label,
                  absl::Span<const MemberMemory> members);

}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_MOVE_H_
