// SPDX-License-Identifier: Apache-2.0
//
// Collective::bytes_written() against the bytes that move_bytes did write, for every kind; and what
// a fill writes, for every reduction of every dtype.
#include "collectives/move.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "Eigen/Core"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "collectives/collective.h"
#include "collectives/counts.h"
#include "device/cpu/kernels.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using testing::IsOk;

constexpr int kNumMembers = 4;
constexpr int64_t kCount = 10;

// The Collective of member `position`; elements of one byte, parts of unequal size.
Collective::Ptr collective_of(OpKind kind, int position) {
  // Each member holds a row of 10 columns; a member pulls 2 columns of all rows, or reduces 3.
  std::vector<BoxPull> pulls;
  for (int64_t row = 0; row < kNumMembers; ++row) {
    const Box held = kind == OpKind::kReduceBoxes ? Box{{0}, {kCount}} : Box{{row, 0}, {1, kCount}};
    pulls.push_back({static_cast<int>(row), held, {{row, 2 * position}, {1, 2}}});
  }
  BoxExchange boxes = {pulls[position].source_box, Box{{0, 2 * position}, {kNumMembers, 2}}, pulls};
  if (kind == OpKind::kReduceBoxes) boxes.out_box = Box{{position}, {3}};
  const Counts ones = Counts::equal(kNumMembers, 1);
  const CollectiveSpec spec = {
      .kind = kind,
      .dtype = DType::kUint8,
      .op = ReduceOp::kMax,
      .root = 1,
      .count = kind == OpKind::kAllToAll ? 0 : kCount,
      .counts = kind == OpKind::kAllToAll ? ones : Counts::of({3, 5, 0, 2}),
      .received_counts = ones,
      .boxes = &boxes};
  const StatusOr<Collective::Ptr> made =
      Collective::make({kind == OpKind::kSendRecv ? 2 : kNumMembers, position}, spec);
  EXPECT_THAT(made.status(), IsOk());
  return *made;
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
    const int64_t in_count = collective_of(kind, position)->in_count().value_or(kCount);
    members.push_back({in.data(), in_count, outs[position].data(), all_to_all_counts.data()});
  }
  Moved moved;
  for (int position = 0; position < num_members; ++position) {
    // Only the receiver of a message has a part.
    if (kind == OpKind::kSendRecv && position == 0) continue;
    const Collective::Ptr collective = collective_of(kind, position);
    EXPECT_THAT(move_bytes(*collective, members), IsOk());
    moved.said.push_back(collective->bytes_written());
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
  std::vector<std::vector<std::byte>> ins, outs(kNumMembers, std::vector<std::byte>(8));
  std::vector<MemberMemory> members;
  for (int m = 0; m < kNumMembers; ++m) {
    std::vector<std::byte>& in = ins.emplace_back();
    for (int i = 0; i < 8; ++i) in.push_back(static_cast<std::byte>(10 * m + i));
    members.push_back({in.data(), 8, outs[m].data()});
  }
  for (int m = 0; m < kNumMembers; ++m) {
    const Counts twos = Counts::equal(kNumMembers, 2);
    const Collective::Ptr collective = *Collective::make(
        {kNumMembers, m},
        {.kind = OpKind::kAllToAll, .count = 8, .counts = twos, .received_counts = twos});
    EXPECT_THAT(move_bytes(*collective, members), IsOk());
    EXPECT_EQ(collective->bytes_written(), 8 * kNumMembers);
    for (int i = 0; i < 8; ++i) {
      EXPECT_EQ(outs[m][i], static_cast<std::byte>(10 * (i / 2) + 2 * m + i % 2));
    }
  }
}

// Elements 0 to 5, of which 2 and 3 are pulled from the input.
template <class T>
void expect_filled(DType dtype, ReduceOp op) {
  const Box pulled = {{2}, {2}};
  BoxExchange boxes = {
      .in_box = pulled, .out_box = {{0}, {6}}, .pulls = {{{0, pulled, pulled}}}, .fill = op};
  const Collective::Ptr collective =
      *Collective::make({}, {.kind = OpKind::kExchange, .dtype = dtype, .boxes = &boxes});
  const std::array<T, 2> in = {T(0), T(1)};
  std::array<T, 6> out = {T(1), T(1), T(1), T(1), T(1), T(1)};
  const MemberMemory own = {.in = reinterpret_cast<const std::byte*>(in.data()),
                            .in_count = 2,
                            .out = reinterpret_cast<std::byte*>(out.data())};
  ASSERT_THAT(move_bytes(*collective, absl::MakeConstSpan(&own, 1)), IsOk());
  for (const int i : {0, 1, 4, 5}) {
    // The terms of an average are added before they are divided.
    const ReduceOp adds = op == ReduceOp::kAvg ? ReduceOp::kSum : op;
    for (const T value : in) {
      T result;
      const std::byte* const terms[] = {reinterpret_cast<const std::byte*>(&out[i]),
                                        reinterpret_cast<const std::byte*>(&value)};
      std::byte* const to = reinterpret_cast<std::byte*>(&result);
      cpu::reduce(dtype, adds, terms, absl::MakeConstSpan(&to, 1), 1);
      EXPECT_EQ(result, value) << reduce_op_name(op) << " of " << dtype_name(dtype);
    }
  }
  EXPECT_EQ(out[2], in[0]);
  EXPECT_EQ(out[3], in[1]);
}

TEST(MoveTest, AFillIsTheIdentityOfTheReductionWhereNothingIsPulled) {
  int num_pairs = 0;
  for (int i = 0; i < kNumReduceOps; ++i) {
    for (int j = 0; j < kNumDTypes; ++j) {
      const auto op = static_cast<ReduceOp>(i);
      const auto dtype = static_cast<DType>(j);
      if (!validate_reduction(op, dtype).ok()) continue;
      visit_dtype(dtype, [&]<class T>() { expect_filled<T>(dtype, op); });
      ++num_pairs;
    }
  }
  EXPECT_GT(num_pairs, 4 * (kNumDTypes - 1));
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
}  // namespace tessera
