// SPDX-License-Identifier: Apache-2.0
//
// Completion: one status, set once, seen by every waiter.
#include "device/completion.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/deadline.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using testing::IsOk;
using testing::StatusIs;

TEST(CompletionTest, TheFirstStatusCounts) {
  Completion completion;
  EXPECT_FALSE(completion.done());
  EXPECT_THAT(completion.status(), IsOk());
  completion.set(absl::InternalError("first"));
  completion.set(absl::OkStatus());
  EXPECT_TRUE(completion.done());
  EXPECT_THAT(completion.status(), StatusIs(absl::StatusCode::kInternal, "first"));
  EXPECT_THAT(completion.wait(), StatusIs(absl::StatusCode::kInternal, "first"));
}

TEST(CompletionTest, ADeadlineEndsTheWaitButNotTheCompletion) {
  Completion completion;
  EXPECT_FALSE(completion.wait_until(absl::InfinitePast()));
  const absl::Time start = steady_now();
  EXPECT_FALSE(completion.wait_until(start + absl::Milliseconds(20)));
  EXPECT_GE(steady_now() - start, absl::Milliseconds(20));
  completion.set(absl::OkStatus());
  EXPECT_TRUE(completion.wait_until(absl::InfinitePast()));
  EXPECT_TRUE(completion.wait_until(absl::InfiniteFuture()));
}

TEST(CompletionTest, AllWaitersAreWoken) {
  const testing::TestDeadline deadline(absl::Seconds(30), "completion_test");
  Completion completion;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      if (i % 2 == 0) {
        EXPECT_THAT(completion.wait(), StatusIs(absl::StatusCode::kAborted));
      }
      EXPECT_TRUE(completion.wait_until(steady_now() + absl::Seconds(20)));
    });
  }
  completion.set(absl::AbortedError("now"));
  for (std::thread& thread : threads) thread.join();
}

// Invariant 2, which sanitizers see broken.
TEST(CompletionTest, AWaiterMayDestroyIt) {
  const testing::TestDeadline deadline(absl::Seconds(30), "completion_test");
  for (int i = 0; i < 300; ++i) {
    auto completion = std::make_unique<Completion>();
    std::thread setter([set = completion.get()] { set->set(absl::AbortedError("now")); });
    if (i % 2 == 0) {
      EXPECT_THAT(completion->wait(), StatusIs(absl::StatusCode::kAborted));
    } else {
      EXPECT_TRUE(completion->wait_until(steady_now() + absl::Seconds(20)));
    }
    completion.reset();
    setter.join();
  }
}

TEST(CompletionTest, WhoeverSetsItFindsItDone) {
  for (int i = 0; i < 100; ++i) {
    Completion completion;
    std::vector<Status> found(4);
    std::vector<std::thread> threads;
    for (size_t t = 0; t < found.size(); ++t) {
      threads.emplace_back([&, t] {
        completion.set(absl::AbortedError(std::string(100, static_cast<char>('a' + t))));
        found[t] = completion.status();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Status& status : found) EXPECT_EQ(status, completion.status());
    EXPECT_THAT(completion.status(), StatusIs(absl::StatusCode::kAborted));
  }
}

}  // namespace
}  // namespace tessera
