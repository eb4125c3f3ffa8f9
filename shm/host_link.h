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
//   3. a client that is lost stays lost, and the listener is told once;
//   4. no memory is handed out before the other side has shown that it is a member of the job;
//      memory is mapped once it is known to have the size that was said, for good; addresses that
//      other clients write are compared with what is mapped before they are used;
//   5. a message is sent or kept until the socket takes it; descriptors that were received are
//      closed once they are mapped;
//   6. what this process lacks, descriptors or address space, is its own ResourceExhausted and
//      never the loss of another client.
//
// Thread-safe. One thread per link serves the sockets.
#ifndef TESSERA_SHM_HOST_LINK_H_
#define TESSERA_SHM_HOST_LINK_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
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
#include "base/wait_policy.h"
#include "device/cpu/arena.h"
#include "device/stream.h"
#include "job/coordinator/coordinator.h"
#include "job/environment/file_descriptor.h"
#include "shm/activity.h"
#include "shm/control.h"
#include "shm/death_watch.h"
#include "shm/group_table.h"
#include "shm/link_message.h"

namespace tessera::shm {

// A wait that is long: steps of a healthy job are shorter.
inline constexpr absl::Duration kLongWait = absl::Seconds(1);

class HostLink {
 public:
  // Tells of a client that can no longer take part, with the Unavailable that operations get.
  using LostListener = std::function<void(int client, const Status& reason)>;

  // Collective over the clients of the host. DeadlineExceeded names the clients that did not
  // answer; ResourceExhausted where descriptors, threads or memory are used up. `coordinator` must
  // outlive the link.
  static StatusOr<std::unique_ptr<HostLink>> create(Coordinator& coordinator,
                                                    std::shared_ptr<ArenaPool> pool,
                                                    absl::Time deadline);
  ~HostLink();

  int client_id() const { return client_id_; }
  int num_clients() const { return static_cast<int>(peers_.size()); }
  const MemberInfo& member(int client) const { return coordinator_.members()[client]; }

  // Whether the client is on this host.
  bool is_on_host(int client) const;
  // The control region of a client of the host, this one included; null of one of another host.
  std::byte* control(int client) const { return peers_[client].control; }
  // The region of `num_bytes` at an offset of a client's control region; null where either is out
  // of range. For words that another process has written.
  std::byte* find_in_control(uint64_t client, uint64_t offset, uint64_t num_bytes) const;
  // The memory at an address that a client has published, null for kNull. Waits for the arena where
  // it is still under way, and asks for it every second. The errors: the loss of the arena's
  // client; ResourceExhausted where this process cannot map it; DeadlineExceeded; Internal for an
  // address that does not exist, or that is a pointer.
  StatusOr<std::byte*> resolve(SharedAddress address, uint64_t num_bytes,
                               absl::Time deadline = absl::InfiniteFuture());
  // The inverse, for memory in an arena of any client.
  std::optional<SharedAddress> locate(const std::byte* memory, int64_t num_bytes) const;
  // The owner of memory that resolve() has given: the pool, or the mapping of another client's
  // arena.
  std::shared_ptr<const void> keeper(const std::byte* memory) const;

  // Called from the thread that notices, and at once for those lost already. When this returns the
  // former listener is not running and will not be called again.
  void set_lost_listener(LostListener listener);
  // Reports a loss that was noticed elsewhere (the coordinator's heartbeats), also of this client.
  void report_lost(int client, const Status& reason);
  // OK while the client takes part; Internal for a number that is no client's.
  Status client_status(int client) const;
  // Whether the client has said goodbye: its process may live on, and read what it was lent.
  bool has_left(int client) const;
  // Whether the kernel has marked the client's process dead: it reads and writes no memory any
  // more.
  bool has_died(int client) const;
  // Whether the client is lost, or the kernel has marked it dead and the report is still under way.
  // The mark is visible before any client is told of the death.
  bool is_dead(int client) const;
  // Whether the client will not touch shared memory any more: its process has ended, or it has
  // closed its link. False for a client that is lost because it does not answer.
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
  // Checked after arriving; a loss is recorded before arrivals are scanned. With seq_cst order one
  // side sees the other.
  bool any_lost() const { return num_lost_.load(std::memory_order_seq_cst) > 0; }

  // Ends the thread and closes the sockets; memory stays mapped.
  void close();
  // Says goodbye, so that the hang-up that follows is no loss.
  void leave();

  // Publishes what a device of this client is doing. A collective does so itself, in activity():
  // its task has no label.
  StreamObserver* observer(int ordinal);
  DeviceActivity& activity(int ordinal) const { return *activities_[ordinal]; }
  // Publishes what a thread of this client waits in, or that none waits any more: a call that no
  // device executes. Called by one thread at a time.
  void publish_call(absl::string_view operation, bool is_waiting);

  // Called by a member of a group of this host that has waited for kLongWait for others to arrive.
  // Must not block. When this returns the former listener is not running.
  void set_long_wait_listener(std::function<void()> listener);
  void note_long_wait();

  // How a member waits for the others before it sleeps.
  WaitPolicy wait_policy() const { return wait_policy_; }

 private:
  class Observer;
  struct Mapping {
    int arena;  // SharedAddress::kNull: the control region
    std::shared_ptr<const SharedMapping> memory;
  };
  // An arena of another client, found without the lock.
  struct PeerArena {
    std::atomic<std::byte*> data{nullptr};
    uint64_t size_bytes = 0;  // written before `data`
  };
  struct Outgoing {
    LinkMessage message;
    int fd;  // of this client's memory, which outlives the link's thread; or -1
  };
  struct Peer {
    FileDescriptor socket;
    bool ready = false;  // its control region is mapped
    std::byte* control = nullptr;
    std::vector<Mapping> mappings;
    std::vector<PeerArena> arenas;
    Status status;  // OK, or why it is lost
    bool left = false;
    std::deque<Outgoing> unsent;
    bool waits_to_send = false;  // the socket is watched for that
    Status arena_error;          // of the last arena that came and could not be mapped
  };

  HostLink(Coordinator& coordinator, std::shared_ptr<ArenaPool> pool);

  Status make_control_region();
  Status listen_and_connect(absl::Time deadline);
  Status listen(absl::string_view name);
  Status connect_to(int peer, absl::string_view name);
  Status wait_until_ready(absl::Time deadline);
  Status announce_arena(int arena, int fd, uint64_t size_bytes);
  // Watches over the processes of the other clients, whose regions are all mapped.
  Status watch_peers();
  LinkMessage hello_to(int peer) const;
  // Adds a message for a peer, and sends what the socket takes. Require mutex_.
  void post(Peer& peer, const LinkMessage& message, int fd);
  void flush(Peer& peer);

  // The functions below run on the thread that serves.
  void serve();
  void serve_event(int fd, uint32_t events);
  // Closes the connections of non-members, once all members are known.
  void stop_listening();
  void accept_stranger();
  // Whether the message is a hello of a client that has not said it yet; then it is a peer.
  bool admit_stranger(int socket);
  // Reads a message of a peer; the reason where the connection is over.
  Status receive(int client);
  Status take_message(int client, ReceivedMessage received);
  Status map_control(int client, ReceivedMessage received);
  void map_arena(int client, ReceivedMessage received);
  void answer_ask(int client, int arena);
  // This client cannot be linked to the others.
  void fail(const Status& error);
  void hang_up(int client);
  void wake_server();

  bool all_ready() const;  // requires mutex_
  bool is_all_sent() const;
  // The loss of a client of this host whose process still runs, for all that is known: it may be
  // stopped, and keep a lock. OK where there is none.
  Status find_stopped() const;
  Status wait_for_arena(SharedAddress address, absl::Time deadline);
  // Where memory is among the arenas of the other clients. Requires mutex_.
  const Mapping* find_mapping(const std::byte* memory, int64_t num_bytes, int* client) const;

  Coordinator& coordinator_;
  const std::shared_ptr<Openness> openness_ = std::make_shared<Openness>();
  const int client_id_;
  const std::shared_ptr<ArenaPool> pool_;
  int num_on_host_ = 0;  // clients, this one included
  WaitPolicy wait_policy_;
  std::unique_ptr<SharedMapping> own_control_;
  std::vector<DeviceActivity*> activities_;  // of the devices of this client
  std::vector<std::unique_ptr<Observer>> observers_;

  // Held while the listener is called, so that it can be taken away. Before mutex_ where both are.
  std::mutex listener_mutex_;
  // Guards peers_ (except its atomics and control), listener_, leaving_, own_error_.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Peer> peers_;
  LostListener listener_;
  bool leaving_ = false;
  Status own_error_;
  std::atomic<int> num_lost_{0};
  FileDescriptor listen_socket_;  // of server_ while that runs, like strangers_
  std::vector<FileDescriptor> strangers_;
  FileDescriptor epoll_;
  FileDescriptor wake_event_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> retries_{false};  // messages wait for time to pass
  Thread server_;
  std::promise<void> server_runs_;
  std::unique_ptr<DeathWatch> death_watch_;
  std::mutex long_wait_mutex_;  // held while the listener is called
  std::function<void()> long_wait_listener_;
};

}  // namespace tessera::shm

#endif  // TESSERA_SHM_HOST_LINK_H_
