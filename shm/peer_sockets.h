// SPDX-License-Identifier: Apache-2.0
//
// PeerSockets: the unix sockets between this client and the other clients of its host, and the
// thread that serves them (the messages are in link_message.h).
//
// Sockets have abstract names, which belong to no folder. The later client of each pair connects to
// the earlier one. No tensor data passes through a socket: it carries descriptors of memory, and
// its hang-up shows that a client's process has ended.
//
// Invariants:
//   1. no memory is handed out before the other side has shown that it is a member of the job;
//   2. a message is sent or kept until the socket takes it; descriptors that were received are
//      closed once they are mapped.
//
// Thread-safe.
#ifndef TESSERA_SHM_PEER_SOCKETS_H_
#define TESSERA_SHM_PEER_SOCKETS_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/thread.h"
#include "device/cpu/arena.h"
#include "job/coordinator/coordinator.h"
#include "job/environment/file_descriptor.h"
#include "shm/host_members.h"
#include "shm/host_memory.h"
#include "shm/link_message.h"
#include "shm/liveness.h"
#include "shm/own_control.h"

namespace tessera::shm {

class PeerSockets {
 public:
  // The objects that the sockets serve and report to. All must outlive the sockets.
  struct Parts {
    const HostMembers& members;
    const OwnControl& own_control;
    ArenaPool& pool;
    HostMemory& memory;
    Liveness& liveness;
  };
  explicit PeerSockets(const Parts& parts);
  ~PeerSockets() { close(); }

  // Starts the thread, and connects to the clients of the host. When this returns OK the control
  // regions of all of them are mapped. Errors as of HostLink::create().
  Status open(Coordinator& coordinator, absl::Time deadline);
  // Ends the thread and closes the sockets. Waits a while for a goodbye to be sent: without it an
  // orderly leave would be a loss.
  void close();

  // Sends an arena of this client to all peers.
  void announce_arena(int arena, int fd, uint64_t size_bytes);
  void ask_for_arena(int client, int arena);
  void say_goodbye();

 private:
  struct Outgoing {
    LinkMessage message;
    int fd;  // of this client's memory, which outlives the link's thread; or -1
  };
  struct Peer {
    FileDescriptor socket;
    std::deque<Outgoing> unsent;
    bool waits_to_send = false;  // the socket is watched for that
  };

  Status listen(absl::string_view name);
  Status connect_to(int peer, absl::string_view name);
  // A message of this client.
  LinkMessage message_of(LinkMessage::Kind kind) const;
  LinkMessage hello_to(int peer) const;
  // Adds a message for a peer, and sends as many as the socket accepts. Require mutex_.
  void post(Peer& peer, const LinkMessage& message, int fd);
  void post_to_all(const LinkMessage& message, int fd);
  void flush(Peer& peer);
  void wake_server();

  // The functions below run on the thread that serves.
  void serve();
  void serve_event(int fd, uint32_t events);
  // Closes the connections of non-members, once all members are known.
  void stop_listening();
  void accept_stranger();
  // Whether the message is the first hello of a client; the client is a peer then.
  bool admit_stranger(int socket);
  // Reads a message of a peer. Returns the reason where the connection is over.
  Status receive(int client);
  Status take_message(int client, ReceivedMessage received);
  void answer_ask(int client, int arena);

  const Parts parts_;
  const HostMembers& members_;
  std::mutex mutex_;  // guards peers_ and says_goodbye_
  std::condition_variable sent_;
  std::vector<Peer> peers_;
  bool says_goodbye_ = false;
  FileDescriptor listen_socket_;  // of server_ while that runs, like strangers_
  std::vector<FileDescriptor> strangers_;
  FileDescriptor epoll_;
  FileDescriptor wake_event_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> retries_{false};  // messages wait for time to pass
  Thread server_;
  std::promise<void> server_runs_;
};

}  // namespace tessera::shm

#endif  // TESSERA_SHM_PEER_SOCKETS_H_
