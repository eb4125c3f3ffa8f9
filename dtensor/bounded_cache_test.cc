// SPDX-License-Identifier: Apache-2.0
//
// BoundedCache: what is found, what goes first, and threads at once.
#include "dtensor/bounded_cache.h"

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

struct HashText {
  size_t operator()(absl::string_view text) const { return absl::HashOf(text); }
};
struct SameText {
  bool operator()(absl::string_view a, absl::string_view b) const { return a == b; }
};
using Cache = BoundedCache<std::string, int, HashText, SameText>;

std::shared_ptr<const int> value(int number) { return std::make_shared<const int>(number); }

TEST(BoundedCacheTest, FindsWhatWasInserted) {
  Cache cache(10);
  EXPECT_EQ(cache.find("a"), nullptr);
  EXPECT_EQ(*cache.insert("a", value(1), 1), 1);
  EXPECT_EQ(*cache.insert("b", value(2), 1), 2);
  EXPECT_EQ(*cache.find("a"), 1);
  EXPECT_EQ(*cache.find("a"), 1);  // the last one
  EXPECT_EQ(*cache.find("b"), 2);
}

TEST(BoundedCacheTest, TheFirstValueOfAKeyStays) {
  Cache cache(10);
  cache.insert("a", value(1), 1);
  EXPECT_EQ(*cache.insert("a", value(2), 1), 1);
  EXPECT_EQ(cache.size(), 1u);
}

TEST(BoundedCacheTest, TheLeastRecentlyFoundGoesFirst) {
  Cache cache(3);
  for (const char* key : {"a", "b", "c"}) cache.insert(key, value(0), 1);
  EXPECT_NE(cache.find("a"), nullptr);
  cache.insert("d", value(0), 1);
  EXPECT_EQ(cache.find("b"), nullptr);
  EXPECT_NE(cache.find("a"), nullptr);
  cache.insert("e", value(0), 2);
  EXPECT_EQ(cache.find("c"), nullptr);
  EXPECT_EQ(cache.find("d"), nullptr);
  EXPECT_NE(cache.find("a"), nullptr);
}

TEST(BoundedCacheTest, AHeavierValueIsKeptAlone) {
  Cache cache(3);
  cache.insert("a", value(0), 1);
  cache.insert("b", value(0), 100);
  EXPECT_EQ(cache.size(), 1u);
  EXPECT_NE(cache.find("b"), nullptr);
  cache.insert("c", value(0), 1);
  EXPECT_EQ(cache.find("b"), nullptr);
}

TEST(BoundedCacheTest, AValueOutlivesItsPlace) {
  Cache cache(1);
  const std::shared_ptr<const int> first = cache.insert("a", value(1), 1);
  const std::weak_ptr<const int> second = cache.insert("b", value(2), 1);
  EXPECT_EQ(*first, 1);
  cache.clear();
  EXPECT_EQ(cache.size(), 0u);
  EXPECT_EQ(cache.find("b"), nullptr);
  EXPECT_TRUE(second.expired());
}

TEST(BoundedCacheTest, ThreadsFindTheirOwn) {
  Cache cache(3);
  std::atomic<int> num_wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        const int number = (t + i) % 5;
        const std::string key = absl::StrCat(number);
        std::shared_ptr<const int> found = cache.find(key);
        if (found == nullptr) found = cache.insert(key, value(number), 1);
        if (*found != number) ++num_wrong;
        if (i % 500 == 0) cache.clear();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_wrong, 0);
  EXPECT_LE(cache.size(), 3u);
}

}  // namespace
}  // namespace tessera
