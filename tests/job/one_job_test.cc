// SPDX-License-Identifier: Apache-2.0
//
// Many bodies in one job (tests/support/one_job.h): with TESSERA_TEST_ONE_JOB=4x2, which the target
// sets. Tests run in the order of this file.
#include <unistd.h>

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "dtensor/client_hooks.h"
#include "dtensor/dtensor.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/forked.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/seed.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// State that the previous body has left in a client's process.
pid_t pid_of_first = 0;
const void* runtime_of_first = nullptr;

class OneJobTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, OneJobTest, ::testing::Values(kJobForms[2]), job_form_name);

TEST_P(OneJobTest, ABodyHasAClientOfTheForm) {
  EXPECT_THAT(run([](Client& client) -> Status {
                pid_of_first = getpid();
                runtime_of_first = &*internal::runtime_of(client);
                TESSERA_REQUIRE(client.num_clients() == 4);
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                return expect_iota<float>(iota<float>({16}, Layout::parse(mesh, "[x]")));
              }),
              IsOk());
  EXPECT_EQ(pid_of_first, 0);  // the test program is no client
}

TEST_P(OneJobTest, TheNextBodyHasTheSameOne) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_REQUIRE(pid_of_first == getpid());
                TESSERA_REQUIRE(runtime_of_first == &*internal::runtime_of(client));
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2, y=4}"));
                return mesh.barrier("second", absl::Seconds(30));
              }),
              IsOk());
}

// A test draws equal numbers before its body in all processes.
TEST_P(OneJobTest, AllHaveOneSeed) {
  const uint64_t seed = test_seed();
  EXPECT_THAT(run([&](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                return mesh.barrier(absl::StrCat("seed ", seed), absl::Seconds(30));
              }),
              IsOk());
}

TEST_P(OneJobTest, BodiesWithOptionsHaveAJobOfTheirOwn) {
  EXPECT_THAT(run(
                  [](Client& client) -> Status {
                    TESSERA_REQUIRE(pid_of_first != getpid());
                    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                    return mesh.barrier("own", absl::Seconds(30));
                  },
                  {.collective_timeout = absl::Seconds(50)}),
              IsOk());
}

TEST_P(OneJobTest, AFailureNamesItsClient) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_REQUIRE(pid_of_first == getpid());
        if (client.client_id() == 2) return absl::DataLossError("on purpose");
        return absl::OkStatus();
      }),
      StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("client 2"), HasSubstr("on purpose"))));
}

TEST_P(OneJobTest, LaterBodiesHaveAJobEach) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_REQUIRE(pid_of_first != getpid());
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                return mesh.barrier("later", absl::Seconds(30));
              }),
              IsOk());
}

}  // namespace
}  // namespace tessera::testing
