// SPDX-License-Identifier: Apache-2.0
//
// Meetings: a member's part in one operation of its group, as far as collectives and messages have
// it in common; over the Rendezvous, whose records they share.
//
//   reserve()         the record is free of the operation that had it before
//     | fill          the entry: memory, signature, label (Entries)
//     | arrive        counted
//   join()            these three; an error that only this member knows becomes the verdict of all
//     | all arrive
//   meet()            that too, and the signatures of all are equal
//     | the members move their bytes
//   finished, or failed: acknowledge(), and abandon() if the bytes were on the move
//
// Threads. progress of member m belongs to the running thread of m, except `done`, and `next_seq`,
// which belongs to the order in which its runs are placed. fail_pending() may run on any thread.
// No lock; Quarantine has its own.
#ifndef TESSERA_COLLECTIVES_HOST_MEETINGS_H_
#define TESSERA_COLLECTIVES_HOST_MEETINGS_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "collectives/host/control.h"
#include "collectives/host/entries.h"
#include "collectives/host/host_group.h"
#include "collectives/host/joint_run.h"
#include "collectives/host/quarantine.h"
#include "collectives/host/rendezvous.h"

namespace tessera::host {

class Meetings {
 public:
  // How often a wait for the other members checks whether one is lost.
  static constexpr absl::Duration kLossCheckInterval = absl::Milliseconds(5);

  // The group must outlive it.
  Meetings(HostGroup& group, Rendezvous rendezvous);
  ~Meetings() { close(); }
  // Gives the block of the control region back.
  void close();

  Rendezvous& rendezvous() { return rendezvous_; }
  const Rendezvous& rendezvous() const { return rendezvous_; }
  Entries& entries() { return entries_; }
  // The number of the member's next operation.
  uint32_t& next_seq(int member) { return progress_[member].next_seq; }
  // The latest operation that the member is done with; a later loss does not end it. A sender is
  // done with a message when the record is used by a later one.
  uint32_t done(int member) const { return progress_[member].done.load(std::memory_order_acquire); }
  void set_done(int member, uint32_t seq) {
    progress_[member].done.store(seq, std::memory_order_release);
  }

  // Sets start and deadline of a run that begins now.
  void start_clock(JointRun& run) const;
  // run.op with another start and deadline, for threads that do not execute the run.
  Rendezvous::Op describe(const JointRun& run, absl::Time start, absl::Time deadline) const;

  // Waits until the record of the run is free for it.
  Status reserve(JointRun& run, const Rendezvous::Op& op);
  // Up to the arrival. `op`: run.op or what describe() made of it.
  Status join(JointRun& run);
  // Waits for the others, and compares signatures.
  Status meet(const JointRun& run);
  // Errors that only this member can detect.
  Status local_error(JointRun& run);
  // Why the run, if it waits, need not: the client shuts down, or a member is lost.
  Status interruption(const JointRun& run) const { return run.labelled(group_.interruption()); }
  // Settles the run that has just arrived if it is interrupted: fail_pending() may have run before.
  Status interrupted_meanwhile(const JointRun& run);
  // Makes `error`, which only this member knows, the verdict of all.
  Status fail(JointRun& run, const Rendezvous::Op& op, VerdictKind kind, const Status& error);
  // As fail(), once all have arrived. Returns the verdict.
  Status settle_running(const JointRun& run, VerdictKind kind, const Status& error);
  // Moves the bytes of the member's part, or gives that work to its device.
  Status move(JointRun& run, const Entries::Memories& memory);
  // Keeps the memory of a run that has failed with `error`, where others may still access it.
  void abandon(JointRun& run, const Status& error, bool found_mismatch);
  // Records that this member has read the verdict of a failed run. Idempotent.
  void acknowledge(JointRun& run);
  // Releases the memory that no other member accesses any more.
  void reap_quarantine() {
    quarantine_.reap([this](uint32_t seq) { return rendezvous_.all_are_done_with(seq); });
  }
  void clear_quarantine() { quarantine_.clear(); }

  // Settles what this client's members have arrived at. The flag or the loss behind `reason` was
  // set before: a member that arrives later finds it itself (interrupted_meanwhile()).
  void fail_pending(const Status& reason);
  // The phases that a verdict may end: also kRunning in a group of several clients, whose memory is
  // then kept (abandon()).
  Rendezvous::From give_up_from() const {
    return group_.spans_clients() ? Rendezvous::From::kRunning : Rendezvous::From::kOpen;
  }

 private:
  struct alignas(64) Progress {
    uint32_t next_seq = 1;
    // The latest operation at which all members are known to have arrived. Members finish one
    // operation before they arrive at the next, so the records before this one are free. 0 for
    // messages.
    uint32_t all_came = 0;
    std::atomic<uint32_t> done{0};
  };

  HostGroup& group_;
  Rendezvous rendezvous_;
  Entries entries_;
  std::vector<Progress> progress_;  // by member
  Quarantine quarantine_;
};

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_MEETINGS_H_
