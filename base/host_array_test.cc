// SPDX-License-Identifier: Apache-2.0
//
// HostArray: views, and validate() on arrays that are not valid.
#include "base/host_array.h"

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::StatusIs;
using ::testing::ThrowsMessage;

TEST(HostArrayTest, HoldsTheValuesThatItIsMadeOf) {
  const std::vector<int32_t> values = {1, 2, 3, 4, 5, 6};
  HostArray array = HostArray::of<int32_t>(values, {2, 3});
  EXPECT_THAT(array.validate(), IsOk());
  EXPECT_THAT(array.view<int32_t>(), ElementsAre(1, 2, 3, 4, 5, 6));
  array.view<int32_t>()[1] = 7;
  EXPECT_THAT(static_cast<const HostArray&>(array).view<int32_t>(), ElementsAre(1, 7, 3, 4, 5, 6));
  EXPECT_FALSE(array == HostArray::of<int32_t>(values, {2, 3}));
}

TEST(HostArrayTest, AScalarHasNoDims) {
  const HostArray array = HostArray::scalar(2.5);
  EXPECT_THAT(array.validate(), IsOk());
  EXPECT_THAT(array.shape, IsEmpty());
  EXPECT_THAT(array.view<double>(), ElementsAre(2.5));
}

TEST(HostArrayTest, RefusesAViewOfAnotherType) {
  HostArray array = HostArray::of<float>(std::vector<float>(6), {2, 3});
  const auto refused = ThrowsMessage<std::invalid_argument>(
      "an array f32 [2, 3] was viewed as i64; view it as its own dtype");
  EXPECT_THAT([&] { array.view<int64_t>(); }, refused);
  EXPECT_THAT([&] { static_cast<const HostArray&>(array).view<int64_t>(); }, refused);
}

struct InvalidCase {
  const char* name;
  HostArray array;
  const char* message;
};

TEST(HostArrayTest, SaysWhatIsInvalid) {
  const InvalidCase cases[] = {
      {"default_is_empty",
       {.dtype = DType::kFloat32, .shape = {1}, .bytes = {}},
       "an array f32 [1] needs 4 bytes, and has 0"},
      {"too_long",
       {.dtype = DType::kUint8, .shape = {2}, .bytes = std::vector<std::byte>(3)},
       "an array u8 [2] needs 2 bytes, and has 3"},
      {"negative", {.dtype = DType::kUint8, .shape = {-1}, .bytes = {}}, "-1"},
      {"no_dtype", {.dtype = static_cast<DType>(99), .shape = {}, .bytes = {}}, "DType(99)"},
  };
  for (const InvalidCase& row : cases) {
    SCOPED_TRACE(row.name);
    EXPECT_THAT(row.array.validate(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(row.message)));
  }
  EXPECT_THAT(HostArray().validate(), IsOk());
}

}  // namespace
}  // namespace tessera
