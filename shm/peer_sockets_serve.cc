// SPDX-License-Identifier: Apache-2.0
//
// The thread of PeerSockets: it accepts connections and handles their messages.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "device/cpu/arena.h"
#include "shm/control.h"
#include "shm/death_watch.h"
#include "shm/link_message.h"
#include "shm/peer_sockets.h"

namespace tessera::shm {
namespace {

// How long a message waits that the system refuses although the socket could accept it.
constexpr absl::Duration kRetryInterval = absl::Milliseconds(10);
// Connections whose hello has not come.
constexpr size_t kMaxStrangers = 64;

}  // namespace

void PeerSockets::serve() {
  const LifeSign life(parts_.own_control.life());
  server_runs_.set_value();
  // Kept while other events are served: under steady traffic epoll_wait() never times out.
  absl::Time retry_at = absl::InfiniteFuture();
  while (!stopping_) {
    int timeout_ms = -1;
    if (retries_) {
      const absl::Time now = steady_now();
      if (retry_at == absl::InfiniteFuture()) retry_at = now + kRetryInterval;
      const absl::Duration left = std::max(retry_at - now, absl::ZeroDuration());
      timeout_ms =
          static_cast<int>(absl::Ceil(left, absl::Milliseconds(1)) / absl::Milliseconds(1));
    }
    epoll_event event = {};
    const int count = epoll_wait(epoll_.get(), &event, 1, timeout_ms);
    if (count < 0 && errno != EINTR) return;
    if (count > 0) serve_event(event.data.fd, event.events);
    if (retry_at != absl::InfiniteFuture() && steady_now() >= retry_at) {
      retry_at = absl::InfiniteFuture();
      retries_ = false;
      std::lock_guard<std::mutex> lock(mutex_);
      for (Peer& peer : peers_) flush(peer);
    }
  }
}

void PeerSockets::serve_event(int fd, uint32_t events) {
  if (fd == wake_event_.get()) {
    uint64_t count;
    (void)!read(fd, &count, sizeof count);
    return;
  }
  if (fd == listen_socket_.get()) return accept_stranger();
  int client = -1;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (int i = 0; i < members_.num_clients(); ++i) {
      if (peers_[i].socket.get() == fd) client = i;
    }
    if (client >= 0 && (events & EPOLLOUT) != 0) flush(peers_[client]);
  }
  if (client < 0) {
    const auto stranger = std::find_if(strangers_.begin(), strangers_.end(),
                                       [fd](const FileDescriptor& s) { return s.get() == fd; });
    if (stranger != strangers_.end() && !admit_stranger(fd)) strangers_.erase(stranger);
    return stop_listening();
  }
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) == 0) return;
  const Status over = receive(client);
  if (over.ok()) return stop_listening();
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  if (absl::IsCancelled(over)) return parts_.liveness.hang_up(client);
  parts_.liveness.report_lost(client, over);
}

void PeerSockets::stop_listening() {
  if (!listen_socket_.is_open() || !parts_.memory.has_all_controls()) return;
  listen_socket_.close();
  strangers_.clear();
}

void PeerSockets::accept_stranger() {
  FileDescriptor socket(accept4(listen_socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket.is_open()) {
    if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS) return;
    // The connection stays in the queue, and would wake this thread for ever.
    const Status error = link_error("cannot accept a client of this host", errno);
    listen_socket_.close();
    return parts_.memory.fail(error);
  }
  if (other_user(socket.get()).has_value()) return;
  // A member sends its hello at once. Connections without a hello must not use up descriptors.
  if (strangers_.size() >= kMaxStrangers) strangers_.erase(strangers_.begin());
  if (!watch_descriptor(epoll_.get(), EPOLL_CTL_ADD, socket.get(), EPOLLIN)) return;
  strangers_.push_back(std::move(socket));
}

bool PeerSockets::admit_stranger(int socket) {
  std::optional<ReceivedMessage> received = receive_message(socket);
  if (!received.has_value()) return false;
  const LinkMessage& hello = received->message;
  // The later client of each pair connects.
  if (hello.kind != LinkMessage::kHello || hello.client <= members_.client_id() ||
      hello.client >= members_.num_clients() || !members_.is_on_host(hello.client) ||
      hello.from_incarnation != members_[hello.client].incarnation ||
      hello.to_incarnation != members_.self().incarnation) {
    return false;
  }
  const int client = hello.client;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Peer& peer = peers_[client];
    if (peer.socket.is_open()) return false;
    const auto stranger =
        std::find_if(strangers_.begin(), strangers_.end(),
                     [socket](const FileDescriptor& s) { return s.get() == socket; });
    peer.socket = std::move(*stranger);
    strangers_.erase(stranger);
    post(peer, hello_to(client), parts_.own_control.fd());
  }
  if (const Status bad = parts_.memory.map_control(client, *std::move(received)); !bad.ok()) {
    parts_.liveness.report_lost(client, bad);
  }
  return true;
}

// Cancelled: the peer has hung up.
Status PeerSockets::receive(int client) {
  int socket = -1;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    socket = peers_[client].socket.get();
  }
  std::optional<ReceivedMessage> received = receive_message(socket);
  if (!received.has_value()) return absl::CancelledError("");
  return take_message(client, *std::move(received));
}

Status PeerSockets::take_message(int client, ReceivedMessage received) {
  const LinkMessage& message = received.message;
  const auto broken = [&](absl::string_view how) {
    return absl::UnavailableError(absl::StrCat(members_[client].to_string(), " is lost: ", how,
                                               "; see whether all clients run one program"));
  };
  if (message.client != client) {
    return broken(absl::StrCat("it sent a message in the name of client ", message.client));
  }
  switch (message.kind) {
    case LinkMessage::kHello: {
      const bool is_expected = client < members_.client_id() &&
                               parts_.memory.control(client) == nullptr &&
                               message.from_incarnation == members_[client].incarnation &&
                               message.to_incarnation == members_.self().incarnation;
      if (!is_expected) return broken("it said hello twice, or as another client");
      return parts_.memory.map_control(client, std::move(received));
    }
    case LinkMessage::kArena:
      parts_.memory.map_arena(client, std::move(received));
      return absl::OkStatus();
    case LinkMessage::kAskArena:
      answer_ask(client, message.arena);
      return absl::OkStatus();
    case LinkMessage::kNoArena:
      parts_.memory.note_no_arena(client, message.arena);
      return absl::OkStatus();
    case LinkMessage::kGoodbye:
      parts_.liveness.note_goodbye(client);
      return absl::OkStatus();
  }
  return broken("it sent a message of no known kind");
}

void PeerSockets::answer_ask(int client, int arena) {
  const std::optional<ArenaPool::Shared> shared = parts_.pool.shared(arena);
  LinkMessage answer = message_of(shared.has_value() ? LinkMessage::kArena : LinkMessage::kNoArena);
  answer.arena = arena;
  answer.size_bytes = shared.has_value() ? shared->size_bytes : 0;
  std::lock_guard<std::mutex> lock(mutex_);
  post(peers_[client], answer, shared.has_value() ? shared->fd : -1);
}

}  // namespace tessera::shm
