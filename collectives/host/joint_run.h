// SPDX-License-Identifier: Apache-2.0
//
// JointRun: a run in which the members of a group meet: its place among the group's operations, and
// what the other members use of it.
//
// Threads: as of Run. Waiters, and threads that reap runs, read of `op` what does not change after
// placed(): all except its start and deadline (Meetings::describe()). The rest is the running
// thread's, except is_acknowledged.
#ifndef TESSERA_COLLECTIVES_HOST_JOINT_RUN_H_
#define TESSERA_COLLECTIVES_HOST_JOINT_RUN_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/format.h"
#include "base/status.h"
#include "collectives/arguments.h"
#include "collectives/collective.h"
#include "collectives/host/host_group.h"
#include "collectives/host/rendezvous.h"
#include "collectives/host/run.h"
#include "device/cpu/arena.h"

namespace tessera::host {

class JointRun : public Run {
 public:
  JointRun(std::shared_ptr<HostGroup> group, int member, Collective::Ptr collective,
           Arguments&& run_arguments, Clock clock)
      : Run(std::move(group), member, std::move(collective), std::move(run_arguments), clock) {
    const Arguments& own = arguments();
    op.member = member;
    op.label = &own.label;
    op.detail_field = own.detail_field.empty() ? absl::string_view("counts") : own.detail_field;
    op.is_given_up = &is_given_up();
    op.signature = this->collective().signature();
    do_peers_write_output = this->collective().do_peers_write_output();
    if (!own.detail.empty()) op.signature.detail_hash = own.detail.hash();
    // The name is quoted: an empty one has two characters.
    const bool is_barrier = this->collective().kind() == OpKind::kBarrier;
    if (is_barrier && own.detail.view().size() > 2) op.name_hash = op.signature.detail_hash;
  }

  Rendezvous::Op op;
  // Whether members of this host write into the output of this one.
  bool do_peers_write_output = false;
  std::vector<int64_t> peer_counts;  // of all_to_all: what it sends, then what it receives
  // Copies of memory that peers cannot map, kept as long as peers may access them.
  struct Copies {
    ArenaPool::Block in;
    ArenaPool::Block out;
    ArenaPool::Block counts;
  };
  std::optional<Copies> copies;
  // The memory of one of them; null where there is none.
  std::byte* copy(ArenaPool::Block Copies::*which) const {
    return copies.has_value() ? ((*copies).*which).data() : nullptr;
  }
  // This member has read the verdict of the failed run. Set by any thread.
  std::atomic<bool> is_acknowledged{false};

 protected:
  // Ends a wait of the running thread for the devices of other clients.
  void fail_on_devices(absl::Duration waited, absl::string_view why) {
    Mover& mover = this->mover();
    if (mover.shares_addresses(collective())) return;
    mover.fail(collective(), op.seq, member(),
               absl::DeadlineExceededError(absl::StrCat(not_in_time("not done", waited), why)));
  }
};

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_JOINT_RUN_H_
