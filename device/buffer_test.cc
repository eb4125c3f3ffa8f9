// SPDX-License-Identifier: Apache-2.0
//
// Views of buffers: before the memory is there, after it is, and when the buffer itself is dropped.
// Also the end of a buffer's own memory where the buffer shares the memory of another owner.
#include "device/buffer.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "base/status.h"
#include "device/cpu/arena.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::tessera::testing::IsOk;
using ::tessera::testing::StatusIs;

constexpr int64_t kBytes = 4096;

// Fills a buffer as the op of it does.
void fill(Buffer& buffer) {
  ASSERT_THAT(buffer.take_memory(), IsOk());
  for (int64_t i = 0; i < buffer.size_bytes(); ++i) {
    buffer.mutable_data()[i] = static_cast<std::byte>(i % 251);
  }
  buffer.mutable_ready().set(absl::OkStatus());
}

void expect_part(const Buffer& view, int64_t offset, int64_t size_bytes) {
  ASSERT_EQ(view.size_bytes(), size_bytes);
  for (int64_t i = 0; i < size_bytes; ++i) {
    ASSERT_EQ(view.data()[i], static_cast<std::byte>((offset + i) % 251)) << "byte " << i;
  }
}

TEST(BufferViewTest, IsReadyWithTheBufferItIsAPartOf) {
  const std::shared_ptr<Buffer> whole = Buffer::deferred(ArenaPool::create(), kBytes);
  const std::shared_ptr<const Buffer> view = Buffer::view(whole, 100, 200);
  EXPECT_EQ(view->data(), nullptr);
  EXPECT_FALSE(view->ready().done());
  EXPECT_FALSE(view->issued().done());
  fill(*whole);
  EXPECT_TRUE(view->ready().done());
  EXPECT_TRUE(view->issued().done());
  EXPECT_THAT(view->wait_issued(), IsOk());
  EXPECT_EQ(view->data(), whole->data() + 100);
  expect_part(*view, 100, 200);
}

TEST(BufferViewTest, KeepsTheMemoryWhenTheBufferIsDropped) {
  const std::shared_ptr<ArenaPool> pool = ArenaPool::create();
  StatusOr<std::shared_ptr<Buffer>> whole = Buffer::allocate(pool, kBytes);
  ASSERT_THAT(whole.status(), IsOk());
  fill(**whole);
  std::shared_ptr<const Buffer> view = Buffer::view(*std::move(whole), 1, kBytes - 1);
  EXPECT_EQ(pool->live_bytes(), static_cast<uint64_t>(kBytes));
  // The next allocation is other memory.
  const StatusOr<std::shared_ptr<Buffer>> next = Buffer::allocate(pool, kBytes);
  ASSERT_THAT(next.status(), IsOk());
  std::memset((*next)->mutable_data(), 255, kBytes);
  expect_part(*view, 1, kBytes - 1);
  view = nullptr;
  EXPECT_EQ(pool->live_bytes(), static_cast<uint64_t>(kBytes));
}

TEST(BufferViewTest, OfAViewNeedsOnlyTheBuffer) {
  const std::shared_ptr<ArenaPool> pool = ArenaPool::create();
  const std::shared_ptr<Buffer> whole = Buffer::deferred(pool, kBytes);
  std::shared_ptr<const Buffer> part = Buffer::view(whole, 1000, 500);
  const std::weak_ptr<const Buffer> watch = part;
  const std::shared_ptr<const Buffer> part_of_part = Buffer::view(std::move(part), 30, 7);
  EXPECT_TRUE(watch.expired());
  EXPECT_EQ(&part_of_part->filled(), whole.get());
  fill(*whole);
  expect_part(*part_of_part, 1030, 7);
}

TEST(BufferViewTest, OfABufferThatFailsFails) {
  const Status error = absl::InternalError("the op failed");
  const std::shared_ptr<const Buffer> of_failed = Buffer::view(Buffer::failed(error), 64, 64);
  EXPECT_THAT(of_failed->ready().wait(), StatusIs(absl::StatusCode::kInternal, "the op failed"));
  EXPECT_EQ(of_failed->data(), nullptr);

  const std::shared_ptr<Buffer> later = Buffer::deferred(ArenaPool::create(), kBytes);
  const std::shared_ptr<const Buffer> view = Buffer::view(later, 64, 64);
  later->mutable_ready().set(error);
  EXPECT_THAT(view->wait_issued(), StatusIs(absl::StatusCode::kInternal, "the op failed"));
}

TEST(BufferViewTest, MayBeOfEveryPartAndOfNothing) {
  const std::shared_ptr<Buffer> whole = Buffer::deferred(ArenaPool::create(), kBytes);
  fill(*whole);
  expect_part(*Buffer::view(whole, 0, kBytes), 0, kBytes);
  expect_part(*Buffer::view(whole, kBytes, 0), kBytes, 0);
  EXPECT_DEATH(Buffer::view(whole, 1, kBytes), "a view is a part of its buffer");
  EXPECT_DEATH(Buffer::view(whole, -1, 1), "a view is a part of its buffer");
}

TEST(BufferTest, GivesItsMemoryBackWhereItSharesThatOfOthers) {
  const std::shared_ptr<ArenaPool> pool = ArenaPool::create();
  auto others = std::make_shared<std::byte>(std::byte{7});
  for (const std::shared_ptr<Buffer>& buffer :
       {*Buffer::allocate(pool, kBytes), Buffer::deferred(pool, kBytes)}) {
    buffer->share_memory(others.get(), others);
    EXPECT_EQ(pool->live_bytes(), 0u);
    EXPECT_THAT(buffer->take_memory(), IsOk());
    EXPECT_EQ(buffer->data(), others.get());
    EXPECT_EQ(pool->live_bytes(), 0u);
  }
  EXPECT_EQ(others.use_count(), 1);
}

TEST(BufferTakeMemoryOfTest, TakesThatOfABufferThatNothingElseHolds) {
  const std::shared_ptr<ArenaPool> pool = ArenaPool::create();
  StatusOr<std::shared_ptr<Buffer>> filled = Buffer::allocate(pool, kBytes);
  ASSERT_THAT(filled.status(), IsOk());
  fill(**filled);
  std::shared_ptr<const Buffer> old = *std::move(filled);
  const std::byte* const data = old->data();
  std::shared_ptr<Buffer> next = Buffer::deferred(pool, kBytes);
  ASSERT_TRUE(next->take_memory_of(old));
  EXPECT_EQ(next->data(), data);
  EXPECT_EQ(old->data(), nullptr);
  expect_part(*next, 0, kBytes);
  // The memory goes back once, with its new buffer.
  old = nullptr;
  EXPECT_EQ(pool->live_bytes(), static_cast<uint64_t>(kBytes));
  next = nullptr;
  EXPECT_EQ(pool->live_bytes(), 0u);
}

TEST(BufferTakeMemoryOfTest, LeavesOthersAsTheyAre) {
  const std::shared_ptr<ArenaPool> pool = ArenaPool::create();
  const auto filled = [&] {
    const std::shared_ptr<Buffer> buffer = Buffer::deferred(pool, kBytes);
    fill(*buffer);
    return std::shared_ptr<const Buffer>(buffer);
  };
  const auto is_taken = [&](const std::shared_ptr<const Buffer>& old, int64_t size_bytes,
                            std::shared_ptr<ArenaPool> from) {
    const std::shared_ptr<Buffer> next = Buffer::deferred(std::move(from), size_bytes);
    const bool taken = next->take_memory_of(old);
    EXPECT_EQ(next->data() != nullptr, taken);
    return taken;
  };
  std::shared_ptr<const Buffer> old = filled();
  EXPECT_FALSE(is_taken(old, kBytes / 2, pool));
  EXPECT_FALSE(is_taken(old, kBytes, ArenaPool::create()));
  std::shared_ptr<const Buffer> other = old;
  EXPECT_FALSE(is_taken(old, kBytes, pool));
  other = Buffer::view(old, 0, kBytes);
  EXPECT_FALSE(is_taken(old, kBytes, pool));
  EXPECT_FALSE(is_taken(other, kBytes, pool));
  const std::shared_ptr<Buffer> sharing = Buffer::deferred(pool, kBytes);
  sharing->share_memory(const_cast<std::byte*>(old->data()), old);
  const std::shared_ptr<const Buffer>& alone = std::shared_ptr<const Buffer>(sharing);
  EXPECT_FALSE(is_taken(alone, kBytes, pool));
  expect_part(*old, 0, kBytes);
}

}  // namespace
}  // namespace tessera
