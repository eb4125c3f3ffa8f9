// SPDX-License-Identifier: Apache-2.0
//
// Simulated devices: dense buffers, loops only.
#include "relayout/testing/plan_oracle.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"

namespace tessera::testing {
namespace {

// Where element `flat` is in the buffer of `box`.
int64_t place_in(const Box& box, const Shape& shape, int64_t flat) {
  int64_t place = 0;
  int64_t stride = 1;
  for (int dim = static_cast<int>(shape.size()) - 1; dim >= 0; --dim) {
    place += (flat % shape[dim] - box.offsets[dim]) * stride;
    stride *= box.sizes[dim];
    flat /= shape[dim];
  }
  return place;
}

// The elements that a device holds.
std::vector<bool> elements(const std::optional<Box>& box, const Shape& shape) {
  std::vector<bool> result(num_elements(shape), false);
  if (box.has_value()) for_each_element(*box, shape, [&](int64_t flat) { result[flat] = true; });
  return result;
}

std::optional<Box> box_of(const Layout& layout, const Shape& shape, int device) {
  absl::Span<const int> ids = layout.mesh().device_ids();
  const auto found = std::find(ids.begin(), ids.end(), device);
  if (found == ids.end()) return std::nullopt;
  return layout.box(shape, found - ids.begin());
}

std::set<int> devices_of(const Layout& a, const Layout& b) {
  std::set<int> devices(a.mesh().device_ids().begin(), a.mesh().device_ids().end());
  devices.insert(b.mesh().device_ids().begin(), b.mesh().device_ids().end());
  return devices;
}

double identity(ReduceOp op) {
  switch (op) {
    case ReduceOp::kProd:
      return 1;
    case ReduceOp::kMin:
      return std::numeric_limits<double>::infinity();
    case ReduceOp::kMax:
      return -std::numeric_limits<double>::infinity();
    default:
      return 0;
  }
}

// One step on all devices.
class StepRun {
 public:
  StepRun(const PlanStep& step, const Shape& shape, const DeviceValues& old_values,
          std::string* problem)
      : step_(step), shape_(shape), old_values_(old_values), problem_(problem) {}

  DeviceValues run() {
    for (int device : devices_of(step_.from(), step_.to())) {
      const std::optional<Box> box = box_of(step_.to(), shape_, device);
      if (step_.new_box(device) != box) fail("new_box", device);
      if (step_.old_box(device) != box_of(step_.from(), shape_, device)) fail("old_box", device);
      if (!box.has_value()) {
        if (!step_.pulls(device).empty()) fail("pulls of a device outside", device);
        continue;
      }
      new_values_[device] =
          is_reduction(step_.kind()) ? reduced(device, *box) : pulled(device, *box);
    }
    check_bytes();
    check_groups();
    return new_values_;
  }

 private:
  void fail(absl::string_view what, int device) {
    if (problem_->empty()) {
      *problem_ = absl::StrCat(step_.to_string(), ", device ", device, ": ", what);
    }
  }

  std::vector<double> pulled(int device, const Box& box) {
    const bool expands = step_.kind() == StepKind::kExpand;
    std::vector<double> buffer(box.num_elements(), identity(step_.op().value_or(ReduceOp::kSum)));
    std::vector<int> writes(buffer.size(), 0);
    for (const Pull& pull : step_.pulls(device)) {
      const std::optional<Box> held = box_of(step_.from(), shape_, pull.source_device);
      if (!held.has_value() || *held != pull.source_box) fail("source_box", device);
      if (pull.box.is_empty()) fail("empty pull", device);
      if (!contains(pull.source_box, pull.box) || !contains(box, pull.box)) {
        fail("a pull of what is not held or not wanted", device);
        continue;
      }
      const std::vector<double>& source = old_values_.at(pull.source_device);
      for_each_element(pull.box, shape_, [&](int64_t flat) {
        const int64_t place = place_in(box, shape_, flat);
        buffer[place] = source[place_in(pull.source_box, shape_, flat)];
        ++writes[place];
      });
      if (pull.source_device == device) continue;
      partners_[device].insert(pull.source_device);
      received_[device] += pull.box.num_elements();
      sent_[pull.source_device] += pull.box.num_elements();
    }
    for (int count : writes) {
      if (count > 1 || (count == 0 && !expands)) fail("pulls do not tile the new box", device);
    }
    return buffer;
  }

  std::vector<double> reduced(int device, const Box& box) {
    std::vector<double> buffer(box.num_elements());
    const std::vector<int> terms = step_.terms(device);
    if (buffer.empty() != terms.empty()) fail("terms", device);
    std::vector<Box> held_boxes;
    for (int term : terms) {
      const std::optional<Box> held = box_of(step_.from(), shape_, term);
      if (!held.has_value() || !contains(*held, box)) {
        fail("a term that is not held", device);
        return buffer;
      }
      held_boxes.push_back(*held);
      if (term == device) continue;
      partners_[device].insert(term);
      sent_[term] += box.num_elements();
      received_[device] += box.num_elements();
    }
    for_each_element(box, shape_, [&](int64_t flat) {
      std::vector<double> values;
      for (size_t i = 0; i < terms.size(); ++i) {
        values.push_back(old_values_.at(terms[i])[place_in(held_boxes[i], shape_, flat)]);
      }
      buffer[place_in(box, shape_, flat)] = reduce(*step_.op(), values);
    });
    return buffer;
  }

  // Checked for pulls; an all-reduce counts as its two phases, in plan_test.
  void check_bytes() {
    if (step_.kind() == StepKind::kAllReduce) return;
    for (int device : devices_of(step_.from(), step_.to())) {
      if (step_.received_bytes(device) != received_[device] * 8) fail("received_bytes", device);
      if (step_.sent_bytes(device) != sent_[device] * 8) fail("sent_bytes", device);
    }
  }

  void check_groups() {
    if (partners_.empty()) {
      for (int device : devices_of(step_.from(), step_.to())) {
        if (step_.group(device) != std::vector<int>{device}) fail("alone", device);
      }
      return;
    }
    std::map<int, std::set<int>> reach;  // Both directions.
    for (const auto& [device, partners] : partners_) {
      for (int partner : partners) {
        reach[device].insert(partner);
        reach[partner].insert(device);
      }
    }
    for (int device : devices_of(step_.from(), step_.to())) {
      const std::vector<int> group = step_.group(device);
      if (static_cast<int64_t>(group.size()) > step_.group_size()) fail("group_size", device);
      // The connected component, by flooding.
      std::set<int> component = {device};
      std::vector<int> todo = {device};
      while (!todo.empty()) {
        const int next = todo.back();
        todo.pop_back();
        for (int partner : reach[next]) {
          if (component.insert(partner).second) todo.push_back(partner);
        }
      }
      if (std::set<int>(group.begin(), group.end()) != component ||
          group.size() != component.size()) {
        fail(absl::StrCat("group [", absl::StrJoin(group, ","), "] is not the component [",
                          absl::StrJoin(component, ","), "]"),
             device);
      }
      if (step_.group(group.front()) != group) fail("groups differ", device);
      if (step_.has_common_pulls() && step_.pulls(device) != step_.pulls(group.front())) {
        fail("common pulls", device);
      }
    }
  }

  const PlanStep& step_;
  const Shape& shape_;
  const DeviceValues& old_values_;
  std::string* problem_;
  DeviceValues new_values_;
  std::map<int, std::set<int>> partners_;
  std::map<int, int64_t> received_;
  std::map<int, int64_t> sent_;
};

// Where the tensor is before its expansion.
const Layout& goal_of(const RelayoutPlan& plan) {
  const PlanStep& last = plan.steps().back();
  return last.kind() == StepKind::kExpand ? last.from() : plan.to();
}

// The values that a plan moves or reduces, as the devices hold and want them: an element and, where
// partial axes stay, the number of the term that stays, as the goal numbers them.
class ValueCount {
 public:
  explicit ValueCount(const RelayoutPlan& plan)
      : from_(plan.from()), goal_(goal_of(plan)), shape_(plan.shape()) {
    for (const int device : devices_of(from_, goal_)) {
      old_elements_[device] = elements(box_of(from_, shape_, device), shape_);
      new_elements_[device] = elements(box_of(goal_, shape_, device), shape_);
    }
  }

  // RelayoutPlan::lower_bound_bytes() in elements: the argument of lower_bound.h, counted value by
  // value.
  int64_t least_received() {
    for (int64_t kept = 0; kept < goal_.num_partial_terms(); ++kept) {
      for (int64_t flat = 0; flat < num_elements(shape_); ++flat) count_value(kept, flat);
    }
    int64_t largest = 0;
    int64_t most_lacking = 0;
    for (const auto& [device, wanted] : new_elements_) {
      const std::vector<bool>& held = old_elements_[device];
      int64_t lacking = 0;
      for (size_t flat = 0; flat < wanted.size(); ++flat) lacking += wanted[flat] && !held[flat];
      most_lacking = std::max(most_lacking, lacking);
      largest = std::max<int64_t>(largest, std::count(wanted.begin(), wanted.end(), true));
    }
    // Values of one term are not reduced; all have the same number of terms.
    if (most_terms_ <= 1) return most_lacking;
    const auto num_devices = static_cast<int64_t>(new_elements_.size());
    return std::max(largest, (messages_ + num_devices - 1) / num_devices);
  }

 private:
  void count_value(int64_t kept, int64_t flat) {
    std::set<int64_t> terms;
    int64_t wanting = 0;
    bool meet = false;
    for (const auto& [device, wanted] : new_elements_) {
      if (goal_.is_partial() && goal_.partial_index(position_in(goal_, device)) != kept) continue;
      const bool holds = old_elements_[device][flat];
      if (holds) terms.insert(from_.partial_index(position_in(from_, device)));
      wanting += wanted[flat] ? 1 : 0;
      meet |= holds && wanted[flat];
    }
    const auto num_terms = static_cast<int64_t>(terms.size());
    most_terms_ = std::max(most_terms_, num_terms);
    messages_ += wanting + num_terms - 2 + (meet ? 0 : 1);
  }

  static int64_t position_in(const Layout& layout, int device) {
    return *layout.mesh().position_of_device(device);
  }

  const Layout& from_;
  const Layout& goal_;
  const Shape& shape_;
  std::map<int, std::vector<bool>> old_elements_;
  std::map<int, std::vector<bool>> new_elements_;
  int64_t most_terms_ = 0;
  int64_t messages_ = 0;
};

// Terms that every reduction takes exactly in a double: small, and divisible for avg.
double term_value(ReduceOp op, int64_t flat, int64_t term) {
  const int64_t mixed = (flat * 7919 + term * 104729 + 12345) % 1009;
  if (op == ReduceOp::kProd) return static_cast<double>(mixed % 3 + 1);
  if (op == ReduceOp::kAvg) return static_cast<double>(mixed * 27720);
  return static_cast<double>(mixed - 500);
}

}  // namespace

void for_each_element(const Box& box, const Shape& shape,
                      const std::function<void(int64_t flat)>& fn) {
  if (box.is_empty()) return;
  const int rank = static_cast<int>(shape.size());
  std::vector<int64_t> index(rank, 0);
  for (;;) {
    int64_t flat = 0;
    for (int dim = 0; dim < rank; ++dim) flat = flat * shape[dim] + box.offsets[dim] + index[dim];
    fn(flat);
    int dim = rank - 1;
    while (dim >= 0 && ++index[dim] == box.sizes[dim]) index[dim--] = 0;
    if (dim < 0) return;
  }
}

DeviceValues deal(const Layout& layout, const Shape& shape,
                  const std::function<double(int64_t flat, int64_t term)>& fn) {
  DeviceValues values;
  for (int64_t position = 0; position < layout.mesh().size(); ++position) {
    std::vector<double>& buffer = values[layout.mesh().device_ids()[position]];
    const int64_t term = layout.partial_index(position);
    for_each_element(layout.box(shape, position), shape,
                     [&](int64_t flat) { buffer.push_back(fn(flat, term)); });
  }
  return values;
}

double reduce(ReduceOp op, const std::vector<double>& terms) {
  double value = terms.front();
  for (size_t i = 1; i < terms.size(); ++i) {
    switch (op) {
      case ReduceOp::kProd:
        value *= terms[i];
        break;
      case ReduceOp::kMin:
        value = std::min(value, terms[i]);
        break;
      case ReduceOp::kMax:
        value = std::max(value, terms[i]);
        break;
      default:
        value += terms[i];
    }
  }
  return op == ReduceOp::kAvg ? value / static_cast<double>(terms.size()) : value;
}

std::vector<double> assemble(const Layout& layout, const Shape& shape, const DeviceValues& values,
                             std::string* problem) {
  std::vector<std::vector<std::optional<double>>> found(
      num_elements(shape),
      std::vector<std::optional<double>>(layout.num_partial_terms(), std::nullopt));
  for (int64_t position = 0; position < layout.mesh().size(); ++position) {
    const std::vector<double>& buffer = values.at(layout.mesh().device_ids()[position]);
    const int64_t term = layout.partial_index(position);
    size_t next = 0;
    for_each_element(layout.box(shape, position), shape, [&](int64_t flat) {
      std::optional<double>& slot = found[flat][term];
      const double value = buffer[next++];
      if (slot.has_value() && *slot != value && problem->empty()) {
        *problem = absl::StrCat("replicas of element ", flat, " differ: ", *slot, ", ", value);
      }
      slot = value;
    });
  }
  std::vector<double> dense;
  for (size_t flat = 0; flat < found.size(); ++flat) {
    std::vector<double> terms;
    for (const std::optional<double>& slot : found[flat]) {
      if (!slot.has_value() && problem->empty()) *problem = absl::StrCat("no element ", flat);
      terms.push_back(slot.value_or(0));
    }
    dense.push_back(reduce(layout.partial_op().value_or(ReduceOp::kSum), terms));
  }
  return dense;
}

DeviceValues run_plan(const RelayoutPlan& plan, const DeviceValues& values, std::string* problem) {
  DeviceValues current = values;
  for (const PlanStep& step : plan.steps()) {
    current = StepRun(step, step.shape(), current, problem).run();
  }
  return current;
}

PlanOptions network_only_options() {
  const LinkCost cost = {0, 1e-9};
  return {.topology = *Topology::uniform(1, 1, {cost, cost, cost})};
}

PlanOptions hosts_of(int64_t devices) {
  const LinkCost near = {0, 1e-11};
  return {.topology = *Topology::uniform(1, devices, {near, near, {0, 1e-9}})};
}

CheckResult check_relayout(const Layout& from, const Layout& to, const Shape& shape,
                           const PlanOptions& options) {
  CheckResult result;
  const StatusOr<RelayoutPlan> plan = plan_relayout(from, to, shape, DType::kFloat64, options);
  if (!plan.ok()) return {plan.status().ToString(), false};
  const auto value = [&](int64_t flat, int64_t term) {
    return term_value(from.partial_op().value_or(ReduceOp::kSum), flat, term);
  };
  const DeviceValues old_values = deal(from, shape, value);
  const DeviceValues new_values = run_plan(*plan, old_values, &result.problem);
  std::string& problem = result.problem;
  const std::vector<double> expected = assemble(from, shape, old_values, &problem);
  if (problem.empty() && assemble(to, shape, new_values, &problem) != expected) {
    problem = "another value";
  }
  int64_t most_sent = 0;
  const bool partial = from.is_partial() || to.is_partial();
  for (int device : devices_of(from, to)) {
    int64_t sent = 0;
    for (const PlanStep& step : plan->steps()) sent += step.sent_bytes(device);
    most_sent = std::max(most_sent, sent);
  }
  for (int64_t position = 0; position < to.mesh().size() && !partial; ++position) {
    const int device = to.mesh().device_ids()[position];
    const std::vector<bool> held = elements(box_of(from, shape, device), shape);
    const std::vector<bool> wanted = elements(box_of(to, shape, device), shape);
    int64_t lacking = 0;
    for (size_t flat = 0; flat < wanted.size(); ++flat) lacking += wanted[flat] && !held[flat];
    if (plan->received_bytes(position) != lacking * 8 && problem.empty()) {
      problem = absl::StrCat("device ", device, " lacks ", lacking, " elements, receives ",
                             plan->received_bytes(position), " bytes");
    }
  }
  if (problem.empty()) {
    const int64_t least = plan->steps().empty() ? 0 : ValueCount(*plan).least_received();
    if (plan->lower_bound_bytes() != least * 8) {
      problem = absl::StrCat("the bound is ", plan->lower_bound_bytes(), ", not ", least * 8);
    }
    if (!partial && plan->steps().size() > 1) problem = "more than one batch";
    if (plan->max_received_bytes() < plan->lower_bound_bytes()) {
      problem = absl::StrCat("receives ", plan->max_received_bytes(), ", less than the bound ",
                             plan->lower_bound_bytes());
    }
  }
  result.sends_more = most_sent > plan->max_received_bytes();
  if (!problem.empty()) absl::StrAppend(&problem, "\n", plan->explain());
  return result;
}

}  // namespace tessera::testing
