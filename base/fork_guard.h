// SPDX-License-Identifier: Apache-2.0
//
// ForkGuard: tells an object whether it is in a forked child of the process that made it.
//
//   ForkGuard guard;                       a member of a class that owns threads or shared memory
//   if (guard.in_child()) return ...;      before each use of those
//
// A child has copies of the parent's objects and the same shared memory, but none of its threads.
// An object that is used there would wait for threads that do not exist, and write to memory that
// the parent still uses. So it must do nothing.
//
// Thread-safe. in_child() is two loads. It detects fork() of the C library, but not vfork() and
// clone(), whose children should call exec.
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
