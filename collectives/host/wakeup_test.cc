// SPDX-License-Identifier: Apache-2.0
//
// A waiter is delayed between its last look at an operation and its sleep. Meanwhile the operation
// ends, and the record proceeds to a later one with as many arrivals. The waiter must not sleep on:
// the later operation waits for it.
//
// syscall() of this program replaces the function of the C library: it delays a thread just before
// FUTEX_WAIT.
#include <linux/futex.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "collectives/host/rendezvous.h"
#include "device/cpu/arena.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "shm/host_link.h"
#include "tests/support/coordinator/fake_coordinator.h"
#include "tests/support/deadline.h"
#include "tests/support/gate.h"
#include "tests/support/matchers.h"

namespace {

thread_local tessera::testing::Gate* held_up = nullptr;  // opened as the thread is held up
thread_local tessera::testing::Gate* resume = nullptr;

}  // namespace

extern "C" long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& argument : a) argument = va_arg(list, long);
  va_end(list);
  if (number == SYS_futex && a[1] == FUTEX_WAIT && held_up != nullptr) {
    std::exchange(held_up, nullptr)->open();
    resume->wait().IgnoreError();
  }
  long result;
#if defined(__x86_64__)
  register long r10 asm("r10") = a[3];
  register long r8 asm("r8") = a[4];
  register long r9 asm("r9") = a[5];
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
#elif defined(__aarch64__)
  register long x8 asm("x8") = number;
  register long x0 asm("x0") = a[0];
  register long x1 asm("x1") = a[1];
  register long x2 asm("x2") = a[2];
  register long x3 asm("x3") = a[3];
  register long x4 asm("x4") = a[4];
  register long x5 asm("x5") = a[5];
  asm volatile("svc #0"
               : "+r"(x0)
               : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
               : "memory");
  result = x0;
#endif
  if (result >= 0 || result < -4095) return result;
  errno = static_cast<int>(-result);
  return -1;
}

namespace tessera::host {
namespace {

using absl::StatusCode;
using testing::Gate;
using testing::IsOk;
using testing::StatusIs;

constexpr uint32_t kRecords = 8;

class WakeupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TESSERA_ASSERT_OK_AND_ASSIGN(link_,
                                 shm::HostLink::create(job_.coordinator(0), ArenaPool::create(4096),
                                                       absl::InfiniteFuture()));
    TESSERA_ASSERT_OK_AND_ASSIGN(
        Rendezvous opened,
        Rendezvous::open(*link_, {{0, 0, 0}, {1, 0, 1}, {2, 0, 2}}, kRecords, /*salt=*/0));
    group_ = std::make_unique<Rendezvous>(std::move(opened));
  }
  static Rendezvous::Op op(uint32_t seq, int member, absl::Time deadline = absl::InfiniteFuture()) {
    return {.seq = seq,
            .member = member,
            .detail_field = "counts",
            .start = steady_now(),
            .deadline = deadline};
  }

  testing::TestDeadline deadline_{absl::Seconds(30), "wakeup_test"};
  testing::FakeJob job_{std::vector<int>{3}};
  std::unique_ptr<shm::HostLink> link_;
  std::unique_ptr<Rendezvous> group_;
};

TEST_F(WakeupTest, AWaiterThatIsHeldUpDoesNotSleepOnALaterOperation) {
  Gate at_sleep, go_on;
  ASSERT_THAT(group_->arrive(op(1, 0)), IsOk());
  Status told;
  std::thread waiter([&] {
    held_up = &at_sleep;
    resume = &go_on;
    told = group_->wait_arrived(op(1, 0));
  });
  ASSERT_THAT(at_sleep.wait(), IsOk());
  // The operation times out, and so do the others of a lap.
  for (uint32_t seq = 1; seq <= kRecords; ++seq) {
    ASSERT_THAT(group_->arrive(op(seq, 1)), IsOk());
    ASSERT_THAT(group_->wait_arrived(op(seq, 1, steady_now())),
                StatusIs(StatusCode::kDeadlineExceeded));
  }
  // One member waits in the next operation of the record, as the member that is held up did.
  ASSERT_TRUE(group_->wait_free(1 + kRecords, absl::InfinitePast()));
  ASSERT_THAT(group_->arrive(op(1 + kRecords, 1)), IsOk());
  go_on.open();
  waiter.join();
  EXPECT_THAT(told, StatusIs(StatusCode::kUnavailable));
}

}  // namespace
}  // namespace tessera::host
