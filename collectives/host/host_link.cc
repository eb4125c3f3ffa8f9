// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/host_link.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/format.h"
#include "collectives/host/activity.h"
#include "device/cpu/machine.h"

namespace tessera::host {

// Fixed-size messages of a socket; a descriptor travels beside some of them.
struct HostLink::Message {
  enum Kind : uint32_t { kHello, kArena, kGoodbye };
  Kind kind;
  int32_t client;
  int32_t arena;
  uint64_t size_bytes;
};

// Writes what the stream of one device runs into its slot of the control region. A task without a
// label is a collective's, which says by itself what it is.
class HostLink::Observer : public StreamObserver {
 public:
  explicit Observer(DeviceActivity& slot) : slot_(slot) {}

  void task_started(absl::string_view label) override {
    if (label.empty()) return;
    Activity activity;
    activity.kind = DeviceActivity::kRunning;
    activity.has_label = true;
    activity.since_ns = monotonic_ns();
    write_activity(slot_, activity, label);
  }
  void task_finished() override { write_kind(slot_, DeviceActivity::kFinished); }

 private:
  DeviceActivity& slot_;
};

namespace {

Status system_error(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

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

uint64_t align64(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

HostLink::HostLink(Coordinator& coordinator, std::shared_ptr<ArenaPool> pool)
    : coordinator_(coordinator), client_id_(coordinator.client_id()), pool_(std::move(pool)) {
  peers_.resize(coordinator.num_clients());
  int num_devices = 0;
  for (int i = 0; i < coordinator.num_clients(); ++i) {
    num_devices += coordinator.members()[i].num_local_devices;
    peers_[i].arenas = std::vector<std::atomic<std::byte*>>(ArenaPool::kMaxArenas);
  }
  // Half a microsecond where every waiter may have a core of its own. It may not, beside other
  // programs: whoever spins for longer keeps the one it waits for from coming.
  num_spins_ = num_devices <= usable_cores() ? 20 : 0;
}

StatusOr<std::unique_ptr<HostLink>> HostLink::create(Coordinator& coordinator,
                                                     std::shared_ptr<ArenaPool> pool,
                                                     absl::Time deadline) {
  const MemberInfo& self = coordinator.members()[coordinator.client_id()];
  for (const MemberInfo& other : coordinator.members()) {
    if (other.boot_id != self.boot_id) {
      return absl::UnimplementedError(absl::StrCat(
          "clients on several hosts are not supported yet: ", self.to_string(), " and ",
          other.to_string(), " are on different ones; start all clients on one host"));
    }
  }
  std::unique_ptr<HostLink> link(new HostLink(coordinator, std::move(pool)));
  TESSERA_RETURN_IF_ERROR(link->make_control_region());
  TESSERA_RETURN_IF_ERROR(link->listen_and_connect(deadline));
  return link;
}

HostLink::~HostLink() { close(); }

void HostLink::close() {
  {
    std::lock_guard<std::mutex> lock(openness_->mutex);
    openness_->is_open = false;
  }
  pool_->set_arena_callback(nullptr).IgnoreError();
  death_watch_.reset();
  if (server_.joinable()) {
    const uint64_t one = 1;
    (void)!write(stop_event_, &one, sizeof one);
    server_.join();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  for (Peer& peer : peers_) {
    if (peer.socket >= 0) ::close(std::exchange(peer.socket, -1));
  }
  for (int* fd : {&listen_socket_, &epoll_, &stop_event_}) {
    if (*fd >= 0) ::close(std::exchange(*fd, -1));
  }
}

Status HostLink::make_control_region() {
  TESSERA_ASSIGN_OR_RETURN(
      SharedMapping region,
      SharedMapping::create("tessera-control", kControlBytes, SharedMapping::Pages::kOnTouch));
  own_control_ = std::make_unique<SharedMapping>(std::move(region));
  auto* header = reinterpret_cast<ControlHeader*>(own_control_->data());
  header->num_devices = member(client_id_).num_local_devices;
  header->activities_offset = align64(sizeof(ControlHeader));
  GroupTable::initialize(own_control_->data(),
                         header->activities_offset + header->num_devices * sizeof(DeviceActivity));
  header->magic = kControlMagic;
  for (uint32_t i = 0; i < header->num_devices; ++i) {
    activities_.push_back(&activity_slot(own_control_->data(), static_cast<int>(i)));
    observers_.push_back(std::make_unique<Observer>(*activities_.back()));
  }
  peers_[client_id_].control = own_control_->data();
  peers_[client_id_].ready = true;
  return absl::OkStatus();
}

Status HostLink::listen_and_connect(absl::Time deadline) {
  if (num_clients() == 1) return absl::OkStatus();
  const std::string name = random_name();
  sockaddr_un address;
  socklen_t length = abstract_address(name, &address);
  listen_socket_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (listen_socket_ < 0 ||
      bind(listen_socket_, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(listen_socket_, num_clients()) != 0) {
    return system_error("cannot listen on a unix socket for the clients of this host");
  }
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  stop_event_ = eventfd(0, EFD_CLOEXEC);
  for (int fd : {listen_socket_, stop_event_}) {
    epoll_event event = {.events = EPOLLIN, .data = {.fd = fd}};
    epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
  }
  TESSERA_ASSIGN_OR_RETURN(
      server_, start_thread("the sockets between the clients of this host", [this] { serve(); }));
  // Who greets this client finds its sign of life.
  server_runs_.get_future().wait();

  TESSERA_RETURN_IF_ERROR(coordinator_.put(absl::StrCat("host_link/", client_id_), name));
  // The later client of each pair connects to the earlier one.
  for (int peer = 0; peer < client_id_; ++peer) {
    TESSERA_ASSIGN_OR_RETURN(const std::string peer_name,
                             coordinator_.get(absl::StrCat("host_link/", peer), deadline));
    length = abstract_address(peer_name, &address);
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&address), length) != 0) {
      const Status error =
          system_error(absl::StrCat("cannot reach ", member(peer).to_string(), " on this host"));
      if (fd >= 0) ::close(fd);
      return error;
    }
    TESSERA_RETURN_IF_ERROR(greet(fd));
  }
  std::unique_lock<std::mutex> lock(mutex_);
  const auto all_ready = [this] {
    return std::all_of(peers_.begin(), peers_.end(),
                       [](const Peer& peer) { return peer.ready || !peer.status.ok(); });
  };
  if (deadline == absl::InfiniteFuture()) {
    changed_.wait(lock, all_ready);
  } else {
    changed_.wait_until(lock, to_chrono_steady(deadline), all_ready);
  }
  std::vector<std::string> missing;
  for (int i = 0; i < num_clients(); ++i) {
    // Who was ready, and is lost since, may be one that this client never works with.
    if (peers_[i].ready) continue;
    if (!peers_[i].status.ok()) return peers_[i].status;
    missing.push_back(member(i).to_string());
  }
  if (!missing.empty()) {
    return absl::DeadlineExceededError(
        absl::StrCat("sharing memory on this host: no answer from ", absl::StrJoin(missing, ", ")));
  }
  lock.unlock();
  TESSERA_RETURN_IF_ERROR(watch_peers());
  return pool_->set_arena_callback([this](int arena, int fd, uint64_t size_bytes) {
    return announce_arena(arena, fd, size_bytes);
  });
}

Status HostLink::greet(int socket) {
  ucred peer = {};
  socklen_t length = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 || peer.uid != getuid()) {
    return absl::PermissionDeniedError(
        absl::StrCat("a process of user ", peer.uid, " answers for a client of user ", getuid(),
                     " on this host; run all clients of a job as one user"));
  }
  const Message hello = {Message::kHello, client_id_, 0, kControlBytes};
  TESSERA_RETURN_IF_ERROR(send(socket, hello, own_control_->fd()));
  epoll_event event = {.events = EPOLLIN, .data = {.fd = socket}};
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, socket, &event) != 0) return system_error("epoll_ctl");
  return absl::OkStatus();
}

Status HostLink::send(int socket, const Message& message, int fd) const {
  iovec data = {const_cast<Message*>(&message), sizeof message};
  alignas(cmsghdr) char ancillary[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (fd >= 0) {
    header.msg_control = ancillary;
    header.msg_controllen = sizeof ancillary;
    cmsghdr* part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(part), &fd, sizeof fd);
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent < 0 ? system_error("cannot send to a client of this host") : absl::OkStatus();
}

Status HostLink::announce_arena(int arena, int fd, uint64_t size_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Peer& peer : peers_) {
    if (peer.socket < 0) continue;
    // A peer that cannot be told is dying: its hang-up or its heartbeats will say so.
    send(peer.socket, {Message::kArena, client_id_, arena, size_bytes}, fd).IgnoreError();
  }
  return absl::OkStatus();
}

Status HostLink::watch_peers() {
  std::vector<LifeWord*> words(peers_.size(), nullptr);
  for (int i = 0; i < num_clients(); ++i) {
    if (i != client_id_) words[i] = &reinterpret_cast<ControlHeader*>(control(i))->life;
  }
  TESSERA_ASSIGN_OR_RETURN(death_watch_,
                           DeathWatch::create(std::move(words), [this](int i) { hang_up(i); }));
  return absl::OkStatus();
}

void HostLink::serve() {
  const LifeSign life(reinterpret_cast<ControlHeader*>(own_control_->data())->life);
  server_runs_.set_value();
  while (true) {
    epoll_event event;
    const int count = epoll_wait(epoll_, &event, 1, -1);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0 || event.data.fd == stop_event_) return;
    if (event.data.fd == listen_socket_) {
      accept_peer();
      continue;
    }
    int client = -1;
    if (!receive(event.data.fd, &client)) {
      epoll_ctl(epoll_, EPOLL_CTL_DEL, event.data.fd, nullptr);
      hang_up(client);
      if (client < 0) ::close(event.data.fd);
    }
  }
}

void HostLink::accept_peer() {
  const int socket = accept4(listen_socket_, nullptr, nullptr, SOCK_CLOEXEC);
  if (socket < 0) return;
  if (!greet(socket).ok()) ::close(socket);
}

bool HostLink::receive(int socket, int* client) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (int i = 0; i < num_clients(); ++i) {
      if (peers_[i].socket == socket) *client = i;
    }
  }
  Message message = {};
  iovec data = {&message, sizeof message};
  alignas(cmsghdr) char ancillary[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = ancillary;
  header.msg_controllen = sizeof ancillary;
  ssize_t received;
  do {
    received = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  int fd = -1;
  const cmsghdr* part = received > 0 ? CMSG_FIRSTHDR(&header) : nullptr;
  if (part != nullptr && part->cmsg_type == SCM_RIGHTS) {
    std::memcpy(&fd, CMSG_DATA(part), sizeof fd);
  }
  if (received != sizeof message) {
    if (fd >= 0) ::close(fd);
    return false;
  }
  return take_message(socket, client, message, fd);
}

bool HostLink::take_message(int socket, int* client, const Message& message, int fd) {
  if (message.kind == Message::kGoodbye) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (*client >= 0) peers_[*client].left = true;
    return true;
  }
  if (fd < 0 || message.client < 0 || message.client >= num_clients()) return false;
  StatusOr<SharedMapping> mapping = SharedMapping::map(fd, message.size_bytes);
  std::lock_guard<std::mutex> lock(mutex_);
  Peer& peer = peers_[message.client];
  *client = message.client;
  if (message.kind == Message::kHello) peer.socket = socket;
  if (!mapping.ok()) return false;
  if (message.kind == Message::kHello) {
    peer.control = mapping->data();
    peer.ready = true;
  } else if (message.arena >= 0 && message.arena < ArenaPool::kMaxArenas) {
    peer.arenas[message.arena].store(mapping->data(), std::memory_order_release);
  }
  const bool is_control = message.kind == Message::kHello;
  peer.mappings.push_back({is_control ? SharedAddress::kNull : message.arena,
                           std::make_shared<const SharedMapping>(*std::move(mapping))});
  changed_.notify_all();
  return true;
}

void HostLink::hang_up(int client) {
  if (client < 0) return;
  bool in_order;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    in_order = peers_[client].left || leaving_;
  }
  report_lost(client, absl::UnavailableError(absl::StrCat(
                          member(client).to_string(),
                          in_order ? " has left the job"
                                   : " is lost: its process has ended without shutdown")));
}

std::byte* HostLink::resolve(SharedAddress address) {
  if (address.arena == SharedAddress::kNull) return nullptr;
  if (address.arena == SharedAddress::kPointer) {
    return reinterpret_cast<std::byte*>(address.offset);
  }
  if (address.client == client_id_) return pool_->at({address.arena, address.offset});
  std::atomic<std::byte*>& arena = peers_[address.client].arenas[address.arena];
  std::byte* base = arena.load(std::memory_order_acquire);
  if (base == nullptr) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] {
      base = arena.load(std::memory_order_acquire);
      return base != nullptr || !peers_[address.client].status.ok();
    });
  }
  return base == nullptr ? nullptr : base + address.offset;
}

const HostLink::Mapping* HostLink::find_mapping(const std::byte* memory, int64_t num_bytes,
                                                int* client) const {
  for (size_t i = 0; i < peers_.size(); ++i) {
    for (const Mapping& mapping : peers_[i].mappings) {
      const std::byte* begin = mapping.memory->data();
      const std::byte* end = begin + mapping.memory->size_bytes();
      if (mapping.arena == SharedAddress::kNull || memory < begin || memory >= end) continue;
      if (num_bytes > end - memory) return nullptr;
      *client = static_cast<int>(i);
      return &mapping;
    }
  }
  return nullptr;
}

std::optional<SharedAddress> HostLink::locate(const std::byte* memory, int64_t num_bytes) const {
  if (const std::optional<ArenaAddress> own = pool_->locate(memory, num_bytes)) {
    return SharedAddress{own->arena, client_id_, own->offset};
  }
  std::lock_guard<std::mutex> lock(mutex_);
  int client = 0;
  const Mapping* mapping = find_mapping(memory, num_bytes, &client);
  if (mapping == nullptr) return std::nullopt;
  return SharedAddress{mapping->arena, client,
                       static_cast<uint64_t>(memory - mapping->memory->data())};
}

std::shared_ptr<const void> HostLink::keeper(const std::byte* memory) const {
  std::lock_guard<std::mutex> lock(mutex_);
  int client = 0;
  const Mapping* mapping = find_mapping(memory, 1, &client);
  if (mapping != nullptr) return mapping->memory;
  return pool_;
}

void HostLink::set_lost_listener(LostListener listener) {
  std::vector<std::pair<int, Status>> lost;
  std::lock_guard<std::mutex> calls(listener_mutex_);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    listener_ = listener;
    for (int i = 0; i < num_clients(); ++i) {
      if (!peers_[i].status.ok()) lost.emplace_back(i, peers_[i].status);
    }
  }
  if (!listener) return;
  for (const auto& [client, status] : lost) listener(client, status);
}

void HostLink::report_lost(int client, const Status& reason) {
  LostListener listener;
  std::lock_guard<std::mutex> calls(listener_mutex_);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!peers_[client].status.ok()) return;
    peers_[client].status = reason;
    listener = listener_;
    num_lost_.fetch_add(1, std::memory_order_seq_cst);
    changed_.notify_all();
  }
  if (listener) listener(client, reason);
}

Status HostLink::client_status(int client) const {
  if (!any_lost()) return absl::OkStatus();
  std::lock_guard<std::mutex> lock(mutex_);
  return peers_[client].status;
}

bool HostLink::has_left(int client) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return peers_[client].left;
}

bool HostLink::has_died(int client) const {
  const auto* header = reinterpret_cast<const ControlHeader*>(control(client));
  return (header->life.load() & FUTEX_OWNER_DIED) != 0;
}

bool HostLink::is_dead(int client) const { return has_died(client) || !client_status(client).ok(); }

bool HostLink::is_gone(int client) const {
  if (client == client_id_) return false;
  const uint32_t life = reinterpret_cast<const ControlHeader*>(control(client))->life.load();
  return life == 0 || (life & FUTEX_OWNER_DIED) != 0;
}

GroupTable HostLink::groups_led_by(int client) const {
  return GroupTable(control(client), client, client_id_,
                    [this](int other) { return is_gone(other); });
}

void HostLink::leave() {
  std::lock_guard<std::mutex> lock(mutex_);
  leaving_ = true;
  for (const Peer& peer : peers_) {
    if (peer.socket < 0) continue;
    send(peer.socket, {Message::kGoodbye, client_id_, 0, 0}, -1).IgnoreError();
  }
}

StreamObserver* HostLink::observer(int ordinal) { return observers_[ordinal].get(); }

}  // namespace tessera::host
