// SPDX-License-Identifier: Apache-2.0
//
// HostLink: one client's ties to the other clients of its host.
//
// Each pair of clients shares a unix socket (abstract: no name in any folder). Over it go the
// descriptors of the control region and of every arena, so that each client maps the memory of
// all; no tensor data passes through it. A hang-up tells that a client's process has ended.
//
//   client 0  ==socket==  client 1        control(1), resolve(1, address): memory of client 1
//        \\               //
//          ==  client 2 ==
//
// Invariants:
//   1. create() returns when the control regions of all clients are mapped;
//   2. a peer's memory stays mapped, and so readable without a fault, until the link goes, whether
//      or not the peer lives;
//   3. a client that is lost stays lost, and the listener hears of it once.
//
// Thread-safe. One thread a link serves the sockets.
#ifndef TESSERA_COLLECTIVES_HOST_HOST_LINK_H_
#define TESSERA_COLLECTIVES_HOST_HOST_LINK_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/thread.h"
#include "collectives/host/activity.h"
#include "collectives/host/control.h"
#include "collectives/host/death_watch.h"
#include "collectives/host/group_table.h"
#include "device/cpu/arena.h"
#include "device/stream.h"
#include "job/coordinator.h"

namespace tessera::host {

class HostLink {
 public:
  // Tells of a client that can no longer take part, with the Unavailable that operations get.
  using LostListener = std::function<void(int client, const Status& reason)>;

  // Collective over the clients of the job. Unimplemented where they are on several hosts;
  // DeadlineExceeded names the clients that did not answer. `coordinator` must outlive the link.
  static StatusOr<std::unique_ptr<HostLink>> create(Coordinator& coordinator,
                                                    std::shared_ptr<ArenaPool> pool,
                                                    absl::Time deadline);
  ~HostLink();

  int client_id() const { return client_id_; }
  int num_clients() const { return static_cast<int>(peers_.size()); }
  const MemberInfo& member(int client) const { return coordinator_.members()[client]; }

  // The control region of a client, this one included.
  std::byte* control(int client) const { return peers_[client].control; }
  // The memory at an address that a client has published. Waits for the descriptor where it is
  // still under way; null if the client of the arena is lost before it comes.
  std::byte* resolve(SharedAddress address);
  // The inverse, for memory in an arena of any client.
  std::optional<SharedAddress> locate(const std::byte* memory, int64_t num_bytes) const;
  // What keeps memory that resolve() has given: the pool, or the mapping of another client's arena.
  std::shared_ptr<const void> keeper(const std::byte* memory) const;

  // Called from the thread that notices, and at once for those lost already. When this returns the
  // former listener is not running and will not be called again.
  void set_lost_listener(LostListener listener);
  // Reports a loss that was noticed elsewhere (the coordinator's heartbeats), also of this client.
  void report_lost(int client, const Status& reason);
  // OK while the client takes part.
  Status client_status(int client) const;
  // Whether the client has said goodbye: its process may live on, and read what it was lent.
  bool has_left(int client) const;
  // Whether the kernel has marked the client's process dead: it reads and writes no memory any
  // more.
  bool has_died(int client) const;
  // Whether the client is lost, or the kernel has marked it dead and the news is still under way:
  // whoever knows of a death sees the mark here, before others were told.
  bool is_dead(int client) const;
  // Whether the client will not touch shared memory any more: its process has ended, or it has
  // closed its link. Not so of one that is lost because it does not answer.
  bool is_gone(int client) const;
  // Whether the link is open, for handles of shared memory that outlive it: they give nothing back
  // then. It is not closed while the mutex is held.
  struct Openness {
    std::mutex mutex;
    bool is_open = true;  // guarded by mutex
  };
  const std::shared_ptr<Openness>& openness() const { return openness_; }
  // The groups that the client leads, as this one uses them.
  GroupTable groups_led_by(int client) const;
  // A member that arrives looks here afterwards, and who reports a loss looks afterwards who has
  // arrived: in the one order of such operations, one of the two sees the other.
  bool any_lost() const { return num_lost_.load(std::memory_order_seq_cst) > 0; }

  // Ends the thread and closes the sockets; memory stays mapped.
  void close();
  // Says goodbye, so that the hang-up that follows is no loss.
  void leave();

  // Publishes what a device of this client is doing. A collective does so itself, in activity():
  // its task has no label.
  StreamObserver* observer(int ordinal);
  DeviceActivity& activity(int ordinal) const { return *activities_[ordinal]; }

  // How often who waits for other members looks before it gives its core away.
  int num_spins() const { return num_spins_; }

 private:
  class Observer;
  struct Message;
  struct Mapping {
    int arena;  // SharedAddress::kNull: the control region
    std::shared_ptr<const SharedMapping> memory;
  };
  struct Peer {
    int socket = -1;
    bool ready = false;  // its control region is mapped
    std::byte* control = nullptr;
    std::vector<Mapping> mappings;
    std::vector<std::atomic<std::byte*>> arenas;
    Status status;  // OK, or why it is lost
    bool left = false;
  };

  HostLink(Coordinator& coordinator, std::shared_ptr<ArenaPool> pool);

  Status make_control_region();
  Status listen_and_connect(absl::Time deadline);
  Status greet(int socket);
  Status send(int socket, const Message& message, int fd) const;
  Status announce_arena(int arena, int fd, uint64_t size_bytes);
  // Watches over the processes of the other clients, whose regions are all mapped.
  Status watch_peers();
  void serve();
  void accept_peer();
  // Reads one message; false when the connection is over.
  bool receive(int socket, int* client);
  bool take_message(int socket, int* client, const Message& message, int fd);
  void hang_up(int client);
  // Where memory lies among the arenas of the other clients. Requires mutex_.
  const Mapping* find_mapping(const std::byte* memory, int64_t num_bytes, int* client) const;

  Coordinator& coordinator_;
  const std::shared_ptr<Openness> openness_ = std::make_shared<Openness>();
  const int client_id_;
  const std::shared_ptr<ArenaPool> pool_;
  int num_spins_ = 0;
  std::unique_ptr<SharedMapping> own_control_;
  std::vector<DeviceActivity*> activities_;  // of the devices of this client
  std::vector<std::unique_ptr<Observer>> observers_;

  // Held while the listener is called, so that it can be taken away. Before mutex_ where both are.
  std::mutex listener_mutex_;
  mutable std::mutex mutex_;  // guards peers_ (but its atomics and control), listener_, sockets
  std::condition_variable changed_;
  std::vector<Peer> peers_;
  LostListener listener_;
  bool leaving_ = false;
  std::atomic<int> num_lost_{0};
  int listen_socket_ = -1;
  int epoll_ = -1;
  int stop_event_ = -1;
  Thread server_;
  std::promise<void> server_runs_;
  std::unique_ptr<DeathWatch> death_watch_;
};

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_HOST_LINK_H_
