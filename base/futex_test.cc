// SPDX-License-Identifier: Apache-2.0
//
// Futexes: threads sleep until a word changes, and not past a deadline; wait_briefly() looks as
// often as its policy says.
#include "base/futex.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/wait_policy.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(FutexTest, AWordWithAnotherValueIsNotWaitedFor) {
  const std::atomic<uint32_t> word{1};
  for (const FutexScope scope : {FutexScope::kProcess, FutexScope::kShared}) {
    EXPECT_TRUE(futex_wait(word, 0, absl::InfiniteFuture(), scope));
  }
  const FutexWord words[] = {{&word, 1}, {&word, 0}};
  futex_wait_any(words);  // returns, whether or not the kernel offers it
}

TEST(FutexTest, TheDeadlineEndsTheSleep) {
  const std::atomic<uint32_t> word{0};
  const absl::Time deadline = steady_now() + absl::Milliseconds(2);
  while (futex_wait(word, 0, deadline, FutexScope::kProcess)) {
  }
  EXPECT_GE(steady_now(), deadline);
}

TEST(FutexTest, AChangeWakesAllSleepers) {
  for (const FutexScope scope : {FutexScope::kProcess, FutexScope::kShared}) {
    std::atomic<uint32_t> word{0};
    std::atomic<int> num_begun{0};
    std::vector<std::thread> sleepers;
    for (int i = 0; i < 3; ++i) {
      sleepers.emplace_back([&] {
        ++num_begun;
        while (word.load() == 0) futex_wait(word, 0, absl::InfiniteFuture(), scope);
      });
    }
    while (num_begun < 3) std::this_thread::yield();
    word = 1;
    futex_wake_all(&word, scope);
    for (std::thread& sleeper : sleepers) sleeper.join();
  }
}

TEST(FutexTest, OneOfSeveralWordsWakesTheSleeper) {
  std::atomic<uint32_t> words[] = {0, 0};
  const FutexWord waits[] = {{&words[0], 0}, {&words[1], 0}};
  bool is_offered = true;
  std::thread sleeper([&] {
    while (words[1].load() == 0 && is_offered) is_offered = futex_wait_any(waits);
  });
  words[1] = 1;
  futex_wake_all(&words[1], FutexScope::kShared);
  sleeper.join();
  // A kernel before 5.16 or a sandbox has no futex_waitv. DeathWatch then reports no death, and the
  // hang-ups of sockets remain.
  if (!is_offered) GTEST_SKIP() << "the kernel has no futex_waitv";
  EXPECT_EQ(words[0], 0u);
}

TEST(WaitPolicyTest, LooksOnceMoreThanItSpinsAndYields) {
  for (const WaitPolicy policy :
       {WaitPolicy{0, 0}, WaitPolicy{3, 0}, WaitPolicy{0, 2}, WaitPolicy{3, 2}}) {
    const int most_looks = policy.spins + policy.yields + 1;
    for (int done_at = 1; done_at <= most_looks + 1; ++done_at) {
      int looks = 0;
      const bool is_done = wait_briefly(policy, [&] { return ++looks == done_at; });
      EXPECT_EQ(is_done, done_at <= most_looks);
      EXPECT_EQ(looks, std::min(done_at, most_looks));
    }
  }
}

}  // namespace
}  // namespace tessera
