// SPDX-License-Identifier: Apache-2.0
//
// The thread of HostLink: which connections it takes, and what it does with their messages.
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
#include "shm/host_link.h"
#include "shm/link_message.h"

namespace tessera::shm {
namespace {

// How long a message waits that the system does not take, though the socket would.
constexpr absl::Duration kRetryInterval = absl::Milliseconds(10);
// Connections whose hello has not come.
constexpr size_t kMaxStrangers = 64;

}  // namespace

void HostLink::serve() {
  const LifeSign life(reinterpret_cast<ControlHeader*>(own_control_->data())->life);
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

void HostLink::serve_event(int fd, uint32_t events) {
  if (fd == wake_event_.get()) {
    uint64_t count;
    (void)!read(fd, &count, sizeof count);
    return;
  }
  if (fd == listen_socket_.get()) return accept_stranger();
  int client = -1;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (int i = 0; i < num_clients(); ++i) {
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
  if (absl::IsCancelled(over)) return hang_up(client);
  report_lost(client, over);
}

void HostLink::stop_listening() {
  if (!listen_socket_.is_open()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (!all_ready()) return;
  listen_socket_.close();
  strangers_.clear();
}

void HostLink::accept_stranger() {
  FileDescriptor socket(accept4(listen_socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket.is_open()) {
    if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS) return;
    // The connection stays in the queue, and would wake this thread for ever.
    const Status error = link_error("cannot accept a client of this host", errno);
    listen_socket_.close();
    return fail(error);
  }
  if (other_user(socket.get()).has_value()) return;
  // A member sends its hello at once. Connections without a hello must not use up descriptors.
  if (strangers_.size() >= kMaxStrangers) strangers_.erase(strangers_.begin());
  if (!watch_descriptor(epoll_.get(), EPOLL_CTL_ADD, socket.get(), EPOLLIN)) return;
  strangers_.push_back(std::move(socket));
}

bool HostLink::admit_stranger(int socket) {
  std::optional<ReceivedMessage> received = receive_message(socket);
  if (!received.has_value()) return false;
  const LinkMessage& hello = received->message;
  // The later client of each pair connects.
  if (hello.kind != LinkMessage::kHello || hello.client <= client_id_ ||
      hello.client >= num_clients() || !is_on_host(hello.client) ||
      hello.from_incarnation != member(hello.client).incarnation ||
      hello.to_incarnation != member(client_id_).incarnation) {
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
    post(peer, hello_to(client), own_control_->fd());
  }
  if (const Status bad = map_control(client, *std::move(received)); !bad.ok()) {
    report_lost(client, bad);
  }
  return true;
}

// Cancelled: the peer has hung up.
Status HostLink::receive(int client) {
  int socket = -1;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    socket = peers_[client].socket.get();
  }
  std::optional<ReceivedMessage> received = receive_message(socket);
  if (!received.has_value()) return absl::CancelledError("");
  return take_message(client, *std::move(received));
}

Status HostLink::take_message(int client, ReceivedMessage received) {
  const LinkMessage& message = received.message;
  const auto broken = [&](absl::string_view how) {
    return absl::UnavailableError(absl::StrCat(member(client).to_string(), " is lost: ", how,
                                               "; see whether all clients run one program"));
  };
  if (message.client != client) {
    return broken(absl::StrCat("it sent a message in the name of client ", message.client));
  }
  switch (message.kind) {
    case LinkMessage::kHello: {
      const bool is_expected = client < client_id_ && peers_[client].control == nullptr &&
                               message.from_incarnation == member(client).incarnation &&
                               message.to_incarnation == member(client_id_).incarnation;
      if (!is_expected) return broken("it said hello twice, or as another client");
      return map_control(client, std::move(received));
    }
    case LinkMessage::kArena:
      map_arena(client, std::move(received));
      return absl::OkStatus();
    case LinkMessage::kAskArena:
      answer_ask(client, message.arena);
      return absl::OkStatus();
    case LinkMessage::kNoArena: {
      std::lock_guard<std::mutex> lock(mutex_);
      peers_[client].arena_error = absl::InternalError(
          absl::StrCat(member(client).to_string(), " has no arena ", message.arena,
                       ", which another client gave as the place of its memory"));
      changed_.notify_all();
      return absl::OkStatus();
    }
    case LinkMessage::kGoodbye: {
      std::lock_guard<std::mutex> lock(mutex_);
      peers_[client].left = true;
      return absl::OkStatus();
    }
  }
  return broken("it sent a message of no known kind");
}

// An error means that the client is lost. Where this process lacks resources it calls fail()
// instead.
Status HostLink::map_control(int client, ReceivedMessage received) {
  const uint64_t size_bytes = received.message.size_bytes;
  Status error = received.fd_error;
  StatusOr<SharedMapping> mapping = absl::UnknownError("not mapped yet");
  if (error.ok() && size_bytes != kControlBytes) {
    error = absl::InvalidArgumentError(absl::StrCat("it has ", size_bytes, " bytes"));
  }
  if (error.ok()) {
    mapping = SharedMapping::map_received(received.fd.release(), size_bytes);
    error = mapping.status();
  }
  if (error.ok() && !is_valid_control(mapping->data(), member(client).num_local_devices)) {
    error = absl::InvalidArgumentError("it holds something else");
  }
  if (absl::IsResourceExhausted(error)) {
    fail(error);
    return absl::OkStatus();
  }
  if (!error.ok()) {
    return absl::UnavailableError(absl::StrCat(
        member(client).to_string(), " is lost: its control region is not one: ", error.message(),
        "; see whether all clients run one program"));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  Peer& peer = peers_[client];
  peer.control = mapping->data();
  peer.mappings.push_back(
      {SharedAddress::kNull, std::make_shared<const SharedMapping>(*std::move(mapping))});
  peer.ready = true;
  changed_.notify_all();
  return absl::OkStatus();
}

void HostLink::map_arena(int client, ReceivedMessage received) {
  const LinkMessage& message = received.message;
  StatusOr<SharedMapping> mapping = absl::UnknownError("not mapped yet");
  if (message.arena < 0 || message.arena >= ArenaPool::kMaxArenas) {
    mapping = absl::InternalError(absl::StrCat(member(client).to_string(), " shares arena ",
                                               message.arena, ", which cannot exist"));
  } else if (!received.fd_error.ok()) {
    mapping = received.fd_error;
  } else {
    mapping = SharedMapping::map_received(received.fd.release(), message.size_bytes);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  Peer& peer = peers_[client];
  changed_.notify_all();
  if (!mapping.ok()) {
    peer.arena_error = with_context(
        mapping.status(),
        absl::StrCat("client ", client_id_, " cannot map memory of ", member(client).to_string()));
    return;
  }
  PeerArena& arena = peer.arenas[message.arena];
  if (arena.data.load(std::memory_order_relaxed) != nullptr) return;  // it was asked for twice
  arena.size_bytes = mapping->size_bytes();
  arena.data.store(mapping->data(), std::memory_order_release);
  peer.mappings.push_back(
      {message.arena, std::make_shared<const SharedMapping>(*std::move(mapping))});
}

void HostLink::answer_ask(int client, int arena) {
  const std::optional<ArenaPool::Shared> shared = pool_->shared(arena);
  LinkMessage answer;
  answer.kind = shared.has_value() ? LinkMessage::kArena : LinkMessage::kNoArena;
  answer.client = client_id_;
  answer.arena = arena;
  answer.size_bytes = shared.has_value() ? shared->size_bytes : 0;
  std::lock_guard<std::mutex> lock(mutex_);
  post(peers_[client], answer, shared.has_value() ? shared->fd : -1);
}

void HostLink::fail(const Status& error) {
  std::lock_guard<std::mutex> lock(mutex_);
  own_error_.Update(error);
  changed_.notify_all();
}

}  // namespace tessera::shm
