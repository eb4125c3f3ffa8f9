// SPDX-License-Identifier: Apache-2.0
//
// HostMemory: the memory of the clients of one host, as it is mapped in this process: a control
// region of each client, and the arenas of its pool.
//
//   control(1)            the control region of client 1
//   resolve({2, 1, 64})   byte 64 of arena 2 of client 1, wherever this process has mapped it
//   locate(memory)        the inverse: {2, 1, 64}
//
// Invariants:
//   1. a peer's memory stays mapped, and so readable without a fault, while this object exists,
//      whether or not the peer lives;
//   2. memory is mapped, for good, only after its size was compared with the announced size;
//      addresses that other clients write are compared with the mapped memory before they are used;
//   3. a lack of descriptors or address space in this process is its own ResourceExhausted and
//      never the loss of another client.
//
// Thread-safe. The functions that map memory are called by one thread, which serves the sockets.
#ifndef TESSERA_SHM_HOST_MEMORY_H_
#define TESSERA_SHM_HOST_MEMORY_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "device/cpu/arena.h"
#include "shm/control.h"
#include "shm/host_members.h"
#include "shm/link_message.h"
#include "shm/liveness.h"

namespace tessera::shm {

class HostMemory {
 public:
  // Asks a client once more for an arena of its pool. Must not block, nor call the HostMemory.
  using AskForArena = std::function<void(int client, int arena)>;

  // All but the pool must outlive the object.
  HostMemory(const HostMembers& members, const Liveness& liveness, std::byte* own_control,
             std::shared_ptr<ArenaPool> pool, AskForArena ask);

  // The control region of a client of the host, this client included; null for a client of another
  // host.
  std::byte* control(int client) const { return peers_[client].control; }
  // The region of `num_bytes` at an offset of a client's control region; null where either is out
  // of range. For words that another process has written.
  std::byte* find_in_control(uint64_t client, uint64_t offset, uint64_t num_bytes) const;
  // The memory at an address that a client has published, null for kNull. Waits for an arena that
  // is still under way, and asks for it every second. Errors:
  // - the loss of the arena's client;
  // - ResourceExhausted where this process cannot map the arena;
  // - DeadlineExceeded;
  // - Internal for an address that does not exist, or that is a pointer.
  StatusOr<std::byte*> resolve(SharedAddress address, uint64_t num_bytes,
                               absl::Time deadline = absl::InfiniteFuture());
  // The inverse, for memory in an arena of any client.
  std::optional<SharedAddress> locate(const std::byte* memory, int64_t num_bytes) const;
  // The owner of memory that resolve() has returned: the pool, or the mapping of another client's
  std::shared_ptr<const void> keeper(const std::byte* memory) const;

  // Maps the control region that a client sent with its hello. An error means that the client is
  // lost. Where this process lacks resources it calls fail() instead.
  Status map_control(int client, ReceivedMessage received);
  // Maps an arena that a client sent. Its failure is the error of resolve().
  void map_arena(int client, ReceivedMessage received);
  // Notes the client's answer that it has no such arena.
  void note_no_arena(int client, int arena);
  // Makes wait_for_controls() return the error: this client cannot be linked to the others.
  void fail(const Status& error);
  bool has_all_controls() const;
  // Waits for the control regions of all clients of the host. DeadlineExceeded names the clients
  // that did not answer.
  Status wait_for_controls(absl::Time deadline);
  // Makes the waits look again for losses.
  void wake();

 private:
  // An arena of another client, found without the lock.
  struct PeerArena {
    std::atomic<std::byte*> data{nullptr};
    uint64_t size_bytes = 0;  // written before `data`
  };
  struct Peer {
    std::byte* control = nullptr;  // not null: the client is ready
    std::optional<SharedMapping> control_memory;
    std::vector<PeerArena> arenas;
    Status arena_error;  // of the last arena that arrived and could not be mapped
  };
  struct Mapping {
    int client;
    int arena;
    std::shared_ptr<const SharedMapping> memory;
  };

  Status wait_for_arena(SharedAddress address, absl::Time deadline);
  // The arena of another client that holds the memory; null where there is none. Requires mutex_.
  const Mapping* find_mapping(const std::byte* memory, int64_t num_bytes) const;

  const HostMembers& members_;
  const Liveness& liveness_;
  const std::shared_ptr<ArenaPool> pool_;
  const AskForArena ask_;
  // Guards the members below, except the atomics and `control`: other threads read a region once
  // wait_for_controls() has seen it. Before the mutexes of `liveness_` and of `ask_`.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Peer> peers_;
  std::map<const std::byte*, Mapping> arenas_;  // of other clients, by where they begin
  Status own_error_;
};

}  // namespace tessera::shm

#endif  // TESSERA_SHM_HOST_MEMORY_H_
