// SPDX-License-Identifier: Apache-2.0
//
// shutdown() ends by its timeout although a function still runs on a device. The function goes on
// with its inputs, and the client is gone when it has ended.
#include <sched.h>

#include <atomic>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "base/dtype.h"
#include "base/status.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "dtensor/dtensor.h"
#include "dtensor/local_map.h"
#include "dtensor/runtime.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/forked.h"
#include "tests/support/gate.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using testing::Gate;
using testing::IsOk;
using testing::run_isolated;

Status shut_down_while_a_function_runs() {
  Gate begun;
  Gate may_end;
  std::atomic<bool> has_ended{false};
  std::atomic<float> read{0};
  std::weak_ptr<Runtime> runtime;
  {
    TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect({.num_local_devices = 2}));
    runtime = internal::runtime_of(client);
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
    const DTensor input = full<float>({2}, 7, Layout::parse(mesh, "[x]"));
    const DTensor slow = local_map(Layout::parse(mesh, "[x]"), {2}, DType::kFloat32, {input},
                                   [&](LocalContext& local) -> Status {
                                     if (local.device_id() == 0) return absl::OkStatus();
                                     begun.open();
                                     TESSERA_RETURN_IF_ERROR(may_end.wait());
                                     read = local.input<float>(0).data[0];
                                     has_ended = true;
                                     return absl::OkStatus();
                                   });
    TESSERA_RETURN_IF_ERROR(begun.wait());
    const Status status = client.shutdown(absl::Milliseconds(10));
    // The function ends when the gate opens, not before.
    TESSERA_REQUIRE(!has_ended);
    TESSERA_REQUIRE(absl::IsDeadlineExceeded(status), status.ToString());
    TESSERA_REQUIRE(absl::StrContains(status.message(),
                                      "work was still pending after 10 ms and was cancelled; "
                                      "device 1 is still in local_map"),
                    status.ToString());
    TESSERA_REQUIRE(absl::IsFailedPrecondition(client.sync_devices()));
    TESSERA_RETURN_IF_ERROR(client.shutdown());  // the second one does nothing
  }
  TESSERA_REQUIRE(!runtime.expired());
  may_end.open();
  while (!runtime.expired()) sched_yield();
  TESSERA_REQUIRE(has_ended);
  TESSERA_REQUIRE(read == 7);
  return absl::OkStatus();
}

TEST(SlowShutdownTest, AFunctionThatRunsDoesNotHoldItUp) {
  EXPECT_THAT(run_isolated(absl::Seconds(100), shut_down_while_a_function_runs), IsOk());
}

}  // namespace
}  // namespace tessera
