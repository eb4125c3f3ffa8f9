// SPDX-License-Identifier: Apache-2.0
//
// Partitioners against a table of facts, and against every smaller and larger number of shards.
#include "servers/partitioner.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "servers/shard_rows.h"
#include "tests/support/matchers.h"

namespace tessera::distribute {
namespace {

using ::tessera::testing::IsOk;
using ::tessera::testing::IsOkAndHolds;
using ::tessera::testing::StatusIs;
using ::testing::HasSubstr;

struct RowsCase {
  const char* name;
  Partitioner partitioner;
  Shape shape;
  std::vector<int64_t> rows;  // of f32
};

// Rows of tests/facts/parameter_servers.md.
const RowsCase kRowsCases[] = {
    {"fixed_5_3", fixed_shards(3), {5, 2}, {2, 2, 1}},
    {"fixed_7_3", fixed_shards(3), {7, 3}, {3, 2, 2}},
    {"fixed_13_5", fixed_shards(5), {13, 1}, {3, 3, 2, 3, 2}},
    {"fixed_2_3", fixed_shards(3), {2, 2}, {1, 1}},
    {"fixed_3_3", fixed_shards(3), {3}, {1, 1, 1}},
    {"fixed_one_row", fixed_shards(3), {1, 4}, {1}},
    {"partition_scalar", fixed_shards(3), {}, {1}},
    {"partition_scalar_min_size", min_size(1, 4), {}, {1}},
    {"partition_scalar_max_size", max_size(1), {}, {1}},
    {"no_elements", max_size(1), {4, 0}, {4}},
    {"no_rows", fixed_shards(3), {0, 2}, {0}},
    {"not_partitioned", {}, {5, 2}, {5}},
    {"min_small", min_size(262144, 4), {7, 3}, {7}},
    {"min_large", min_size(262144, 4), {100, 1000}, {100}},
    {"min_16", min_size(16, 4), {13, 1}, {5, 4, 4}},
    {"min_tiny", min_size(16, 4), {2, 2}, {2}},
    {"min_is_one_shard_by_default", min_size(), {1 << 20, 4}, {1 << 20}},
    {"max_16", max_size(16), {7, 3}, {1, 1, 1, 1, 1, 1, 1}},
    {"max_16_column", max_size(16), {13, 1}, {4, 3, 3, 3}},
    {"max_40", max_size(40), {7, 3}, {3, 2, 2}},
    {"max_24_of_3", max_size(24, 3), {100, 1000}, {34, 33, 33}},
    {"max_row_too_large", max_size(40), {100, 1000}, std::vector<int64_t>(100, 1)},
};

TEST(PartitionerTest, CutsDim0) {
  for (const RowsCase& c : kRowsCases) {
    SCOPED_TRACE(c.name);
    EXPECT_THAT(internal::validate(c.partitioner), IsOk());
    EXPECT_THAT(internal::shard_rows(c.partitioner, c.shape, DType::kFloat32, 2),
                IsOkAndHolds(c.rows));
  }
}

// For every size up to 40 rows and every limit up to 50 bytes no shard breaks the limit, and one
// more shard (or one less) would.
TEST(PartitionerTest, SizesAreTheBestThatThereAre) {
  int checked = 0;
  for (int64_t rows = 1; rows <= 40; ++rows) {
    for (int64_t limit = 1; limit <= 50; ++limit, ++checked) {
      const auto sizes = [&](int num_shards) {
        std::vector<int64_t> bytes;
        const StatusOr<std::vector<int64_t>> shards =
            internal::shard_rows(fixed_shards(num_shards), {rows, 3}, DType::kUint8, 2);
        for (const int64_t size : *shards) bytes.push_back(3 * size);
        return bytes;
      };
      const auto most = [&](int n) { return std::ranges::max(sizes(n)); };
      const auto least = [&](int n) { return std::ranges::min(sizes(n)); };
      const int num_max = max_size(limit)({rows, 3}, DType::kUint8, 2);
      EXPECT_TRUE(most(num_max) <= limit || num_max == rows) << rows << " " << limit;
      if (num_max > 1) {
        EXPECT_GT(most(num_max - 1), limit) << rows << " " << limit;
      }
      const int num_min = min_size(limit, 1000)({rows, 3}, DType::kUint8, 2);
      EXPECT_TRUE(least(num_min) >= limit || num_min == 1) << rows << " " << limit;
      if (num_min < rows) {
        EXPECT_LT(least(num_min + 1), limit) << rows << " " << limit;
      }
    }
  }
  EXPECT_EQ(checked, 2000);
}

struct RefusedCase {
  const char* name;
  Partitioner partitioner;
  const char* message;
};

const RefusedCase kRefusedCases[] = {
    {"partitioner_zero", fixed_shards(0), "the partitioner is fixed_shards(0); give 1 shard or"},
    {"partitioner_zero_min_size", min_size(0), "min_size(0, 1); give 1 byte or more"},
    {"partitioner_zero_max_size", max_size(0), "max_size(0); give 1 byte or more"},
    {"negative", max_size(-7), "max_size(-7)"},
    {"no_shards", max_size(16, 0), "max_size(16, 0); let it make 1 shard or more"},
};

TEST(PartitionerTest, RefusesValuesBelowOne) {
  for (const RefusedCase& c : kRefusedCases) {
    SCOPED_TRACE(c.name);
    EXPECT_THAT(internal::validate(c.partitioner),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.message)));
  }
}

TEST(PartitionerTest, RefusesShardsOfAFunctionOfTheProgram) {
  const Partitioner none = [](const Shape&, DType, int) { return 0; };
  EXPECT_THAT(internal::validate(none), IsOk());
  EXPECT_THAT(internal::shard_rows(none, {4, 2}, DType::kFloat32, 2),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the partitioner asks for 0 shards of shape [4, 2]")));
}

TEST(PartitionerTest, AnExceptionIsAnError) {
  const Partitioner raises = [](const Shape& shape, DType, int) {
    return std::stoi("x" + shape_to_string(shape));
  };
  EXPECT_THAT(internal::shard_rows(raises, {4}, DType::kFloat32, 2),
              StatusIs(absl::StatusCode::kUnknown,
                       HasSubstr("the partitioner: the function raised an exception: stoi")));
}

}  // namespace
}  // namespace tessera::distribute
