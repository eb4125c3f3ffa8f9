// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/replica_loans.h"

#include <atomic>
#include <utility>

#include "base/fork_guard.h"

namespace tessera::host {
namespace {

constexpr int kBitsInWord = 64;

int64_t align64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// The word with the bit of a holder.
std::atomic_ref<uint64_t> word_of(std::byte* contents, int64_t size_bytes, int holder) {
  auto* words = reinterpret_cast<uint64_t*>(contents + align64(size_bytes));
  return std::atomic_ref<uint64_t>(words[holder / kBitsInWord]);
}
uint64_t bit_of(int holder) { return uint64_t{1} << (holder % kBitsInWord); }

}  // namespace

ReplicaLoans::ReplicaLoans(std::shared_ptr<ArenaPool> pool,
                           std::function<bool(int client)> has_died)
    : pool_(std::move(pool)), has_died_(std::move(has_died)) {}

StatusOr<ReplicaLoans::Replica> ReplicaLoans::lend(int64_t size_bytes,
                                                   std::vector<int> holder_clients) {
  reclaim();
  const int num_holders = static_cast<int>(holder_clients.size());
  const int64_t num_words = (num_holders + kBitsInWord - 1) / kBitsInWord;
  auto loan = std::make_unique<Loan>();
  TESSERA_ASSIGN_OR_RETURN(
      loan->block, pool_->allocate(align64(size_bytes) + num_words * int64_t{sizeof(uint64_t)}));
  std::byte* const contents = loan->block.data();
  for (int i = 0; i < num_words * kBitsInWord; i += kBitsInWord) {
    word_of(contents, size_bytes, i).store(0, std::memory_order_relaxed);
  }
  loan->size_bytes = size_bytes;
  loan->holder_clients = std::move(holder_clients);
  // Runs when the lender drops its replica. If no holder reads the block it is freed here. Else it
  // waits in outstanding_, for reclaim() at the next lend(); after close() it is withheld.
  const auto release = [self = shared_from_this()](Loan* released) {
    if (self->fork_guard_.in_child()) return;  // the memory is the parent's, and stays
    std::unique_ptr<Loan> loan(released);
    std::lock_guard<std::mutex> lock(self->mutex_);
    if (!self->is_read(*loan)) return;
    if (self->has_died_) {
      self->outstanding_.push_back(std::move(loan));
    } else {
      self->withhold(*loan);
    }
  };
  return Replica{contents, std::shared_ptr<Loan>(loan.release(), release)};
}

ReplicaLoans::Replica ReplicaLoans::hold(std::byte* contents, int64_t size_bytes, int holder,
                                         std::shared_ptr<const void> memory) {
  word_of(contents, size_bytes, holder).fetch_or(bit_of(holder), std::memory_order_relaxed);
  // Runs when the holder drops its replica. acq_rel: its reads come before the bit is clear.
  const auto release = [size_bytes, holder, memory = std::move(memory),
                        fork_guard = ForkGuard()](std::byte* contents) {
    // The parent still reads the contents.
    if (fork_guard.in_child()) return;
    word_of(contents, size_bytes, holder).fetch_and(~bit_of(holder), std::memory_order_acq_rel);
  };
  return {contents, std::shared_ptr<std::byte>(contents, release)};
}

bool ReplicaLoans::is_read(const Loan& loan) const {
  for (size_t i = 0; i < loan.holder_clients.size(); ++i) {
    const int holder = static_cast<int>(i);
    const uint64_t word = word_of(loan.block.data(), loan.size_bytes, holder).load();
    const bool is_held = (word & bit_of(holder)) != 0;
    if (is_held && !(has_died_ && has_died_(loan.holder_clients[i]))) return true;
  }
  return false;
}

void ReplicaLoans::reclaim() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!has_died_) return;
  std::erase_if(outstanding_, [this](const auto& loan) { return !is_read(*loan); });
}

void ReplicaLoans::withhold(const Loan& loan) {
  pool_->withhold(loan.block.data(), static_cast<uint64_t>(loan.size_bytes));
}

void ReplicaLoans::close() {
  std::lock_guard<std::mutex> lock(mutex_);
  has_died_ = nullptr;
  for (const auto& loan : outstanding_) withhold(*loan);
  outstanding_.clear();
}

}  // namespace tessera::host
