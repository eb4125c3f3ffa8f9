// SPDX-License-Identifier: Apache-2.0
//
// RelayoutPlan::peak_bytes() is what the allocator sees: the source, what a step makes, and what
// the step before made. One client a device, so that the memory of a client is that of a device.
//
// TODO(#3): plans of three steps and more. relayout() allocates the outputs of all steps when it is
// called, so that they hold more than the plan says. They are measured and counted here, not
// failed.
#include <algorithm>
#include <atomic>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/runtime.h"
#include "gtest/gtest.h"
#include "relayout/small_relayouts.h"
#include "tests/support/clients.h"
#include "tests/support/matchers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

// Boxes are powers of two of at least 64 bytes, which the allocator does not round up.
const Shape kShape = {64, 64};

// The high-water mark of this client's memory over one relayout.
StatusOr<int64_t> peak_of(Client& client, const Layout& from, const Layout& to) {
  ArenaPool& pool = client.runtime()->pool();
  // The barrier has passed, but its tensors may not be gone yet.
  TESSERA_RETURN_IF_ERROR(client.sync_devices());
  TESSERA_REQUIRE(pool.live_bytes() == 0, "of an earlier tensor: ", pool.live_bytes());
  const DTensor source = iota<float>(kShape, from);
  TESSERA_RETURN_IF_ERROR(source.await());
  pool.restart_peak();
  const DTensor result = relayout(source, to);
  TESSERA_RETURN_IF_ERROR(result.await());
  const int64_t peak = static_cast<int64_t>(pool.peak_live_bytes());
  // Nothing of it may be alive when the next one is measured.
  TESSERA_RETURN_IF_ERROR(client.sync_devices());
  return peak;
}

TEST(RelayoutPeakTest, TheAllocatorSeesWhatPlansOfUpToTwoStepsSay) {
  constexpr int kClients = 8;
  // The clients are threads of one process.
  std::atomic<int64_t> most = 0;
  EXPECT_THAT(
      run_clients({.setting = Setting::kThreads, .num_clients = kClients, .devices_per_client = 1},
                  [&](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2, y=2, z=2}"));
                    const std::vector<Layout> layouts = every_layout(mesh, 2, {ReduceOp::kSum});
                    int measured = 0;
                    int long_plans = 0;
                    int holds_more = 0;
                    for (size_t i = 0; i < layouts.size() * layouts.size(); i += 37) {
                      const Layout& from = layouts[i / layouts.size()];
                      const Layout& to = layouts[i % layouts.size()];
                      TESSERA_ASSIGN_OR_RETURN(const RelayoutPlan plan,
                                               plan_relayout(from, to, kShape, DType::kFloat32));
                      TESSERA_ASSIGN_OR_RETURN(const int64_t peak, peak_of(client, from, to));
                      for (int64_t seen = most;
                           seen < peak && !most.compare_exchange_weak(seen, peak);) {
                      }
                      TESSERA_RETURN_IF_ERROR(mesh.barrier("measured", absl::Seconds(20)));
                      if (plan.steps().size() <= 2) {
                        TESSERA_REQUIRE(most == plan.peak_bytes(), most.load(),
                                        " bytes at most, not as in ", plan.explain());
                        ++measured;
                      } else {
                        ++long_plans;
                        holds_more += most > plan.peak_bytes() ? 1 : 0;
                      }
                      TESSERA_RETURN_IF_ERROR(mesh.barrier("compared", absl::Seconds(20)));
                      most = 0;
                      TESSERA_RETURN_IF_ERROR(mesh.barrier("next", absl::Seconds(20)));
                      ++measured;
                    }
                    TESSERA_REQUIRE(measured > 100, measured);
                    if (client.client_id() == 0) {
                      std::cout << measured << " plans of up to two steps hold what they say; of "
                                << long_plans << " longer ones " << holds_more << " hold more\n";
                    }
                    return absl::OkStatus();
                  }),
      IsOk());
}

}  // namespace
}  // namespace tessera::testing
