// SPDX-License-Identifier: Apache-2.0
#include "relayout/plan_step_rep.h"

#include <mutex>
#include <vector>

namespace tessera::internal {

std::vector<int64_t> PlanStepRep::members(int64_t position) const {
  const int64_t base = position - offset_of(group_digits, value_at(group_digits, position));
  std::vector<int64_t> result(group_size);
  for (int64_t i = 0; i < group_size; ++i) {
    result[i] = base + offset_of(group_digits, i);
  }
  return result;
}

const std::vector<int>* PlanStepRep::component(int device_id) const {
  std::call_once(components_once, [this] {
    components = routing->components();
    for (size_t i = 0; i < components.size(); ++i) {
      for (int id : components[i]) component_of_device[id] = i;
    }
  });
  const auto found = component_of_device.find(device_id);
  return found == component_of_device.end() ? nullptr : &components[found->second];
}

}  // namespace tessera::internal
