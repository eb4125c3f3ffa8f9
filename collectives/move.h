// SPDX-License-Identifier: Apache-2.0
//
// move_bytes: executes the Collective of one member, once all members have arrived.
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
  // own_counts() of the member where Collective::needs_peer_counts(); else the result of
  // DeviceMover::encode_request().
  const int64_t* counts = nullptr;
  const std::byte* board = nullptr;  // of a DeviceMover: the member's record at its arrival
};

// Members of a group whose lists need no memory from the heap.
inline constexpr size_t kInlineMembers = 16;

// The two halves of move_bytes() for a caller that finds the sources itself. copy_pulls() copies
// `pulls` instead of the collective's own; members[source] holds the source of a pull.
void copy_pulls(const Collective& collective, absl::Span<const BoxPull> pulls,
                absl::Span<const MemberMemory> members);
// Reduces the box of the collective's reduction, which is not empty: terms[k] is the part of it
// that member k holds. A box of rank 1 goes into all `outs`, which begin with it; any other box
// into the member's own output outs[0], which holds the collective's out_box().
void reduce_terms(const Collective& collective, absl::Span<const cpu::ConstBoxView> terms,
                  absl::Span<std::byte* const> outs);

// Executes the Collective of one member with the kernels of the CPU. Returns the InvalidArgument of
// checked_pulls() and check_terms(), without the label.
Status move_bytes(const Collective& collective, absl::Span<const MemberMemory> members);

// The boxes that the member pulls; `made` as in Collective::pulls(). InvalidArgument, before a byte
// moves: for every member alike where the counts of an all_to_all do not match; for this member
// alone where a pull does not fit the memory that its source passed.
StatusOr<absl::Span<const BoxPull>> checked_pulls(const Collective& collective,
                                                  absl::Span<const MemberMemory> members,
                                                  std::vector<BoxPull>& made);
// InvalidArgument for this member alone, where a reduction does not fit the memory of the members.
Status check_terms(const Collective& collective, absl::Span<const MemberMemory> members);

// The errors of both with the label before them, for the GPU movers.
Status check_part(const Collective& collective, const Label& label,
                  absl::Span<const MemberMemory> members);

}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_MOVE_H_
