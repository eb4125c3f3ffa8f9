// SPDX-License-Identifier: Apache-2.0
//
// Collectives between two hosts by Gloo: the conformance suite with one device of each client, a
// client that is killed, and the interface that the user names. conformance_test.cc has the same by
// UCX, with every dtype.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/testing/conformance.h"
#include "dtensor/client.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/clients.h"
#include "tests/support/expect_error.h"
#include "tests/support/matchers.h"
#include "tests/support/members.h"

namespace tessera::testing {
namespace {

using conformance::Case;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

class GlooTest : public ::testing::TestWithParam<Case> {};

TEST_P(GlooTest, HoldsBetweenTwoHosts) {
  const Case& c = GetParam();
  EXPECT_THAT(run_clients({.setting = Setting::kThreads,
                           .num_clients = c.num_members,
                           .options = {.backend = Backend::kGloo,
                                       .reduction_order = conformance::is_of_ascending_order(c)
                                                              ? ReductionOrder::kFlat
                                                              : ReductionOrder::kByHost},
                           .hooks = {.host_ids = on_hosts(c.num_members, 2)}},
                          [&body = c.body](Client& client) -> Status {
                            return run_members(client, all_devices(client), body);
                          }),
              IsOk());
}

std::vector<Case> cases() {
  std::vector<Case> all = conformance::all_cases();
  std::erase_if(all, [](const Case& c) { return c.num_members < 2 || c.num_members > 4; });
  conformance::limit_sweeps(all, {.f32 = 4, .other_dtypes = 0});
  all.push_back(conformance::random_ops_case(4, 100, 20240607));
  return all;
}

INSTANTIATE_TEST_SUITE_P(Threads, GlooTest, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return std::string(info.param.name); });

// Clients 0 and 1 are on one host, client 2 on another.
TEST(GlooLossTest, SurvivorsAreToldOfAKilledClient) {
  const std::vector<Status> statuses = run_processes(
      {.num_clients = 3,
       .options = {.backend = Backend::kGloo},
       .hooks = {.host_ids = on_hosts(3, 2)}},
      [](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1, 2}));
        std::vector<float> data(1 << 20, 0.0f);
        Status status;
        for (int i = 0; status.ok(); ++i) {
          const Work work = group.all_reduce<float>(data, absl::MakeSpan(data), ReduceOp::kSum);
          if (i == 2 && client.client_id() == 2) kill(getpid(), SIGKILL);
          status = work.wait(absl::Hours(1));
        }
        TESSERA_RETURN_IF_ERROR(
            expect_error(status, absl::StatusCode::kUnavailable, {"client 2 ", "lost"}));
        return client.shutdown(absl::Seconds(20));
      });
  EXPECT_THAT(statuses[0], IsOk());
  EXPECT_THAT(statuses[1], IsOk());
}

// The statuses of two clients when TESSERA_INTERFACE says `name`.
std::vector<Status> meet_by_interface(const char* name) {
  setenv("TESSERA_INTERFACE", name, /*overwrite=*/1);
  std::vector<Status> statuses =
      run_processes({.num_clients = 2,
                     .options = {.backend = Backend::kGloo},
                     .hooks = {.host_ids = on_hosts(2, 2)}},
                    [](Client& client) -> Status {
                      TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
                      TESSERA_RETURN_IF_ERROR(mesh.barrier("met", absl::Seconds(60)));
                      return client.shutdown();
                    });
  unsetenv("TESSERA_INTERFACE");
  return statuses;
}

TEST(GlooInterfaceTest, IsTheOneThatTheUserNames) {
  EXPECT_THAT(meet_by_interface("lo"), Each(IsOk()));
}

TEST(GlooInterfaceTest, OneThatIsNotThereIsNamedWithThoseThatAre) {
  EXPECT_THAT(meet_by_interface("no_such0"),
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            AllOf(HasSubstr("TESSERA_INTERFACE is \"no_such0\"; there is no such "
                                            "interface; this host has "),
                                  HasSubstr("lo (127.0.0.1")))));
}

}  // namespace
}  // namespace tessera::testing
