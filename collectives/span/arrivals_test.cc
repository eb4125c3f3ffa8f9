// SPDX-License-Identifier: Apache-2.0
//
// The letter with entries: what comes back of it, its size, and letters of other bytes.
#include "collectives/span/arrivals.h"

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera::span {
namespace {

using tessera::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::SizeIs;

Signature sum_of(int64_t count) {
  Signature call = {};
  call.kind = OpKind::kAllReduce;
  call.count = count;
  return call;
}

struct Read {
  std::vector<std::pair<int, Board::Entry>> entries;
  bool is_whole = false;
};

Read read(absl::Span<const std::byte> letter) {
  Read read;
  read.is_whole = read_arrivals(letter, [&](int member, Board::Entry entry) {
    read.entries.emplace_back(member, std::move(entry));
  });
  return read;
}

std::vector<std::byte> encode(int member, int64_t count, const std::string& label,
                              std::vector<int64_t> counts, size_t input_bytes) {
  const std::vector<std::byte> input(input_bytes, std::byte(member));
  return encode_arrival({.member = member,
                         .signature = sum_of(count),
                         .part_count = 3,
                         .detail = "counts 1, 2",
                         .label = label,
                         .error = {},
                         .in_count = count + member,
                         .counts = counts,
                         .inlined = input});
}

TEST(ArrivalsTest, ALetterBringsAllThatAMemberHasArrivedWith) {
  const Read one = read(encode(5, 64, "sum", {7, 8}, 16));
  ASSERT_TRUE(one.is_whole);
  ASSERT_THAT(one.entries, SizeIs(1));
  const auto& [member, entry] = one.entries[0];
  EXPECT_EQ(member, 5);
  EXPECT_EQ(entry.statement.signature, sum_of(64));
  EXPECT_EQ(entry.statement.part_count, 3);
  EXPECT_EQ(entry.statement.detail, "counts 1, 2");
  EXPECT_EQ(entry.statement.label, "sum");
  EXPECT_EQ(entry.in_count, 69);
  EXPECT_THAT(entry.counts, ElementsAre(7, 8));
  EXPECT_EQ(entry.inlined, std::vector<std::byte>(16, std::byte{5}));
  EXPECT_THAT(entry.error, IsOk());
}

TEST(ArrivalsTest, AnErrorComesWithItsText) {
  const Status error = absl::InternalError("no memory");
  const Read one = read(encode_arrival({.member = 1,
                                        .signature = sum_of(1),
                                        .part_count = 0,
                                        .detail = "",
                                        .label = "",
                                        .error = error,
                                        .in_count = -1,
                                        .counts = {},
                                        .inlined = {}}));
  ASSERT_THAT(one.entries, SizeIs(1));
  EXPECT_EQ(one.entries[0].second.error, error);
}

// The common part of members is in a letter once, and reading gives it to each member.
TEST(ArrivalsTest, AJoinedLetterOfEqualCallsIsSmall) {
  constexpr int kMembers = 32;
  std::vector<std::vector<std::byte>> letters;
  for (int m = 0; m < kMembers; ++m) letters.push_back(encode(m, 64, "barrier \"start\"", {}, 4));
  const std::vector<std::byte> joined = join_arrivals(letters);
  EXPECT_LT(joined.size(), 1400);
  const Read all = read(joined);
  EXPECT_TRUE(all.is_whole);
  ASSERT_THAT(all.entries, SizeIs(kMembers));
  for (int m = 0; m < kMembers; ++m) {
    const Read alone = read(letters[m]);
    EXPECT_EQ(all.entries[m].first, m);
    EXPECT_EQ(all.entries[m].second.statement.label, alone.entries[0].second.statement.label);
    EXPECT_EQ(all.entries[m].second.inlined, alone.entries[0].second.inlined);
    EXPECT_EQ(all.entries[m].second.in_count, 64 + m);
  }
}

// Every sequence of three calls, two joined letters after each other: each entry has its own call.
TEST(ArrivalsTest, DifferentCallsStayDifferent) {
  for (int k = 0; k < 16; ++k) {
    std::vector<std::vector<std::byte>> letters;
    for (int m = 0; m < 4; ++m) letters.push_back(encode(m, 64 + (k >> m & 1), "sum", {}, 0));
    std::vector<std::byte> letter = join_arrivals(absl::MakeSpan(letters).subspan(0, 2));
    const std::vector<std::byte> second = join_arrivals(absl::MakeSpan(letters).subspan(2));
    letter.insert(letter.end(), second.begin(), second.end());
    const Read all = read(letter);
    ASSERT_THAT(all.entries, SizeIs(4));
    for (int m = 0; m < 4; ++m) {
      EXPECT_EQ(all.entries[m].second.statement.signature, sum_of(64 + (k >> m & 1))) << k;
    }
  }
}

// No cut letter is read as a whole one, and none reads beyond its end (ASan).
TEST(ArrivalsTest, ACutLetterIsRefused) {
  const std::vector<std::byte> letters[] = {encode(0, 64, "sum", {1}, 4),
                                            encode(1, 64, "sum", {1}, 4)};
  const size_t first = join_arrivals(absl::MakeSpan(letters).subspan(0, 1)).size();
  const std::vector<std::byte> whole = join_arrivals(letters);
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + size);
    const Read some = read(cut);
    EXPECT_EQ(some.is_whole, size == 0 || size == first) << size;
    EXPECT_EQ(some.entries.size(), size < first ? 0 : 1) << size;
  }
}

TEST(ArrivalsTest, AnEntryWithoutACallNeedsOneBefore) {
  std::vector<std::byte> letter = encode(0, 64, "sum", {}, 0);
  const std::vector<std::byte> letters[] = {letter, letter};
  const size_t first = letter.size();
  const std::vector<std::byte> joined = join_arrivals(letters);
  EXPECT_FALSE(read(absl::MakeSpan(joined).subspan(first)).is_whole);
}

TEST(ArrivalsTest, RandomBytesAreReadWithinTheirEnd) {
  std::mt19937 random(7);
  std::vector<std::byte> good = encode(0, 64, "sum", {1, 2, 3}, 9);
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> bytes = good;
    for (int k = 0; k < 4; ++k) bytes[random() % bytes.size()] = std::byte(random());
    bytes.resize(random() % (bytes.size() + 1));
    EXPECT_LE(read(bytes).entries.size(), 1 + bytes.size());
  }
}

}  // namespace
}  // namespace tessera::span
