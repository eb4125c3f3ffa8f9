// SPDX-License-Identifier: Apache-2.0
//
// How much the coordinator's state machine does for each client, in basic blocks of its code
// instead of time: a number that no other load of the machine changes. A scan of all clients for
// each of them, which no other test would notice, makes it grow with the job.
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "job/coordinator/testing/simulated_job.h"

namespace {
int64_t num_steps = 0;
}  // namespace

// The compiler calls this in each basic block of //job/coordinator:coordinator_state_counted.
extern "C" void __sanitizer_cov_trace_pc() { ++num_steps; }

namespace tessera {
namespace {

std::vector<testing::SimulatedJob::Part> count_steps(int num_clients) {
  return testing::SimulatedJob(num_clients, [] { return static_cast<double>(num_steps); }).run();
}

// Among 8 times as many clients, a client takes at most twice the steps, which leaves room for a
// logarithm. A call that names many ranges of clients has a message of that length, and takes a few
// steps for each.
TEST(CoordinatorStepsTest, StepsOfAClientHardlyGrowWithTheJob) {
  constexpr int kFewClients = 1024;  // as many as reach the bounds (CheckIns::kMostStored)
  constexpr int kManyClients = 8 * kFewClients;
  constexpr double kStepsOfARange = 10;
  const auto few = count_steps(kFewClients);
  const auto many = count_steps(kManyClients);
  ASSERT_EQ(few.size(), many.size());
  for (size_t i = 0; i < few.size(); ++i) {
    EXPECT_TRUE(few[i].is_right && many[i].is_right) << many[i].name;
    const double of_few = few[i].cost / kFewClients;
    const double of_many = many[i].cost / kManyClients;
    EXPECT_GT(of_few, 1) << "nothing is counted";
    EXPECT_LT(of_many, 2 * of_few + kStepsOfARange * many[i].num_ranges) << many[i].name;
  }
}

}  // namespace
}  // namespace tessera
