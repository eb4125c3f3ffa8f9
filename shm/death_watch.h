// SPDX-License-Identifier: Apache-2.0
//
// Detects which processes of this host have died; the kernel says so before it frees their memory.
//
// Every client has a word in memory that all clients map. Invariant: while the process lives the
// word holds the id of a thread of it. When that thread ends without having withdrawn the word, the
// kernel marks the word (FUTEX_OWNER_DIED) and wakes a watching thread, which wakes the others.
// This is the robust futex of set_robust_list(2), without a lock. The hang-up of a socket follows
// only after all memory is freed, some 70 ms for a GiB.
//
// The kernel watches up to 127 words per thread; a watch over more has several threads.
//
// Where the kernel does not offer futex_waitv (new in Linux 5.16; sandboxes may refuse it) the
// watch reports no death, and only the hang-ups of sockets remain.
#ifndef TESSERA_SHM_DEATH_WATCH_H_
#define TESSERA_SHM_DEATH_WATCH_H_

#include <linux/futex.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/futex.h"
#include "base/status.h"
#include "base/thread.h"

namespace tessera::shm {

// Zero: not alive yet, or withdrawn in order.
using LifeWord = std::atomic<uint32_t>;

// Maintains the word of a process. Must be constructed and destroyed on the same thread, which must
// use no other robust futexes in between and must not end before.
class LifeSign {
 public:
  explicit LifeSign(LifeWord& word);
  ~LifeSign();
  LifeSign(const LifeSign&) = delete;
  LifeSign& operator=(const LifeSign&) = delete;

 private:
  LifeWord& word_;
  robust_list entry_;
  robust_list_head head_;
  robust_list_head* former_head_ = nullptr;
  size_t former_size_ = 0;
};

// Watches the words of others with threads of its own.
class DeathWatch {
 public:
  static constexpr int kWordsPerThread = kMostFutexWords - 1;

  // Calls `on_death` once for each word whose thread has died, with the index of the word, on a
  // thread of the watch (several threads at once where there are more words than kWordsPerThread).
  // Skips null words. The words must outlive the watch. ResourceExhausted where a thread cannot be
  // started.
  static StatusOr<std::unique_ptr<DeathWatch>> create(std::vector<LifeWord*> words,
                                                      std::function<void(int index)> on_death);
  ~DeathWatch();

 private:
  explicit DeathWatch(std::function<void(int index)> on_death) : on_death_(std::move(on_death)) {}
  struct Watched {
    int index;
    LifeWord* word;
  };
  void run(std::vector<Watched> words);

  const std::function<void(int index)> on_death_;
  std::atomic<uint32_t> stopping_{0};
  std::vector<Thread> threads_;
};

}  // namespace tessera::shm

#endif  // TESSERA_SHM_DEATH_WATCH_H_
