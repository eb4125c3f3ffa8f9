// SPDX-License-Identifier: Apache-2.0
//
// ForkGuard: tells an object whether it is in a forked child of the process that made it.
//
//   ForkGuard guard;                       a member of what owns threads or shared memory
//   if (guard.in_child()) return ...;      before anything that touches either
//
// A child has copies of the parent's objects, the same shared memory, and none of its threads: an
// object that goes on there waits for threads that do not exist, and writes what the parent still
// uses. What it may do is nothing.
//
// Thread-safe. in_child() is two loads. It sees fork() of the C library; not vfork() and clone(),
// whose children are to exec.
#ifndef TESSERA_BASE_FORK_GUARD_H_
#define TESSERA_BASE_FORK_GUARD_H_

#include <atomic>
#include <cstdint>

namespace tessera {

class ForkGuard {
 public:
  ForkGuard();
  bool in_child() const { return generation_ != current_.load(std::memory_order_relaxed); }

 private:
  // Forks between the first process that made a guard and this one.
  static std::atomic<uint32_t> current_;
  uint32_t generation_;
};

}  // namespace tessera

#endif  // TESSERA_BASE_FORK_GUARD_H_
