// SPDX-License-Identifier: Apache-2.0
#include "shm/host_link.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/format.h"
#include "base/machine.h"
#include "job/environment/file_descriptor.h"
#include "job/environment/host.h"
#include "shm/activity.h"

namespace tessera::shm {

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
// How often an arena that does not come is asked for.
constexpr absl::Duration kAskInterval = absl::Seconds(1);

}  // namespace

HostLink::HostLink(Coordinator& coordinator, std::shared_ptr<ArenaPool> pool)
    : coordinator_(coordinator), client_id_(coordinator.client_id()), pool_(std::move(pool)) {
  peers_.resize(coordinator.num_clients());
  int num_devices = 0;
  for (int i = 0; i < coordinator.num_clients(); ++i) {
    if (!is_on_host(i)) continue;
    ++num_on_host_;
    num_devices += coordinator.members()[i].num_local_devices;
    peers_[i].arenas = std::vector<PeerArena>(ArenaPool::kMaxArenas);
  }
  // Half a microsecond where every waiter may have a core of its own. Beside other programs it may
  // not have one: a longer spin would take the core from the member it waits for.
  wait_policy_ = num_devices <= usable_cores() ? kMembersOnCores : kMembers;
}

StatusOr<std::unique_ptr<HostLink>> HostLink::create(Coordinator& coordinator,
                                                     std::shared_ptr<ArenaPool> pool,
                                                     absl::Time deadline) {
  std::unique_ptr<HostLink> link(new HostLink(coordinator, std::move(pool)));
  TESSERA_RETURN_IF_ERROR(link->make_control_region());
  // The death of a peer ends the waits for it. The caller may set a callback of its own later,
  // which is then told all losses so far.
  coordinator.set_lost_callback(
      [raw = link.get()](int client, const Status& reason) { raw->report_lost(client, reason); });
  const Status connected = link->listen_and_connect(deadline);
  if (!connected.ok()) {
    coordinator.set_lost_callback(nullptr);
    return connected;
  }
  return link;
}

HostLink::~HostLink() { close(); }

void HostLink::close() {
  coordinator_.set_lost_callback(nullptr);
  {
    std::lock_guard<std::mutex> lock(openness_->mutex);
    openness_->is_open = false;
  }
  pool_->set_arena_callback(nullptr).IgnoreError();
  death_watch_.reset();
  if (server_.joinable()) {
    {
      // A goodbye that is not sent would make an orderly leave a loss.
      std::unique_lock<std::mutex> lock(mutex_);
      const absl::Time deadline = steady_now() + kGoodbyeLimit;
      changed_.wait_until(lock, to_chrono_steady(deadline),
                          [this] { return !leaving_ || is_all_sent(); });
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

void HostLink::wake_server() {
  const uint64_t one = 1;
  (void)!write(wake_event_.get(), &one, sizeof one);
}

Status HostLink::make_control_region() {
  TESSERA_ASSIGN_OR_RETURN(SharedMapping region,
                           SharedMapping::create("tessera-control", kControlBytes));
  own_control_ = std::make_unique<SharedMapping>(std::move(region));
  auto* header = reinterpret_cast<ControlHeader*>(own_control_->data());
  header->num_devices = member(client_id_).num_local_devices;
  header->activities_offset = kActivitiesOffset;
  GroupTable::initialize(own_control_->data(), slots_offset(header->num_devices));
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
  if (num_on_host_ == 1) return absl::OkStatus();
  raise_descriptor_limit();
  const std::string name = random_name();
  TESSERA_RETURN_IF_ERROR(listen(name));
  TESSERA_ASSIGN_OR_RETURN(
      server_, start_thread("the sockets between the clients of this host", [this] { serve(); }));
  // A peer that connects to this client finds its sign of life.
  server_runs_.get_future().wait();

  TESSERA_RETURN_IF_ERROR(coordinator_.put(absl::StrCat("host_link/", client_id_), name));
  // The later client of each pair connects to the earlier one.
  for (int peer = 0; peer < client_id_; ++peer) {
    if (!is_on_host(peer)) continue;
    TESSERA_ASSIGN_OR_RETURN(const std::string peer_name,
                             coordinator_.get(absl::StrCat("host_link/", peer), peer, deadline));
    TESSERA_RETURN_IF_ERROR(connect_to(peer, peer_name));
  }
  TESSERA_RETURN_IF_ERROR(wait_until_ready(deadline));
  TESSERA_RETURN_IF_ERROR(watch_peers());
  return pool_->set_arena_callback([this](int arena, int fd, uint64_t size_bytes) {
    return announce_arena(arena, fd, size_bytes);
  });
}

Status HostLink::listen(absl::string_view name) {
  constexpr absl::string_view kWhat = "cannot listen on a unix socket for the clients of this host";
  sockaddr_un address;
  const socklen_t length = abstract_address(name, &address);
  listen_socket_ = FileDescriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!listen_socket_.is_open() ||
      bind(listen_socket_.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(listen_socket_.get(), num_clients()) != 0) {
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

Status HostLink::connect_to(int peer, absl::string_view name) {
  const std::string what = absl::StrCat("cannot reach ", member(peer).to_string(), " on this host");
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
  post(other, hello_to(peer), own_control_->fd());
  return absl::OkStatus();
}

void HostLink::set_long_wait_listener(std::function<void()> listener) {
  std::lock_guard<std::mutex> lock(long_wait_mutex_);
  long_wait_listener_ = std::move(listener);
}

void HostLink::note_long_wait() {
  std::lock_guard<std::mutex> lock(long_wait_mutex_);
  if (long_wait_listener_ != nullptr) long_wait_listener_();
}

void HostLink::publish_call(absl::string_view operation, bool is_waiting) {
  Activity activity;
  activity.kind = is_waiting ? DeviceActivity::kWaiting : DeviceActivity::kFinished;
  activity.has_label = true;
  activity.since_ns = monotonic_ns();
  write_activity(call_slot(own_control_->data(), member(client_id_).num_local_devices), activity,
                 operation);
}

bool HostLink::is_on_host(int client) const {
  return are_on_one_host(member(client), member(client_id_));
}

bool HostLink::all_ready() const {
  return std::count_if(peers_.begin(), peers_.end(), [](const Peer& p) { return p.ready; }) ==
         num_on_host_;
}

Status HostLink::wait_until_ready(absl::Time deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto is_settled = [this] {
    const auto is_settled = [](const Peer& peer) { return peer.ready || !peer.status.ok(); };
    bool all = true;
    for (int i = 0; i < num_clients(); ++i) all &= !is_on_host(i) || is_settled(peers_[i]);
    return !own_error_.ok() || all;
  };
  if (deadline == absl::InfiniteFuture()) {
    changed_.wait(lock, is_settled);
  } else {
    changed_.wait_until(lock, to_chrono_steady(deadline), is_settled);
  }
  TESSERA_RETURN_IF_ERROR(own_error_);
  std::vector<std::string> missing;
  for (int i = 0; i < num_clients(); ++i) {
    // This client may never work with a client that was ready and has been lost since.
    if (peers_[i].ready || !is_on_host(i)) continue;
    if (!peers_[i].status.ok()) return peers_[i].status;
    missing.push_back(member(i).to_string());
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("sharing memory on this host: no answer from ", absl::StrJoin(missing, ", ")));
}

LinkMessage HostLink::hello_to(int peer) const {
  LinkMessage hello;
  hello.kind = LinkMessage::kHello;
  hello.client = client_id_;
  hello.size_bytes = kControlBytes;
  hello.from_incarnation = member(client_id_).incarnation;
  hello.to_incarnation = member(peer).incarnation;
  return hello;
}

void HostLink::post(Peer& peer, const LinkMessage& message, int fd) {
  peer.unsent.push_back({message, fd});
  flush(peer);
}

void HostLink::flush(Peer& peer) {
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
  if (peer.unsent.empty()) changed_.notify_all();
}

bool HostLink::is_all_sent() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const Peer& p) { return p.unsent.empty(); });
}

Status HostLink::announce_arena(int arena, int fd, uint64_t size_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  LinkMessage message;
  message.kind = LinkMessage::kArena;
  message.client = client_id_;
  message.arena = arena;
  message.size_bytes = size_bytes;
  for (Peer& peer : peers_) {
    if (peer.socket.is_open()) post(peer, message, fd);
  }
  return absl::OkStatus();
}

Status HostLink::watch_peers() {
  std::vector<LifeWord*> words(peers_.size(), nullptr);
  for (int i = 0; i < num_clients(); ++i) {
    if (i != client_id_ && is_on_host(i))
      words[i] = &reinterpret_cast<ControlHeader*>(control(i))->life;
  }
  TESSERA_ASSIGN_OR_RETURN(death_watch_,
                           DeathWatch::create(std::move(words), [this](int i) { hang_up(i); }));
  return absl::OkStatus();
}

void HostLink::hang_up(int client) {
  if (client < 0) return;
  bool in_order;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    in_order = peers_[client].left || leaving_;
  }
  const std::string name = member(client).to_string();
  report_lost(client, in_order ? absl::UnavailableError(absl::StrCat(name, " has left the job"))
                               : loss_without_shutdown(name));
}

std::byte* HostLink::find_in_control(uint64_t client, uint64_t offset, uint64_t num_bytes) const {
  if (client >= peers_.size() || peers_[client].control == nullptr || offset > kControlBytes ||
      num_bytes > kControlBytes - offset) {
    return nullptr;
  }
  return control(static_cast<int>(client)) + offset;
}

StatusOr<std::byte*> HostLink::resolve(SharedAddress address, uint64_t num_bytes,
                                       absl::Time deadline) {
  if (address.arena == SharedAddress::kNull) return nullptr;
  const auto bad_address = [&] {
    return absl::InternalError(
        absl::StrCat(num_bytes, " bytes at offset ", address.offset, " of arena ", address.arena,
                     " of client ", address.client,
                     " do not exist, and a client says that its memory is there; its memory may "
                     "have been overwritten"));
  };
  if (address.client == client_id_) {
    std::byte* const own = pool_->find({address.arena, address.offset}, num_bytes);
    if (own == nullptr) return bad_address();
    return own;
  }
  if (address.client < 0 || address.client >= num_clients() || !is_on_host(address.client) ||
      address.arena < 0 || address.arena >= ArenaPool::kMaxArenas) {
    return bad_address();
  }
  const PeerArena& arena = peers_[address.client].arenas[address.arena];
  std::byte* base = arena.data.load(std::memory_order_acquire);
  if (base == nullptr) {
    TESSERA_RETURN_IF_ERROR(wait_for_arena(address, deadline));
    base = arena.data.load(std::memory_order_acquire);
  }
  if (address.offset > arena.size_bytes || num_bytes > arena.size_bytes - address.offset) {
    return bad_address();
  }
  return base + address.offset;
}

Status HostLink::wait_for_arena(SharedAddress address, absl::Time deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  Peer& peer = peers_[address.client];
  const std::atomic<std::byte*>& base = peer.arenas[address.arena].data;
  LinkMessage ask;
  ask.kind = LinkMessage::kAskArena;
  ask.client = client_id_;
  ask.arena = address.arena;
  // Requests an arena again after a failed mapping.
  bool asks = !std::exchange(peer.arena_error, absl::OkStatus()).ok();
  while (base.load(std::memory_order_acquire) == nullptr) {
    TESSERA_RETURN_IF_ERROR(peer.status);
    TESSERA_RETURN_IF_ERROR(peer.arena_error);
    const absl::Time now = steady_now();
    if (now >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "memory of ", member(address.client).to_string(), " was not shared in time"));
    }
    if (asks) post(peer, ask, -1);
    const absl::Time next = std::min(deadline, now + kAskInterval);
    asks = changed_.wait_until(lock, to_chrono_steady(next)) == std::cv_status::timeout;
  }
  return absl::OkStatus();
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
  if (client < 0 || client >= num_clients()) {
    return absl::InternalError(
        absl::StrCat("client ", client, " does not exist; the job has ", num_clients()));
  }
  if (!any_lost()) return absl::OkStatus();
  std::lock_guard<std::mutex> lock(mutex_);
  return peers_[client].status;
}

bool HostLink::has_left(int client) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return peers_[client].left;
}

bool HostLink::has_died(int client) const {
  if (!is_on_host(client)) return false;
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
  return GroupTable(
      control(client), client, client_id_, [this](int other) { return is_gone(other); },
      [this] { return find_stopped(); });
}

Status HostLink::find_stopped() const {
  if (!any_lost()) return absl::OkStatus();
  for (int i = 0; i < num_clients(); ++i) {
    if (i == client_id_ || !is_on_host(i) || is_gone(i)) continue;
    TESSERA_RETURN_IF_ERROR(client_status(i));
  }
  return absl::OkStatus();
}

void HostLink::leave() {
  std::lock_guard<std::mutex> lock(mutex_);
  leaving_ = true;
  LinkMessage goodbye;
  goodbye.kind = LinkMessage::kGoodbye;
  goodbye.client = client_id_;
  for (Peer& peer : peers_) {
    if (peer.socket.is_open()) post(peer, goodbye, -1);
  }
}

StreamObserver* HostLink::observer(int ordinal) { return observers_[ordinal].get(); }

}  // namespace tessera::shm
