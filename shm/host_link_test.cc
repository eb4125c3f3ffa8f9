// SPDX-License-Identifier: Apache-2.0
//
// HostLink among clients that are threads: what they see of each other, and of clients that leave.
#include "shm/host_link.h"

#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/coordinator/fake_coordinator.h"
#include "tests/support/deadline.h"
#include "tests/support/matchers.h"

namespace tessera::shm {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::IsOkAndHolds;
using testing::StatusIs;

class HostLinkTest : public ::testing::Test {
 protected:
  // Connects all clients except the clients in `absent`.
  void connect(int num_clients, int absent = -1, absl::Duration timeout = absl::Seconds(10)) {
    if (job_ == nullptr) make_job(num_clients);
    links_.resize(num_clients);
    results_.resize(num_clients);
    while (pools_.size() < links_.size()) pools_.push_back(ArenaPool::create(4096));
    std::vector<std::thread> threads;
    for (int c = 0; c < num_clients; ++c) {
      if (c == absent) continue;
      threads.emplace_back([this, c, timeout] {
        auto link = HostLink::create(job_->coordinator(c), pools_[c], steady_now() + timeout);
        results_[c] = link.status();
        if (link.ok()) links_[c] = *std::move(link);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void make_job(int num_clients) {
    job_ = std::make_unique<testing::FakeJob>(std::vector<int>(num_clients, 1));
  }

  testing::TestDeadline deadline_{absl::Seconds(30), "host_link_test"};
  std::unique_ptr<testing::FakeJob> job_;
  std::vector<std::shared_ptr<ArenaPool>> pools_;
  std::vector<std::unique_ptr<HostLink>> links_;
  std::vector<Status> results_;
};

// The losses that a listener was told of. The listener may outlive it: links go after the test's
// body.
class Losses {
 public:
  Liveness::LostListener listener() const {
    return [state = state_](int client, const Status& reason) {
      std::lock_guard<std::mutex> lock(state->mutex);
      state->heard.emplace_back(client, reason);
      state->changed.notify_all();
    };
  }
  std::vector<std::pair<int, Status>> wait_for(size_t count) const {
    std::unique_lock<std::mutex> lock(state_->mutex);
    state_->changed.wait(lock, [&] { return state_->heard.size() >= count; });
    return state_->heard;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::pair<int, Status>> heard;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

TEST_F(HostLinkTest, EveryClientMapsTheControlRegionOfEveryOther) {
  connect(3);
  for (int a = 0; a < 3; ++a) {
    ASSERT_THAT(results_[a], IsOk());
    for (int b = 0; b < 3; ++b) {
      const auto* header = reinterpret_cast<const ControlHeader*>(links_[a]->memory().control(b));
      EXPECT_EQ(header->magic, kControlMagic);
      EXPECT_EQ(header->num_devices, 1u);
    }
  }
  EXPECT_NE(links_[0]->memory().control(1), links_[1]->memory().control(1));
}

TEST_F(HostLinkTest, PeersSeeArenasThatAreMadeLater) {
  connect(2);
  // Each block needs an arena of its own: the pool doubles from 4 KiB.
  std::vector<ArenaPool::Block> blocks;
  for (int k = 0; k < 6; ++k) {
    TESSERA_ASSERT_OK_AND_ASSIGN(ArenaPool::Block block, pools_[0]->allocate(4096 << k));
    std::memset(block.data(), 10 + k, 4096 << k);
    const SharedAddress address = {block.address().arena, 0, block.address().offset};
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::byte* seen,
                                 links_[1]->memory().resolve(address, 4096 << k));
    ASSERT_NE(seen, nullptr);
    EXPECT_NE(seen, block.data());
    EXPECT_EQ(std::to_integer<int>(seen[(4096 << k) - 1]), 10 + k);
    EXPECT_THAT(links_[0]->memory().resolve(address, 4096 << k), IsOkAndHolds(block.data()));
    // The reader publishes the same address, and keeps the memory mapped.
    const std::optional<SharedAddress> located = links_[1]->memory().locate(seen, 4096 << k);
    ASSERT_TRUE(located.has_value());
    EXPECT_EQ(located->arena, address.arena);
    EXPECT_EQ(located->client, 0);
    EXPECT_EQ(located->offset, address.offset);
    EXPECT_FALSE(links_[1]->memory().locate(seen, int64_t{1} << 40).has_value());
    EXPECT_NE(links_[1]->memory().keeper(seen), links_[0]->memory().keeper(block.data()));
    blocks.push_back(std::move(block));
  }
  EXPECT_GT(blocks.back().address().arena, 0);
  EXPECT_THAT(links_[0]->memory().resolve(SharedAddress{}, 1), IsOkAndHolds(nullptr));
}

TEST_F(HostLinkTest, ArenasFromBeforeTheLinkAreSeenToo) {
  make_job(2);
  pools_ = {ArenaPool::create(4096)};
  TESSERA_ASSERT_OK_AND_ASSIGN(const ArenaPool::Block block, pools_[0]->allocate(64));
  std::memcpy(block.data(), "early", 6);
  connect(2);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::byte* seen,
      links_[1]->memory().resolve({block.address().arena, 0, block.address().offset}, 6));
  ASSERT_NE(seen, nullptr);
  EXPECT_STREQ(reinterpret_cast<const char*>(seen), "early");
}

TEST_F(HostLinkTest, AHangUpWithoutGoodbyeIsALoss) {
  connect(3);
  Losses losses[2];
  for (int c : {0, 1}) links_[c]->liveness().set_lost_listener(losses[c].listener());
  links_[2].reset();
  for (int c : {0, 1}) {
    const auto heard = losses[c].wait_for(1);
    EXPECT_EQ(heard[0].first, 2);
    EXPECT_THAT(heard[0].second,
                StatusIs(absl::StatusCode::kUnavailable,
                         HasSubstr("is lost: its process has ended without shutdown, or its "
                                   "connections broke off")));
    EXPECT_THAT(heard[0].second,
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("client 2 (host-a, pid ")));
    EXPECT_EQ(links_[c]->liveness().client_status(2), heard[0].second);
    EXPECT_THAT(links_[c]->liveness().client_status(1 - c), IsOk());
    EXPECT_TRUE(links_[c]->liveness().any_lost());
    // Its memory stays mapped, and what never came is not waited for.
    EXPECT_EQ(reinterpret_cast<const ControlHeader*>(links_[c]->memory().control(2))->magic,
              kControlMagic);
    EXPECT_EQ(links_[c]->memory().resolve({7, 2, 0}, 1).status(), heard[0].second);
  }
}

TEST_F(HostLinkTest, AHangUpAfterGoodbyeIsALeaving) {
  connect(2);
  Losses losses;
  links_[0]->liveness().set_lost_listener(losses.listener());
  links_[1]->leave();
  links_[1].reset();
  EXPECT_THAT(losses.wait_for(1)[0].second,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("has left the job")));
  EXPECT_TRUE(links_[0]->liveness().has_left(1));
  EXPECT_FALSE(links_[0]->liveness().has_left(0));
}

TEST_F(HostLinkTest, ALossIsHeardOnceAndByWhoeverAsksLater) {
  connect(2);
  Losses early, late;
  links_[0]->liveness().set_lost_listener(early.listener());
  links_[0]->liveness().report_lost(1, absl::UnavailableError("first"));
  links_[0]->liveness().report_lost(1, absl::UnavailableError("second"));
  links_[0]->liveness().set_lost_listener(late.listener());
  ASSERT_EQ(early.wait_for(1).size(), 1u);
  EXPECT_THAT(early.wait_for(1)[0].second, StatusIs(absl::StatusCode::kUnavailable, "first"));
  EXPECT_THAT(late.wait_for(1)[0].second, StatusIs(absl::StatusCode::kUnavailable, "first"));
  links_[0]->liveness().set_lost_listener(nullptr);
}

// Clients on other hosts are none of its peers; their loss is reported all the same.
TEST_F(HostLinkTest, LinksTheClientsOfOneHost) {
  make_job(3);
  job_->set_host_id(1, "host-b");
  connect(3);
  for (int c : {0, 1, 2}) ASSERT_THAT(results_[c], IsOk());
  for (int c : {0, 1, 2}) {
    for (int other : {0, 1, 2}) {
      const bool is_on_host = (c == 1) == (other == 1);
      EXPECT_EQ(links_[c]->members().is_on_host(other), is_on_host) << c << other;
      EXPECT_EQ(links_[c]->memory().control(other) != nullptr, is_on_host) << c << other;
      EXPECT_FALSE(links_[c]->liveness().has_died(other));
    }
  }
  EXPECT_EQ(links_[0]->memory().find_in_control(1, 0, 8), nullptr);
  EXPECT_THAT(links_[0]->memory().resolve({0, 1, 0}, 8), StatusIs(absl::StatusCode::kInternal));
  links_[0]->liveness().report_lost(1, absl::UnavailableError("heartbeats"));
  EXPECT_TRUE(links_[0]->liveness().is_dead(1));
  EXPECT_THAT(links_[0]->liveness().client_status(2), IsOk());
}

TEST_F(HostLinkTest, AClientThatDoesNotComeIsNamed) {
  connect(2, /*absent=*/1, absl::Milliseconds(50));
  EXPECT_THAT(results_[0],
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("sharing memory on this host: no answer from client 1")));
}

}  // namespace
}  // namespace tessera::shm
