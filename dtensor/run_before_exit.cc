// SPDX-License-Identifier: Apache-2.0
#include "dtensor/run_before_exit.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "base/fork_guard.h"
#include "base/status.h"
#include "base/thread.h"

namespace tessera {
namespace {

// The endings under way in this process. Never destroyed: its threads may outlive main().
struct Endings {
  std::mutex mutex;  // guards the members below
  std::condition_variable changed;
  ForkGuard fork_guard;
  int num_running = 0;
  std::vector<const void*> kept;
};

Endings& endings() {
  static auto* const kEndings = new Endings();
  return *kEndings;
}

// Destroyed when the process ends.
struct Waiter {
  ~Waiter() {
    Endings& all = endings();
    if (all.fork_guard.in_child()) return;  // its threads are the parent's
    std::unique_lock<std::mutex> lock(all.mutex);
    all.changed.wait_for(lock, std::chrono::seconds(10), [&] { return all.num_running == 0; });
  }
};

}  // namespace

void prepare_run_before_exit() { static Waiter waiter; }

Status run_before_exit(absl::string_view subject, absl::AnyInvocable<void()> body) {
  Endings& all = endings();
  const auto count = [&all](int change) {
    std::lock_guard<std::mutex> lock(all.mutex);
    all.num_running += change;
    all.changed.notify_all();
  };
  count(1);
  StatusOr<Thread> thread = start_thread(subject, [body = std::move(body), count]() mutable {
    std::exchange(body, nullptr)();  // with its captures
    count(-1);
  });
  if (!thread.ok()) {
    count(-1);
    return thread.status();
  }
  thread->detach();
  return absl::OkStatus();
}

void keep_until_exit(const void* object) {
  Endings& all = endings();
  // No lock in a child: another thread of the parent may have held it.
  std::unique_lock<std::mutex> lock(all.mutex, std::defer_lock);
  if (!all.fork_guard.in_child()) lock.lock();
  all.kept.push_back(object);
}

}  // namespace tessera
