// SPDX-License-Identifier: Apache-2.0
#include "ops/moving.h"

#include <limits>

#include "ops/broadcast.h"

namespace tessera::ops {

StatusOr<int64_t> checked_size(const char* name, int64_t dim, __int128 size,
                               absl::string_view reason) {
  if (size <= std::numeric_limits<int64_t>::max()) return static_cast<int64_t>(size);
  return refusal(name, "dim ", dim, " would have more than 2^63 - 1 elements: ", reason);
}

OpPlan plan_same(const OperandType& x) {
  OpPlan plan;
  plan.dtype = x.dtype();
  plan.shape = x.shape();
  plan.rule = broadcast_rule({&x, 1}, x.shape());
  plan.rule.linearity = Linearity::kJoint;
  plan.rule.reductions = kAllReductions;
  return plan;
}

void set_moved(OpPlan& plan, int dim, int64_t size, const Reach& reach) {
  if (reach == Reach() && size == plan.shape[dim]) return;
  plan.rule.factors[plan.rule.result[dim][0]].size = size;
  plan.rule.moved.push_back({0, dim, reach});
  plan.shape[dim] = size;
}

}  // namespace tessera::ops
