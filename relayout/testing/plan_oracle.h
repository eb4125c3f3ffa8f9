// SPDX-License-Identifier: Apache-2.0
//
// The oracle of plans: simulated devices that run a plan with loops over elements, and check each
// of its promises on the way. Slow and dense; shares nothing with the planner but Layout::box.
#ifndef TESSERA_RELAYOUT_TESTING_PLAN_ORACLE_H_
#define TESSERA_RELAYOUT_TESTING_PLAN_ORACLE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/shape.h"
#include "layout/layout.h"
#include "relayout/plan.h"

namespace tessera::testing {

// The elements of the box of each device, row-major.
using DeviceValues = std::map<int, std::vector<double>>;

// Calls fn with the flat index, in a tensor of `shape`, of each element of `box`, row-major.
void for_each_element(const Box& box, const Shape& shape,
                      const std::function<void(int64_t flat)>& fn);

// The buffers of a tensor whose term number `term` at flat index `flat` is fn(flat, term).
DeviceValues deal(const Layout& layout, const Shape& shape,
                  const std::function<double(int64_t flat, int64_t term)>& fn);

// The reduction of `terms`, added in order.
double reduce(ReduceOp op, const std::vector<double>& terms);

// The dense value that the buffers mean. `problem` gets the first disagreement between replicas, or
// a missing element.
std::vector<double> assemble(const Layout& layout, const Shape& shape, const DeviceValues& values,
                             std::string* problem);

// Runs the plan. `problem` gets the first broken promise: pulls that overlap or leave gaps, boxes
// that their source does not hold, groups that differ between their members or miss a partner,
// bytes that are not those pulled.
DeviceValues run_plan(const RelayoutPlan& plan, const DeviceValues& values, std::string* problem);

struct CheckResult {
  std::string problem;      // Empty: all is well.
  bool sends_more = false;  // Some device sends more than any receives.
};
// Plans, runs, and compares with the dense value; compares the lower bound with a bound that is
// counted element by element, and without partials the received bytes of each device with the
// elements that it lacks. Requires a flat topology where neither layout is partial.
CheckResult check_relayout(const Layout& from, const Layout& to, const Shape& shape,
                           const PlanOptions& options = {});

// Each device on a host of its own, with a cost per byte only: here plans receive the fewest bytes.
PlanOptions network_only_options();
// Hosts of so many devices, each a process; bytes from another host take the longest by far.
PlanOptions hosts_of(int64_t devices);

}  // namespace tessera::testing

#endif  // TESSERA_RELAYOUT_TESTING_PLAN_ORACLE_H_
