// SPDX-License-Identifier: Apache-2.0
//
// Generations: the communicators that a group makes, one after another, as its members agree on
// them.
//
//   generation 1   made by all members ... used ... a verdict: never used again
//   generation 2   made by all members ...
//
// A generation is an operation of a rendezvous of its own (rendezvous.h) that lasts as long as the
// communicator.
// - The members of a host arrive at it to make the communicator, and learn its unique id from the
//   first member.
// - Any member may make its verdict, which ends the generation for all.
// - Where the group has members on several hosts each host has a rendezvous, and the hosts send
//   each other ids and verdicts (other_hosts.h): all have one id, and fail with the same text.
//
// Thread-safe.
#ifndef TESSERA_COLLECTIVES_NCCL_GENERATIONS_H_
#define TESSERA_COLLECTIVES_NCCL_GENERATIONS_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "collectives/host/rendezvous.h"
#include "collectives/label.h"
#include "collectives/nccl/api.h"
#include "collectives/nccl/other_hosts.h"
#include "shm/group_table.h"
#include "shm/host_link.h"

namespace tessera::nccl {

class Generations {
 public:
  // `here`: the members on this host, in the order of the group. `others`: null where all members
  // are here. Errors as of Rendezvous::open().
  static StatusOr<Generations> open(shm::HostLink& link, std::vector<shm::GroupMember> here,
                                    std::shared_ptr<OtherHosts> others);
  // These generations without a handle of the block.
  Generations view() const { return Generations(host::Rendezvous(rendezvous_.records()), others_); }

  // The members on all hosts.
  int num_members() const {
    return others_ == nullptr ? rendezvous_.records().size() : others_->num_members();
  }

  // Blocks until all members of this host have arrived; returns the unique id of the generation.
  // `member`: its index on this host. `make`: for the group's first member. Errors as of a
  // rendezvous.
  StatusOr<UniqueId> meet(const Label& label, int member, uint32_t generation,
                          absl::FunctionRef<StatusOr<UniqueId>()> make, absl::Time deadline);
  // Whether the generation, at which all members of this host have arrived, has a verdict.
  bool is_failed(uint32_t generation) const {
    return rendezvous_.records().is_finished(generation);
  }
  // Makes `error` the verdict of all hosts, unless there is one; returns the verdict. Waits for the
  // coordinator until `limit`, and for a client that has begun to settle the verdict. Before any
  // member of this host has arrived the verdict is valid only on this host.
  Status fail(uint32_t generation, const Status& error, absl::Time limit);
  // fail() for a caller that needs no verdict: does not wait for another client.
  void end(uint32_t generation, const Status& error, absl::Time limit);
  // The verdict of a generation that is_failed(). Waits for a client that has begun to settle it.
  Status verdict(uint32_t generation) { return settle(generation, absl::AbortedError("")); }
  // end() with a loss, which every client learns by itself: only this host's verdict. Does not
  // wait.
  void lose(uint32_t generation, const Status& reason);
  // Records that a member is done with a generation that has its verdict. Must be called once.
  void leave(uint32_t generation) { rendezvous_.acknowledge(generation); }
  // Whether all members of this host have left it.
  bool have_all_left(uint32_t generation) {
    return rendezvous_.wait_free(generation + rendezvous_.records().num_records(),
                                 absl::InfinitePast());
  }

 private:
  Generations(host::Rendezvous rendezvous, std::shared_ptr<OtherHosts> others)
      : rendezvous_(std::move(rendezvous)), others_(std::move(others)) {}
  Status settle(uint32_t generation, const Status& error);
  // Returns the verdict that all hosts get, unless this host has one.
  Status propose(uint32_t generation, const Status& error, absl::Time limit) const;

  host::Rendezvous rendezvous_;
  std::shared_ptr<OtherHosts> others_;
};

}  // namespace tessera::nccl

#endif  // TESSERA_COLLECTIVES_NCCL_GENERATIONS_H_
