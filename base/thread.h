// SPDX-License-Identifier: Apache-2.0
//
// Thread: a thread whose failure to start is a Status. std::thread throws instead, which ends the
// process: a user, a container or the address space can run out of threads at any time.
//
//   TESSERA_ASSIGN_OR_RETURN(worker_, start_thread("the stream of device 3", [this] { run(); }));
//   ...
//   worker_.join();
//
// Invariant: a thread that is joinable() is joined or detached before its Thread is destroyed.
//
// Equivalent to: std::thread. Move-only; one object is used by one thread at a time, except
// is_current().
#ifndef TESSERA_BASE_THREAD_H_
#define TESSERA_BASE_THREAD_H_

#include <pthread.h>

#include <atomic>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "base/status.h"

namespace tessera {

class Thread {
 public:
  // Holds no thread.
  Thread() = default;
  Thread(Thread&& other) noexcept { *this = std::move(other); }
  // Requires that this one is not joinable.
  Thread& operator=(Thread&& other) noexcept;
  ~Thread();

  bool joinable() const { return id_.load() != 0; }
  // Blocks until the thread has ended. Requires that it is joinable and not the calling thread.
  void join();
  // The thread continues without this object and ends by itself.
  void detach();
  // Whether the caller is this thread. False when there is none. Safe from any thread.
  bool is_current() const { return id_.load() == pthread_self(); }

 private:
  friend StatusOr<Thread> start_thread(absl::string_view subject, absl::AnyInvocable<void()> body);
  explicit Thread(pthread_t id) : id_(id) {}

  std::atomic<pthread_t> id_{0};  // 0, which no thread has: none
};

// Starts a thread that runs `body`. ResourceExhausted names the purpose of the thread (`subject`)
// and the limits on threads that hold for this process; `body` has not run then.
StatusOr<Thread> start_thread(absl::string_view subject, absl::AnyInvocable<void()> body);

// Checks that `count` more threads can start, for a library that cannot report that it lacks one:
// starts all of them at the same time, and ends them. Errors as start_thread().
Status check_threads(absl::string_view subject, int count);

}  // namespace tessera

#endif  // TESSERA_BASE_THREAD_H_
