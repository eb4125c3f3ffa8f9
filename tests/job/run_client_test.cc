// SPDX-License-Identifier: Apache-2.0
//
// run_client(): the client is shut down where its function succeeds, and not where it fails.
#include <optional>
#include <stdexcept>

#include "absl/status/status.h"
#include "base/status.h"
#include "dtensor/client.h"
#include "dtensor/spawn.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/expect_error.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;

ClientOptions two_devices() { return {.num_local_devices = 2}; }

TEST(RunClientTest, ShutsDownAfterItsFunction) {
  std::optional<Client> kept;
  EXPECT_THAT(run_client(
                  [&](const Client& client) -> Status {
                    kept = client;
                    TESSERA_REQUIRE(client.local_devices().size() == 2);
                    return kept->sync_devices();
                  },
                  two_devices()),
              IsOk());
  EXPECT_THAT(expect_error(kept->allocate<float>(0, 1).status(), StatusCode::kFailedPrecondition,
                           {"has shut down"}),
              IsOk());
}

TEST(RunClientTest, ReturnsTheErrorWithoutShutdown) {
  std::optional<Client> kept;
  EXPECT_THAT(expect_error(run_client(
                               [&](const Client& client) -> Status {
                                 kept = client;
                                 return absl::NotFoundError("no data");
                               },
                               two_devices()),
                           StatusCode::kNotFound, {"no data"}),
              IsOk());
  EXPECT_THAT(kept->allocate<float>(0, 1).status(), IsOk());
}

TEST(RunClientTest, AnExceptionIsAnError) {
  EXPECT_THAT(expect_error(run_client(
                               [](const Client&) -> Status {
                                 // NOTIDY(banned): what a function of the user's may do
                                 throw std::out_of_range("row 7 of 4");
                               },
                               two_devices()),
                           StatusCode::kUnknown, {"row 7 of 4"}),
              IsOk());
}

TEST(RunClientTest, ReturnsTheErrorOfConnect) {
  bool was_called = false;
  const auto fn = [&](const Client&) {
    was_called = true;
    return absl::OkStatus();
  };
  EXPECT_THAT(expect_error(run_client(fn, {.num_local_devices = -1}), StatusCode::kInvalidArgument),
              IsOk());
  EXPECT_FALSE(was_called);
}

}  // namespace
}  // namespace tessera::testing
