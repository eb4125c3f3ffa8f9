// SPDX-License-Identifier: Apache-2.0
//
// WaitPolicy: what a waiting thread does before it sleeps in the kernel.
//
// A thread that waits for another one does so in three stages. It spins: it checks again and keeps
// its core. It yields: it checks again after other threads have had the core. Then it sleeps on a
// futex or a condition variable until it is woken. To wake a thread takes several microseconds,
// which is longer than most operations. But if there are more threads than cores, a thread that
// spins or yields takes time from the thread that it waits for.
//
//   if (!wait_briefly(kHandover, is_done)) ...sleep
#ifndef TESSERA_BASE_WAIT_POLICY_H_
#define TESSERA_BASE_WAIT_POLICY_H_

#include <sched.h>

namespace tessera {

struct WaitPolicy {
  int spins = 0;
  int yields = 0;
};

// A wait for a thread of the process that is about to finish its task.
inline constexpr WaitPolicy kHandover = {0, 20};
// The wait of a worker without a task for the next one.
inline constexpr WaitPolicy kNextTask = {0, 50};
// The wait of a member of a group for the others: the first if each member may have a core, the
// second if there are more members than cores.
inline constexpr WaitPolicy kMembersOnCores = {20, 200};
inline constexpr WaitPolicy kMembers = {0, 200};

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Spins and yields until `is_done()` is true. Returns false if it never was.
template <class IsDone>
bool wait_briefly(WaitPolicy policy, IsDone is_done) {
  for (int i = 0; i < policy.spins; ++i) {
    if (is_done()) return true;
    pause_cpu();
  }
  for (int i = 0; i < policy.yields; ++i) {
    if (is_done()) return true;
    sched_yield();
  }
  return is_done();
}

}  // namespace tessera

#endif  // TESSERA_BASE_WAIT_POLICY_H_
