// SPDX-License-Identifier: Apache-2.0
//
// Inputs stay alive until no member reads them any more.
#include "collectives/host/lent_runs.h"

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace tessera::host {
namespace {

struct FakeRun {
  explicit FakeRun(std::atomic<int>& released) : released(released) {}
  ~FakeRun() {
    EXPECT_TRUE(is_over);
    ++released;
  }
  std::atomic<bool> is_over{false};
  std::atomic<int>& released;
};

bool is_over(const FakeRun& run) { return run.is_over; }

class LentRunsTest : public ::testing::Test {
 protected:
  FakeRun* lend(uint32_t seq) {
    auto run = std::make_shared<FakeRun>(released_);
    FakeRun* const raw = run.get();
    lent_.lend(std::move(run), seq);
    return raw;
  }

  std::atomic<int> released_{0};
  LentRuns<FakeRun> lent_;
};

TEST_F(LentRunsTest, ARunIsReleasedWhenItIsOverAndNotBefore) {
  EXPECT_FALSE(lent_.may_have_any());
  FakeRun* const first = lend(1);
  FakeRun* const second = lend(2);
  EXPECT_TRUE(lent_.may_have_any());
  EXPECT_EQ(lent_.num_lent(), 2);
  EXPECT_EQ(lent_.reap(is_over), 1u);
  EXPECT_EQ(released_, 0);
  first->is_over = true;
  EXPECT_EQ(lent_.reap(is_over), 2u);
  EXPECT_EQ(released_, 1);
  EXPECT_EQ(lent_.num_lent(), 1);
  second->is_over = true;
  EXPECT_EQ(lent_.reap(is_over), 0u);
  EXPECT_EQ(released_, 2);
  EXPECT_EQ(lent_.num_lent(), 0);
}

// Numbers go on with 1 after the largest.
TEST_F(LentRunsTest, TheOldestIsFoundAcrossTheEndOfTheNumbers) {
  FakeRun* const after = lend(3);
  FakeRun* const before = lend(UINT32_MAX - 1);
  EXPECT_EQ(lent_.reap(is_over), UINT32_MAX - 1);
  after->is_over = before->is_over = true;
  EXPECT_EQ(lent_.reap(is_over), 0u);
}

TEST_F(LentRunsTest, ClearEndsEachRunBeforeItReleasesIt) {
  for (uint32_t seq = 1; seq <= 3; ++seq) lend(seq);
  lent_.clear([](const FakeRun& run) {
    const_cast<FakeRun&>(run).is_over = true;
    return true;
  });
  EXPECT_EQ(released_, 3);
  EXPECT_EQ(lent_.num_lent(), 0);
}

TEST_F(LentRunsTest, ManyThreadsLendAndReap) {
  constexpr int kThreads = 4;
  constexpr int kRuns = 1000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 1; i <= kRuns; ++i) {
        auto run = std::make_shared<FakeRun>(released_);
        run->is_over = true;
        lent_.lend(std::move(run), static_cast<uint32_t>(i));
        if (i % (t + 2) == 0) lent_.reap(is_over);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(lent_.reap(is_over), 0u);
  EXPECT_EQ(released_, kThreads * kRuns);
  EXPECT_EQ(lent_.num_lent(), 0);
}

}  // namespace
}  // namespace tessera::host
