// SPDX-License-Identifier: Apache-2.0
#include "dtensor/fetch_program.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/shape.h"
#include "base/union_find.h"
#include "layout/layout.h"
#include "mesh/mesh.h"

namespace tessera {
namespace {

// The positions of the mesh that copy from each other, directly or through others.
class Components {
 public:
  explicit Components(const Fetch& fetch) : sets_(fetch.from().mesh().size()) {
    const int64_t size = fetch.from().mesh().size();
    for (int64_t position = 0; position < size; ++position) {
      fetch.for_each_source(position, [&](int64_t source) { sets_.unite(position, source); });
    }
    for (int64_t position = 0; position < size; ++position) {
      members_[sets_.root(position)].push_back(position);
    }
  }
  const std::vector<int64_t>& with(int64_t position) { return members_.at(sets_.root(position)); }

 private:
  UnionFind sets_;
  absl::flat_hash_map<int64_t, std::vector<int64_t>> members_;  // by root
};

// The devices at these positions, ascending.
std::vector<int> devices_at(const Mesh& mesh, const std::vector<int64_t>& positions) {
  std::vector<int> ids;
  ids.reserve(positions.size());
  for (const int64_t position : positions) ids.push_back(*mesh.device_at(position));
  std::sort(ids.begin(), ids.end());
  return ids;
}

// The ordinals of the devices; null where some are another client's.
std::shared_ptr<const std::vector<int>> ordinals_of(const ProgramClient& client,
                                                    const std::vector<int>& ids) {
  std::vector<int> ordinals;
  for (const int id : ids) {
    const Device& device = client.devices[id];
    if (device.client_id != client.local_devices[0].client_id) return nullptr;
    ordinals.push_back(device.ordinal);
  }
  return std::make_shared<const std::vector<int>>(std::move(ordinals));
}

StatusOr<DeviceStep> make_row(const ProgramClient& client, const Fetch& fetch, const Device& device,
                              int64_t position, const std::vector<int64_t>& group) {
  const Mesh& mesh = fetch.from().mesh();
  const std::vector<int> ids = devices_at(mesh, group);
  const auto place_of = [&ids](int id) {
    return static_cast<int>(std::lower_bound(ids.begin(), ids.end(), id) - ids.begin());
  };
  DeviceStep row;
  row.ordinal = device.ordinal;
  row.old_box = fetch.from().box(fetch.shape(), position);
  if (fetch.pulls_any(position)) row.new_box = fetch.box(position);
  std::vector<BoxPull> pulls;
  for (Pull& pull : fetch.pulls(position)) {
    pulls.push_back(
        {place_of(pull.source_device), std::move(pull.source_box), std::move(pull.box)});
  }
  int64_t most_elements = 0;
  for (const int64_t member : group) {
    most_elements = std::max(most_elements, fetch.from().box(fetch.shape(), member).num_elements());
  }
  const BoxExchange boxes = {.in_box = *row.old_box,
                             .out_box = row.new_box.value_or(kNothing),
                             .pulls = std::move(pulls),
                             .are_pulls_checked = true,
                             .most_elements = most_elements};
  row.set_group(client.group(ids));
  row.member_ordinals = ordinals_of(client, ids);
  TESSERA_ASSIGN_OR_RETURN(
      row.collective,
      Collective::make({static_cast<int>(ids.size()), place_of(device.id)},
                       {.kind = OpKind::kExchange, .dtype = fetch.dtype(), .boxes = &boxes}));
  return row;
}

}  // namespace

StatusOr<std::shared_ptr<const StepProgram>> make_fetch_program(const ProgramClient& client,
                                                                const Fetch& fetch) {
  auto program = std::make_shared<StepProgram>();
  program->text = fetch.text();
  std::vector<DeviceStep>& rows = program->steps.emplace_back();
  Components components(fetch);
  for (const Device& device : client.local_devices) {
    const std::optional<int64_t> position = fetch.from().mesh().position_of_device(device.id);
    if (!position.has_value()) continue;
    const std::vector<int64_t>& group = components.with(*position);
    if (group.size() == 1 && !fetch.pulls_any(*position)) continue;
    TESSERA_ASSIGN_OR_RETURN(DeviceStep row, make_row(client, fetch, device, *position, group));
    row.detail = program->text;
    row.detail_field = "calls";
    rows.push_back(std::move(row));
  }
  program->runs_on_caller = client.uses_host_memory && program->is_for_caller(fetch.dtype());
  return program;
}

}  // namespace tessera
