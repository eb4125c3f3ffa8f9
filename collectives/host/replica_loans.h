// SPDX-License-Identifier: Apache-2.0
//
// Replicas of one host that share one piece of memory.
//
//   block of the lender's arena:   [ contents | one bit for each holder ]
//
// One member of a set of replicas, the lender, makes the block; the others are its holders. Once
// all of them together have written the contents, these never change. Invariants:
//   1. a holder sets its bit before it counts itself out of the operation that fills the block, and
//      clears it when it drops the replica. The bit of a holder whose process has ended counts as
//      clear. A client that was declared lost may be resumed, so its holders still count as
//      readers;
//   2. the lender releases its reference after that operation has ended, so that no bit is set
//      later; the block returns to its pool when all bits are clear;
//   3. a holder keeps its own mapping of the contents, which outlives the lender's process.
//
// Thread-safe.
#ifndef TESSERA_COLLECTIVES_HOST_REPLICA_LOANS_H_
#define TESSERA_COLLECTIVES_HOST_REPLICA_LOANS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/fork_guard.h"
#include "base/status.h"
#include "device/cpu/arena.h"

namespace tessera::host {

class ReplicaLoans : public std::enable_shared_from_this<ReplicaLoans> {
 public:
  // `has_died` says whether the process of a client has ended; it is called from any thread until
  // close().
  ReplicaLoans(std::shared_ptr<ArenaPool> pool, std::function<bool(int client)> has_died);

  // A lender or a holder keeps it while it reads the contents.
  struct Replica {
    std::byte* contents = nullptr;
    std::shared_ptr<const void> owner;
  };
  // A block for contents of `size_bytes`, lent to one holder of each of these clients.
  // ResourceExhausted where the pool has no memory.
  StatusOr<Replica> lend(int64_t size_bytes, std::vector<int> holder_clients);
  // The replica of holder number `holder`; `memory` keeps the contents mapped.
  static Replica hold(std::byte* contents, int64_t size_bytes, int holder,
                      std::shared_ptr<const void> memory);

  // Frees the blocks that no holder reads any more.
  void reclaim();
  // Gives blocks up with their last local reference from now on: the client shuts down. Blocks that
  // are still read are withheld, so that their memory is not used again.
  void close();

 private:
  struct Loan {
    ArenaPool::Block block;
    int64_t size_bytes;
    std::vector<int> holder_clients;
  };
  bool is_read(const Loan& loan) const;
  void withhold(const Loan& loan);

  const ForkGuard fork_guard_;
  const std::shared_ptr<ArenaPool> pool_;
  std::mutex mutex_;                                // guards the members below
  std::function<bool(int client)> has_died_;        // null: closed
  std::vector<std::unique_ptr<Loan>> outstanding_;  // released by the lender
};

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_REPLICA_LOANS_H_
