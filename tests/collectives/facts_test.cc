// SPDX-License-Identifier: Apache-2.0
//
// Known answers about asynchrony and failure that belong to no other test: the errors that clients
// get about a client that does not come.
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/group.h"
#include "dtensor/client.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "mesh/mesh.h"
#include "tests/support/clients.h"
#include "tests/support/gate.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/verdicts.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;

class FactsTest : public ::testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(Settings, FactsTest,
                         ::testing::Values(Setting::kThreads, Setting::kProcesses));

// deadline_then_verdict: client 0 waits with a deadline and client 1 without one; client 2 does not
// arrive. The deadline of client 0 decides for both, with one text.
TEST_P(FactsTest, DeadlineThenVerdict) {
  Gate told;
  Verdicts verdicts;
  const auto body = [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1, 2}));
    if (client.client_id() == 2) {
      TESSERA_RETURN_IF_ERROR(told.wait());
      return told.wait();
    }
    const std::vector<float> in(8, 1.0f);
    std::vector<float> out(8);
    const Work work = group.all_reduce<float>(in, absl::MakeSpan(out), ReduceOp::kSum);
    const Status status =
        client.client_id() == 0 ? work.wait(absl::Milliseconds(300)) : work.await();
    verdicts.add(client.client_id(), status).IgnoreError();
    told.open();
    return expect_error(
        status, StatusCode::kDeadlineExceeded,
        {"all_reduce sum f32 of 8 elements on devices 0, 1, 2: ", "missing client 2 ("});
  };
  EXPECT_THAT(run_clients({.setting = GetParam(), .num_clients = 3}, body), IsOk());
  EXPECT_THAT(verdicts.same({0, 1}), IsOk());
}

}  // namespace
}  // namespace tessera::testing
