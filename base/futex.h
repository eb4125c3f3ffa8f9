// SPDX-License-Identifier: Apache-2.0
//
// futex_wait, futex_wake_all: how a thread sleeps until a word in memory changes. See futex(2).
//
//   while (word.load() == 0) futex_wait(word, 0, deadline, FutexScope::kProcess);
//
// A thread that changes the word wakes the sleepers afterwards. The kernel puts no thread to sleep
// whose word has changed already, so no wake-up is lost.
#ifndef TESSERA_BASE_FUTEX_H_
#define TESSERA_BASE_FUTEX_H_

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace tessera {

enum class FutexScope : uint8_t {
  kProcess,  // threads of one process
  kShared,   // threads of all processes that map the word
};

// Sleeps while `word` holds `value`: until another thread wakes it, until the deadline (steady), or
// until it wakes without a cause. Returns false if the deadline had passed before.
bool futex_wait(const std::atomic<uint32_t>& word, uint32_t value, absl::Time deadline,
                FutexScope scope);
// Wakes all threads that sleep on the word. Uses the address alone: the word may no longer exist.
void futex_wake_all(const std::atomic<uint32_t>* word, FutexScope scope);

struct FutexWord {
  const std::atomic<uint32_t>* word;
  uint32_t value;
};
// A wait for the first of several words, at most kMostFutexWords, with FutexScope::kShared. False
// where the kernel does not offer it: Linux does since 5.16, and sandboxes may refuse it.
inline constexpr int kMostFutexWords = 128;
bool futex_wait_any(absl::Span<const FutexWord> words);

}  // namespace tessera

#endif  // TESSERA_BASE_FUTEX_H_
