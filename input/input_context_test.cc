// SPDX-License-Identifier: Apache-2.0
//
// InputContext: the batch of one replica. Rows of tests/facts/input.md.
#include "input/input_context.h"

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera::distribute {
namespace {

using ::tessera::testing::IsOkAndHolds;
using ::tessera::testing::StatusIs;
using ::testing::HasSubstr;

struct BatchCase {
  const char* name;
  int num_replicas;
  int64_t global_batch;
  std::optional<int64_t> batch;
  const char* message = "";
};

const BatchCase kBatchCases[] = {
    // name                   replicas global  each
    {"per_replica_batch_8_4", 4, 8, 2},
    {"per_replica_batch_10_4", 4, 10, {}, "size 10 is not divisible by the 4 replicas; give a mul"},
    {"per_replica_batch_7_4", 4, 7, {}, "size 7 is not divisible by the 4 replicas"},
    {"per_replica_batch_0_4", 4, 0, {}, "the global batch size is 0; give at least 1"},
    {"negative_batch", 4, -4, {}, "the global batch size is -4; give at least 1"},
    {"one_replica", 1, 7, 7},
    {"no_replica", 0, 8, {}, "num_replicas_in_sync is 0; an input context has 1 or more"},
};

class InputContextTest : public ::testing::TestWithParam<BatchCase> {};

TEST_P(InputContextTest, PerReplicaBatchSize) {
  const BatchCase& c = GetParam();
  const InputContext context = {.num_replicas_in_sync = c.num_replicas};
  const StatusOr<int64_t> batch = context.get_per_replica_batch_size(c.global_batch);
  if (c.batch.has_value()) {
    EXPECT_THAT(batch, IsOkAndHolds(*c.batch));
  } else {
    EXPECT_THAT(batch, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.message)));
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, InputContextTest, ::testing::ValuesIn(kBatchCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tessera::distribute
