// SPDX-License-Identifier: Apache-2.0
//
// Parts of the conformance suite while threads stop at random moments. Such stops, under
// ThreadSanitizer, found a reader that followed half-written words; rendezvous_test has that case.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "collectives/host/testing/host_job.h"
#include "collectives/testing/conformance.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/deadline.h"
#include "tests/support/matchers.h"
#include "tests/support/random_stalls.h"

namespace tessera::host {
namespace {

using conformance::Case;

// Stalls lengthen every wait: errors about time are left to conformance_test.
std::vector<Case> cases() {
  std::vector<Case> all = conformance::message_cases();
  for (Case& c : conformance::sweep_cases()) {
    if (c.num_members == 8) all.push_back(std::move(c));
  }
  all.push_back(conformance::random_ops_case(4, 300, /*seed=*/7));
  return all;
}

void run(const std::vector<int>& devices_by_client, const Case& c) {
  const testing::TestDeadline deadline(absl::Seconds(120), c.name);
  StatusOr<std::unique_ptr<HostJob>> job = HostJob::create(devices_by_client, absl::Seconds(60));
  ASSERT_THAT(job, testing::IsOk());
  EXPECT_THAT((*job)->run(c.body), testing::IsOk()) << c.name;
}

TEST(StallsTest, OneClient) {
  const testing::RandomStalls stalls(/*seed=*/1);
  for (const Case& c : cases()) run({c.num_members}, c);
}

TEST(StallsTest, TwoClients) {
  const testing::RandomStalls stalls(/*seed=*/2);
  for (const Case& c : cases()) {
    if (c.num_members > 1) run({c.num_members / 2, c.num_members - c.num_members / 2}, c);
  }
}

}  // namespace
}  // namespace tessera::host
