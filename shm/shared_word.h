// SPDX-License-Identifier: Apache-2.0
//
// SharedWord: an atomic word of the control region, and how a thread sleeps until one changes.
//
// In the product these are std::atomic and the futex system call. Where TESSERA_STEPS is defined,
// which is so in the tests that run the protocol in every order, each access is a step: another
// member may take any number of steps before it (shm/testing/stepper.h).
#ifndef TESSERA_SHM_SHARED_WORD_H_
#define TESSERA_SHM_SHARED_WORD_H_

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

#ifdef TESSERA_STEPS
#include "shm/testing/stepper.h"
#endif

namespace tessera::shm {

#ifdef TESSERA_STEPS

template <class T>
using SharedWord = SteppedWord<T>;
inline constexpr bool kStepped = true;

#else

template <class T>
using SharedWord = std::atomic<T>;
inline constexpr bool kStepped = false;
inline void step() {}

#endif

// Sleeps while `word` holds `value`, in whichever processes map it, until it is woken, for no
// reason, or until the deadline. False where the deadline had passed before.
bool sleep_while(SharedWord<uint32_t>& word, uint32_t value, absl::Time deadline);
// Wakes all that sleep on the word.
void wake_all(SharedWord<uint32_t>& word);

}  // namespace tessera::shm

#endif  // TESSERA_SHM_SHARED_WORD_H_
