// SPDX-License-Identifier: Apache-2.0
//
// Thread: it runs, it knows itself, and where it cannot be had its start is an error.
#include "base/thread.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitizers.h"
#include "tests/support/thread_limit.h"

namespace tessera {
namespace {

using ::tessera::testing::IsOk;
using ::tessera::testing::StatusIs;
using ::tessera::testing::ThreadLimit;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ThreadTest, RunsItsBodyOnAnotherThread) {
  pthread_t ran_on = pthread_self();
  TESSERA_ASSERT_OK_AND_ASSIGN(Thread thread,
                               start_thread("a test", [&] { ran_on = pthread_self(); }));
  EXPECT_TRUE(thread.joinable());
  thread.join();
  EXPECT_FALSE(thread.joinable());
  EXPECT_EQ(pthread_equal(ran_on, pthread_self()), 0);
}

TEST(ThreadTest, KnowsWhetherItIsTheCaller) {
  Thread thread;
  EXPECT_FALSE(thread.is_current());
  std::atomic<bool> is_stored{false};
  bool inside = false;
  TESSERA_ASSERT_OK_AND_ASSIGN(thread, start_thread("a test", [&] {
                                 while (!is_stored.load()) sched_yield();
                                 inside = thread.is_current();
                               }));
  is_stored.store(true);
  EXPECT_FALSE(thread.is_current());
  thread.join();
  EXPECT_TRUE(inside);
}

TEST(ThreadTest, MovesAndIsNoThreadAfterwards) {
  TESSERA_ASSERT_OK_AND_ASSIGN(Thread thread, start_thread("a test", [] {}));
  Thread other = std::move(thread);
  EXPECT_FALSE(thread.joinable());  // NOLINT(bugprone-use-after-move)
  EXPECT_TRUE(other.joinable());
  other.join();
}

TEST(ThreadTest, RefusalNamesTheSubjectAndTheLimits) {
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NPROC, &limit), 0);
  const std::string most =
      limit.rlim_cur == RLIM_INFINITY ? "any number" : absl::StrCat(limit.rlim_cur);
  bool ran = false;
  const ThreadLimit none(0);
  EXPECT_THAT(start_thread("the stream of device 3", [&] { ran = true; }),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("cannot start a thread for the stream of device 3: "),
                             HasSubstr(absl::StrCat("the user may have ", most, " (ulimit -u)")),
                             HasSubstr("; use fewer devices, or raise the limit"))));
  EXPECT_FALSE(ran);
}

// Starts threads in an address space of 256 MiB more, until there is no room for the next one.
void use_up_the_address_space() {
  rlimit limit = {};
  limit.rlim_cur = limit.rlim_max = rlim_t{256} << 20;
  std::atomic<bool> all_started{false};
  std::vector<Thread> threads;
  int result = 2;
  if (setrlimit(RLIMIT_AS, &limit) == 0) {
    result = 3;
    for (int i = 0; i < 1000; ++i) {
      StatusOr<Thread> thread = start_thread("a test", [&] {
        while (!all_started.load()) sched_yield();
      });
      if (thread.ok()) {
        threads.push_back(*std::move(thread));
        continue;
      }
      const std::string text = thread.status().ToString();
      const bool is_right =
          text.find("RESOURCE_EXHAUSTED: cannot start a thread for a test: ") == 0 &&
          text.find("address space is 262144 KiB (ulimit -v)") != text.npos;
      result = is_right ? 0 : 4;
      break;
    }
  }
  all_started.store(true);
  for (Thread& thread : threads) thread.join();
  _exit(result);
}

TEST(ThreadTest, AddressSpaceThatIsUsedUpIsAnError) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers need more address space than any limit";
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) use_up_the_address_space();
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace tessera
