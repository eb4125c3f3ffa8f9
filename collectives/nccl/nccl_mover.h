// SPDX-License-Identifier: Apache-2.0
//
// NcclMover: collectives among the GPUs of several clients, by NCCL.
//
//   device 0   ... work | pack  [ send recv ... ]  add  [ send recv ... ]  unpack | work ...
//   device 1   ... work | pack  [ send recv ... ]  add  [ send recv ... ]  unpack | work ...
//
// The calls between the brackets are one group of NCCL, in which each member names its sends and
// receives (schedule.h); our kernels do the rest, on the same CUDA stream. Each device is a rank of
// its own, also where a client has several.
//
// The first operation makes the group's communicator, and the first operation after a failure makes
// a new one. Each member arrives with the number of the generation that it would use, and all use
// the highest (communicator.h). The watch (watch.h) ends operations under way: they fail with one
// text on all members, and the group can be used again unless a member is lost.
//
// Memory for packing. Invariant: between the meeting and its last call of NCCL a member allocates
// no memory. An allocation may wait for this GPU and for all GPUs that have peer access with it; if
// such a GPU waits in NCCL for this member, that is a deadlock. So:
// - A member allocates before it arrives: the memory that it knows it needs, and a block for the
//   boxes that other members may want packed, of the size that they wanted before.
// - All members see how large these blocks are and how large each must be (schedule.h).
// - Where a block is too small, no member starts its GPU: all members allocate the memory they need
//   and meet again.
//
// Whether our kernels or NCCL add terms is decided when the mover is made, and must be equal on all
// members: each publishes it when it arrives.
//
// A message between two clients goes through memory of the host and not through NCCL, whose sends
// hold up their stream until they are received.
//
// Members on several hosts are ranks of one communicator like any others: NCCL uses its own network
// between hosts. A `member` of the functions of DeviceMover is an index among the members of this
// host; positions in the group are the ranks. Members of a host agree through shared memory, hosts
// through the coordinator and letters (other_hosts.h).
#ifndef TESSERA_COLLECTIVES_NCCL_NCCL_MOVER_H_
#define TESSERA_COLLECTIVES_NCCL_NCCL_MOVER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "collectives/arguments.h"
#include "collectives/collective.h"
#include "collectives/host/device_mover.h"
#include "collectives/host/rendezvous.h"
#include "collectives/nccl/communicator.h"
#include "collectives/nccl/generations.h"
#include "collectives/nccl/other_hosts.h"
#include "collectives/nccl/schedule.h"
#include "collectives/nccl/watch.h"
#include "collectives/span/network.h"
#include "device/buffer.h"
#include "device/cuda/cuda_device.h"
#include "shm/group_table.h"
#include "shm/host_link.h"

namespace tessera::nccl {

class NcclMover : public host::DeviceMover {
 public:
  struct Options {
    Sums sums = Sums::kOrdered;
    // For runs without a timeout of their own.
    absl::Duration timeout = absl::InfiniteDuration();
  };
  // `devices` by position, null for devices of other clients. All must outlive the mover. `watch`
  // is an error where there is no NCCL: every operation then fails with it. `network`: needed where
  // members are on other hosts.
  static StatusOr<std::unique_ptr<NcclMover>> create(
      StatusOr<Watch*> watch, shm::HostLink& link, std::vector<shm::GroupMember> members,
      std::vector<cuda::CudaDevice*> devices, const Options& options,
      std::shared_ptr<span::Network> network = nullptr);

  Status check(const Collective& collective) const override;
  std::vector<int64_t> encode_request(const Collective& collective) const override;
  Status arrive(const Collective& collective, const Arguments& arguments, uint32_t seq, int member,
                absl::Span<std::byte> board) override;
  Status move(const Collective& collective, const Arguments& arguments, uint32_t seq, int member,
              absl::Span<const MemberMemory> members) override;
  Status leave(uint32_t seq, int member) override;
  Status wait_done(int member, absl::Time deadline) override;
  void fail(uint32_t seq, int member, const Status& error) override;
  void lose(const Status& reason) override;
  void close(const Status& reason) override;
  Status fetch(const Collective& collective, const Arguments& arguments, uint32_t seq,
               std::byte* to) override;

 private:
  // The objects that a member of this client uses now.
  struct Rank {
    uint32_t generation = 0;
    std::shared_ptr<Communicator> communicator;  // null: not there (yet)
    uint32_t begun = 0;                          // the last operation that requested it
    uint32_t met_for_memory = 0;                 // the last meeting of memory_
  };
  // Memory of a member's device for packing, from its arrival until its GPU has received all work.
  // Accessed only by the member's issuing thread.
  struct Packing {
    std::shared_ptr<Buffer> own;
    std::shared_ptr<Buffer> sent;
    int64_t most_sent_bytes = 0;  // that an operation has wanted
  };
  // The facts that a member publishes when it arrives.
  struct Board {
    uint32_t generation;  // of the communicator that it would use
    Sums sums;
    int64_t sent_bytes;  // of its block for boxes that others want packed
  };
  // The members of all hosts, and the members of this host.
  struct Places {
    std::vector<int> clients;                // by position
    std::vector<int> positions;              // by member
    std::vector<cuda::CudaDevice*> devices;  // by member; null for devices of other clients
    std::shared_ptr<OtherHosts> others;      // null where there are none
  };
  NcclMover(StatusOr<Watch*> watch, Generations generations, host::Rendezvous memory, Places places,
            const Options& options);
  Status find_refusal() const;
  // Allocates memory for packing before the member arrives.
  Status take_packing(const Collective& collective, int member);
  // Makes sure that all members have memory for the boxes that others want packed.
  Status take_sent_packing(const Collective& collective, const Label& label, uint32_t seq,
                           int member, absl::Span<const MemberMemory> members, absl::Time deadline);
  Status meet_for_memory(const Label& label, int member, int64_t sent_bytes, absl::Time deadline);
  // Combines the boards of all members; the same error for all where they disagree.
  StatusOr<Board> agree(const Label& label, absl::Span<const MemberMemory> members) const;
  // The member's communicator of this generation, made by all members if it is not there.
  StatusOr<std::shared_ptr<Communicator>> communicator(const Label& label, uint32_t seq, int member,
                                                       uint32_t generation, absl::Time deadline);
  // Gives the member's device its part of the work.
  Status give(const Collective& collective, const Arguments& arguments, int member,
              absl::Span<const MemberMemory> members, const Board& board,
              const std::shared_ptr<Communicator>& communicator, absl::Time deadline);
  Status run(const Arguments& arguments, int member, const Schedule& schedule,
             const std::shared_ptr<Communicator>& communicator, absl::Time deadline);
  Status run_round(const Round& round, cuda::CudaDevice& device, Communicator& communicator,
                   absl::Time deadline);
  Status receive(const Collective& collective, const Arguments& arguments, uint32_t seq,
                 absl::Span<const MemberMemory> members);
  // The queue for messages of a member, once its GPU has done the work with which the member
  // arrived.
  StatusOr<cuda::CudaQueue*> message_queue(uint32_t seq, int position, absl::Time deadline);
  // Copies a message between memory of the GPU and `pinned`, which is kept if that does not end.
  Status copy_message(cuda::CudaQueue& queue, std::byte* to, const std::byte* from,
                      int64_t num_bytes, const std::shared_ptr<Buffer>& pinned);
  // Why the message does not wait any more.
  Status message_error(uint32_t seq, int position);

  // The device of one end of a message, which is this client's.
  cuda::CudaDevice& end_of_message(int position) const;

  const StatusOr<Watch*> watch_;
  Generations generations_;
  host::Rendezvous memory_;  // meets members of which some lacked memory for packing
  const Places places_;
  const Options options_;
  Status refusal_;                // the error of operations that the group cannot do
  std::vector<Packing> packing_;  // by member

  std::mutex mutex_;  // guards the members below
  std::vector<Rank> ranks_;
  Status lost_;  // of a member
  Status closed_;
  // The queues of the two ends of messages, by position: messages are copied there, and do not hold
  // up the stream of the device. A queue is given a copy when the message's turn has come on the
  // GPU, not before: a message that was given up writes nothing later.
  std::unique_ptr<cuda::CudaQueue> message_queues_[2];
  std::map<uint32_t, cuda::Event> arrived_[2];  // place after which a message begins, by number
  struct GivenUp {
    uint32_t seq = 0;
    Status error;
  };
  GivenUp given_up_[2];                        // the last message for which fail() was called
  std::vector<std::shared_ptr<Buffer>> kept_;  // a GPU may still copy from or to them
};

}  // namespace tessera::nccl

#endif  // TESSERA_COLLECTIVES_NCCL_NCCL_MOVER_H_
