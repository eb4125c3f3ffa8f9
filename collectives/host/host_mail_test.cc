// SPDX-License-Identifier: Apache-2.0
//
// HostMail on three clients of one host: letters that are taken, letters that are read, and their
// memory.
#include "collectives/host/host_mail.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/host/op_record.h"
#include "collectives/host/rendezvous.h"
#include "collectives/host/testing/rendezvous_fixture.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "shm/testing/three_clients.h"
#include "tests/support/matchers.h"

namespace tessera::host {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::IsOk;
using From = Rendezvous::From;

constexpr uint32_t kOutboxBytes = 100;
constexpr uint32_t kBulletinBytes = 10;

absl::Span<const std::byte> bytes_of(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
std::string text_of(absl::Span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class HostMailTest : public shm::ThreeClientsTest {
 protected:
  static constexpr int kMembers = 3;

  void SetUp() override {
    shm::ThreeClientsTest::SetUp();
    for (int c = 0; c < kMembers; ++c) open(c);
  }
  void open(int client) {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        Rendezvous opened,
        Rendezvous::open(*links_[client], {{0, 0, 0}, {1, 1, 0}, {2, 2, 0}}, kRecords, /*salt=*/5,
                         {.outbox_bytes = kOutboxBytes, .bulletin_bytes = kBulletinBytes}));
    groups_.push_back(std::make_unique<Rendezvous>(std::move(opened)));
    mail_.push_back(std::make_unique<HostMail>(groups_.back()->records()));
  }
  static Rendezvous::Op op(uint32_t seq, int member) {
    Rendezvous::Op op;
    op.seq = seq;
    op.member = member;
    op.label = &kLabel;
    op.signature = kSum;
    return op;
  }
  void put(uint32_t seq, int member, absl::string_view text) {
    ASSERT_TRUE(mail_[member]->put(seq, member, bytes_of(text)));
  }
  void arrive(uint32_t seq, int member) {
    ASSERT_THAT(groups_[member]->arrive(op(seq, member)), IsOk());
  }
  std::vector<std::string> take(uint32_t seq, int client) {
    std::vector<std::string> texts;
    for (const auto& letter : mail_[client]->take(seq)) texts.push_back(text_of(letter));
    return texts;
  }
  std::string posted(uint32_t seq, int client, size_t from = 0) {
    return text_of(mail_[client]->posted(seq, from));
  }
  void finish(uint32_t seq) {
    for (int m = 0; m < kMembers; ++m) {
      ASSERT_THAT(groups_[m]->finish(seq, 1), IsOk());
      groups_[m]->records().leave(seq, m);
    }
  }

  std::vector<std::unique_ptr<Rendezvous>> groups_;  // by client
  std::vector<std::unique_ptr<HostMail>> mail_;
};

TEST_F(HostMailTest, WhatMembersPutIsTakenOnce) {
  for (int m = 0; m < kMembers; ++m) put(1, m, absl::StrCat("of ", m));
  arrive(1, 0);
  arrive(1, 2);
  // Member 1 has no letter that says it arrives.
  EXPECT_THAT(take(1, 2), ElementsAre("of 0", "of 2"));
  EXPECT_THAT(take(1, 0), IsEmpty());
  arrive(1, 1);
  EXPECT_THAT(take(1, 0), ElementsAre("of 1"));
  EXPECT_THAT(take(1, 1), IsEmpty());
}

// A member that comes after the verdict has not arrived, though its entry has the number.
TEST_F(HostMailTest, NothingIsTakenOfAnOperationWithAVerdict) {
  put(1, 0, "of 0");
  arrive(1, 0);
  const Status lost = absl::UnavailableError("lost");
  EXPECT_EQ(groups_[1]->settle(1, VerdictKind::kError, From::kOpen, lost), lost);
  put(1, 2, "of 2");
  EXPECT_EQ(groups_[2]->arrive(op(1, 2)), lost);
  EXPECT_FALSE(groups_[0]->records().is_missing(1, 2));
  EXPECT_THAT(take(1, 0), IsEmpty());
}

TEST_F(HostMailTest, ALetterThatIsTooLargeIsRefused) {
  // A slot is of whole lines of 64 bytes, the first of which is its head.
  EXPECT_TRUE(mail_[0]->put(1, 0, bytes_of(std::string(128, 'a'))));
  EXPECT_FALSE(mail_[0]->put(1, 0, bytes_of(std::string(129, 'a'))));
}

// Two laps of the records: what an earlier operation of a record has left is not taken, nor read.
TEST_F(HostMailTest, ARecordShowsItsOwnOperationAlone) {
  for (uint32_t seq = 1; seq <= 2 * kRecords; ++seq) {
    EXPECT_EQ(posted(seq, 1), "");
    for (int m = 0; m < kMembers; ++m) {
      ASSERT_TRUE(groups_[m]->records().was_freed(seq));
      // Only the letters of every second operation are taken.
      put(seq, m, absl::StrCat(seq, ".", m));
      arrive(seq, m);
    }
    ASSERT_TRUE(mail_[0]->post(seq, bytes_of(absl::StrCat("#", seq))));
    EXPECT_EQ(posted(seq, 2), absl::StrCat("#", seq));
    if (seq % 2 == 0) {
      EXPECT_THAT(take(seq, 2), ElementsAre(absl::StrCat(seq, ".0"), absl::StrCat(seq, ".1"),
                                            absl::StrCat(seq, ".2")));
    }
    finish(seq);
  }
}

TEST_F(HostMailTest, WhatIsPostedStaysAndGrows) {
  ASSERT_TRUE(mail_[0]->post(1, bytes_of("abc")));
  ASSERT_TRUE(mail_[0]->post(1, bytes_of("def")));
  EXPECT_EQ(posted(1, 1), "abcdef");
  EXPECT_EQ(posted(1, 2, 3), "def");
  EXPECT_EQ(posted(1, 2, 6), "");
  EXPECT_FALSE(mail_[0]->post(1, bytes_of("ghijk")));  // no room
  EXPECT_TRUE(mail_[0]->post(1, bytes_of("ghij")));
  EXPECT_EQ(posted(1, 1), "abcdefghij");
}

// A record that timed out is reused while a member still looks at it.
TEST_F(HostMailTest, NothingIsTakenOfARecordThatIsAnotherOperations) {
  put(1, 0, "old");
  arrive(1, 0);
  const Status late = absl::DeadlineExceededError("late");
  EXPECT_EQ(groups_[1]->settle(1, VerdictKind::kTimedOut, From::kOpen, late), late);
  put(1 + kRecords, 1, "new");
  arrive(1 + kRecords, 1);
  EXPECT_THAT(take(1, 0), IsEmpty());
  EXPECT_THAT(take(1 + kRecords, 1), ElementsAre("new"));
}

// The client that posts was held up: a record that timed out is free for one operation, and still
// describes an earlier one, whose letters come late.
TEST_F(HostMailTest, NothingIsPostedOfAnEarlierOperation) {
  ASSERT_TRUE(mail_[0]->post(1 + kRecords, bytes_of("new")));
  EXPECT_FALSE(mail_[0]->post(1, bytes_of("old")));
  EXPECT_EQ(posted(1 + kRecords, 1), "new");
  EXPECT_EQ(posted(1, 1), "");
}

TEST_F(HostMailTest, PostingWakesThoseThatWaitForIt) {
  for (int m = 0; m < kMembers; ++m) arrive(1, m);
  std::string seen;
  std::thread reader([&] {
    for (size_t from = 0; from < 4;) {
      groups_[1]->wait_for_news(1, absl::InfiniteFuture(),
                                [&] { return mail_[1]->posted(1, from).empty(); });
      seen += posted(1, 1, from);
      from = seen.size();
    }
  });
  for (const char* text : {"a", "b", "c", "d"}) ASSERT_TRUE(mail_[0]->post(1, bytes_of(text)));
  reader.join();
  EXPECT_EQ(seen, "abcd");
}

TEST_F(HostMailTest, AVerdictEndsTheWait) {
  arrive(1, 0);
  std::thread settler([&] {
    groups_[1]
        ->settle(1, VerdictKind::kError, From::kOpen, absl::UnavailableError("lost"))
        .IgnoreError();
  });
  groups_[0]->wait_for_news(1, absl::InfiniteFuture(), [] { return true; });
  settler.join();
  EXPECT_TRUE(groups_[0]->records().has_result(1));
}

// A new group reuses the memory of a dropped group, with all its words.
TEST_F(HostMailTest, ANewGroupInOldMemoryHasNoMail) {
  put(1, 0, "old");
  arrive(1, 0);
  ASSERT_TRUE(mail_[0]->post(1, bytes_of("old")));
  mail_.clear();
  groups_.clear();
  for (int c = 0; c < kMembers; ++c) open(c);
  EXPECT_EQ(posted(1, 1), "");
  arrive(1, 0);
  EXPECT_THAT(take(1, 0), IsEmpty());
}

}  // namespace
}  // namespace tessera::host
