// SPDX-License-Identifier: Apache-2.0
//
// Which allocator of NCCL a client with several GPUs may use.
#include "collectives/nccl/slab_source.h"

#include <cstdlib>

#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera::nccl {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

TEST(AllocatorTest, RefusesWhatCanDeadlock) {
  EXPECT_THAT(check_allocator(8), IsOk());
  setenv("NCCL_CUMEM_ENABLE", "0", 1);
  EXPECT_THAT(check_allocator(1), IsOk());
  EXPECT_THAT(check_allocator(2),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("NCCL_CUMEM_ENABLE=0 with 2 GPUs in a client: ")));
  setenv("NCCL_CUMEM_ENABLE", "1", 1);
  EXPECT_THAT(check_allocator(2), IsOk());
  unsetenv("NCCL_CUMEM_ENABLE");
}

}  // namespace
}  // namespace tessera::nccl
