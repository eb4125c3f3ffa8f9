// SPDX-License-Identifier: Apache-2.0
#include "dtensor/program.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/math.h"
#include "base/shape.h"
#include "base/union_find.h"

namespace tessera {
namespace {

// A group of devices that run a step together, with the data that each of their rows needs of all
// members: looking it up for each row anew would take longer than the step itself with many
// devices.
struct StepGroup {
  std::vector<int> ids;
  StatusOr<std::shared_ptr<GroupBackend>> backend;
  absl::flat_hash_map<int, int> positions;  // by device id
  // By position; null where some members are another client's.
  std::shared_ptr<const std::vector<int>> ordinals;
  int64_t most_elements = 0;  // that a member holds before the step
  // The list of every member, where all have the same: one for each of them would take memory and
  // time quadratic in their number. Empty until the first member has made it.
  BoxPulls common_pulls;
  // The positions of the members that want one box, ascending. Empty until a member has asked.
  absl::flat_hash_map<Box, std::vector<int>> positions_by_box;
};

// The boxes that the device pulls from the members of its group, or that each of them holds for a
// reduction.
BoxPulls make_pulls(const PlanStep& step, const StepGroup& group, int device_id) {
  std::vector<BoxPull> pulls;
  if (step.kind() == StepKind::kReduceScatter) {
    pulls.reserve(group.ids.size());
    for (size_t k = 0; k < group.ids.size(); ++k) {
      pulls.push_back({static_cast<int>(k), *step.old_box(group.ids[k]), {}});
    }
    return pulls;
  }
  std::vector<Pull> plan_pulls = step.pulls(device_id);
  pulls.reserve(plan_pulls.size());
  for (Pull& pull : plan_pulls) {
    pulls.push_back(
        {group.positions.at(pull.source_device), std::move(pull.source_box), std::move(pull.box)});
  }
  return pulls;
}

bool holds_elements(const std::optional<Box>& box) { return box.has_value() && !box->is_empty(); }

// Which devices run a step together where replicas share their memory: devices that exchange bytes,
// and devices that want the same box.
class SharingGroups {
 public:
  explicit SharingGroups(const PlanStep& step) {
    std::vector<int> ids;
    for (const Mesh& mesh : {step.from().mesh(), step.to().mesh()}) {
      ids.insert(ids.end(), mesh.device_ids().begin(), mesh.device_ids().end());
    }
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    const auto index_of = [&](int id) {
      return std::lower_bound(ids.begin(), ids.end(), id) - ids.begin();
    };
    UnionFind sets(static_cast<int64_t>(ids.size()));
    absl::flat_hash_map<Box, int64_t> first_with;
    absl::flat_hash_set<int> grouped;
    for (size_t k = 0; k < ids.size(); ++k) {
      const auto index = static_cast<int64_t>(k);
      const std::optional<Box> box = step.new_box(ids[k]);
      if (holds_elements(box)) sets.unite(index, first_with.try_emplace(*box, index).first->second);
      if (grouped.contains(ids[k])) continue;
      for (const int member : step.group(ids[k])) {
        sets.unite(index, index_of(member));
        grouped.insert(member);
      }
    }
    for (size_t k = 0; k < ids.size(); ++k) {
      const int64_t root = sets.root(static_cast<int64_t>(k));
      roots_[ids[k]] = root;
      members_[root].push_back(ids[k]);
    }
  }
  // Ascending.
  const std::vector<int>& group(int device_id) const { return members_.at(roots_.at(device_id)); }

 private:
  absl::flat_hash_map<int, int64_t> roots_;
  absl::flat_hash_map<int64_t, std::vector<int>> members_;  // by root
};

// In a reduction, terms are added in the order of the group, and the plan lists both ascending.
Status check_terms(const PlanStep& step, absl::Span<const int> group) {
  for (const int id : group) {
    const std::vector<int> terms = step.terms(id);
    if (terms.empty()) continue;  // the device wants no part of the result
    if (std::equal(terms.begin(), terms.end(), group.begin(), group.end())) break;
    return absl::InternalError(absl::StrCat("plan step ", step.to_string(),
                                            ": the terms of device ", id, " are not its group"));
  }
  return absl::OkStatus();
}

// The groups of one step. Each is found once, for all of its members.
class StepGroups {
 public:
  // `sharing` is null where replicas have memory of their own.
  StepGroups(const ProgramClient& client, const PlanStep& step, SharingGroups* sharing)
      : client_(client), step_(step), sharing_(sharing) {}

  // Null where the device is alone.
  StatusOr<StepGroup*> find_peers(int device_id) {
    const auto known = group_of_.find(device_id);
    if (known != group_of_.end()) return known->second;
    std::vector<int> ids =
        sharing_ != nullptr ? sharing_->group(device_id) : step_.group(device_id);
    if (ids.size() == 1) return nullptr;
    TESSERA_ASSIGN_OR_RETURN(StepGroup * group, make(std::move(ids)));
    for (const int id : group->ids) group_of_.emplace(id, group);
    return group;
  }

 private:
  StatusOr<StepGroup*> make(std::vector<int> ids) {
    if (is_reduction(step_.kind())) TESSERA_RETURN_IF_ERROR(check_terms(step_, ids));
    auto group = std::make_unique<StepGroup>();
    group->backend = client_.group(ids);
    std::vector<int> ordinals;
    for (const int id : ids) {
      group->positions.emplace(id, static_cast<int>(group->positions.size()));
      const Device& device = client_.devices[id];
      if (device.client_id == client_.local_devices[0].client_id)
        ordinals.push_back(device.ordinal);
      group->most_elements = std::max(group->most_elements, step_.old_elements(id));
    }
    if (ordinals.size() == ids.size()) {
      group->ordinals = std::make_shared<const std::vector<int>>(std::move(ordinals));
    }
    group->ids = std::move(ids);
    return groups_.emplace_back(std::move(group)).get();
  }

  const ProgramClient& client_;
  const PlanStep& step_;
  SharingGroups* const sharing_;
  std::vector<std::unique_ptr<StepGroup>> groups_;
  absl::flat_hash_map<int, StepGroup*> group_of_;  // by device id
};

// The positions in the group whose new box equals the new box of the device; none where no other
// has it.
std::vector<int> replicas_in(const PlanStep& step, StepGroup& group, int device_id) {
  if (group.positions_by_box.empty()) {
    for (size_t k = 0; k < group.ids.size(); ++k) {
      const std::optional<Box> box = step.new_box(group.ids[k]);
      if (holds_elements(box)) group.positions_by_box[*box].push_back(static_cast<int>(k));
    }
  }
  const std::optional<Box> own = step.new_box(device_id);
  if (!holds_elements(own)) return {};
  const std::vector<int>& positions = group.positions_by_box.at(*own);
  return positions.size() > 1 ? positions : std::vector<int>();
}

// The part that replica number `part` of `parts` writes of the box that they share: a slice of the
// first dim that has enough for all, else of the longest. A scalar is written by the first.
std::optional<Box> slice_of(Box box, int64_t part, int64_t parts) {
  if (box.sizes.empty()) return part == 0 ? std::optional(box) : std::nullopt;
  auto dim = std::find_if(box.sizes.begin(), box.sizes.end(),
                          [parts](int64_t size) { return size >= parts; });
  if (dim == box.sizes.end()) dim = std::max_element(box.sizes.begin(), box.sizes.end());
  const int64_t begin = ceil_mul_div(part, *dim, parts);
  box.offsets[dim - box.sizes.begin()] += begin;
  *dim = ceil_mul_div(part + 1, *dim, parts) - begin;
  return box;
}

// Makes the member at `position` share its output with the replicas, the members of its group that
// want the same box: each pulls a slice.
void share_output(std::vector<int> replicas, int position, BoxExchange& boxes) {
  // In an exchange some members have replicas and others have none, and no member knows which. So
  // no member may put its input into its entry, as calls without replicas do: a count of 0 prevents
  // it.
  boxes.most_elements = 0;
  if (replicas.empty()) return;
  const auto own = std::find(replicas.begin(), replicas.end(), position);
  const std::optional<Box> slice =
      slice_of(boxes.out_box, own - replicas.begin(), static_cast<int64_t>(replicas.size()));
  std::vector<BoxPull> pulls_of_slice;
  for (const BoxPull& pull : boxes.pulls) {
    if (!slice.has_value()) break;
    const Box box = intersect(pull.box, *slice);
    if (!box.is_empty()) pulls_of_slice.push_back({pull.source, pull.source_box, box});
  }
  boxes.pulls = std::move(pulls_of_slice);
  boxes.replicas = std::move(replicas);
}

// By all devices of the host in the step, taken to be as much on each client.
int64_t elements_written(const ProgramClient& client, const PlanStep& step) {
  int64_t written = 0;
  for (const Device& device : client.local_devices) {
    const std::optional<Box> box = step.new_box(device.id);
    if (box.has_value()) written = saturating_add(written, box->num_elements());
  }
  const auto num_clients =
      static_cast<int64_t>(client.devices.size() / client.local_devices.size());
  return saturating_mul(written, num_clients);
}

// See StepProgram::is_view.
bool needs_no_copy(const StepProgram& program) {
  for (const std::vector<DeviceStep>& rows : program.steps) {
    for (const DeviceStep& row : rows) {
      if (!row.group_error.ok()) return false;
      const bool has_nothing = row.group == nullptr && !row.new_box.has_value();
      if (!has_nothing && !row.view_offset_bytes.has_value()) return false;
    }
  }
  return true;
}

// The text that must be equal on all members: the plan's, and which of several steps.
std::string detail_of(absl::string_view text, const RelayoutPlan& plan, const PlanStep& step) {
  return plan.steps().size() == 1 ? std::string(text) : absl::StrCat(text, " / ", step.to_string());
}

// The shared data of the rows of one step.
struct StepOfRows {
  StepOfRows(const ProgramClient& client, const RelayoutPlan& plan, const PlanStep& step,
             bool shares_replicas)
      : plan(plan),
        step(step),
        elements_written(tessera::elements_written(client, step)),
        sharing(shares_replicas ? std::make_optional<SharingGroups>(step) : std::nullopt),
        groups(client, step, joins() ? &*sharing : nullptr) {}

  // Whether devices that want the same box run the step together.
  bool joins() const { return sharing.has_value() && !is_reduction(step.kind()); }
  bool shares_output() const {
    return sharing.has_value() && step.kind() != StepKind::kReduceScatter;
  }

  const RelayoutPlan& plan;
  const PlanStep& step;
  const int64_t elements_written;
  std::optional<SharingGroups> sharing;  // where replicas do not have memory of their own
  StepGroups groups;
  SharedText detail;  // of the rows
};

// The device's Collective in its group.
StatusOr<Collective::Ptr> make_collective(const StepOfRows& rows, StepGroup& group, int device_id,
                                          const DeviceStep& row) {
  const PlanStep& step = rows.step;
  const DType dtype = rows.plan.dtype();
  const GroupPlace place = {static_cast<int>(group.ids.size()), group.positions.at(device_id)};
  std::vector<int> replicas;
  if (rows.shares_output()) replicas = replicas_in(step, group, device_id);
  if (step.kind() == StepKind::kAllReduce) {
    const int64_t count = row.old_box.has_value() ? row.old_box->num_elements() : 0;
    return Collective::make(place, {.kind = OpKind::kAllReduce,
                                    .dtype = dtype,
                                    .op = *step.op(),
                                    .count = count,
                                    .replicas = replicas});
  }
  // The plan has checked the boxes.
  BoxExchange boxes = {.in_box = row.old_box.value_or(kNothing),
                       .out_box = row.new_box.value_or(kNothing),
                       .are_pulls_checked = true,
                       .most_elements = group.most_elements,
                       .elements_written = rows.elements_written};
  // Members of a group that is made for shared replicas may pull from different copies.
  const bool common = !rows.joins() && step.has_common_pulls();
  boxes.pulls = common && group.common_pulls.size() > 0 ? group.common_pulls
                                                        : make_pulls(step, group, device_id);
  if (common) group.common_pulls = boxes.pulls;
  if (step.kind() == StepKind::kReduceScatter) {
    return Collective::make(
        place, {.kind = OpKind::kReduceBoxes, .dtype = dtype, .op = *step.op(), .boxes = &boxes});
  }
  if (rows.shares_output()) share_output(std::move(replicas), place.position, boxes);
  return Collective::make(place, {.kind = OpKind::kExchange, .dtype = dtype, .boxes = &boxes});
}

// Makes the row of a device without peers, which copies out of its own buffer. A reduction of one
// term is a copy.
Status set_own_copy(const ProgramClient& client, const StepOfRows& rows, const Device& device,
                    DeviceStep& row) {
  const PlanStep& step = rows.step;
  if (!row.new_box.has_value()) return absl::OkStatus();
  std::vector<BoxPull> pulls;
  for (Pull& pull : step.pulls(device.id)) {
    pulls.push_back({0, std::move(pull.source_box), std::move(pull.box)});
  }
  if (is_reduction(step.kind()) && !row.new_box->is_empty()) {
    pulls = {{0, *row.old_box, *row.new_box}};
  }
  const bool is_one_copy = pulls.size() == 1 && pulls[0].box == row.new_box;
  if (is_one_copy) {
    const std::optional<int64_t> offset = contiguous_offset(*row.old_box, *row.new_box);
    if (offset.has_value()) row.view_offset_bytes = *offset * dtype_size(rows.plan.dtype());
    row.keeps_buffer = row.new_box == row.old_box;
    if (row.keeps_buffer) return absl::OkStatus();
  }
  const bool fills = step.kind() == StepKind::kExpand && !is_one_copy;
  BoxExchange boxes = {.in_box = row.old_box.value_or(kNothing),
                       .out_box = *row.new_box,
                       .pulls = std::move(pulls),
                       .are_pulls_checked = true,
                       .fill = fills ? step.op() : std::nullopt,
                       .elements_written = rows.elements_written};
  row.set_group(client.group({device.id}));
  TESSERA_ASSIGN_OR_RETURN(row.collective, Collective::make({}, {.kind = OpKind::kExchange,
                                                                 .dtype = rows.plan.dtype(),
                                                                 .boxes = &boxes}));
  row.member_ordinals =
      std::make_shared<const std::vector<int>>(std::initializer_list<int>{device.ordinal});
  return absl::OkStatus();
}

StatusOr<DeviceStep> make_row(const ProgramClient& client, StepOfRows& rows, const Device& device) {
  const PlanStep& step = rows.step;
  DeviceStep row;
  row.ordinal = device.ordinal;
  row.old_box = step.old_box(device.id);
  row.new_box = step.new_box(device.id);
  TESSERA_ASSIGN_OR_RETURN(StepGroup* const group, rows.groups.find_peers(device.id));
  if (group == nullptr) {
    TESSERA_RETURN_IF_ERROR(set_own_copy(client, rows, device, row));
    return row;
  }
  row.set_group(group->backend);
  row.member_ordinals = group->ordinals;
  TESSERA_ASSIGN_OR_RETURN(row.collective, make_collective(rows, *group, device.id, row));
  row.detail = rows.detail;
  return row;
}

}  // namespace

StatusOr<std::shared_ptr<const RelayoutProgram>> RelayoutProgram::create(
    const ProgramClient& client, RelayoutPlan plan, Replicas replicas) {
  std::string text = plan.to_string();
  auto program = std::make_shared<RelayoutProgram>(
      RelayoutProgram{{std::move(text), {}, false, false}, std::move(plan)});
  for (const PlanStep& step : program->plan.steps()) {
    std::vector<DeviceStep>& rows = program->steps.emplace_back();
    const bool is_last = &step == &program->plan.steps().back();
    const bool shares_replicas =
        replicas == Replicas::kShared && is_last && step.kind() != StepKind::kExpand;
    StepOfRows common(client, program->plan, step, shares_replicas);
    common.detail = absl::StrCat(detail_of(program->text.view(), program->plan, step),
                                 common.shares_output() ? " / shared replicas" : "");
    for (const Device& device : client.local_devices) {
      const bool takes_part = step.from().mesh().position_of_device(device.id).has_value() ||
                              step.to().mesh().position_of_device(device.id).has_value();
      if (!takes_part) continue;
      TESSERA_ASSIGN_OR_RETURN(DeviceStep row, make_row(client, common, device));
      rows.push_back(std::move(row));
    }
  }
  program->is_view = needs_no_copy(*program);
  program->runs_on_caller =
      client.uses_host_memory && program->is_for_caller(program->plan.dtype());
  return program;
}

}  // namespace tessera
