// SPDX-License-Identifier: Apache-2.0
//
// Links on an engine that connects when the test says so: which runs a break fails and when, and
// that the connection is made again. ConnectionsTest of //tests/hosts has the engines.
#include "transport/links.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/gate.h"
#include "tests/support/matchers.h"

namespace tessera::transport {
namespace {

using ::testing::ElementsAre;
using testing::Gate;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

constexpr int kPeer = 2;

// Each connect() waits for the test, which gives its result.
class ScriptedEngine final : public Engine {
 public:
  void report_broken(int client) {
    LostListener listener;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      listener = listener_;
    }
    listener(client, absl::UnavailableError("the connection to client 2 is broken: reset"));
  }
  // Ends the attempt that waits, or else the next one.
  void end_attempt(const Status& result) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      results_.push_back(result);
    }
    ended_.open();
  }
  Gate attempted;  // opened by each connect()
  Gate was_cut;    // opened by each cut()

  Status connect(absl::Span<const int>, absl::Time) override {
    attempted.open();
    TESSERA_RETURN_IF_ERROR(ended_.wait());
    std::lock_guard<std::mutex> lock(mutex_);
    Status result = std::move(results_.front());
    results_.pop_front();
    return result;
  }
  Status connect_all(absl::Span<const int>, absl::Time) override { return absl::OkStatus(); }
  void send(int, Tag, absl::Span<const std::byte>, Keeper, Done) override {}
  void receive(int, Tag, absl::Span<std::byte>, Keeper, Done) override {}
  void cut(int, const Status&) override { was_cut.open(); }
  void wait(Wait&, absl::Duration) override {}
  void wake(Wait&) override {}
  void set_lost_listener(LostListener listener) override {
    std::lock_guard<std::mutex> lock(mutex_);
    listener_ = std::move(listener);
  }
  void stop() override {}

 private:
  Gate ended_;
  std::mutex mutex_;  // guards the members below
  LostListener listener_;
  std::deque<Status> results_;
};

// Records the calls, in order.
class NotingSite final : public Links::Site {
 public:
  std::vector<std::string> told() {
    std::lock_guard<std::mutex> lock(mutex_);
    return told_;
  }
  Gate asked_for_loss;
  Gate is_up;
  std::atomic<bool> has_lost_peer{false};

  bool is_lost(int) override {
    asked_for_loss.open();
    return has_lost_peer;
  }
  void connection_broke(int, uint64_t) override { note("broke"); }
  void reopen_letters(int) override { note("letters"); }
  void connection_is_up(int) override {
    note("up");
    is_up.open();
  }

 private:
  void note(const std::string& what) {
    std::lock_guard<std::mutex> lock(mutex_);
    told_.push_back(what);
  }
  std::mutex mutex_;
  std::vector<std::string> told_;  // guarded by mutex_
};

struct LinksTest : ::testing::Test {
  ScriptedEngine engine;
  NotingSite site;
  Links links{engine, site};
};

TEST_F(LinksTest, ARunUnderWayFailsWhenTheConnectionIsUpAgainAndALaterOneMaySend) {
  const uint64_t before = links.num_breaks();
  EXPECT_TRUE(links.are_up({1, kPeer}));
  engine.report_broken(kPeer);
  EXPECT_FALSE(links.are_up({1, kPeer}));
  EXPECT_TRUE(links.are_up({1}));
  // The coordinator may still tell of a loss.
  EXPECT_THAT(links.find_broken({kPeer}, before), IsOk());
  EXPECT_TRUE(links.have_broken({1, kPeer}, before));
  EXPECT_TRUE(links.have_broken({kPeer}, links.num_breaks()));  // it is down
  EXPECT_FALSE(links.have_broken({1}, before));
  const uint64_t later = links.num_breaks();
  engine.end_attempt(absl::OkStatus());
  ASSERT_THAT(site.is_up.wait(), IsOk());
  EXPECT_TRUE(links.are_up({1, kPeer}));
  EXPECT_THAT(
      links.find_broken({1, kPeer}, before),
      StatusIs(absl::StatusCode::kUnavailable,
               "the connection to client 2 is broken: reset; it is made again for later calls: "
               "repeat this call on every client"));
  EXPECT_THAT(links.find_broken({1}, before), IsOk());
  EXPECT_THAT(links.find_broken({kPeer}, later), IsOk());
  EXPECT_TRUE(links.have_broken({kPeer}, before));
  EXPECT_FALSE(links.have_broken({kPeer}, later));
  EXPECT_THAT(site.told(), ElementsAre("broke", "letters", "up"));
}

TEST_F(LinksTest, EachRunFailsAfterAWhileWhereTheConnectionStaysDown) {
  engine.report_broken(kPeer);
  const absl::Time since = steady_now();
  const uint64_t later = links.num_breaks();
  EXPECT_THAT(links.find_broken({kPeer}, later), IsOk());
  while (links.find_broken({kPeer}, later).ok()) {
    absl::SleepFor(absl::Milliseconds(20));  // sleep: the limit is a time
    ASSERT_LT(steady_now() - since, absl::Minutes(1));
  }
  EXPECT_GE(steady_now() - since, Links::kLossLimit - absl::Milliseconds(1));
  EXPECT_THAT(links.find_broken({kPeer}, later),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("is broken: reset")));
  engine.end_attempt(absl::CancelledError("over"));
}

// The attempt is ended, so that the other end, which has failed as well, meets the next one.
TEST_F(LinksTest, AFailedAttemptIsCutAndRepeated) {
  engine.report_broken(kPeer);
  for (int i = 0; i < 2; ++i) {
    ASSERT_THAT(engine.attempted.wait(), IsOk());
    engine.end_attempt(absl::DeadlineExceededError("client 2 does not answer"));
    ASSERT_THAT(engine.was_cut.wait(), IsOk());
  }
  engine.end_attempt(absl::OkStatus());
  ASSERT_THAT(site.is_up.wait(), IsOk());
  EXPECT_TRUE(links.are_up({kPeer}));
}

TEST_F(LinksTest, ABreakDuringAnAttemptNeedsAnother) {
  engine.report_broken(kPeer);
  ASSERT_THAT(engine.attempted.wait(), IsOk());
  engine.report_broken(kPeer);
  engine.end_attempt(absl::OkStatus());
  ASSERT_THAT(engine.attempted.wait(), IsOk());
  EXPECT_FALSE(links.are_up({kPeer}));
  engine.end_attempt(absl::OkStatus());
  ASSERT_THAT(site.is_up.wait(), IsOk());
  EXPECT_TRUE(links.are_up({kPeer}));
}

TEST_F(LinksTest, ALostClientIsNotConnectedAgain) {
  site.has_lost_peer = true;
  engine.report_broken(kPeer);
  ASSERT_THAT(site.asked_for_loss.wait(), IsOk());
  links.stop();
  EXPECT_FALSE(links.are_up({kPeer}));
  EXPECT_THAT(site.told(), ElementsAre("broke"));
}

TEST_F(LinksTest, AnAttemptThatIsToStopEnds) {
  engine.report_broken(kPeer);
  ASSERT_THAT(engine.attempted.wait(), IsOk());
  links.begin_stop();
  engine.end_attempt(absl::CancelledError("the engine was stopped"));
  links.stop();
  engine.report_broken(kPeer);
  EXPECT_FALSE(links.are_up({kPeer}));
}

}  // namespace
}  // namespace tessera::transport
