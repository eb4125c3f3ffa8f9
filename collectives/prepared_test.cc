// SPDX-License-Identifier: Apache-2.0
//
// Which earlier calls are found, which are not, and how many are kept.
#include "collectives/prepared.h"

#include <cstdint>
#include <thread>
#include <vector>

#include "collectives/collective.h"
#include "collectives/counts.h"
#include "collectives/op_kind.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using testing::IsOk;

constexpr GroupPlace kPlace = {.num_members = 4, .position = 1};

CollectiveSpec all_reduce(int64_t count) {
  return {.kind = OpKind::kAllReduce, .dtype = DType::kFloat32, .count = count};
}
CollectiveSpec gather(const Counts& counts) {
  return {.kind = OpKind::kGather, .dtype = DType::kFloat32, .counts = counts};
}

// Makes and keeps it.
Collective::Ptr start(PreparedCollectives& prepared, const CollectiveSpec& spec,
                      GroupPlace place = kPlace) {
  const StatusOr<Collective::Ptr> made = Collective::make(place, spec);
  EXPECT_THAT(made.status(), IsOk());
  prepared.keep(*made);
  return *made;
}

TEST(PreparedTest, FindsTheSameOperationAlone) {
  PreparedCollectives prepared;
  EXPECT_EQ(prepared.find(kPlace, all_reduce(8)), nullptr);
  const Collective::Ptr first = start(prepared, all_reduce(8));
  const Collective::Ptr unequal = start(prepared, gather(Counts::of({1, 2, 3, 4})));
  EXPECT_EQ(prepared.find(kPlace, all_reduce(8)), first);
  EXPECT_EQ(prepared.find(kPlace, gather(Counts::of({1, 2, 3, 4}))), unequal);

  EXPECT_EQ(prepared.find(kPlace, all_reduce(9)), nullptr);
  EXPECT_EQ(prepared.find({.num_members = 4, .position = 2}, all_reduce(8)), nullptr);
  EXPECT_EQ(prepared.find(kPlace, gather(Counts::of({1, 2, 4, 3}))), nullptr);
  CollectiveSpec other = all_reduce(8);
  other.dtype = DType::kInt32;
  EXPECT_EQ(prepared.find(kPlace, other), nullptr);
  other = all_reduce(8);
  other.op = ReduceOp::kMax;
  EXPECT_EQ(prepared.find(kPlace, other), nullptr);
  other = gather(Counts::of({1, 2, 3, 4}));
  other.root = 3;
  EXPECT_EQ(prepared.find(kPlace, other), nullptr);
  // An all-reduce whose members share one output writes elsewhere.
  prepared.keep(*Collective::make(kPlace, {.kind = OpKind::kAllReduce,
                                           .dtype = DType::kFloat32,
                                           .count = 7,
                                           .replicas = {0, 1, 2, 3}}));
  EXPECT_EQ(prepared.find(kPlace, all_reduce(7)), nullptr);
}

// Messages of equal size to different members are different operations.
TEST(PreparedTest, TellsTheEndsOfMessagesApart) {
  constexpr GroupPlace kSender = {.num_members = 2, .position = 0};
  PreparedCollectives prepared;
  CollectiveSpec message = {.kind = OpKind::kSendRecv, .count = 8, .ends = {1, 2}};
  const Collective::Ptr to_2 = start(prepared, message, kSender);
  EXPECT_EQ(prepared.find(kSender, message), to_2);
  message.ends = {.sender = 1, .receiver = 3};
  EXPECT_EQ(prepared.find(kSender, message), nullptr);
}

// Parts that are equal by the word of all members need no counts of peers.
TEST(PreparedTest, TellsEqualPartsFromPartsThatHappenToBeEqual) {
  PreparedCollectives prepared;
  const Counts twos = Counts::equal(4, 2);
  CollectiveSpec call = {.kind = OpKind::kAllToAll, .counts = twos, .received_counts = twos};
  const Collective::Ptr by_counts = start(prepared, call);
  call.count = 8;
  EXPECT_EQ(prepared.find(kPlace, call), nullptr);
  const Collective::Ptr by_count = start(prepared, call);
  EXPECT_EQ(prepared.find(kPlace, call), by_count);
  call.count = 0;
  EXPECT_EQ(prepared.find(kPlace, call), by_counts);
}

TEST(PreparedTest, KeepsAFewOfBoundedSize) {
  PreparedCollectives prepared;
  for (int64_t count = 1; count <= 5; ++count) start(prepared, all_reduce(count));
  EXPECT_EQ(prepared.find(kPlace, all_reduce(1)), nullptr);
  EXPECT_NE(prepared.find(kPlace, all_reduce(2)), nullptr);
  EXPECT_NE(prepared.find(kPlace, all_reduce(5)), nullptr);

  const GroupPlace of_many = {.num_members = 65, .position = 0};
  start(prepared, all_reduce(8), of_many);
  EXPECT_EQ(prepared.find(of_many, all_reduce(8)), nullptr);
  const BoxExchange none;
  const CollectiveSpec boxes = {.kind = OpKind::kExchange, .boxes = &none};
  start(prepared, boxes);
  EXPECT_EQ(prepared.find(kPlace, boxes), nullptr);
}

// Whatever a thread finds is the operation that it asked for.
TEST(PreparedTest, ThreadsShareIt) {
  PreparedCollectives prepared;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&prepared, t] {
      for (int64_t i = 0; i < 2000; ++i) {
        const CollectiveSpec call = all_reduce((i + t) % 6);
        const Collective::Ptr found = prepared.find(kPlace, call);
        if (found == nullptr) {
          start(prepared, call);
        } else {
          EXPECT_EQ(found->count(), call.count);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tessera
