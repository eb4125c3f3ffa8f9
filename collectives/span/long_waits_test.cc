// SPDX-License-Identifier: Apache-2.0
//
// Two clients of a real coordinator, whose devices wait as the test says.
#include "collectives/span/long_waits.h"

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "job/coordinator/coordinator.h"
#include "job/coordinator/device_wait.h"
#include "job/coordinator/id_ranges.h"
#include "tests/support/coordinator/clients.h"
#include "tests/support/gate.h"
#include "tests/support/matchers.h"

namespace tessera::span {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::Gate;
using ::testing::IsEmpty;
using testing::IsOk;
using ::testing::SizeIs;

// The calls of both clients' sites, in order.
class Told {
 public:
  void add(std::string what) {
    std::lock_guard<std::mutex> lock(mutex_);
    told_.push_back(std::move(what));
  }
  std::vector<std::string> all() {
    std::lock_guard<std::mutex> lock(mutex_);
    return told_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> told_;
};

// Device d is of client d, and waits for the other one until its run is ended.
class FakeSite final : public LongWaits::Site {
 public:
  FakeSite(int device, absl::Duration age, Told& told, Gate& released)
      : device_(device), age_(age), told_(told), released_(released) {}

  std::vector<LocalWait> waits() override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (has_ended_) return {};
    return {{.wait = {.device = device_,
                      .run = {.group = 70u + device_, .seq = 1},
                      .spans_hosts = true,
                      .name_hash = 0,
                      .label = absl::StrCat("run of ", device_),
                      .group = IdRanges::list_of({0, 1}),
                      .missing = IdRanges::of({1 - device_})},
             .since = steady_now() - age_}};
  }
  bool confirms(const std::vector<DeviceWait>& pairs) override {
    EXPECT_THAT(pairs, SizeIs(2));
    return true;
  }
  void await_verdict(const DeviceWait& ended) override {
    told_.add(absl::StrCat(device_, " awaits ", ended.label));
  }
  void end(const DeviceWait& wait, const std::vector<DeviceWait>& named, bool is_held,
           std::function<void()> next) override {
    EXPECT_EQ(wait.device, device_);
    EXPECT_THAT(named, SizeIs(2));
    {
      std::lock_guard<std::mutex> lock(mutex_);
      has_ended_ = true;
    }
    told_.add(absl::StrCat(device_, is_held ? " ends and is held" : " ends"));
    next();
  }
  void release(const DeviceWait& wait) override {
    EXPECT_EQ(wait.device, device_);
    told_.add(absl::StrCat(device_, " is released"));
    released_.open();
  }

 private:
  const int device_;
  const absl::Duration age_;
  Told& told_;
  Gate& released_;
  std::mutex mutex_;
  bool has_ended_ = false;
};

class LongWaitsTest : public testing::CoordinatorTest {};

TEST_F(LongWaitsTest, TheRunsOfACircleEndInOrder) {
  const auto clients = connect_all(2);
  ASSERT_THAT(clients, SizeIs(2));
  Told told;
  Gate released;
  FakeSite first(0, absl::Seconds(2), told, released);
  FakeSite second(1, absl::Seconds(2), told, released);
  LongWaits waits_0(*clients[0], first);
  LongWaits waits_1(*clients[1], second);
  waits_0.note();
  waits_1.note();
  EXPECT_THAT(released.wait(), IsOk());
  waits_0.stop();
  waits_1.stop();
  // A circle begins at either of its runs.
  const std::vector<std::string> all = told.all();
  ASSERT_FALSE(all.empty());
  const int held = all[0][0] - '0';
  EXPECT_THAT(all, ElementsAre(absl::StrCat(held, " ends and is held"),
                               absl::StrCat(1 - held, " awaits run of ", held),
                               absl::StrCat(1 - held, " ends"),
                               absl::StrCat(held, " awaits run of ", 1 - held),
                               absl::StrCat(held, " is released")));
  EXPECT_THAT(leave_all(clients), Each(IsOk()));
}

TEST_F(LongWaitsTest, ShortWaitsAreNotReported) {
  const auto clients = connect_all(2);
  ASSERT_THAT(clients, SizeIs(2));
  Told told;
  Gate released;
  FakeSite first(0, absl::Seconds(2), told, released);
  FakeSite second(1, absl::ZeroDuration(), told, released);
  LongWaits waits_0(*clients[0], first);
  LongWaits waits_1(*clients[1], second);
  waits_0.note();
  waits_1.note();
  // Both end with a report that is open.
  waits_1.stop();
  waits_0.stop();
  EXPECT_THAT(told.all(), IsEmpty());
  EXPECT_THAT(leave_all(clients), Each(IsOk()));
}

}  // namespace
}  // namespace tessera::span
