// SPDX-License-Identifier: Apache-2.0
//
// Calls as texts, the Status that replicas get, and which tensors travel together.
#include "distribute/call.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "distribute/packs.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera::distribute::internal {
namespace {

using tessera::testing::IsOk;
using tessera::testing::IsOkAndHolds;
using tessera::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CallTest, TextsAreReadAsTheyWereWritten) {
  const Call call = {.text = "all_reduce(sum) \"a\nb\"",
                     .tensors = {{DType::kFloat32, {2, 3}, "[-, model]"}, {DType::kBool, {}, "[]"}},
                     .value = std::string("\0\n;", 3),
                     .error = absl::AbortedError("boom;\n")};
  const std::optional<Call> read = decode_call(encode_call(call));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->text, call.text);
  EXPECT_EQ(read->tensors, call.tensors);
  EXPECT_EQ(read->value, call.value);
  EXPECT_EQ(read->error, call.error);
  for (const char* wrong :
       {"", "a", "a\n\nx\n", "a\n\n0\n\n1;2", "a\n\n0\n\nx;2;[]", "a\n\n0\n\n1;x;[]", "\\q\n\n0\n",
        "a\n\n17\n\n", "a\n\n-1\n\n", "a\n\n0\n\n9;2;[]", "a\n\n0\n\n-1;2;[]", "a\n\n0\n\n263;2;[]",
        "a\n\n0\n\n1;-2;[]"}) {
    EXPECT_FALSE(decode_call(wrong).has_value()) << wrong;
  }
}

TEST(CallTest, DimsCountFromBothEnds) {
  EXPECT_THAT(normal_dims({-1, 0}, 3), IsOkAndHolds(ElementsAre(0, 2)));
  EXPECT_THAT(normal_dims({-1, 0, 2}, 3),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("dim 2 is given twice")));
  EXPECT_THAT(normal_dims({}, 0), IsOkAndHolds(ElementsAre()));
  for (const int64_t wrong : {-3, 2}) {
    EXPECT_THAT(normal_dims({wrong}, 2),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 2")));
  }
  EXPECT_THAT(normal_dims({0}, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 0 has no dim 0")));
}

TEST(CallTest, TheFirstErrorOfAReplicaIsThatOfAll) {
  const std::vector<std::string> names = {"replica 0", "replica 1", "replica 2"};
  const Call fine = {.text = "x", .tensors = {{DType::kFloat32, {2}, "[-]"}}};
  Call failed = {.text = std::string(kReturned), .error = absl::AbortedError("boom")};
  EXPECT_THAT(check_calls({fine, fine, fine}, names, {}), IsOk());
  EXPECT_THAT(check_calls({fine, failed, failed}, names, {}),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("replica 1: boom")));
  Call other = fine;
  other.value = "bits";
  EXPECT_THAT(check_calls({fine, fine, other}, names, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("replica 0 and replica 2 have different values")));
  other = fine;
  other.tensors.push_back(other.tensors[0]);
  EXPECT_THAT(check_calls({fine, fine, other}, names, {.any_tensor = true}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("1 tensors"), HasSubstr("replica 2 has 2"))));
  Call second = fine;
  second.tensors.push_back({DType::kInt32, {}, "[]"});
  other.tensors[1].dtype = DType::kInt64;
  EXPECT_THAT(check_calls({second, second, other}, names, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tensor 1 of i32")));
}

// packs_small, packs_mixed, packs_two, packs_dtypes, packs_all
TEST(PacksTest, Rows) {
  const auto packs = [](const std::vector<int64_t>& bytes, int64_t limit) {
    std::vector<PackItem> items;
    for (const int64_t each : bytes) items.push_back({DType::kFloat32, each});
    return make_packs(items, limit);
  };
  EXPECT_THAT(packs({4, 4, 4}, 4), ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2)));
  EXPECT_THAT(packs({4, 4, 4, 100, 4}, 8),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2), ElementsAre(3), ElementsAre(4)));
  EXPECT_THAT(packs({100, 4}, 8), ElementsAre(ElementsAre(0), ElementsAre(1)));
  EXPECT_THAT(packs({4, 4, 4}, 0), ElementsAre(ElementsAre(0, 1, 2)));
  EXPECT_THAT(packs({}, 0), ElementsAre());
  EXPECT_THAT(make_packs({{DType::kFloat32, 4}, {DType::kInt32, 4}, {DType::kFloat32, 4}}, 0),
              ElementsAre(ElementsAre(0, 2), ElementsAre(1)));
}

}  // namespace
}  // namespace tessera::distribute::internal
