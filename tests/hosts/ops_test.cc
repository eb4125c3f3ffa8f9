// SPDX-License-Identifier: Apache-2.0
//
// Operations and gradients over two hosts that have no memory in common: a sample of the rows of
// the tables of facts, on two clients of two devices on each host. //tests/ops:facts_test and
// //tests/ops:gradients_test run all rows on clients that meet on the loopback interface.
//
// $TESSERA_TEST_SEED decides the sample, one row in four.
#include <cstdint>
#include <random>
#include <vector>

#include "dtensor/client.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/hosts/hosts.h"
#include "tests/support/matchers.h"
#include "tests/support/ops/cases.h"
#include "tests/support/ops/rows.h"
#include "tests/support/seed.h"

namespace tessera::testing {
namespace {

using ::testing::Each;

std::vector<OpCase> sample_of(const std::vector<OpCase>& rows, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<OpCase> sample;
  for (const OpCase& row : rows) {
    if (random() % 4 == 0) sample.push_back(row);
  }
  return sample;
}

TEST(OpsOnHostsTest, RowsOfFacts) {
  const uint64_t seed = test_seed();
  const StatusOr<std::vector<OpCase>> values = read_op_cases();
  const StatusOr<std::vector<OpCase>> gradients = read_gradient_cases();
  ASSERT_THAT(values, IsOk());
  ASSERT_THAT(gradients, IsOk());
  const std::vector<OpCase> some_values = sample_of(*values, seed);
  const std::vector<OpCase> some_gradients = sample_of(*gradients, seed);
  ASSERT_GT(some_values.size(), 50u);
  ASSERT_GT(some_gradients.size(), 20u);
  TESSERA_MAKE_HOSTS(hosts, 2);
  const auto body = [&](Client& client) -> Status {
    TESSERA_RETURN_IF_ERROR(check_rows(client, some_values, check_value_row));
    TESSERA_RETURN_IF_ERROR(check_rows(client, some_gradients, check_gradient_row));
    return client.shutdown();
  };
  EXPECT_THAT(run_on_hosts(hosts, {.clients_per_host = {2, 2}, .devices_per_client = 2}, body),
              Each(IsOk()));
}

}  // namespace
}  // namespace tessera::testing
