// SPDX-License-Identifier: Apache-2.0
//
// JointRun: a run in which the members of a group meet: the common part of collectives and
// messages. It is one member's part in one operation, over the group's Meetings.
//
//   reserve()         the record is free of the operation that had it before
//     | fill()        the entry: memory, signature, label
//     | arrive        counted
//   join()            these three; an error that only this member knows becomes the verdict of all
//     | all arrive
//   meet()            that too, and the signatures of all are equal
//     | memory()      of all members, from their entries; the members move their bytes
//   finished, or failed: acknowledge(), and abandon() if the bytes were on the move
//
// Nothing of an entry changes between fill() and memory() (op_record.h, invariant 3).
//
// Threads: as Run. Waiters, and threads that reap runs, read only the fields of `op` that do not
// change after placed(): all except its start and deadline (describe()). The other members belong
// to the running thread, except acknowledge().
#ifndef TESSERA_COLLECTIVES_HOST_JOINT_RUN_H_
#define TESSERA_COLLECTIVES_HOST_JOINT_RUN_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "collectives/arguments.h"
#include "collectives/collective.h"
#include "collectives/host/meetings.h"
#include "collectives/host/rendezvous.h"
#include "collectives/host/run.h"
#include "collectives/move.h"
#include "device/cpu/arena.h"
#include "shm/activity.h"
#include "shm/control.h"

namespace tessera::host {

class JointRun : public Run {
 public:
  // `meetings`: of the run's group.
  JointRun(Meetings& meetings, int member, Collective::Ptr collective, Arguments&& run_arguments,
           Clock clock);

  // Sets start and deadline of a run that begins now.
  void start_clock();
  // `op` with another start and deadline, for threads that do not execute the run.
  Rendezvous::Op describe(absl::Time start, absl::Time deadline) const;

  // Waits until the record of the run is free for it. `own`: `op` or a result of describe().
  Status reserve(const Rendezvous::Op& own);
  // Performs the steps up to the arrival.
  Status join();
  // Waits for the others, and compares signatures.
  Status meet();
  // Errors that only this member can detect.
  Status local_error();
  // Why the run need not wait any more: the client shuts down, or a member is lost.
  Status interruption() const { return labelled(group().interruption()); }
  // Settles the run that has just arrived if it is interrupted: Meetings::fail_pending() may have
  // run before.
  Status interrupted_meanwhile() const;
  // Makes `error`, which only this member knows, the verdict of all.
  Status fail(const Rendezvous::Op& own, VerdictKind kind, const Status& error);
  // As fail(), once all have arrived. Returns the verdict.
  Status settle_running(VerdictKind kind, const Status& error) const;
  // Orders later work of the member's stream after the parts of all members, once all have given
  // their parts to their devices.
  Status leave_device() const;
  // Keeps the memory of a run that has failed with `error`, if others may still access it.
  void abandon(const Status& error, bool found_mismatch);
  // Records that this member has read the verdict of a failed run. Idempotent. Any thread.
  void acknowledge();

  // Writes the member's entry.
  Status fill();
  // Whether the run's entry has a detail of its own; otherwise the entry keeps the detail of an
  // earlier run.
  bool has_detail() const;
  // Whether members publish the addresses of their memory: not for devices of several clients.
  bool shares_addresses() const { return !is_on_device() || !group().spans_clients(); }
  using Memories = absl::InlinedVector<MemberMemory, kInlineMembers>;
  // The memory of all members, as this process has mapped it.
  StatusOr<Memories> memory() const;
  // As memory(), for a run whose inputs are in the entries.
  Memories inlined_memory() const;

  // Publish the activity of the member's device. Messages do not occupy the device, and publish
  // nothing. publish_waiting() requires that the entry is filled in.
  void publish_running() const;
  void publish_waiting() const;

 private:
  Meetings& meetings_;  // directly before `op`, which is read with it

 public:
  Rendezvous::Op op;
  // Whether members of this host write into the output of this one.
  bool do_peers_write_output = false;
  std::vector<int64_t> peer_counts;  // of all_to_all: the sent counts, then the received counts
  // Copies of memory that peers cannot map, kept while peers may access them.
  struct Copies {
    ArenaPool::Block in;
    ArenaPool::Block out;
    ArenaPool::Block counts;
  };
  std::optional<Copies> copies;
  // The memory of a copy; null where there is none.
  std::byte* copy(ArenaPool::Block Copies::*which) const {
    return copies.has_value() ? ((*copies).*which).data() : nullptr;
  }

 protected:
  // Ends a wait of the running thread for the devices of other clients.
  void fail_on_devices(absl::Duration waited, absl::string_view why) const;

 private:
  Rendezvous& rendezvous() const { return meetings_.rendezvous(); }
  // The address that peers use for `memory`. Memory that peers cannot map is replaced by `copy`,
  // which the caller fills.
  StatusOr<shm::SharedAddress> share(const void* memory, int64_t num_bytes,
                                     ArenaPool::Block Copies::*copy);
  StatusOr<shm::SharedAddress> share_input();
  StatusOr<shm::SharedAddress> share_counts();
  void fill_signature(MemberEntry& entry) const;
  void publish(shm::DeviceActivity::Kind kind, absl::string_view label) const;

  std::atomic<bool> is_acknowledged_{false};
};

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_JOINT_RUN_H_
