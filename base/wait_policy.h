// SPDX-License-Identifier: Apache-2.0
//
// WaitPolicy: what a thread does before it sleeps in the kernel, in the one place that says so.
//
// A thread that waits for another one goes through three stages. It spins: it looks again and keeps
// its core. It yields: it looks again after other threads have had the core. Then it sleeps on a
// futex or a condition variable until it is woken. Waking a thread takes several microseconds,
// which is longer than most operations; but a thread that spins or yields takes time from the
// thread that it waits for, where there are more threads than cores.
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

// For a thread of the process that is about to finish what it does.
inline constexpr WaitPolicy kHandover = {0, 20};
// Of a worker that has run its last task: for the next task.
inline constexpr WaitPolicy kNextTask = {0, 50};
// Of a member of a group: for the other members. The first where each member may have a core of its
// own, the second where there are more members than cores.
inline constexpr WaitPolicy kMembersOnCores = {20, 200};
inline constexpr WaitPolicy kMembers = {0, 200};

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Spins and yields until `is_done()` is true. False where it was still false in the end.
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
