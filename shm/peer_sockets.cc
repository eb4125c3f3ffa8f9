// SPDX-License-Identifier: Apache-2.0
#include "shm/peer_sockets.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "job/environment/host.h"

namespace tessera::shm {
namespace {

// An abstract address: the name lives in the kernel alone.
socklen_t abstract_address(absl::string_view name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

std::string random_name() {
  std::random_device source;
  std::string name = "tessera-";
  for (int i = 0; i < 4; ++i) absl::StrAppend(&name, absl::Hex(source(), absl::kZeroPad8));
  return name;
}

// How long close() waits until goodbyes are sent.
constexpr absl::Duration kGoodbyeLimit = absl::Seconds(1);
}  // namespace

PeerSockets::PeerSockets(const Parts& parts)
    : parts_(parts), members_(parts.members), peers_(parts.members.num_clients()) {}

Status PeerSockets::open(Coordinator& coordinator, absl::Time deadline) {
  if (members_.num_on_host() == 1) return absl::OkStatus();
  raise_descriptor_limit();
  const std::string name = random_name();
  TESSERA_RETURN_IF_ERROR(listen(name));
  TESSERA_ASSIGN_OR_RETURN(
      server_, start_thread("the sockets between the clients of this host", [this] { serve(); }));
  // A peer that connects to this client finds its sign of life.
  server_runs_.get_future().wait();

  const int self = members_.client_id();
  TESSERA_RETURN_IF_ERROR(coordinator.put(absl::StrCat("host_link/", self), name));
  // The later client of each pair connects to the earlier one.
  for (int peer = 0; peer < self; ++peer) {
    if (!members_.is_on_host(peer)) continue;
    TESSERA_ASSIGN_OR_RETURN(const std::string peer_name,
                             coordinator.get(absl::StrCat("host_link/", peer), peer, deadline));
    TESSERA_RETURN_IF_ERROR(connect_to(peer, peer_name));
  }
  return parts_.memory.wait_for_controls(deadline);
}

void PeerSockets::close() {
  if (server_.joinable()) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      const absl::Time deadline = steady_now() + kGoodbyeLimit;
      sent_.wait_until(lock, to_chrono_steady(deadline), [this] {
        return !says_goodbye_ || std::all_of(peers_.begin(), peers_.end(),
                                             [](const Peer& p) { return p.unsent.empty(); });
      });
    }
    stopping_ = true;
    wake_server();
    server_.join();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  for (Peer& peer : peers_) peer.socket.close();
  strangers_.clear();
  for (FileDescriptor* fd : {&listen_socket_, &epoll_, &wake_event_}) fd->close();
}

void PeerSockets::announce_arena(int arena, int fd, uint64_t size_bytes) {
  LinkMessage message = message_of(LinkMessage::kArena);
  message.arena = arena;
  message.size_bytes = size_bytes;
  std::lock_guard<std::mutex> lock(mutex_);
  post_to_all(message, fd);
}

void PeerSockets::ask_for_arena(int client, int arena) {
  LinkMessage message = message_of(LinkMessage::kAskArena);
  message.arena = arena;
  std::lock_guard<std::mutex> lock(mutex_);
  post(peers_[client], message, -1);
}

void PeerSockets::say_goodbye() {
  std::lock_guard<std::mutex> lock(mutex_);
  says_goodbye_ = true;
  post_to_all(message_of(LinkMessage::kGoodbye), -1);
}

LinkMessage PeerSockets::message_of(LinkMessage::Kind kind) const {
  LinkMessage message;
  message.kind = kind;
  message.client = members_.client_id();
  return message;
}

void PeerSockets::post_to_all(const LinkMessage& message, int fd) {
  for (Peer& peer : peers_) {
    if (peer.socket.is_open()) post(peer, message, fd);
  }
}

void PeerSockets::wake_server() {
  const uint64_t one = 1;
  (void)!write(wake_event_.get(), &one, sizeof one);
}

Status PeerSockets::listen(absl::string_view name) {
  constexpr absl::string_view kWhat = "cannot listen on a unix socket for the clients of this host";
  sockaddr_un address;
  const socklen_t length = abstract_address(name, &address);
  listen_socket_ = FileDescriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!listen_socket_.is_open() ||
      bind(listen_socket_.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(listen_socket_.get(), members_.num_clients()) != 0) {
    return link_error(kWhat, errno);
  }
  epoll_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.is_open()) return link_error(kWhat, errno);
  wake_event_ = FileDescriptor(eventfd(0, EFD_CLOEXEC));
  if (!wake_event_.is_open()) return link_error(kWhat, errno);
  for (const int fd : {listen_socket_.get(), wake_event_.get()}) {
    if (!watch_descriptor(epoll_.get(), EPOLL_CTL_ADD, fd, EPOLLIN))
      return link_error(kWhat, errno);
  }
  return absl::OkStatus();
}

Status PeerSockets::connect_to(int peer, absl::string_view name) {
  const std::string what =
      absl::StrCat("cannot reach ", members_[peer].to_string(), " on this host");
  sockaddr_un address;
  const socklen_t length = abstract_address(name, &address);
  FileDescriptor fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd.is_open() || connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    return link_error(what, errno);
  }
  if (const std::optional<uid_t> user = other_user(fd.get())) {
    return absl::PermissionDeniedError(
        absl::StrCat("a process of user ", *user, " answers for a client of user ", geteuid(),
                     " on this host; run all clients of a job as one user"));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  Peer& other = peers_[peer];
  other.socket = std::move(fd);
  if (!watch_descriptor(epoll_.get(), EPOLL_CTL_ADD, other.socket.get(), EPOLLIN))
    return link_error(what, errno);
  post(other, hello_to(peer), parts_.own_control.fd());
  return absl::OkStatus();
}

LinkMessage PeerSockets::hello_to(int peer) const {
  LinkMessage hello = message_of(LinkMessage::kHello);
  hello.size_bytes = kControlBytes;
  hello.from_incarnation = members_.self().incarnation;
  hello.to_incarnation = members_[peer].incarnation;
  return hello;
}

void PeerSockets::post(Peer& peer, const LinkMessage& message, int fd) {
  peer.unsent.push_back({message, fd});
  flush(peer);
}

void PeerSockets::flush(Peer& peer) {
  const int socket = peer.socket.get();
  SendResult result = SendResult::kSent;
  while (!peer.unsent.empty() && result == SendResult::kSent) {
    const Outgoing& next = peer.unsent.front();
    result = send_message(socket, next.message, next.fd);
    if (result == SendResult::kSent) peer.unsent.pop_front();
  }
  // A peer that cannot be told has gone: its hang-up or its heartbeats say so.
  if (result == SendResult::kOver) peer.unsent.clear();
  if (result == SendResult::kTooManyInTransit && !retries_.exchange(true)) wake_server();
  const bool waits = result == SendResult::kFull;
  if (waits != peer.waits_to_send) {
    watch_descriptor(epoll_.get(), EPOLL_CTL_MOD, socket, waits ? EPOLLIN | EPOLLOUT : EPOLLIN);
    peer.waits_to_send = waits;
  }
  if (peer.unsent.empty()) sent_.notify_all();
}

}  // namespace tessera::shm
