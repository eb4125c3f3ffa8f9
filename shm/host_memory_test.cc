// SPDX-License-Identifier: Apache-2.0
//
// HostMemory without sockets: the tests hand over what another client would send.
#include "shm/host_memory.h"

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/environment/file_descriptor.h"
#include "shm/own_control.h"
#include "tests/support/coordinator/fake_coordinator.h"
#include "tests/support/matchers.h"

namespace tessera::shm {
namespace {

using absl::StatusCode;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::IsOkAndHolds;
using testing::StatusIs;

constexpr uint64_t kPage = 4096;

// Client 0 of three.
class HostMemoryTest : public ::testing::Test {
 protected:
  static ReceivedMessage message_with(const SharedMapping& memory, int arena) {
    ReceivedMessage received;
    received.message.arena = arena;
    received.message.size_bytes = memory.size_bytes();
    received.fd = FileDescriptor(dup(memory.fd()));
    return received;
  }
  void share(int client, int arena, uint64_t size_bytes) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const SharedMapping memory,
                                 SharedMapping::create("test", size_bytes));
    memory_.map_arena(client, message_with(memory, arena));
  }

  testing::FakeJob job_{std::vector<int>(3, 1)};
  const HostMembers members_{job_.coordinator(0)};
  Liveness liveness_{members_, [this] { memory_.wake(); }};
  OwnControl own_ = *OwnControl::create(1);
  std::shared_ptr<ArenaPool> pool_ = ArenaPool::create(kPage);
  std::vector<std::pair<int, int>> asked_;
  HostMemory memory_{members_, liveness_, own_.data(), pool_,
                     [this](int client, int arena) { asked_.emplace_back(client, arena); }};
};

TEST_F(HostMemoryTest, LocateIsTheInverseOfResolve) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const ArenaPool::Block own, pool_->allocate(64));
  const std::vector<SharedAddress> starts = {
      {0, 1, 0}, {0, 2, 0}, {7, 1, 0}, {3, 2, 0}, {own.address().arena, 0, own.address().offset}};
  for (const SharedAddress& start : starts) {
    if (start.client != 0) share(start.client, start.arena, 2 * kPage);
  }
  for (SharedAddress address : starts) {
    const uint64_t last = address.client == 0 ? 63 : 2 * kPage - 1;
    for (const uint64_t at : {uint64_t{0}, uint64_t{1}, last}) {
      SharedAddress place = address;
      place.offset += at;
      TESSERA_ASSERT_OK_AND_ASSIGN(const std::byte* memory, memory_.resolve(place, 1));
      const std::optional<SharedAddress> located = memory_.locate(memory, 1);
      ASSERT_TRUE(located.has_value());
      EXPECT_EQ(located->arena, place.arena);
      EXPECT_EQ(located->client, place.client);
      EXPECT_EQ(located->offset, place.offset);
      if (address.client == 0) continue;
      EXPECT_EQ(memory_.locate(memory, 2).has_value(), at != last);
      EXPECT_NE(memory_.keeper(memory), pool_);
    }
  }
  const std::byte elsewhere{};
  EXPECT_FALSE(memory_.locate(&elsewhere, 1).has_value());
  EXPECT_FALSE(memory_.locate(own_.data(), 1).has_value());
}

TEST_F(HostMemoryTest, ControlRegionsAreCheckedAndAwaited) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const OwnControl of_peer, OwnControl::create(1));
  ReceivedMessage good;
  good.message.size_bytes = kControlBytes;
  good.fd = FileDescriptor(dup(of_peer.fd()));
  EXPECT_THAT(memory_.map_control(1, std::move(good)), IsOk());
  of_peer.activity(0).count = 5;
  ASSERT_NE(memory_.control(1), nullptr);
  EXPECT_NE(memory_.control(1), of_peer.data());
  EXPECT_EQ(reinterpret_cast<DeviceActivity*>(memory_.control(1) + kActivitiesOffset)->count, 5u);
  EXPECT_FALSE(memory_.has_all_controls());

  TESSERA_ASSERT_OK_AND_ASSIGN(const SharedMapping small, SharedMapping::create("test", kPage));
  EXPECT_THAT(memory_.map_control(2, message_with(small, 0)),
              StatusIs(StatusCode::kUnavailable, HasSubstr("it has 4096 bytes")));
  EXPECT_THAT(memory_.wait_for_controls(steady_now()),
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("no answer from client 2")));
  liveness_.report_lost(2, absl::UnavailableError("client 2 is lost"));
  EXPECT_THAT(memory_.wait_for_controls(absl::InfiniteFuture()),
              StatusIs(StatusCode::kUnavailable, "client 2 is lost"));
  memory_.fail(absl::ResourceExhaustedError("no descriptors"));
  EXPECT_THAT(memory_.wait_for_controls(absl::InfiniteFuture()),
              StatusIs(StatusCode::kResourceExhausted, "no descriptors"));
}

TEST_F(HostMemoryTest, AnArenaThatDoesNotComeIsAnError) {
  EXPECT_THAT(memory_.resolve({0, 1, 0}, 1, steady_now()),
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("was not shared in time")));
  EXPECT_TRUE(asked_.empty());
  liveness_.report_lost(1, absl::UnavailableError("client 1 is lost"));
  EXPECT_THAT(memory_.resolve({0, 1, 0}, 1), StatusIs(StatusCode::kUnavailable));
  share(1, 0, kPage);
  EXPECT_THAT(memory_.resolve({0, 1, 0}, kPage).status(), IsOk());
  EXPECT_THAT(memory_.resolve({0, 1, 1}, kPage), StatusIs(StatusCode::kInternal));
  EXPECT_THAT(memory_.resolve(SharedAddress{}, 1), IsOkAndHolds(nullptr));
}

}  // namespace
}  // namespace tessera::shm
