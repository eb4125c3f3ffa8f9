// SPDX-License-Identifier: Apache-2.0
//
// CollectiveRuns: the collectives of a group of several members.
//
//   start --placed(): numbered--> execute() --meet--> move --finish--> retire() --> released
//                                   |          |        |        |
//                                   |          +--------+--------+--failure--> acknowledge, abandon
//                                   |                            +--lends its input--> LentRuns
//                                   +--given up before its turn: tells the others
//
// A run whose inputs are in the entries (`inlined`) ends where all have met: each member computes
// its result from the entries, waits for no other, and cannot fail any more.
//
// A failure is settled (rendezvous.h), so that all members return the same Status. There is one
// exception: where only the part of this member is wrong, the operation ends in order for the
// others.
//
// Threads. number() is called in the stream's order. execute() is called by the running thread of
// the run, one run at a time per member. Any thread may call give_up() and reap(). There is no
// lock: the shared state of the members is in the Rendezvous.
#ifndef TESSERA_COLLECTIVES_HOST_COLLECTIVE_RUNS_H_
#define TESSERA_COLLECTIVES_HOST_COLLECTIVE_RUNS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "base/wait_reports.h"
#include "collectives/host/host_group.h"
#include "collectives/host/joint_run.h"
#include "collectives/host/lent_runs.h"
#include "collectives/host/meetings.h"
#include "collectives/host/shared_replicas.h"

namespace tessera::host {

class CollectiveRuns;

class CollectiveRun final : public JointRun {
 public:
  CollectiveRun(CollectiveRuns& runs, int member, Collective::Ptr collective,
                Arguments&& run_arguments);

  void placed() override;
  Status run() override;
  // The lender owns the memory of shared replicas.
  Status take_output() override;
  bool has_replicas() const { return !collective().replicas().empty(); }

  SharedReplicas replicas;
  bool lends = false;  // the run is done, and others may still read its input

 private:
  bool may_run_here() const override { return true; }
  Status give_up(shm::DeviceActivity::Kind device, absl::Time called, absl::Time deadline) override;
  void end_late(shm::DeviceActivity::Kind device, absl::Time called, absl::Time deadline) override;

  CollectiveRuns& runs_;
};

class CollectiveRuns final : public HostGroup {
 public:
  CollectiveRuns(HostResources& resources, std::vector<shm::GroupMember> members,
                 Rendezvous rendezvous, std::unique_ptr<DeviceMover> device_mover);

  Work start(Collective::Ptr collective, Arguments arguments) override;
  void reap() override;
  void wait_until_read(absl::Time deadline) override;
  int num_lent() const override { return lent_.num_lent(); }

  // Called by a run; see above.
  Meetings& meetings() { return meetings_; }
  void number(CollectiveRun& run);
  // Executes the run to its end for this member: completes it with the Status of all, and retires
  // it.
  Status execute(CollectiveRun& run);
  // The verdict of a run whose waiter's deadline has passed. `device`: the activity of the device
  // at that time.
  enum class Was { kQueued, kStarted };
  Status give_up(CollectiveRun& run, Was was, shm::DeviceActivity::Kind device, absl::Time called,
                 absl::Time deadline);

 private:
  Status meet_and_move(CollectiveRun& run);
  Status move(CollectiveRun& run, bool& found_mismatch, Status& own_error);
  Status meet_inlined(CollectiveRun& run);
  void reduce_inlined(const CollectiveRun& run, const BoxReduction& reduction);
  void retire(CollectiveRun& run);
  // Describes why a queued run has not begun.
  std::string holdup_of(const CollectiveRun& run, shm::DeviceActivity::Kind device) const;
  // Whether others read the member's input.
  bool others_read_input(const CollectiveRun& run) const;
  // Whether the member need not wait for the others after its own part. True if they do not read
  // its input, or if they only read it and the input is a tensor's (immutable, with an owner beside
  // the run). A call that gives the tensor away waits until its memory is free.
  bool may_lend(const CollectiveRun& run) const;
  // Whether no member reads the input of a lent run any more. With a `reason` that is an error a
  // run of several clients is settled with it first.
  bool end_reading(const CollectiveRun& run, const Status& reason);
  // See LentRuns::reap().
  uint32_t reap_lent();
  // The clients that have not left the operation, for a report of a wait for them.
  std::function<WaitReports::Missing()> describe_readers(uint32_t seq);
  void fail_pending(const Status& reason) override { meetings_.fail_pending(reason); }
  void forget() override;

  Meetings meetings_;
  LentRuns<CollectiveRun> lent_;
};

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_COLLECTIVE_RUNS_H_
