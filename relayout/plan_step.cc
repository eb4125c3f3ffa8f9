// SPDX-License-Identifier: Apache-2.0
//
// The rows of single devices.
#include "relayout/plan_step.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/math.h"
#include "relayout/plan_step_rep.h"

namespace tessera {
namespace {

// The elements that a device receives, and sends, in an all-reduce of `elements` of which it
// reduces `chunk`: the other terms of its chunk, and the other chunks.
__int128 all_reduce_elements(int64_t elements, int64_t members, int64_t chunk) {
  return static_cast<__int128>(members - 1) * chunk + (elements - chunk);
}

}  // namespace

StepKind PlanStep::kind() const { return rep_->kind; }
const Layout& PlanStep::from() const { return rep_->from.layout(); }
const Layout& PlanStep::to() const { return rep_->to.layout(); }
const Shape& PlanStep::shape() const { return rep_->to.shape(); }
DType PlanStep::dtype() const { return rep_->dtype; }
absl::Span<const std::string> PlanStep::axes() const { return rep_->axes; }
int64_t PlanStep::group_size() const {
  const bool counted = kind() == StepKind::kSlice || from().mesh() == to().mesh();
  return counted ? rep_->group_size : internal::num_devices(from().mesh(), to().mesh());
}
std::optional<ReduceOp> PlanStep::op() const { return rep_->op; }

std::optional<Box> PlanStep::old_box(int device_id) const {
  const std::optional<int64_t> position = rep_->from.position_of(device_id);
  if (!position.has_value()) return std::nullopt;
  return from().box(rep_->from.shape(), *position);
}

std::optional<Box> PlanStep::new_box(int device_id) const {
  const std::optional<int64_t> position = rep_->to.position_of(device_id);
  if (!position.has_value()) return std::nullopt;
  return to().box(rep_->to.shape(), *position);
}

int64_t PlanStep::old_elements(int device_id) const {
  const std::optional<int64_t> position = rep_->from.position_of(device_id);
  return position.has_value() ? rep_->from.elements(*position) : 0;
}

int64_t PlanStep::new_elements(int device_id) const {
  const std::optional<int64_t> position = rep_->to.position_of(device_id);
  return position.has_value() ? rep_->to.elements(*position) : 0;
}

std::vector<Pull> PlanStep::pulls(int device_id) const {
  if (rep_->routing.has_value()) return rep_->routing->pulls(device_id);
  if (rep_->kind != StepKind::kExpand) return {};
  const std::optional<int64_t> position = rep_->from.position_of(device_id);
  if (!position.has_value()) return {};
  if (internal::value_at(rep_->zero_digits, *position) != 0) return {};
  const Box own = from().box(rep_->from.shape(), *position);
  if (own.is_empty()) return {};
  return {{device_id, own, own}};
}

// In a gather whose sources have the coordinates of the device that asks, the devices of a group
// differ only in coordinates that the source does not take from them.
bool PlanStep::has_common_pulls() const {
  if (is_reduction(kind())) return true;
  return rep_->kind == StepKind::kAllGather && rep_->routing->pulls_by_own_coordinates();
}

std::vector<int> PlanStep::terms(int device_id) const {
  if (!is_reduction(kind())) return {};
  const std::optional<int64_t> position = rep_->from.position_of(device_id);
  if (!position.has_value() || rep_->to.elements(*position) == 0) return {};
  std::vector<int> devices;
  devices.reserve(rep_->group_size);
  for (int64_t member : rep_->members(*position)) devices.push_back(rep_->from.device(member));
  return devices;
}

std::vector<int> PlanStep::group(int device_id) const {
  switch (rep_->kind) {
    case StepKind::kSlice:
    case StepKind::kExpand:
      return {device_id};
    case StepKind::kPermute:
    case StepKind::kExchange: {
      const std::vector<int>* component = rep_->component(device_id);
      return component != nullptr ? *component : std::vector<int>{device_id};
    }
    default:
      break;
  }
  const std::optional<int64_t> position = rep_->from.position_of(device_id);
  if (!position.has_value()) return {device_id};
  std::vector<int> devices;
  bool anything = false;
  for (int64_t member : rep_->members(*position)) {
    devices.push_back(rep_->from.device(member));
    anything |= rep_->to.elements(member) > 0;
  }
  return anything ? devices : std::vector<int>{device_id};
}

int64_t PlanStep::received_bytes(int device_id) const {
  const int64_t element_bytes = dtype_size(rep_->dtype);
  if (rep_->routing.has_value()) return element_bytes * rep_->routing->received_elements(device_id);
  const std::optional<int64_t> position = rep_->from.position_of(device_id);
  if (!is_reduction(kind()) || !position.has_value()) return 0;
  const int64_t elements = rep_->to.elements(*position);
  const int64_t n = rep_->group_size;
  if (rep_->kind == StepKind::kReduceScatter) {
    return saturated(static_cast<__int128>(n - 1) * elements * element_bytes);
  }
  const int64_t chunk =
      internal::chunk_elements(elements, n, internal::value_at(rep_->group_digits, *position));
  return saturated(all_reduce_elements(elements, n, chunk) * element_bytes);
}

int64_t PlanStep::sent_bytes(int device_id) const {
  if (rep_->routing.has_value()) {
    return saturated(static_cast<__int128>(rep_->routing->sent_elements(device_id)) *
                     dtype_size(rep_->dtype));
  }
  // An all-reduce sends the terms of the other chunks and its own chunk to all: as it receives.
  if (rep_->kind != StepKind::kReduceScatter) return received_bytes(device_id);
  const std::optional<int64_t> position = rep_->from.position_of(device_id);
  if (!position.has_value()) return 0;
  __int128 elements = -rep_->to.elements(*position);
  for (int64_t member : rep_->members(*position)) elements += rep_->to.elements(member);
  return saturated(elements * dtype_size(rep_->dtype));
}

std::string PlanStep::to_string() const {
  std::string text(step_kind_name(rep_->kind));
  if (!rep_->axes.empty()) absl::StrAppend(&text, "{", absl::StrJoin(rep_->axes, ","), "}");
  const bool same_mesh = from().mesh() == to().mesh();
  absl::StrAppend(&text, " ", same_mesh ? from().to_string() : from().to_string_with_mesh(), " -> ",
                  same_mesh ? to().to_string() : to().to_string_with_mesh());
  return text;
}

}  // namespace tessera
