// SPDX-License-Identifier: Apache-2.0
//
// Whose memory an object gets, and that none is used twice.
#include "base/kept_allocator.h"

#include <malloc.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace tessera {
namespace {

struct Thing {
  explicit Thing(int first) : value(first) {}
  int value;
  char rest[200] = {};
};

std::shared_ptr<Thing> make(int value) {
  return std::allocate_shared<Thing>(KeptAllocator<Thing>(), value);
}

#if !defined(__SANITIZE_ADDRESS__)
TEST(KeptAllocatorTest, MemoryOfTheLastOneIsThatOfTheNextOne) {
  const auto first = reinterpret_cast<uintptr_t>(make(1).get());
  const std::shared_ptr<Thing> next = make(2);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(next.get()), first);
  EXPECT_EQ(next->value, 2);
}

#if !defined(__SANITIZE_THREAD__)  // whose malloc mallinfo2() does not count
// So large that malloc keeps none of it for the thread either.
struct Large {
  char bytes[4000];
};

TEST(KeptAllocatorTest, WhoOnlyDropsThemKeepsNothing) {
  std::vector<std::shared_ptr<Large>> things;
  for (int i = 0; i < 8; ++i) {
    things.push_back(std::allocate_shared<Large>(KeptAllocator<Large>()));
  }
  size_t before = 0;
  size_t after = 0;
  std::thread([&] {
    before = mallinfo2().uordblks;
    things.clear();
    after = mallinfo2().uordblks;
  }).join();
  // The thread takes some for itself.
  EXPECT_LT(after + 4 * sizeof(Large), before);
}
#endif
#endif

TEST(KeptAllocatorTest, ThoseThatLiveHaveMemoryOfTheirOwn) {
  // More than are kept, twice.
  for (int round = 0; round < 2; ++round) {
    std::vector<std::shared_ptr<Thing>> things;
    for (int i = 0; i < 100; ++i) things.push_back(make(i));
    for (int i = 0; i < 100; ++i) EXPECT_EQ(things[i]->value, i);
  }
}

TEST(KeptAllocatorTest, AnotherThreadMayDropIt) {
  std::shared_ptr<Thing> thing = make(1);
  std::thread([dropped = std::move(thing)]() mutable { dropped = nullptr; }).join();
  EXPECT_EQ(make(2)->value, 2);
}

TEST(KeptAllocatorTest, AThreadMayEndWithAnObjectThatItsOwnStateHolds) {
  std::thread([] {
    // Constructed before what frees the memory that is kept, and so destroyed after it.
    static thread_local std::shared_ptr<Thing> held;
    held = make(1);
    make(2);
  }).join();
}

TEST(KeptAllocatorTest, SeveralAtOnceAreNotKept) {
  KeptAllocator<Thing> allocator;
  Thing* const memory = allocator.allocate(3);
  allocator.deallocate(memory, 3);
}

}  // namespace
}  // namespace tessera
