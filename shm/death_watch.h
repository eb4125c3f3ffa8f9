// SPDX-License-Identifier: Apache-2.0
//
// Which processes of this host have died, told by the kernel before it frees their memory.
//
// Every client has a word in memory that all clients map. Invariant: while the process lives the
// word holds the id of one of its threads; when that thread ends without having withdrawn it, the
// kernel marks the word (FUTEX_OWNER_DIED) and wakes one of the watching threads, which wakes the
// others. This is the robust futex of set_robust_list(2), without a lock. The hang-up of a socket
// follows only after all memory is freed, some 70 ms for a GiB.
//
// The kernel watches up to 127 words per thread; a watch over more has several threads.
//
// Where the kernel does not offer it (futex_waitv came with Linux 5.16, sandboxes may refuse it)
// nothing is told, and the hang-ups remain.
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

// Keeps the word of a process. To be made and destroyed on the same thread, which uses no other
// robust futexes in between and must not end before.
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

  // Calls `on_death` with the index of a word whose thread has died, once for each, on a thread of
  // the watch, on several at once where there are more than kWordsPerThread. Null words are passed
  // over. The words must outlive the watch. ResourceExhausted where a thread cannot be started.
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
