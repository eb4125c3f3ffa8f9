// SPDX-License-Identifier: Apache-2.0
//
// The interface by which clients of two hosts meet: the errors for an interface that does not lead
// from host to host.
#include <string>
#include <vector>

#include "dtensor/client.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/clients.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

// Ids as the kernel makes them: the coordinator of the test is on 127.0.0.1.
TEST(InterfaceTest, LoopbackBetweenHostsIsRefusedByItsName) {
  const std::vector<Status> statuses =
      run_processes({.num_clients = 2, .hooks = {.host_ids = {"1a net 5 pid 6", "1a net 7 pid 6"}}},
                    [](Client&) { return absl::OkStatus(); });
  EXPECT_THAT(
      statuses,
      Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                    AllOf(HasSubstr("would use the loopback interface lo"),
                          HasSubstr("which does not reach client "),
                          HasSubstr("the address of the coordinator leads to 127.0.0.1 here: see "
                                    "/etc/hosts")))));
}

}  // namespace
}  // namespace tessera::testing
