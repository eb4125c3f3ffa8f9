// SPDX-License-Identifier: Apache-2.0
//
// SpanRuns: the collectives of a group whose members are on several hosts, or the messages from one
// device to another: it starts their runs (span_run.h), and reads the letters of other hosts.
//
// A message is a run of the group {sender, receiver}. It does not occupy the stream of its device:
// each end has a thread of its own (HostResources::message_stream()), which runs messages in order.
//
// Connections. A connection that breaks while both of its clients live fails the runs that were
// under way, at both ends, and is made again (Links). Runs that begin meanwhile wait for it.
// Verdicts that did not reach the other end are sent again when it is up.
//
// Threads: as CollectiveRuns. The engine's callbacks deliver letters.
#ifndef TESSERA_COLLECTIVES_SPAN_SPAN_RUNS_H_
#define TESSERA_COLLECTIVES_SPAN_SPAN_RUNS_H_

#include <memory>
#include <vector>

#include "base/status.h"
#include "collectives/arguments.h"
#include "collectives/collective.h"
#include "collectives/host/device_mover.h"
#include "collectives/host/host_group.h"
#include "collectives/host/host_resources.h"
#include "collectives/host/rendezvous.h"
#include "collectives/span/letters.h"
#include "collectives/span/network.h"
#include "collectives/span/span_run.h"
#include "collectives/span/span_state.h"
#include "collectives/work.h"
#include "shm/group_table.h"

namespace tessera::span {

class SpanRuns final : public host::HostGroup {
 public:
  // `members`: of all hosts, at least one of which is a device of this client. Requires that the
  // network is connected to the clients of the other hosts. `device_mover`: of this group, for
  // devices whose memory is not the host's. Errors as of Rendezvous::open().
  static StatusOr<std::shared_ptr<HostGroup>> create(
      host::HostResources& resources, std::shared_ptr<Network> network,
      std::vector<shm::GroupMember> members, bool is_for_messages,
      std::unique_ptr<host::DeviceMover> device_mover);
  // `rendezvous`: of the members on this host, in the same order.
  SpanRuns(host::HostResources& resources, std::shared_ptr<Network> network,
           std::vector<shm::GroupMember> members, bool is_for_messages,
           std::unique_ptr<host::DeviceMover> device_mover, host::Rendezvous rendezvous);
  ~SpanRuns() override;

  Work start(Collective::Ptr collective, Arguments arguments) override;
  void reap() override { span_.meetings.reap_quarantine(); }

 private:
  Work start_message_run(std::shared_ptr<SpanRun> run);
  // Whether a letter is for a member of this host.
  bool is_for_here(const Letter& letter) const;
  void read(Letter letter);
  void note(const Letter& letter, Board& board);
  // Answers with the activity of a member here.
  void answer(const Letter& ask);
  // Sends entries to the other clients of a host whose receiver has not posted them.
  void send_again(const Letter& not_yet);
  void fail_pending(const Status& reason) override;
  void forget() override;

  SpanState span_;
};

}  // namespace tessera::span

#endif  // TESSERA_COLLECTIVES_SPAN_SPAN_RUNS_H_
