// SPDX-License-Identifier: Apache-2.0
//
// An all_reduce beyond 2^31 elements, where 6 GiB of memory are free.
#include <cstdint>
#include <memory>
#include <vector>

#include "base/machine.h"
#include "collectives/host/testing/host_job.h"
#include "collectives/testing/conformance.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera::host {
namespace {

TEST(Over2GibTest, IndicesHave64Bits) {
  constexpr uint64_t kNeeded = uint64_t{6} << 30;
  if (available_memory_bytes() < kNeeded) GTEST_SKIP() << "less than 6 GiB of memory are free";
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<HostJob> job, HostJob::create({2}));
  EXPECT_THAT(job->run(conformance::over_2_gib_case().body), testing::IsOk());
}

}  // namespace
}  // namespace tessera::host
