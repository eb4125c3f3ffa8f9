// SPDX-License-Identifier: Apache-2.0
//
// ReplicaLoans: when a block goes back to the lender's pool.
#include "collectives/host/replica_loans.h"

#include <cstring>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera::host {
namespace {

class ReplicaLoansTest : public ::testing::Test {
 protected:
  // The bytes of the lender's pool that its loans take.
  bool is_lent() {
    loans_->reclaim();
    return pool_->live_bytes() > 0;
  }

  static constexpr int64_t kBytes = 1000;  // no multiple of a cache line
  std::set<int> dead_;
  std::shared_ptr<ArenaPool> pool_ = ArenaPool::create();
  std::shared_ptr<ReplicaLoans> loans_ =
      std::make_shared<ReplicaLoans>(pool_, [this](int client) { return dead_.count(client) > 0; });
};

TEST_F(ReplicaLoansTest, ABlockComesBackWhenLenderAndHoldersHaveLetGo) {
  constexpr int kHolders = 130;  // more than two words of bits
  TESSERA_ASSERT_OK_AND_ASSIGN(ReplicaLoans::Replica lender,
                               loans_->lend(kBytes, std::vector<int>(kHolders, 1)));
  std::memset(lender.contents, 0xff, kBytes);
  std::vector<ReplicaLoans::Replica> holders;
  for (int i = 0; i < kHolders; ++i) {
    holders.push_back(ReplicaLoans::hold(lender.contents, kBytes, i, pool_));
  }
  lender.owner.reset();
  // In an order that no word of bits has.
  for (int i = 0; i < kHolders; ++i) {
    EXPECT_TRUE(is_lent()) << i;
    holders[i * 7 % kHolders].owner.reset();
  }
  EXPECT_FALSE(is_lent());
}

TEST_F(ReplicaLoansTest, TheLenderMayBeTheLastToLetGo) {
  TESSERA_ASSERT_OK_AND_ASSIGN(ReplicaLoans::Replica lender, loans_->lend(kBytes, {1}));
  ReplicaLoans::hold(lender.contents, kBytes, 0, pool_).owner.reset();
  EXPECT_TRUE(is_lent());
  lender.owner.reset();
  EXPECT_FALSE(is_lent());
}

TEST_F(ReplicaLoansTest, HoldersOfDeadClientsArePassedOver) {
  TESSERA_ASSERT_OK_AND_ASSIGN(ReplicaLoans::Replica lender, loans_->lend(kBytes, {1, 2}));
  const ReplicaLoans::Replica one = ReplicaLoans::hold(lender.contents, kBytes, 0, pool_);
  const ReplicaLoans::Replica two = ReplicaLoans::hold(lender.contents, kBytes, 1, pool_);
  lender.owner.reset();
  dead_ = {1};
  EXPECT_TRUE(is_lent());
  dead_ = {1, 2};
  EXPECT_FALSE(is_lent());
}

TEST_F(ReplicaLoansTest, ABlockThatNobodyHasHeldComesBackWithItsLender) {
  TESSERA_ASSERT_OK_AND_ASSIGN(ReplicaLoans::Replica lender, loans_->lend(kBytes, {1, 2, 3}));
  EXPECT_TRUE(is_lent());
  lender.owner.reset();
  EXPECT_FALSE(is_lent());
}

TEST_F(ReplicaLoansTest, APoolThatIsFullTakesItsLoansBackBeforeItGrows) {
  pool_->set_reclaim([this] {
    loans_->reclaim();
    return 0;
  });
  uint64_t reserved = 0;
  for (int round = 0; round < 50; ++round) {
    TESSERA_ASSERT_OK_AND_ASSIGN(ReplicaLoans::Replica lender, loans_->lend(1 << 20, {1}));
    ReplicaLoans::Replica holder = ReplicaLoans::hold(lender.contents, 1 << 20, 0, pool_);
    lender.owner.reset();
    holder.owner.reset();
    TESSERA_ASSERT_OK_AND_ASSIGN(const ArenaPool::Block block, pool_->allocate(1 << 20));
    if (round == 0) reserved = pool_->reserved_bytes();
  }
  EXPECT_EQ(pool_->reserved_bytes(), reserved);
  pool_->set_reclaim(nullptr);
}

// The two blocks of the class that are released after close() are not handed out again.
TEST_F(ReplicaLoansTest, AfterCloseBlocksThatAreReadAreNotUsedAgain) {
  TESSERA_ASSERT_OK_AND_ASSIGN(ReplicaLoans::Replica early, loans_->lend(kBytes, {1}));
  TESSERA_ASSERT_OK_AND_ASSIGN(ReplicaLoans::Replica late, loans_->lend(kBytes, {1}));
  const ReplicaLoans::Replica holders[] = {ReplicaLoans::hold(early.contents, kBytes, 0, pool_),
                                           ReplicaLoans::hold(late.contents, kBytes, 0, pool_)};
  early.owner.reset();
  EXPECT_TRUE(is_lent());
  loans_->close();
  EXPECT_TRUE(is_lent());
  late.owner.reset();
  EXPECT_FALSE(is_lent());
  for (int i = 0; i < 2; ++i) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const ArenaPool::Block block, pool_->allocate(kBytes + 24));
    EXPECT_NE(block.data(), early.contents);
    EXPECT_NE(block.data(), late.contents);
  }
}

}  // namespace
}  // namespace tessera::host
