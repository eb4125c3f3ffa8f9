// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/death_watch.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <utility>

namespace tessera::host {
namespace {

void wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

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
  wake_all(word_);
}

DeathWatch::DeathWatch(std::vector<LifeWord*> words, std::function<void(int index)> on_death)
    : words_(std::move(words)), on_death_(std::move(on_death)) {
  int num_words = 0;
  for (LifeWord*& word : words_) {
    if (word != nullptr && ++num_words > kMaxWords) word = nullptr;
  }
}

StatusOr<std::unique_ptr<DeathWatch>> DeathWatch::create(std::vector<LifeWord*> words,
                                                         std::function<void(int index)> on_death) {
  std::unique_ptr<DeathWatch> watch(new DeathWatch(std::move(words), std::move(on_death)));
  TESSERA_ASSIGN_OR_RETURN(watch->thread_, start_thread("the watch over the clients of this host",
                                                        [self = watch.get()] { self->run(); }));
  return watch;
}

DeathWatch::~DeathWatch() {
  stopping_.store(1);
  wake_all(stopping_);
  if (thread_.joinable()) thread_.join();
}

void DeathWatch::run() {
  std::vector<futex_waitv> waits;
  const auto wait_on = [&waits](std::atomic<uint32_t>& word, uint32_t value) {
    waits.push_back({value, reinterpret_cast<uint64_t>(&word), FUTEX_32, 0});
  };
  while (stopping_.load() == 0) {
    waits.clear();
    wait_on(stopping_, 0);
    for (size_t i = 0; i < words_.size(); ++i) {
      if (words_[i] == nullptr) continue;
      LifeWord& word = *words_[i];
      const uint32_t value = word.load();
      const bool is_dead = (value & FUTEX_OWNER_DIED) != 0;
      if (value != 0 && !is_dead) {
        wait_on(word, value);
        continue;
      }
      words_[i] = nullptr;
      if (!is_dead) continue;
      // The kernel has woken one of the watchers only.
      wake_all(word);
      on_death_(static_cast<int>(i));
    }
    // A word that has changed since it was looked at ends the wait at once.
    const long woken = syscall(SYS_futex_waitv, waits.data(), waits.size(), 0, nullptr, 0);
    if (woken < 0 && errno != EAGAIN && errno != EINTR) return;
  }
}

}  // namespace tessera::host
