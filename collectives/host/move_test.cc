// SPDX-License-Identifier: Apache-2.0
//
// Collective::bytes_written() against the bytes that move_bytes did write, for every kind.
#include "collectives/host/move.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/reduce_op.h"
#include "collectives/call.h"
#include "collectives/counts.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera::host {
namespace {

using testing::IsOk;

constexpr int kNumMembers = 4;
constexpr int64_t kCount = 10;

// What member `position` asks for; elements of one byte, parts of unequal size.
CollectiveCall call_of(OpKind kind, int position) {
  CollectiveCall call;
  call.kind = kind;
  call.dtype = DType::kUint8;
  call.reduction = ReduceOp::kMax;
  call.root = 1;
  call.count = kind == OpKind::kAllToAll ? 0 : kCount;
  call.recv_counts = Counts::equal(kNumMembers, 1);
  call.counts = kind == OpKind::kAllToAll ? call.recv_counts : Counts::of({3, 5, 0, 2});
  // Each member holds a row of 10 columns; a member pulls 2 columns of all rows, or reduces 3.
  std::vector<BoxPull> pulls;
  for (int64_t row = 0; row < kNumMembers; ++row) {
    const Box held = kind == OpKind::kReduceBoxes ? Box{{0}, {kCount}} : Box{{row, 0}, {1, kCount}};
    pulls.push_back({static_cast<int>(row), held, {{row, 2 * position}, {1, 2}}});
  }
  call.pulls = std::move(pulls);
  call.in_box = call.pulls[position].source_box;
  call.out_box = Box{{0, 2 * position}, {kNumMembers, 2}};
  if (kind == OpKind::kReduceBoxes) call.out_box = Box{{position}, {3}};
  prepare(call, {kind == OpKind::kSendRecv ? 2 : kNumMembers, position});
  EXPECT_THAT(call.error, IsOk());
  return call;
}

struct Moved {
  int64_t written = 0;
  std::vector<int64_t> said;  // by each member
};

// All parts of a call, one after the other, on inputs of ones and outputs of other bytes.
Moved move(OpKind kind) {
  const int num_members = kind == OpKind::kSendRecv ? 2 : kNumMembers;
  std::vector<std::byte> in(64, std::byte{1});
  const std::vector<int64_t> all_to_all_counts(2 * kNumMembers, 1);
  std::vector<std::vector<std::byte>> outs(num_members, std::vector<std::byte>(64, std::byte{9}));
  std::vector<MemberMemory> members;
  for (int position = 0; position < num_members; ++position) {
    const int64_t in_count = call_of(kind, position).collective->in_count().value_or(kCount);
    members.push_back({in.data(), in_count, outs[position].data(), all_to_all_counts.data()});
  }
  Moved moved;
  for (int position = 0; position < num_members; ++position) {
    // Only the receiver of a message has a part.
    if (kind == OpKind::kSendRecv && position == 0) continue;
    const CollectiveCall call = call_of(kind, position);
    EXPECT_THAT(move_bytes(*call.collective, members), IsOk());
    moved.said.push_back(call.collective->bytes_written());
  }
  for (const std::vector<std::byte>& out : outs) {
    moved.written += std::count(out.begin(), out.end(), std::byte{1});
  }
  return moved;
}

TEST(MoveTest, BytesWrittenIsWhatAllMembersWriteTogether) {
  for (int k = 0; k < kNumOpKinds; ++k) {
    const auto kind = static_cast<OpKind>(k);
    // Each member of a barrier reduces the word that it alone reads.
    if (kind == OpKind::kBarrier) continue;
    const Moved moved = move(kind);
    EXPECT_GT(moved.written, 0) << op_kind_name(kind);
    for (const int64_t said : moved.said) EXPECT_EQ(said, moved.written) << op_kind_name(kind);
  }
}

TEST(MoveTest, AllToAllOfEqualPartsLooksAtNoCountsOfPeers) {
  CollectiveCall call;
  call.kind = OpKind::kAllToAll;
  call.dtype = DType::kUint8;
  call.count = 8;
  call.counts = call.recv_counts = Counts::equal(kNumMembers, 2);
  std::vector<std::vector<std::byte>> ins, outs(kNumMembers, std::vector<std::byte>(8));
  std::vector<MemberMemory> members;
  for (int m = 0; m < kNumMembers; ++m) {
    std::vector<std::byte>& in = ins.emplace_back();
    for (int i = 0; i < 8; ++i) in.push_back(static_cast<std::byte>(10 * m + i));
    members.push_back({in.data(), 8, outs[m].data()});
  }
  for (int m = 0; m < kNumMembers; ++m) {
    call.collective = nullptr;
    prepare(call, {kNumMembers, m});
    EXPECT_THAT(move_bytes(*call.collective, members), IsOk());
    EXPECT_EQ(call.collective->bytes_written(), 8 * kNumMembers);
    for (int i = 0; i < 8; ++i) {
      EXPECT_EQ(outs[m][i], static_cast<std::byte>(10 * (i / 2) + 2 * m + i % 2));
    }
  }
}

TEST(BoxPullsTest, CopiesShareMemory) {
  EXPECT_EQ(BoxPulls().size(), 0u);
  EXPECT_EQ(BoxPulls().begin(), BoxPulls().end());
  const BoxPulls first = std::vector<BoxPull>{{0, {{0}, {2}}, {{1}, {1}}}};
  const BoxPulls second = first;
  EXPECT_EQ(second.data(), first.data());
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].source, 0);
}

}  // namespace
}  // namespace tessera::host
