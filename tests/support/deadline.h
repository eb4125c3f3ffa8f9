// SPDX-License-Identifier: Apache-2.0
//
// TestDeadline: ends the process where a test does not end, and names the test.
//
//   testing::TestDeadline deadline(absl::Seconds(30), "all_reduce on 3 members");
#ifndef TESSERA_TESTS_SUPPORT_DEADLINE_H_
#define TESSERA_TESTS_SUPPORT_DEADLINE_H_

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/time.h"

namespace tessera::testing {

class TestDeadline {
 public:
  TestDeadline(absl::Duration limit, std::string what)
      : what_(std::move(what)), watchdog_([this, limit] { watch(limit); }) {}
  ~TestDeadline() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      over_ = true;
    }
    changed_.notify_one();
    watchdog_.join();
  }

 private:
  void watch(absl::Duration limit) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto until = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(limit);
    if (changed_.wait_until(lock, until, [this] { return over_; })) return;
    std::fprintf(stderr, "%s: not over after %s\n", what_.c_str(),
                 absl::FormatDuration(limit).c_str());
    std::abort();
  }

  const std::string what_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread watchdog_;  // last: it uses the others
};

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_DEADLINE_H_
