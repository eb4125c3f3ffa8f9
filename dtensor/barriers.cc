// SPDX-License-Identifier: Apache-2.0
#include "dtensor/barriers.h"

#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/text.h"
#include "collectives/label.h"
#include "dtensor/programs.h"
#include "dtensor/taken_streams.h"

namespace tessera {
namespace {

// A waiter that finds the deadline passed lets the device's own thread notice it first: the text of
// that thread counts this client as arrived.
constexpr absl::Duration kDeadlineGrace = absl::Milliseconds(20);

}  // namespace

bool Barriers::meet_here(const BarrierPlan& plan, int64_t* sum) {
  if (static_cast<int64_t>(plan.local.size()) < plan.mesh.size()) return false;
  TakenStreams streams;
  for (const MeshDevice& device : plan.local) {
    if (!streams.take(devices_.device(device.ordinal).stream())) return false;
    *sum += term_at(device.device_id);
  }
  return true;
}

StatusOr<Barriers::Arrivals> Barriers::start(const BarrierPlan& plan, const Call& call) {
  Arrivals arrivals(plan.local.size());
  // All memory first: where there is none, no device has begun.
  for (Arrival& arrival : arrivals) {
    // The sum, and behind it the term.
    TESSERA_ASSIGN_OR_RETURN(arrival.sum, devices_.allocate_on_host(2 * sizeof(int32_t)));
  }
  const SharedText name(quoted_whole(call.name));
  const SharedText shown_name(in_quotes(call.name));
  for (size_t i = 0; i < arrivals.size(); ++i) {
    const MeshDevice& device = plan.local[i];
    const std::shared_ptr<Buffer>& sum = arrivals[i].sum;
    auto* const term = reinterpret_cast<int32_t*>(sum->mutable_data()) + 1;
    *term = term_at(device.device_id);
    Arguments arguments = {
        .in = reinterpret_cast<const std::byte*>(term),
        .out_buffer = sum,
        .detail = name,
        .detail_field = "name",
        .label = Label(std::string("barrier"), 0, shown_name, plan.where),
        // Waited for first, below.
        .caller_waits = device.ordinal == plan.local.back().ordinal,
    };
    if (call.timeout.has_value()) {
      arguments.timeout = *call.timeout;
      arguments.deadline = call.deadline;
    }
    arrivals[i].work = plan.group->start(plan.collectives[i], std::move(arguments));
  }
  return arrivals;
}

StatusOr<int64_t> Barriers::await(const Arrivals& arrivals, const Call& call) {
  for (auto arrival = arrivals.rbegin(); arrival != arrivals.rend(); ++arrival) {
    TESSERA_RETURN_IF_ERROR(call.timeout.has_value()
                                ? arrival->work->wait(call.deadline + kDeadlineGrace - steady_now())
                                : arrival->work->await());
  }
  return *reinterpret_cast<const int32_t*>(arrivals[0].sum->data());
}

Status Barriers::run(const Mesh& mesh, absl::string_view name,
                     std::optional<absl::Duration> timeout) {
  TESSERA_RETURN_IF_ERROR(turns_.check_open());
  const StatusOr<std::shared_ptr<const BarrierPlan>> found = programs_.barrier(mesh);
  if (!found.ok()) {
    return with_context(found.status(),
                        absl::StrCat("barrier ", in_quotes(name), " on ", mesh.to_string()));
  }
  const BarrierPlan& plan = **found;
  if (plan.local.empty()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(devices_.check_may_wait("barrier"));
  const Call call = {name, timeout,
                     timeout.has_value() ? steady_now() + *timeout : absl::InfiniteFuture()};
  int64_t sum = 0;
  TESSERA_ASSIGN_OR_RETURN(Turn turn, turns_.take());
  if (!meet_here(plan, &sum)) {
    TESSERA_ASSIGN_OR_RETURN(const Arrivals arrivals, start(plan, call));
    turn.unlock();
    TESSERA_ASSIGN_OR_RETURN(sum, await(arrivals, call));
  }
  if (sum != mesh.size()) {
    return absl::InternalError(absl::StrCat("barrier ", in_quotes(name), " ", plan.where.view(),
                                            ": the sum over the devices is ", sum, ", expected ",
                                            mesh.size(), "; this is a bug of Tessera"));
  }
  return absl::OkStatus();
}

}  // namespace tessera
