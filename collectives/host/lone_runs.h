// SPDX-License-Identifier: Apache-2.0
//
// LoneRuns: the runs of a group of one device, which meet no other member.
//
//   start() --stream--> execute(): the member's own error, or its bytes are moved --> done
//
// Also used for a group without a device of this client, which starts nothing.
//
// Threads: execute() runs on the running thread of the run (run.h). No lock, no shared records.
#ifndef TESSERA_COLLECTIVES_HOST_LONE_RUNS_H_
#define TESSERA_COLLECTIVES_HOST_LONE_RUNS_H_

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/status.h"
#include "collectives/host/host_group.h"
#include "collectives/host/run.h"

namespace tessera::host {

class LoneRuns;

class LoneRun final : public Run {
 public:
  LoneRun(LoneRuns& runs, int member, Collective::Ptr collective, Arguments&& run_arguments);

  void placed() override {}
  Status run() override;

 private:
  Status execute();
  bool may_run_here() const override { return true; }
  Status give_up(shm::DeviceActivity::Kind device, absl::Time called, absl::Time deadline) override;
  void end_late(shm::DeviceActivity::Kind, absl::Time, absl::Time) override {}

  LoneRuns& runs_;
};

class LoneRuns final : public HostGroup {
 public:
  using HostGroup::HostGroup;

  Work start(Collective::Ptr collective, Arguments arguments) override;
};

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_LONE_RUNS_H_
