// SPDX-License-Identifier: Apache-2.0
//
// Letters between two clients over UCX on the loopback interface: what comes without the word of
// the job is dropped, whatever its size, and the letters behind it are read.
#include "collectives/span/letters.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/span/network.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/coordinator/fake_coordinator.h"
#include "tests/support/gate.h"
#include "tests/support/matchers.h"
#include "transport/testing/outcomes.h"
#include "transport/ucx/ucx_engine.h"

namespace tessera::span {
namespace {

using ::testing::ElementsAre;
using testing::FakeJob;
using testing::Gate;
using testing::IsOk;

constexpr uint64_t kWord = 0x1234;
constexpr uint64_t kGroup = 7;

class LettersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int client = 0; client < 2; ++client) {
      auto engine =
          ucx::make_ucx_engine(job_.coordinator(client), {.interface = "lo", .wait_policy = {}});
      ASSERT_THAT(engine, IsOk());
      engines_[client] = *std::move(engine);
    }
    const absl::Time soon = steady_now() + absl::Seconds(30);
    std::thread other([&] { EXPECT_THAT(engines_[1]->connect({0}, soon), IsOk()); });
    EXPECT_THAT(engines_[0]->connect({1}, soon), IsOk());
    other.join();
    reader_ = std::make_unique<Letters>(*engines_[0], kWord);
    reader_->set_reader(kGroup, [this](const Letter& letter) {
      std::lock_guard<std::mutex> lock(mutex_);
      read_.push_back(letter.seq);
      num_bytes_.push_back(letter.body.size());
      came_.open();
    });
    reader_->open(1);
  }
  ~LettersTest() override {
    for (const auto& engine : engines_) {
      if (engine != nullptr) engine->stop();
    }
  }

  // From client 1.
  void send(Letters& letters, uint32_t seq, size_t num_bytes) {
    letters.send(0, {.kind = Letter::Kind::kVerdict,
                     .seq = seq,
                     .group = kGroup,
                     .from = 1,
                     .to = 0,
                     .body = std::vector<std::byte>(num_bytes, std::byte{1})});
  }

  FakeJob job_{std::vector<int>{1, 1}};
  std::unique_ptr<transport::Engine> engines_[2];
  std::unique_ptr<Letters> reader_;
  Gate came_;
  std::mutex mutex_;
  std::vector<uint32_t> read_;  // guarded by mutex_, as the members below
  std::vector<size_t> num_bytes_;
};

TEST_F(LettersTest, WithoutTheWordOfTheJobAreDropped) {
  Letters own(*engines_[1], kWord);
  Letters forged(*engines_[1], kWord + 1);
  // One page, a page and its rest, and a rest that is as large as a page.
  for (const size_t num_bytes : {0, 10, 1000, 256 + 256 - 40}) {
    send(forged, 1, num_bytes);
  }
  send(own, 2, 10);
  send(forged, 3, 1000);
  send(own, 4, 1000);
  for (int i = 0; i < 2; ++i) ASSERT_THAT(came_.wait(), IsOk());
  std::lock_guard<std::mutex> lock(mutex_);
  EXPECT_THAT(read_, ElementsAre(2, 4));
  EXPECT_THAT(num_bytes_, ElementsAre(10, 1000));
}

// Such as the rest of a letter whose page was sent on a broken connection, or a stranger's
// messages.
TEST_F(LettersTest, MessagesOfAnyOtherSizeAreDropped) {
  Letters own(*engines_[1], kWord);
  transport::Outcomes sent;
  std::vector<std::byte> bytes(5000, std::byte{0xff});
  for (const size_t size : {0, 1, 13, 255, 256, 257, 5000}) {
    engines_[1]->send(0, 0, absl::MakeSpan(bytes).first(size), nullptr, sent.next());
  }
  ASSERT_THAT(sent.wait(), IsOk());
  send(own, 2, 1000);
  ASSERT_THAT(came_.wait(), IsOk());
  std::lock_guard<std::mutex> lock(mutex_);
  EXPECT_THAT(read_, ElementsAre(2));
  EXPECT_THAT(num_bytes_, ElementsAre(1000));
}

// Such as the network of a client whose start fails: no receive of a letter outlives its reader.
TEST_F(LettersTest, ANetworkThatIsNotStoppedStopsTheEngineFirst) {
  auto network = std::make_unique<Network>(std::move(engines_[1]), job_.coordinator(1));
  network->letters.open(0);
  auto reader = std::make_shared<int>();
  network->letters.set_reader(kGroup, [reader](const Letter&) {});
  const std::weak_ptr<int> has_letters = std::exchange(reader, nullptr);
  bool is_ended = false;
  std::vector<std::byte> bytes(8);
  network->engine->receive(0, /*tag=*/1, absl::MakeSpan(bytes), nullptr, [&](const Status&) {
    EXPECT_FALSE(has_letters.expired());
    is_ended = true;
  });
  network.reset();
  EXPECT_TRUE(is_ended);
}

}  // namespace
}  // namespace tessera::span
