// SPDX-License-Identifier: Apache-2.0
//
// The facts on which members must agree, by kind, and the rest of them where a call is wrong.
#include "collectives/signature.h"

#include <vector>

#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/status.h"
#include "collectives/collective.h"
#include "collectives/counts.h"
#include "collectives/op_kind.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

// The signatures of all members, each from the member's spec.
std::vector<Signature> signatures(int n, const CollectiveSpec& spec) {
  std::vector<Signature> all;
  for (int m = 0; m < n; ++m) all.push_back((*Collective::make({n, m}, spec))->signature());
  return all;
}

TEST(SignatureTest, IsTheSameForAllMembersAndForNoOtherOperation) {
  const Counts counts = Counts::of({3, 5, 0});
  const CollectiveSpec specs[] = {
      {.kind = OpKind::kAllReduce, .count = 8},
      {.kind = OpKind::kAllReduce, .count = 9},
      {.kind = OpKind::kAllReduce, .dtype = DType::kInt32, .count = 8},
      {.kind = OpKind::kAllReduce, .op = ReduceOp::kMax, .count = 8},
      {.kind = OpKind::kReduce, .count = 8},
      {.kind = OpKind::kReduce, .root = 2, .count = 8},
      {.kind = OpKind::kBroadcast, .count = 8},
      {.kind = OpKind::kAllGather, .counts = counts},
      {.kind = OpKind::kAllGather, .counts = Counts::of({5, 3, 0})},
      {.kind = OpKind::kReduceScatter, .counts = counts},
      {.kind = OpKind::kGather, .counts = counts},
      {.kind = OpKind::kScatter, .counts = counts},
      {.kind = OpKind::kScatter, .root = 1, .counts = counts},
      {.kind = OpKind::kBarrier},
  };
  for (const CollectiveSpec& spec : specs) {
    const std::vector<Signature> own = signatures(3, spec);
    for (const Signature& signature : own) EXPECT_EQ(signature, own[0]);
    for (const CollectiveSpec& other : specs) {
      EXPECT_EQ(own[0] == signatures(3, other)[0], &spec == &other)
          << op_kind_name(spec.kind) << " and " << op_kind_name(other.kind);
    }
  }
  // The members must not be asked to agree on counts that each knows for itself alone.
  const CollectiveSpec sends = {.kind = OpKind::kAllToAll,
                                .counts = Counts::of({1, 2}),
                                .received_counts = Counts::of({1, 4})};
  const CollectiveSpec receives = {.kind = OpKind::kAllToAll,
                                   .counts = Counts::of({4, 0}),
                                   .received_counts = Counts::of({2, 0})};
  EXPECT_EQ(signatures(2, sends)[0], signatures(2, receives)[1]);
}

// A member that calls with wrong memory is told what became of the operation that it was for.
TEST(RefusedTest, HasTheErrorAndTheSignatureOfTheOperation) {
  const CollectiveSpec spec = {.kind = OpKind::kReduce, .root = 1, .count = 8};
  const Status error = absl::InvalidArgumentError("out is null");
  const Collective::Ptr refused = Collective::refused({2, 0}, spec, error);
  EXPECT_EQ(refused->error(), error);
  EXPECT_EQ(refused->signature(), (*Collective::make({2, 1}, spec))->signature());
  EXPECT_EQ(refused->most_elements(), 8);

  const CollectiveSpec wrong = {.kind = OpKind::kReduce, .root = 2, .count = 8};
  const Collective::Ptr none = Collective::refused({2, 0}, wrong, error);
  EXPECT_EQ(none->error(), error);
  EXPECT_EQ(none->kind(), OpKind::kReduce);
  EXPECT_EQ(none->signature().count, 8);
  EXPECT_EQ(none->signature().root, 2);
}

}  // namespace
}  // namespace tessera
