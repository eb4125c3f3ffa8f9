// SPDX-License-Identifier: Apache-2.0
//
// schedule: the sends, receives and computations of one member of a group, for a transport in which
// both ends must name every byte.
//
//   op              rounds                                    member r sends       and receives
//   all_gather      one all-gather; unequal: each to each     (P-1) c              S - c
//   broadcast       one broadcast                                                  S, not root
//   gather          each to the root                          c                    root: S - c
//   scatter         the root to each                          root: S - c          c
//   all_to_all      each to each                              what its counts say, without its own
//   exchange        the pulls                                 boxes others pull     boxes it pulls
//   reduce_scatter  parts to their owners, which add            S - c                (P-1) c
//   all_reduce      the same of chunks, then these to all     S + (P-2) c          S + (P-2) c
//   reduce          the same of chunks, then these to root    S; root: S - c       (P-1) c;
//                                                                                  root: S + (P-2)
//                                                                                  c
//   reduce_boxes    boxes to the wanters, which add          boxes of others      (P-1) boxes
//
// P members, S bytes in all, c bytes of the member's own: its part, or its chunk, which is S / P up
// to the lines of memory. So an all_reduce moves 2 (P-1) / P S per device, as rings do. Data that
// is not one run is packed. schedule_test.cc counts all of it.
//
// Steps of a relayout are exchanges and reductions of boxes. Where the pulls of all members are an
// all-gather or a broadcast, they become one call of NCCL.
//
// Sums says what adds the terms:
// - Ordered: our kernel, in ascending order of the members, as CPUs do: the same bits, and NCCL
//   only moves bytes.
// - NCCL's: all_reduce, reduce, and reduce_scatter and reduce_boxes of equal counts are one call of
//   NCCL each, in its own order (docs/gpu.md, "Numerics"). bool, which NCCL lacks, is the min (and)
//   or max (or) of u8.
// - Sums for which NCCL has no call are always ordered.
//
// Gather, scatter and all_to_all do not use NCCL's calls, which it has since 2.28: these consist of
// the same sends and receives, and support only equal counts.
//
// A member knows only its own pulls. In encode_request() it publishes the boxes that it wants of
// each member, and each member finds there what to send. Pure, except for the memory that is
// allocated for packing.
//
// Memory for packing is allocated before the first member gives its GPU work (nccl_mover.h), so
// there is a bound on it. packing_bytes() is the part that the member knows by itself: its terms
// and its receives. sent_packing_bytes() is the part of every member that follows from the requests
// of all. Invariant: a schedule takes no more than these two.
#ifndef TESSERA_COLLECTIVES_NCCL_SCHEDULE_H_
#define TESSERA_COLLECTIVES_NCCL_SCHEDULE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/status.h"
#include "collectives/collective.h"
#include "collectives/move.h"
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

// Adds terms by our kernel or by NCCL. Equal on all members.
enum class Sums : uint8_t { kOrdered, kNccl };

// A group of sends and receives, or a collective of all members, between work of the member's own
// stream.
struct Round {
  enum class Kind { kMessages, kAllGather, kBroadcast, kAllReduce, kReduce, kReduceScatter };

  cuda::CopyPlan before;
  Kind kind = Kind::kMessages;
  std::vector<Send> sends;
  std::vector<Receive> receives;
  // For a collective call. A reduction has a count of elements, a type of NCCL's and an op.
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  int64_t num_bytes = 0;
  int root = 0;
  int64_t count = 0;
  DType dtype = DType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  std::vector<cuda::Reduce> reduces;
  cuda::CopyPlan after;

  bool is_silent() const { return kind == Kind::kMessages && sends.empty() && receives.empty(); }
};

struct Schedule {
  std::vector<Round> rounds;
  // Memory for packed boxes: until the last round was given to the stream.
  std::vector<std::shared_ptr<Buffer>> packed;
};

// The pools for packing: one for boxes that the member sends because others want them, and one for
// the rest.
struct PackingPools {
  std::shared_ptr<MemoryPool> own;
  std::shared_ptr<MemoryPool> sent;
};

// Blocks of packing memory are aligned, and begin, to so many bytes.
inline constexpr int64_t kPackingAlignment = 256;

// Bytes of the own pool that the member's schedule takes at most.
int64_t packing_bytes(const Collective& collective, Sums sums);
// Bytes of the other pool, of each member; the same on all. Requires the requests of all.
std::vector<int64_t> sent_packing_bytes(const Collective& collective,
                                        absl::Span<const MemberMemory> members);

// The request of a member to the others in an exchange or a reduction of boxes; else empty.
std::vector<int64_t> encode_request(const Collective& collective);

// The member's part. `members` has the requests of all. Requires check_part() except in an
// exchange, in which a member whose pulls are wrong gets nothing, and still sends.
StatusOr<Schedule> make_schedule(const Collective& collective,
                                 absl::Span<const MemberMemory> members, Sums sums,
                                 const PackingPools& pools);

}  // namespace tessera::nccl

#endif  // TESSERA_COLLECTIVES_NCCL_SCHEDULE_H_
