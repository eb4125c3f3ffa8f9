// SPDX-License-Identifier: Apache-2.0
//
// RandomStalls: the threads of this process stop at random moments, for up to 5 ms, as they do on a
// heavily loaded machine.
//
//   testing::RandomStalls stalls(seed);  // until it goes out of scope
//
// A few instructions of a lock-free protocol then take a thousand times as long, at any point: one
// run meets more orders of events than hours of plain repetition. A thread sends signals to the
// others, whose handler sleeps; system calls see EINTR, as they may anyway. Not under
// ThreadSanitizer, which holds signals back until a thread is in a system call.
#ifndef TESSERA_TESTS_SUPPORT_RANDOM_STALLS_H_
#define TESSERA_TESTS_SUPPORT_RANDOM_STALLS_H_

#include <dirent.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

namespace tessera::testing {

class RandomStalls {
 public:
  explicit RandomStalls(uint64_t seed) {
    struct sigaction action = {};
    action.sa_handler = &stall;
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR2, &action, &before_);
    thread_ = std::thread([this, seed] { run(seed); });
  }
  ~RandomStalls() {
    stop_ = true;
    thread_.join();
    // The handler stays where a signal may still be on its way: the default would end the process.
    if (before_.sa_handler != SIG_DFL) sigaction(SIGUSR2, &before_, nullptr);
  }

 private:
  static void stall(int) {
    static std::atomic<uint32_t> counter{0};
    const int error = errno;
    uint32_t bits = counter.fetch_add(2654435761u, std::memory_order_relaxed);
    bits = (bits ^ bits >> 15) * 2246822519u;
    // One stall in eight is long.
    const timespec time = {0, static_cast<long>(bits % 8 == 0 ? bits % 5'000'000 : bits % 200'000)};
    nanosleep(&time, nullptr);  // sleep: this is the stall
    errno = error;
  }

  static std::vector<pid_t> other_threads() {
    std::vector<pid_t> threads;
    DIR* const folder = opendir("/proc/self/task");
    while (const dirent* entry = folder == nullptr ? nullptr : readdir(folder)) {
      const pid_t thread = std::atoi(entry->d_name);
      if (thread > 0 && thread != gettid()) threads.push_back(thread);
    }
    if (folder != nullptr) closedir(folder);
    return threads;
  }

  void run(uint64_t seed) {
    std::mt19937_64 random(seed);
    while (!stop_) {
      const std::vector<pid_t> threads = other_threads();
      for (int i = 0; i < 20 && !threads.empty(); ++i) {
        // A thread may have ended meanwhile; the call then fails without effect.
        syscall(SYS_tgkill, getpid(), threads[random() % threads.size()], SIGUSR2);
        const timespec pause = {0, static_cast<long>(random() % 60'000)};
        nanosleep(&pause, nullptr);  // sleep: paces the signals
      }
    }
  }

  struct sigaction before_ = {};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_RANDOM_STALLS_H_
