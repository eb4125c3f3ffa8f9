// SPDX-License-Identifier: Apache-2.0
#include "shm/host_memory.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"

namespace tessera::shm {
namespace {

// How often an arena that does not come is asked for.
constexpr absl::Duration kAskInterval = absl::Seconds(1);

// Maps the file that came with a message, if it could be received.
StatusOr<SharedMapping> map_file(ReceivedMessage& received) {
  TESSERA_RETURN_IF_ERROR(received.fd_error);
  return SharedMapping::map_received(received.fd.release(), received.message.size_bytes);
}

StatusOr<SharedMapping> map_region(ReceivedMessage& received, int num_devices) {
  TESSERA_RETURN_IF_ERROR(received.fd_error);
  if (const uint64_t size_bytes = received.message.size_bytes; size_bytes != kControlBytes) {
    return absl::InvalidArgumentError(absl::StrCat("it has ", size_bytes, " bytes"));
  }
  TESSERA_ASSIGN_OR_RETURN(SharedMapping mapping, map_file(received));
  if (is_valid_control(mapping.data(), num_devices)) return mapping;
  return absl::InvalidArgumentError("it holds something else");
}

}  // namespace

HostMemory::HostMemory(const HostMembers& members, const Liveness& liveness, std::byte* own_control,
                       std::shared_ptr<ArenaPool> pool, AskForArena ask)
    : members_(members),
      liveness_(liveness),
      pool_(std::move(pool)),
      ask_(std::move(ask)),
      peers_(members.num_clients()) {
  for (int i = 0; i < members_.num_clients(); ++i) {
    if (members_.is_on_host(i)) peers_[i].arenas = std::vector<PeerArena>(ArenaPool::kMaxArenas);
  }
  peers_[members_.client_id()].control = own_control;
}

std::byte* HostMemory::find_in_control(uint64_t client, uint64_t offset, uint64_t num_bytes) const {
  if (client >= peers_.size() || peers_[client].control == nullptr || offset > kControlBytes ||
      num_bytes > kControlBytes - offset) {
    return nullptr;
  }
  return control(static_cast<int>(client)) + offset;
}

StatusOr<std::byte*> HostMemory::resolve(SharedAddress address, uint64_t num_bytes,
                                         absl::Time deadline) {
  if (address.arena == SharedAddress::kNull) return nullptr;
  const auto bad_address = [&] {
    return absl::InternalError(
        absl::StrCat(num_bytes, " bytes at offset ", address.offset, " of arena ", address.arena,
                     " of client ", address.client,
                     " do not exist, and a client says that its memory is there; its memory may "
                     "have been overwritten"));
  };
  if (address.client == members_.client_id()) {
    std::byte* const own = pool_->find({address.arena, address.offset}, num_bytes);
    if (own == nullptr) return bad_address();
    return own;
  }
  if (address.client < 0 || address.client >= members_.num_clients() ||
      !members_.is_on_host(address.client) || address.arena < 0 ||
      address.arena >= ArenaPool::kMaxArenas) {
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

Status HostMemory::wait_for_arena(SharedAddress address, absl::Time deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  Peer& peer = peers_[address.client];
  const std::atomic<std::byte*>& base = peer.arenas[address.arena].data;
  // Requests an arena again after a failed mapping.
  bool asks = !std::exchange(peer.arena_error, absl::OkStatus()).ok();
  while (base.load(std::memory_order_acquire) == nullptr) {
    TESSERA_RETURN_IF_ERROR(liveness_.client_status(address.client));
    TESSERA_RETURN_IF_ERROR(peer.arena_error);
    const absl::Time now = steady_now();
    if (now >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "memory of ", members_[address.client].to_string(), " was not shared in time"));
    }
    if (asks) ask_(address.client, address.arena);
    const absl::Time next = std::min(deadline, now + kAskInterval);
    asks = changed_.wait_until(lock, to_chrono_steady(next)) == std::cv_status::timeout;
  }
  return absl::OkStatus();
}

std::optional<SharedAddress> HostMemory::locate(const std::byte* memory, int64_t num_bytes) const {
  if (const std::optional<ArenaAddress> own = pool_->locate(memory, num_bytes)) {
    return SharedAddress{own->arena, members_.client_id(), own->offset};
  }
  std::lock_guard<std::mutex> lock(mutex_);
  const Mapping* mapping = find_mapping(memory, num_bytes);
  if (mapping == nullptr) return std::nullopt;
  return SharedAddress{mapping->arena, mapping->client,
                       static_cast<uint64_t>(memory - mapping->memory->data())};
}

std::shared_ptr<const void> HostMemory::keeper(const std::byte* memory) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Mapping* mapping = find_mapping(memory, 1);
  if (mapping != nullptr) return mapping->memory;
  return pool_;
}

const HostMemory::Mapping* HostMemory::find_mapping(const std::byte* memory,
                                                    int64_t num_bytes) const {
  // Mappings do not overlap, so the only candidate is the last mapping that begins at or before the
  // memory.
  auto after = arenas_.upper_bound(memory);
  if (after == arenas_.begin()) return nullptr;
  const Mapping& mapping = std::prev(after)->second;
  const std::byte* end = mapping.memory->data() + mapping.memory->size_bytes();
  return memory < end && num_bytes <= end - memory ? &mapping : nullptr;
}

Status HostMemory::map_control(int client, ReceivedMessage received) {
  StatusOr<SharedMapping> mapping = map_region(received, members_[client].num_local_devices);
  if (absl::IsResourceExhausted(mapping.status())) {
    fail(mapping.status());
    return absl::OkStatus();
  }
  if (!mapping.ok()) {
    return absl::UnavailableError(
        absl::StrCat(members_[client].to_string(), " is lost: its control region is not one: ",
                     mapping.status().message(), "; see whether all clients run one program"));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  Peer& peer = peers_[client];
  peer.control = mapping->data();
  peer.control_memory = *std::move(mapping);
  changed_.notify_all();
  return absl::OkStatus();
}

void HostMemory::map_arena(int client, ReceivedMessage received) {
  const int arena = received.message.arena;
  const bool can_exist = arena >= 0 && arena < ArenaPool::kMaxArenas;
  StatusOr<SharedMapping> mapping =
      can_exist ? map_file(received)
                : absl::InternalError(absl::StrCat(members_[client].to_string(), " shares arena ",
                                                   arena, ", which cannot exist"));
  std::lock_guard<std::mutex> lock(mutex_);
  Peer& peer = peers_[client];
  changed_.notify_all();
  if (!mapping.ok()) {
    peer.arena_error = with_context(
        mapping.status(), absl::StrCat("client ", members_.client_id(), " cannot map memory of ",
                                       members_[client].to_string()));
    return;
  }
  PeerArena& place = peer.arenas[arena];
  if (place.data.load(std::memory_order_relaxed) != nullptr) return;  // it was asked for twice
  place.size_bytes = mapping->size_bytes();
  place.data.store(mapping->data(), std::memory_order_release);
  const std::byte* const begin = mapping->data();
  arenas_.emplace(
      begin, Mapping{client, arena, std::make_shared<const SharedMapping>(*std::move(mapping))});
}

void HostMemory::note_no_arena(int client, int arena) {
  std::lock_guard<std::mutex> lock(mutex_);
  peers_[client].arena_error =
      absl::InternalError(absl::StrCat(members_[client].to_string(), " has no arena ", arena,
                                       ", which another client gave as the place of its memory"));
  changed_.notify_all();
}

void HostMemory::fail(const Status& error) {
  std::lock_guard<std::mutex> lock(mutex_);
  own_error_.Update(error);
  changed_.notify_all();
}

bool HostMemory::has_all_controls() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::count_if(peers_.begin(), peers_.end(), [](const Peer& p) {
           return p.control != nullptr;
         }) == members_.num_on_host();
}

Status HostMemory::wait_for_controls(absl::Time deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto is_awaited = [this](int client) {
    return members_.is_on_host(client) && peers_[client].control == nullptr;
  };
  const auto is_settled = [&] {
    if (!own_error_.ok()) return true;
    for (int i = 0; i < members_.num_clients(); ++i) {
      if (is_awaited(i) && liveness_.client_status(i).ok()) return false;
    }
    return true;
  };
  if (deadline == absl::InfiniteFuture()) {
    changed_.wait(lock, is_settled);
  } else {
    changed_.wait_until(lock, to_chrono_steady(deadline), is_settled);
  }
  TESSERA_RETURN_IF_ERROR(own_error_);
  std::vector<std::string> missing;
  for (int i = 0; i < members_.num_clients(); ++i) {
    // This client may never work with a client that was ready and has been lost since.
    if (!is_awaited(i)) continue;
    TESSERA_RETURN_IF_ERROR(liveness_.client_status(i));
    missing.push_back(members_[i].to_string());
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("sharing memory on this host: no answer from ", absl::StrJoin(missing, ", ")));
}

void HostMemory::wake() {
  std::lock_guard<std::mutex> lock(mutex_);
  changed_.notify_all();
}

}  // namespace tessera::shm
