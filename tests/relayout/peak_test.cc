// SPDX-License-Identifier: Apache-2.0
//
// RelayoutPlan::peak_bytes() equals the peak of the allocator: the source, the result of a step,
// and the result of the step before. A step that finds its result in one piece in a kept source
// shares that memory. One client per device, so that the memory of a client is the memory of a
// device.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iostream>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "device/cpu/arena.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "dtensor/runtime.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "relayout/testing/small_relayouts.h"
#include "tests/support/clients.h"
#include "tests/support/matchers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

// Boxes are powers of two of at least 64 bytes, which the allocator does not round up.
const Shape kShape = {64, 64};

enum class Source { kKept, kGivenAway };

// The high-water mark of this client's memory over one relayout.
StatusOr<int64_t> peak_of(Client& client, const Layout& from, const Layout& to, Source source) {
  ArenaPool& pool = *internal::runtime_of(client)->devices().host_memory();
  // The barrier has passed, but its tensors may not be gone yet.
  TESSERA_RETURN_IF_ERROR(client.sync_devices());
  TESSERA_REQUIRE(pool.live_bytes() == 0, "of an earlier tensor: ", pool.live_bytes());
  DTensor tensor = iota<float>(kShape, from);
  TESSERA_RETURN_IF_ERROR(tensor.await());
  // Its task holds the buffers, too.
  TESSERA_RETURN_IF_ERROR(client.sync_devices());
  pool.restart_peak();
  const DTensor result =
      source == Source::kKept ? relayout(tensor, to) : relayout(std::move(tensor), to);
  TESSERA_RETURN_IF_ERROR(result.await());
  const int64_t peak = static_cast<int64_t>(pool.peak_live_bytes());
  // Nothing of it may be alive when the next one is measured.
  TESSERA_RETURN_IF_ERROR(client.sync_devices());
  return peak;
}

// Whether the elements of `inner` are consecutive in `outer`, checked one by one.
bool is_in_one_piece(const Box& outer, const Box& inner) {
  std::set<std::vector<int64_t>> wanted;
  for_each_element(inner,
                   [&](const std::vector<int64_t>& index, int64_t) { wanted.insert(index); });
  int64_t first = 0;
  int64_t last = 0;
  size_t found = 0;
  for_each_element(outer, [&](const std::vector<int64_t>& index, int64_t place) {
    if (wanted.count(index) == 0) return;
    if (found++ == 0) first = place;
    last = place;
  });
  return found == wanted.size() && found > 0 && last - first + 1 == static_cast<int64_t>(found);
}

// The most bytes that the device holds at once where the source is kept, and shared where it can
// be.
int64_t peak_with_source(const RelayoutPlan& plan, int id) {
  const auto bytes = [&](const Box& box) { return box.num_elements() * dtype_size(plan.dtype()); };
  const int64_t source = bytes(plan.from().box(plan.shape(), id));
  int64_t most = source;
  int64_t between = 0;       // what the step before made
  bool holds_source = true;  // or a view of it
  for (const PlanStep& step : plan.steps()) {
    const Box old_box = *step.old_box(id);
    const Box new_box = *step.new_box(id);
    // An expansion fills the elements that it does not pull with an identity.
    const bool is_filled = step.kind() == StepKind::kExpand && step.pulls(id).empty();
    const bool is_local = step.group(id).size() == 1 && !is_filled;
    if (is_local && old_box == new_box) continue;
    if (is_local && holds_source && is_in_one_piece(old_box, new_box)) continue;
    most = std::max(most, source + between + bytes(new_box));
    between = bytes(new_box);
    holds_source = false;
  }
  return most;
}

int64_t peak_with_source(const RelayoutPlan& plan) {
  int64_t most = 0;
  for (const int id : plan.from().mesh().device_ids()) {
    most = std::max(most, peak_with_source(plan, id));
  }
  return most;
}

// The most bytes that any device holds, where the first step is the last to need the source.
int64_t peak_without_source(const RelayoutPlan& plan) {
  int64_t most = 0;
  for (const PlanStep& step : plan.steps()) {
    for (int id : plan.from().mesh().device_ids()) {
      most = std::max(most, step.old_box(id)->num_elements() + step.new_box(id)->num_elements());
    }
  }
  return most * dtype_size(plan.dtype());
}

// The most memory of all clients together, which are threads of one process.
class MostOfAll {
 public:
  StatusOr<int64_t> of(const Mesh& mesh, int64_t own) {
    for (int64_t seen = most_; seen < own && !most_.compare_exchange_weak(seen, own);) {
    }
    TESSERA_RETURN_IF_ERROR(mesh.barrier("all have told", absl::Seconds(20)));
    const int64_t most = most_;
    TESSERA_RETURN_IF_ERROR(mesh.barrier("all have read", absl::Seconds(20)));
    most_ = 0;
    TESSERA_RETURN_IF_ERROR(mesh.barrier("all may tell again", absl::Seconds(20)));
    return most;
  }

 private:
  std::atomic<int64_t> most_ = 0;
};

TEST(RelayoutPeakTest, TheAllocatorSeesWhatThePlanSays) {
  MostOfAll most_of_all;
  const auto check = [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2, y=2, z=2}"));
    const std::vector<Layout> layouts = every_layout(mesh, 2, {ReduceOp::kSum});
    int measured = 0;
    int of_three_steps = 0;
    int less_when_given_away = 0;
    int less_when_shared = 0;
    for (size_t i = 0; i < layouts.size() * layouts.size(); i += 37) {
      const Layout& from = layouts[i / layouts.size()];
      const Layout& to = layouts[i % layouts.size()];
      TESSERA_ASSIGN_OR_RETURN(const RelayoutPlan plan,
                               plan_relayout(from, to, kShape, DType::kFloat32));
      TESSERA_ASSIGN_OR_RETURN(const int64_t own, peak_of(client, from, to, Source::kKept));
      TESSERA_ASSIGN_OR_RETURN(const int64_t most, most_of_all.of(mesh, own));
      const int64_t expected = peak_with_source(plan);
      TESSERA_REQUIRE(most == expected, most, " bytes at most, not ", expected, " as in ",
                      plan.explain());
      TESSERA_REQUIRE(expected <= plan.peak_bytes(), expected, ", ", plan.explain());
      less_when_shared += expected < plan.peak_bytes() ? 1 : 0;
      ++measured;
      if (plan.steps().size() < 2) continue;
      of_three_steps += plan.steps().size() > 2 ? 1 : 0;
      TESSERA_ASSIGN_OR_RETURN(const int64_t own_given,
                               peak_of(client, from, to, Source::kGivenAway));
      TESSERA_ASSIGN_OR_RETURN(const int64_t most_given, most_of_all.of(mesh, own_given));
      // Less where a device passes a buffer on.
      TESSERA_REQUIRE(most_given <= peak_without_source(plan), most_given,
                      " bytes at most without the source, not ", peak_without_source(plan), "; ",
                      plan.explain());
      less_when_given_away += most_given < most ? 1 : 0;
    }
    TESSERA_REQUIRE(measured > 100, measured);
    TESSERA_REQUIRE(of_three_steps > 5, of_three_steps);
    TESSERA_REQUIRE(less_when_given_away > 5, less_when_given_away);
    TESSERA_REQUIRE(less_when_shared > 0 && measured - less_when_shared > 100, less_when_shared);
    if (client.client_id() == 0) {
      std::cout << measured << " plans hold what they say, " << of_three_steps
                << " of them of three steps; " << less_when_given_away
                << " hold less when the source is given away, " << less_when_shared
                << " when it is shared\n";
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(
      run_clients({.setting = Setting::kThreads, .num_clients = 8, .devices_per_client = 1}, check),
      IsOk());
}

}  // namespace
}  // namespace tessera::testing
