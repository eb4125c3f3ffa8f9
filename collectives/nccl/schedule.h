// SPDX-License-Identifier: Apache-2.0
//
// schedule: what one member of a group sends, receives and computes, where every byte has to be
// named by both of its ends.
//
//   op              rounds (P members, S bytes of the count; a device sends and receives)
//   all_gather      one all-gather; unequal counts: each to each             S, S
//   broadcast       one broadcast
//   gather, scatter, all_to_all: each pair that has bytes
//   exchange        the pulls, packed where they are no single run           what the boxes hold
//   reduce_scatter  chunks to their owners; the owner adds                   S, S
//   all_reduce      the same, then chunks to all                             2 (P-1)/P S each
//   reduce          the same, then chunks to the root
//   reduce_boxes    boxes, packed, to who wants them; who adds
//
// Sums are made by our kernel, in ascending order of the members, as CPUs make them: the same bits.
// NCCL only moves bytes.
//
// A member knows its own pulls alone. It tells the others in words() what it wants of whom, and
// each finds there what to send. Pure, but for the memory that is taken for packing.
#ifndef TESSERA_COLLECTIVES_NCCL_SCHEDULE_H_
#define TESSERA_COLLECTIVES_NCCL_SCHEDULE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "collectives/call.h"
#include "collectives/host/move.h"
#include "device/buffer.h"
#include "device/cuda/kernel_plan.h"
#include "device/memory_pool.h"

namespace tessera::nccl {

struct Send {
  int peer;
  const std::byte* from;
  int64_t num_bytes;
};
struct Receive {
  int peer;
  std::byte* to;
  int64_t num_bytes;
};

// A group of sends and receives, or a collective of all members, between work of the member's own
// stream.
struct Round {
  enum class Kind { kMessages, kAllGather, kBroadcast };

  cuda::CopyPlan before;
  Kind kind = Kind::kMessages;
  std::vector<Send> sends;
  std::vector<Receive> receives;
  // Of a collective.
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  int64_t num_bytes = 0;
  int root = 0;
  std::vector<cuda::Reduce> reduces;
  cuda::CopyPlan after;

  bool is_silent() const { return kind == Kind::kMessages && sends.empty() && receives.empty(); }
};

struct Schedule {
  std::vector<Round> rounds;
  // Memory for what is packed: until the last round was given to the stream.
  std::vector<std::shared_ptr<Buffer>> packed;
};

// What the others need of an exchange or a reduction of boxes; else nothing.
std::vector<int64_t> words(const CollectiveCall& call);

// The member's part. `members` has the words of all. Requires host::check_part() but for an
// exchange, in which a member whose pulls are wrong gets nothing, and still sends.
StatusOr<Schedule> make_schedule(const CollectiveCall& call, int member,
                                 absl::Span<const host::MemberMemory> members,
                                 const std::shared_ptr<MemoryPool>& pool);

}  // namespace tessera::nccl

#endif  // TESSERA_COLLECTIVES_NCCL_SCHEDULE_H_
