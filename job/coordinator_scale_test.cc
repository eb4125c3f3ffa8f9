// SPDX-License-Identifier: Apache-2.0
//
// The state machine of a coordinator with 10,000 clients, in one process: each call is answered
// right, and the memory is bounded. coordinator_state_benchmark prints the times.
#include <sys/resource.h>

#include <cstdio>

#include "gtest/gtest.h"
#include "job/simulated_job.h"
#include "tests/support/sanitizers.h"

namespace tessera {
namespace {

TEST(CoordinatorScaleTest, TenThousandClientsInLessThan200Megabytes) {
  double total = 0;
  for (const auto& part : testing::SimulatedJob(10'000).run()) {
    EXPECT_TRUE(part.is_right) << part.name;
    total += part.seconds;
  }
  rusage used = {};
  ASSERT_EQ(getrusage(RUSAGE_SELF, &used), 0);
  std::printf("%.3f s, %ld MB\n", total, used.ru_maxrss / 1024);
  // Of the whole process, at its peak.
  if (!testing::kSanitized) {
    EXPECT_LT(used.ru_maxrss, 200 * 1024);
  }
}

}  // namespace
}  // namespace tessera
