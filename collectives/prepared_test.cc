// SPDX-License-Identifier: Apache-2.0
//
// What is found of earlier calls, what is not, and how much is kept.
#include "collectives/prepared.h"

#include <cstdint>
#include <thread>
#include <vector>

#include "collectives/call.h"
#include "collectives/collective.h"
#include "collectives/counts.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using testing::IsOk;

constexpr GroupPlace kPlace = {.num_members = 4, .position = 1};

CollectiveCall all_reduce(int64_t count) {
  CollectiveCall call;
  call.kind = OpKind::kAllReduce;
  call.dtype = DType::kFloat32;
  call.count = count;
  return call;
}
CollectiveCall gather(const Counts& counts) {
  CollectiveCall call;
  call.kind = OpKind::kGather;
  call.dtype = DType::kFloat32;
  call.counts = counts;
  return call;
}

// Prepares and keeps it.
Collective::Ptr start(PreparedCollectives& prepared, CollectiveCall call,
                      GroupPlace place = kPlace) {
  prepare(call, place);
  EXPECT_THAT(call.error, IsOk());
  prepared.keep(call);
  return call.collective;
}

TEST(PreparedTest, FindsTheSameOperationAlone) {
  PreparedCollectives prepared;
  EXPECT_EQ(prepared.find(all_reduce(8), kPlace), nullptr);
  const Collective::Ptr first = start(prepared, all_reduce(8));
  const Collective::Ptr unequal = start(prepared, gather(Counts::of({1, 2, 3, 4})));
  EXPECT_EQ(prepared.find(all_reduce(8), kPlace), first);
  EXPECT_EQ(prepared.find(gather(Counts::of({1, 2, 3, 4})), kPlace), unequal);

  EXPECT_EQ(prepared.find(all_reduce(9), kPlace), nullptr);
  EXPECT_EQ(prepared.find(all_reduce(8), {.num_members = 4, .position = 2}), nullptr);
  EXPECT_EQ(prepared.find(gather(Counts::of({1, 2, 4, 3})), kPlace), nullptr);
  CollectiveCall other = all_reduce(8);
  other.dtype = DType::kInt32;
  EXPECT_EQ(prepared.find(other, kPlace), nullptr);
  other = all_reduce(8);
  other.reduction = ReduceOp::kMax;
  EXPECT_EQ(prepared.find(other, kPlace), nullptr);
  other = gather(Counts::of({1, 2, 3, 4}));
  other.root = 3;
  EXPECT_EQ(prepared.find(other, kPlace), nullptr);
  // An all-reduce whose members share one output writes elsewhere.
  other = all_reduce(8);
  other.replicas = {0, 1, 2, 3};
  EXPECT_EQ(prepared.find(other, kPlace), nullptr);
}

// Parts that are equal by the word of all members need no counts of peers.
TEST(PreparedTest, TellsEqualPartsFromPartsThatHappenToBeEqual) {
  PreparedCollectives prepared;
  CollectiveCall call;
  call.kind = OpKind::kAllToAll;
  call.counts = call.recv_counts = Counts::equal(4, 2);
  const Collective::Ptr by_counts = start(prepared, call);
  call.count = 8;
  EXPECT_EQ(prepared.find(call, kPlace), nullptr);
  const Collective::Ptr by_count = start(prepared, call);
  EXPECT_EQ(prepared.find(call, kPlace), by_count);
  call.count = 0;
  EXPECT_EQ(prepared.find(call, kPlace), by_counts);
}

TEST(PreparedTest, KeepsAFewOfBoundedSize) {
  PreparedCollectives prepared;
  for (int64_t count = 1; count <= 5; ++count) start(prepared, all_reduce(count));
  EXPECT_EQ(prepared.find(all_reduce(1), kPlace), nullptr);
  EXPECT_NE(prepared.find(all_reduce(2), kPlace), nullptr);
  EXPECT_NE(prepared.find(all_reduce(5), kPlace), nullptr);

  const GroupPlace of_many = {.num_members = 65, .position = 0};
  start(prepared, all_reduce(8), of_many);
  EXPECT_EQ(prepared.find(all_reduce(8), of_many), nullptr);
  CollectiveCall boxes;
  boxes.kind = OpKind::kExchange;
  start(prepared, boxes);
  EXPECT_EQ(prepared.find(boxes, kPlace), nullptr);
}

// Whatever a thread finds is the operation that it asked for.
TEST(PreparedTest, ThreadsShareIt) {
  PreparedCollectives prepared;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&prepared, t] {
      for (int64_t i = 0; i < 2000; ++i) {
        const CollectiveCall call = all_reduce((i + t) % 6);
        const Collective::Ptr found = prepared.find(call, kPlace);
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
