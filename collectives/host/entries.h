// SPDX-License-Identifier: Apache-2.0
//
// Entries: what a member tells the others of its run, and what it reads of them: where the memory
// lies, what the run is, what its device is doing.
//
// The running thread of a member calls fill() before the member arrives, and memory() after all
// have: nothing of an entry changes in between (control.h, invariant 3).
#ifndef TESSERA_COLLECTIVES_HOST_ENTRIES_H_
#define TESSERA_COLLECTIVES_HOST_ENTRIES_H_

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "collectives/host/activity.h"
#include "collectives/host/control.h"
#include "collectives/host/host_group.h"
#include "collectives/host/joint_run.h"
#include "collectives/host/rendezvous.h"
#include "collectives/move.h"

namespace tessera::host {

class Entries {
 public:
  using Memories = absl::InlinedVector<MemberMemory, kInlineMembers>;

  // Both must outlive it.
  Entries(HostGroup& group, Rendezvous& rendezvous) : group_(group), rendezvous_(rendezvous) {}

  // Writes the member's entry.
  Status fill(JointRun& run);
  // The memory of all members, as this process has it mapped.
  StatusOr<Memories> memory(const JointRun& run) const;
  // As memory(), for a run whose inputs are in the entries.
  Memories inlined_memory(const JointRun& run) const;

  // Whether the entry of the run has a detail of its own; else it keeps that of an earlier run.
  static bool has_detail(const JointRun& run);

  // Publish what the member's device is doing. Messages do not occupy the device, and publish
  // nothing. publish_waiting() requires that the entry is filled in.
  void publish_running(const JointRun& run);
  void publish_waiting(const JointRun& run);

 private:
  // The address that peers use for `memory`. Memory that peers cannot map is replaced by `copy`,
  // which the caller fills.
  StatusOr<SharedAddress> share(JointRun& run, const void* memory, int64_t num_bytes,
                                ArenaPool::Block JointRun::Copies::*copy) const;
  StatusOr<SharedAddress> share_input(JointRun& run) const;
  StatusOr<SharedAddress> share_counts(JointRun& run) const;
  void fill_signature(const JointRun& run, MemberEntry& entry) const;
  void publish(const JointRun& run, DeviceActivity::Kind kind, absl::string_view label);

  HostGroup& group_;
  Rendezvous& rendezvous_;
};

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_ENTRIES_H_
