// SPDX-License-Identifier: Apache-2.0
//
// HostLink: the connections of a client to the other clients of its host.
//
// Each pair of clients shares a unix socket. Over it go the descriptors of the control region and
// of every arena, so that each client maps the memory of all.
//
//   client 0  ==socket==  client 1        memory().control(1): the control region of client 1
//        \\               //              memory().resolve({0, 1, 64}): its arena 0
//          ==  client 2 ==                liveness().client_status(1): OK, or why it is lost
//
// The parts have the contracts:
//
//   HostMembers   which clients are on this host
//   OwnControl    the activities that this client publishes in its control region
//   Liveness      which clients can still take part
//   HostMemory    the memory of all clients of the host, mapped
//   PeerSockets   the sockets, and the thread that serves them
//
// Invariants: create() returns when the control regions of all clients are mapped. Memory stays
// mapped until the link is destroyed, close() notwithstanding.
//
// Thread-safe.
#ifndef TESSERA_SHM_HOST_LINK_H_
#define TESSERA_SHM_HOST_LINK_H_

#include <functional>
#include <memory>
#include <mutex>

#include "absl/time/time.h"
#include "base/status.h"
#include "base/wait_policy.h"
#include "device/cpu/arena.h"
#include "job/coordinator/coordinator.h"
#include "shm/group_table.h"
#include "shm/host_members.h"
#include "shm/host_memory.h"
#include "shm/liveness.h"
#include "shm/own_control.h"
#include "shm/peer_sockets.h"

namespace tessera::shm {

// A long wait: steps of a healthy job are shorter.
inline constexpr absl::Duration kLongWait = absl::Seconds(1);

class HostLink {
 public:
  // Collective over the clients of the host. DeadlineExceeded names the clients that did not
  // answer; ResourceExhausted where descriptors, threads or memory are used up. `coordinator` must
  // outlive the link.
  static StatusOr<std::unique_ptr<HostLink>> create(Coordinator& coordinator,
                                                    std::shared_ptr<ArenaPool> pool,
                                                    absl::Time deadline);
  ~HostLink();

  const HostMembers& members() const { return members_; }
  const OwnControl& own_control() const { return own_control_; }
  Liveness& liveness() { return liveness_; }
  const Liveness& liveness() const { return liveness_; }
  HostMemory& memory() { return memory_; }
  const HostMemory& memory() const { return memory_; }
  // The groups that the client leads, for the use of this client.
  GroupTable groups_led_by(int client) const;

  // Says goodbye, so that the hang-up that follows is no loss.
  void leave();
  // Ends the threads and closes the sockets; memory stays mapped.
  void close();
  // Whether the link is open, for handles of shared memory that outlive the link: they release
  // nothing once it is closed. The link is not closed while the mutex is held.
  struct Openness {
    std::mutex mutex;
    bool is_open = true;  // guarded by mutex
  };
  const std::shared_ptr<Openness>& openness() const { return openness_; }

  // Called by a member of a group of this host that has waited for kLongWait for others to arrive.
  // Must not block. When this returns the previous listener is not running.
  void set_long_wait_listener(std::function<void()> listener);
  void note_long_wait();

  // How a member waits for the others before it sleeps.
  WaitPolicy wait_policy() const { return wait_policy_; }

 private:
  HostLink(Coordinator& coordinator, OwnControl own_control, std::shared_ptr<ArenaPool> pool);

  Status connect(absl::Time deadline);

  Coordinator& coordinator_;
  const HostMembers members_;
  const OwnControl own_control_;
  const std::shared_ptr<ArenaPool> pool_;
  const WaitPolicy wait_policy_;
  const std::shared_ptr<Openness> openness_ = std::make_shared<Openness>();
  // They use the parts above, and each other: `liveness_` wakes the waits of `memory_`, and
  // `memory_` asks through `sockets_`.
  Liveness liveness_;
  HostMemory memory_;
  PeerSockets sockets_;
  std::mutex long_wait_mutex_;  // held while the listener is called
  std::function<void()> long_wait_listener_;
};

}  // namespace tessera::shm

#endif  // TESSERA_SHM_HOST_LINK_H_
