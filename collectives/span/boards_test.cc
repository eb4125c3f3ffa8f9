// SPDX-License-Identifier: Apache-2.0
//
// Boards of runs that are finished, skipped and failed, also where the numbers begin again.
#include "collectives/span/boards.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera::span {
namespace {

using ::testing::ElementsAre;

Signature call_of(int64_t count) {
  Signature call = {};
  call.count = count;
  return call;
}

Board::Entry entry_of(int64_t count, const Status& error = absl::OkStatus()) {
  Board::Entry entry;
  entry.statement.signature = call_of(count);
  entry.error = error;
  return entry;
}

std::vector<uint32_t> numbers_of_failures(const Boards& boards) {
  std::vector<uint32_t> numbers;
  for (const Boards::Failed& failed : boards.failures()) numbers.push_back(failed.seq);
  return numbers;
}

TEST(BoardTest, ComparesEachEntryWhenItComes) {
  Board board;
  board.note_call(call_of(64));
  board.note_entry(2, entry_of(64));
  EXPECT_FALSE(board.has_differences);
  board.note_entry(3, entry_of(65));
  EXPECT_TRUE(board.has_differences);
  EXPECT_FALSE(board.has_errors);
  board.note_entry(4, entry_of(64, absl::InternalError("no memory")));
  EXPECT_TRUE(board.has_errors);
}

// It may come twice: from a client of the other host, and from the client that posts for this one.
TEST(BoardTest, TheFirstEntryOfAMemberStays) {
  Board board;
  Board::Entry entry = entry_of(64);
  entry.inlined.resize(4);
  board.note_entry(2, entry);
  const std::byte* const read = board.entries.at(2).inlined.data();
  board.note_entry(2, entry);
  EXPECT_EQ(board.entries.at(2).inlined.data(), read);
}

TEST(BoardTest, ForgetsWhatDroppedEntriesHaveSaid) {
  Board board;
  Board::Entry dropped = entry_of(64, absl::InternalError("no memory"));
  dropped.sender = 7;
  board.note_entry(2, std::move(dropped));
  board.note_entry(3, entry_of(65));
  EXPECT_FALSE(board.drop_entries_of(8));
  EXPECT_TRUE(board.has_differences);
  EXPECT_TRUE(board.drop_entries_of(7));
  EXPECT_EQ(board.entries.size(), 1);
  EXPECT_FALSE(board.has_differences);
  EXPECT_FALSE(board.has_errors);
  board.note_entry(2, entry_of(65));
  EXPECT_FALSE(board.has_differences);
}

// A run is over when all members of the client have retired it, as they run it or skip its number.
TEST(BoardsTest, OfARunThatIsOverThereIsNone) {
  Boards boards(2);
  for (const uint32_t seq : {1, 2, 3}) {
    boards.at(seq);
    boards.retire(seq);
    EXPECT_FALSE(boards.is_over(seq)) << seq;
    EXPECT_EQ(boards.num_boards(), 1) << seq;
    boards.retire(seq);
    EXPECT_TRUE(boards.is_over(seq)) << seq;
    EXPECT_EQ(boards.num_boards(), 0) << seq;
  }
  EXPECT_FALSE(boards.is_over(4));
}

TEST(BoardsTest, NumbersBeginAgain) {
  Boards boards(1);
  for (const uint32_t seq : {UINT32_MAX - 1, UINT32_MAX, uint32_t{1}, uint32_t{2}}) {
    EXPECT_FALSE(boards.is_over(seq)) << seq;
    boards.retire(seq);
    EXPECT_TRUE(boards.is_over(seq)) << seq;
  }
  EXPECT_TRUE(boards.is_over(UINT32_MAX));
  EXPECT_EQ(boards.num_boards(), 0);
}

// The oldest failures go first, also where their numbers are the largest.
TEST(BoardsTest, KeepsTheLastFailures) {
  Boards boards(1);
  const uint32_t first = UINT32_MAX - 1;
  boards.keep_failure(first, call_of(1), absl::InternalError("first"));
  uint32_t seq = 0;
  for (size_t i = 0; i < Boards::kMostFailed; ++i) {
    ++seq;
    boards.keep_failure(seq, call_of(1), absl::InternalError(absl::StrCat(seq)));
    ASSERT_NE(boards.find_failure(seq), nullptr) << seq;
  }
  EXPECT_EQ(boards.find_failure(first), nullptr);
  EXPECT_NE(boards.find_failure(1), nullptr);
  EXPECT_EQ(boards.failures().size(), Boards::kMostFailed);
}

TEST(BoardsTest, TheFirstVerdictOfARunStays) {
  Boards boards(1);
  boards.keep_failure(7, call_of(1), absl::UnavailableError("lost"));
  boards.keep_failure(7, call_of(2), absl::InternalError("later"));
  EXPECT_EQ(boards.find_failure(7)->verdict, absl::UnavailableError("lost"));
  EXPECT_TRUE(boards.find_failure(7)->is_of(call_of(1)));
  EXPECT_FALSE(boards.find_failure(7)->is_of(call_of(2)));
}

// A failure must not be met again when its number comes again.
TEST(BoardsTest, ForgetsFailuresOfLongAgo) {
  Boards boards(1);
  boards.keep_failure(5, call_of(1), absl::InternalError("old"));
  boards.retire(5);
  boards.keep_failure(1'000'000, call_of(1), absl::InternalError("new"));
  boards.retire(1'000'000);
  EXPECT_THAT(numbers_of_failures(boards), ElementsAre(5, 1'000'000));
  boards.retire(2'000'000);
  EXPECT_THAT(numbers_of_failures(boards), ElementsAre(1'000'000));
  // A verdict of a run that has not begun here is not old.
  boards.keep_failure(2'000'001, call_of(1), absl::InternalError("coming"));
  boards.retire(2'000'000);
  EXPECT_THAT(numbers_of_failures(boards), ElementsAre(1'000'000, 2'000'001));
}

}  // namespace
}  // namespace tessera::span
