// SPDX-License-Identifier: Apache-2.0
//
// stable_hash: fixed values, no collisions of texts that differ in one bit or in the length.
#include "base/stable_hash.h"

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tessera {
namespace {

// Processes of different builds compare hashes.
TEST(StableHashTest, IsAFixedFunctionOfTheBytes) {
  EXPECT_EQ(stable_hash(""), 0xf8bb92c91b3f5cc0u);
  EXPECT_EQ(stable_hash("batch"), 0xad8ab9d2152c34dau);
  EXPECT_EQ(stable_hash("a text longer than a word", /*seed=*/7), 0xbd43795239760cbcu);
}

TEST(StableHashTest, DiffersWhereASingleBitOrTheLengthDiffers) {
  std::set<uint64_t> hashes;
  size_t num_texts = 0;
  for (size_t length = 0; length <= 24; ++length) {
    const std::string zeros(length, '\0');
    hashes.insert(stable_hash(zeros));
    ++num_texts;
    for (size_t bit = 0; bit < 8 * length; ++bit) {
      std::string text = zeros;
      text[bit / 8] = static_cast<char>(1 << bit % 8);
      hashes.insert(stable_hash(text));
      ++num_texts;
    }
  }
  EXPECT_EQ(hashes.size(), num_texts);
}

TEST(StableHashTest, DependsOnTheOrderAndTheBoundariesOfASequence) {
  const auto sequence = [](const std::vector<std::string>& texts) {
    uint64_t hash = 0;
    for (const std::string& text : texts) hash = stable_hash(text, hash);
    return hash;
  };
  EXPECT_NE(sequence({"ab", "c"}), sequence({"a", "bc"}));
  EXPECT_NE(sequence({"ab", "c"}), sequence({"c", "ab"}));
  EXPECT_NE(sequence({"ab"}), sequence({"ab", ""}));
}

TEST(StableHashTest, OfIntegersIsThatOfTheirBytes) {
  const std::vector<int64_t> values = {1, 1 << 8};
  const std::string bytes("\1\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0", 16);
  EXPECT_EQ(stable_hash(absl::MakeConstSpan(values)), stable_hash(bytes));
}

}  // namespace
}  // namespace tessera
