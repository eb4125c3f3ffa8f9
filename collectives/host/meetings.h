// SPDX-License-Identifier: Apache-2.0
//
// Meetings: the state that the members of a group keep between their operations: the Rendezvous,
// the progress of each member, and the memory of failed operations. A JointRun is the part of one
// member in one operation.
//
// Threads. The running thread of member m changes m's progress, except next_seq(), which belongs to
// the order in which its runs are placed. Any thread may read done(), and call fail_pending() and
// reap_quarantine(). There is no lock; Quarantine has its own.
#ifndef TESSERA_COLLECTIVES_HOST_MEETINGS_H_
#define TESSERA_COLLECTIVES_HOST_MEETINGS_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "collectives/host/host_group.h"
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
  // Releases the memory in quarantine, and the block of the control region.
  void close();

  HostGroup& group() const { return group_; }
  Rendezvous& rendezvous() { return rendezvous_; }
  const Rendezvous& rendezvous() const { return rendezvous_; }
  // The number of the member's next operation.
  uint32_t& next_seq(int member) { return progress_[member].next_seq; }
  // The latest operation at which all members are known to have arrived. Members finish one
  // operation before they arrive at the next, so the records before this one are free. 0 for
  // messages.
  uint32_t& all_came(int member) { return progress_[member].all_came; }
  // The latest operation that the member is done with; a later loss does not end it. A sender is
  // done with a message when a later message uses the record.
  uint32_t done(int member) const { return progress_[member].done.load(std::memory_order_acquire); }
  void set_done(int member, uint32_t seq) {
    progress_[member].done.store(seq, std::memory_order_release);
  }

  Quarantine& quarantine() { return quarantine_; }
  // Releases the memory that no other member accesses any more.
  void reap_quarantine() {
    quarantine_.reap([this](uint32_t seq) { return rendezvous_.records().all_are_done_with(seq); });
  }

  // Settles the operations at which this client's members have arrived. The flag or the loss behind
  // `reason` was set before: a member that arrives later finds it itself
  // (JointRun::interrupted_meanwhile()).
  void fail_pending(const Status& reason);
  // The phases that a verdict may end. This includes kRunning in a group of several clients, whose
  // memory is then kept (JointRun::abandon()).
  Rendezvous::From give_up_from() const {
    return group_.spans_clients() ? Rendezvous::From::kRunning : Rendezvous::From::kOpen;
  }

 private:
  struct alignas(64) Progress {
    uint32_t next_seq = 1;
    uint32_t all_came = 0;
    std::atomic<uint32_t> done{0};
  };

  HostGroup& group_;
  Rendezvous rendezvous_;
  std::vector<Progress> progress_;  // by member
  Quarantine quarantine_;
};

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_MEETINGS_H_
