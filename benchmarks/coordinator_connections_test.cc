// SPDX-License-Identifier: Apache-2.0
//
// Checks that 200 clients of one coordinator connect, meet and leave over real connections, and how
// much memory the service needs for them.
#include "benchmarks/coordinator_connections.h"

#include "gtest/gtest.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitizers.h"

namespace tessera::benchmarks {
namespace {

TEST(CoordinatorConnectionsTest, ManyClientsMeet) {
  const int num_clients = testing::kSanitized ? 40 : 200;
  TESSERA_ASSERT_OK_AND_ASSIGN(const ConnectionTimes times,
                               connect_many({.num_clients = num_clients, .num_processes = 2}));
  EXPECT_GT(times.service_kib, 0);
  EXPECT_GT(times.barrier_seconds, 0);
  if (!testing::kSanitized) {
    EXPECT_LT(times.service_peak_kib, 100 * 1024);
  }
}

TEST(CoordinatorConnectionsTest, ClientsOfTwoHostsMeet) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const ConnectionTimes times,
      connect_many({.num_clients = 8, .num_processes = 2, .num_hosts = 2}));
  EXPECT_GT(times.first_barrier_seconds, 0);
  // At least a connection to each client of the other host.
  EXPECT_GE(times.most_descriptors, 4 * 4);
}

}  // namespace
}  // namespace tessera::benchmarks
