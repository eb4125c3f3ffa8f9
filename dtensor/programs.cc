// SPDX-License-Identifier: Apache-2.0
#include "dtensor/programs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "collectives/platform/client_devices.h"
#include "dtensor/fetch_program.h"
#include "mesh/mesh_runtime.h"
#include "relayout/plan.h"

namespace tessera {
namespace {

// Bounds of the caches. Programs: rows of devices and pulls, each some 600 bytes. Plans of
// barriers: devices, and as many beside them as a plan costs.
constexpr int64_t kMostOfPrograms = 100'000;
constexpr int64_t kMostOfBarrierPlans = 20'000;
constexpr int64_t kWeightOfPlan = 16;

Mesh without_runtime(const Mesh& mesh) { return internal::with_runtime(mesh, nullptr); }

// Errors as `client.group`.
StatusOr<std::shared_ptr<const BarrierPlan>> make_barrier_plan(const ProgramClient& client,
                                                               const Mesh& mesh) {
  auto plan = std::make_shared<BarrierPlan>(BarrierPlan{
      .mesh = mesh,
      .where = absl::StrCat("on ", mesh.to_string()),
      .local = devices_in(mesh, client.local_devices),
  });
  if (!plan->local.empty()) {
    TESSERA_ASSIGN_OR_RETURN(plan->group, client.group(mesh.device_ids()));
  }
  for (const MeshDevice& device : plan->local) {
    TESSERA_ASSIGN_OR_RETURN(
        plan->collectives.emplace_back(),
        Collective::make({static_cast<int>(mesh.size()), static_cast<int>(device.position)},
                         {.kind = OpKind::kBarrier, .dtype = DType::kInt32, .count = 1}));
  }
  return plan;
}

}  // namespace

Programs::Programs(const JobConnection& job, const Turns& turns)
    : job_(job),
      turns_(turns),
      find_group_([this](absl::Span<const int> ids) { return group(ids); }),
      client_{job.devices(), job.client_devices().local(), job.client_devices().uses_host_memory(),
              find_group_},
      most_group_bytes_(ClientDevices::kGroupBytes),
      relayouts_(kMostOfPrograms),
      fetches_(kMostOfPrograms),
      barriers_(kMostOfBarrierPlans) {}

StatusOr<std::shared_ptr<GroupBackend>> Programs::group(absl::Span<const int> device_ids) {
  TESSERA_RETURN_IF_ERROR(turns_.check_open());
  ClientDevices& devices = job_.client_devices();
  if (devices.num_group_bytes() > most_group_bytes_.load(std::memory_order_relaxed)) {
    relayouts_.clear();
    fetches_.clear();
    barriers_.clear();
    devices.forget_unused_groups();
    // Groups that users hold stay: the caches are not emptied again before groups take much more.
    const uint64_t kLeast = ClientDevices::kGroupBytes;
    most_group_bytes_.store(std::max(kLeast, devices.num_group_bytes() + kLeast / 4),
                            std::memory_order_relaxed);
  }
  return devices.group(device_ids);
}

StatusOr<std::shared_ptr<const RelayoutProgram>> Programs::relayout(const RelayoutArgs& args) {
  if (std::shared_ptr<const RelayoutProgram> known = relayouts_.find(args)) return known;
  RelayoutKey key = {*args.from.with_mesh(without_runtime(args.from.mesh())),
                     *args.to.with_mesh(without_runtime(args.to.mesh())), args.shape, args.dtype,
                     args.replicas};
  TESSERA_ASSIGN_OR_RETURN(RelayoutPlan plan, plan_relayout(key.from, key.to, key.shape, key.dtype,
                                                            job_.plan_options()));
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<const RelayoutProgram> program,
                           RelayoutProgram::create(client_, std::move(plan), key.replicas));
  if (program->lacks_groups()) return program;
  const int64_t weight = program->weight();
  return relayouts_.insert(std::move(key), std::move(program), weight);
}

StatusOr<std::shared_ptr<const StepProgram>> Programs::fetch(
    const std::shared_ptr<const Fetch>& fetch) {
  if (std::shared_ptr<const StepProgram> known = fetches_.find(fetch)) return known;
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<const StepProgram> program,
                           make_fetch_program(client_, *fetch));
  if (program->lacks_groups()) return program;
  const int64_t weight = program->weight();
  return fetches_.insert(fetch, std::move(program), weight);
}

StatusOr<std::shared_ptr<const BarrierPlan>> Programs::barrier(const Mesh& mesh) {
  if (std::shared_ptr<const BarrierPlan> known = barriers_.find(mesh)) return known;
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<const BarrierPlan> plan,
                           make_barrier_plan(client_, without_runtime(mesh)));
  Mesh key = plan->mesh;
  return barriers_.insert(std::move(key), std::move(plan), kWeightOfPlan + mesh.size());
}

}  // namespace tessera
