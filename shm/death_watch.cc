// SPDX-License-Identifier: Apache-2.0
#include "shm/death_watch.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "base/futex.h"

namespace tessera::shm {

LifeSign::LifeSign(LifeWord& word) : word_(word) {
  entry_.next = &head_.list;
  head_.list.next = &entry_;
  head_.futex_offset = reinterpret_cast<intptr_t>(&word) - reinterpret_cast<intptr_t>(&entry_);
  head_.list_op_pending = nullptr;
  // The C library has given the thread a list of its own.
  syscall(SYS_get_robust_list, 0, &former_head_, &former_size_);
  // FUTEX_WAITERS: there are always some to be woken.
  word_.store(static_cast<uint32_t>(syscall(SYS_gettid)) | FUTEX_WAITERS);
  syscall(SYS_set_robust_list, &head_, sizeof head_);
}

LifeSign::~LifeSign() {
  word_.store(0);
  if (former_head_ != nullptr) syscall(SYS_set_robust_list, former_head_, former_size_);
  futex_wake_all(&word_, FutexScope::kShared);
}

StatusOr<std::unique_ptr<DeathWatch>> DeathWatch::create(std::vector<LifeWord*> words,
                                                         std::function<void(int index)> on_death) {
  std::unique_ptr<DeathWatch> watch(new DeathWatch(std::move(on_death)));
  std::vector<std::vector<Watched>> groups;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == nullptr) continue;
    if (groups.empty() || groups.back().size() == kWordsPerThread) groups.emplace_back();
    groups.back().push_back({static_cast<int>(i), words[i]});
  }
  for (std::vector<Watched>& group : groups) {
    TESSERA_ASSIGN_OR_RETURN(
        Thread thread,
        start_thread("the watch over the clients of this host",
                     [self = watch.get(), group = std::move(group)] { self->run(group); }));
    watch->threads_.push_back(std::move(thread));
  }
  return watch;
}

DeathWatch::~DeathWatch() {
  stopping_.store(1);
  futex_wake_all(&stopping_, FutexScope::kShared);
  for (Thread& thread : threads_) thread.join();
}

void DeathWatch::run(std::vector<Watched> words) {
  std::vector<FutexWord> waits;
  while (stopping_.load() == 0) {
    waits.clear();
    waits.push_back({&stopping_, 0});
    std::erase_if(words, [&](const Watched& watched) {
      LifeWord& word = *watched.word;
      const uint32_t value = word.load();
      const bool is_dead = (value & FUTEX_OWNER_DIED) != 0;
      if (value != 0 && !is_dead) {
        waits.push_back({&word, value});
        return false;
      }
      if (is_dead) {
        // The kernel has woken a single watcher; this wakes the others.
        futex_wake_all(&word, FutexScope::kShared);
        on_death_(watched.index);
      }
      return true;
    });
    // A word that has changed since it was looked at ends the wait at once.
    if (!futex_wait_any(waits)) return;
  }
}

}  // namespace tessera::shm
