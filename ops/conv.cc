// SPDX-License-Identifier: Apache-2.0
//
// Operations of nn.h over windows: conv2d, max_pool2d, avg_pool2d.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "ops/broadcast.h"
#include "ops/kernels/nn.h"
#include "ops/moving.h"
#include "ops/nn.h"
#include "ops/op.h"

namespace tessera::ops {
namespace {

using kernels::Window;

// The size of a dim of the result.
StatusOr<int64_t> result_size(const char* name, int64_t size, const Window& window) {
  if (window.size < 1 || window.stride < 1 || window.dilation < 1 || window.before < 0 ||
      window.after < 0) {
    return refusal(name, "window ", window.size, ", stride ", window.stride, ", dilation ",
                   window.dilation, ", padding ", window.before, " and ", window.after,
                   ": the first three are 1 at least, padding is not negative");
  }
  const int64_t reach = (window.size - 1) * window.dilation + 1;
  const int64_t padded = size + window.before + window.after;
  if (padded < reach) {
    return refusal(name, "a window that reaches over ", reach, " elements does not fit a dim of ",
                   size, " with padding ", window.before, " and ", window.after);
  }
  return (padded - reach) / window.stride + 1;
}

Status check_image(const char* name, const DTensor& x) {
  if (rank_of(x) != 4) {
    return refusal(name, "x is [batch, height, width, channels], of rank 4, not rank ", rank_of(x));
  }
  if (is_floating_point(x.dtype())) return absl::OkStatus();
  return refusal(name, "takes floating-point numbers, not ", dtype_name(x.dtype()),
                 "; cast() first");
}

// The result of windows over x: its height and width are moved.
Status set_windows(const char* name, const DTensor& x, const Window (&windows)[2], OpPlan& plan) {
  for (int k = 0; k < 2; ++k) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t size, result_size(name, x.shape()[1 + k], windows[k]));
    set_moved(plan, 1 + k, size);
  }
  return absl::OkStatus();
}

std::vector<int64_t> attributes_of(const Window (&windows)[2]) {
  std::vector<int64_t> attributes;
  for (const Window& w : windows) {
    for (const int64_t n : {w.size, w.stride, w.dilation, w.before, w.after}) {
      attributes.push_back(n);
    }
  }
  return attributes;
}

StatusOr<OpPlan> plan_conv2d(const DTensor& x, const DTensor& filter, const Window (&windows)[2]) {
  TESSERA_RETURN_IF_ERROR(check_image("conv2d", x));
  const DTensor operands[] = {x, filter};
  TESSERA_RETURN_IF_ERROR(check_same_dtype("conv2d", operands));
  if (rank_of(filter) != 4) {
    return refusal("conv2d", "the filter is [height, width, in, out], of rank 4, not rank ",
                   rank_of(filter));
  }
  if (x.shape()[3] != filter.shape()[2]) {
    return refusal("conv2d", "x has ", x.shape()[3], " channels, the filter takes ",
                   filter.shape()[2]);
  }
  OpPlan plan = plan_same(x);
  TESSERA_RETURN_IF_ERROR(set_windows("conv2d", x, windows, plan));
  Rule& rule = plan.rule;
  const RuleDim channels = rule.result[3];
  rule.factors[channels[0]].kind = FactorKind::kContracted;
  const int features = rule.add_factor(filter.shape()[3]);
  rule.operands.push_back({{rule.add_factor(filter.shape()[0], FactorKind::kWhole)},
                           {rule.add_factor(filter.shape()[1], FactorKind::kWhole)},
                           channels,
                           {features}});
  rule.result[3] = {features};
  plan.shape[3] = filter.shape()[3];
  rule.linearity = Linearity::kEach;
  rule.reductions = kSums;
  rule.seconds_per_point = 1e-9;
  plan.kernel = [dtype = x.dtype(), height = windows[0],
                 width = windows[1]](const LocalCall& call) -> Status {
    kernels::conv2d(dtype, {call.in[0], call.in_boxes[0]}, {call.in[1], call.in_boxes[1]}, height,
                    width, call.out_box, call.out);
    return absl::OkStatus();
  };
  return plan;
}

DTensor pool(const char* name, bool is_max, const DTensor& x, const Pool2dOptions& options,
             const Out& out) {
  Window windows[2];
  for (int k = 0; k < 2; ++k) {
    windows[k] = {options.window[k], options.strides[k], 1, options.padding[k][0],
                  options.padding[k][1]};
  }
  return run({name, {&x, 1}, attributes_of(windows), out}, [&]() -> StatusOr<OpPlan> {
    TESSERA_RETURN_IF_ERROR(check_image(name, x));
    OpPlan plan = plan_same(x);
    TESSERA_RETURN_IF_ERROR(set_windows(name, x, windows, plan));
    plan.rule.linearity = is_max ? Linearity::kNone : Linearity::kJoint;
    plan.rule.reductions = kSums;
    plan.kernel = [is_max, dtype = x.dtype(), height = windows[0],
                   width = windows[1]](const LocalCall& call) -> Status {
      kernels::pool2d(is_max, dtype, {call.in[0], call.in_boxes[0]}, height, width, call.out_box,
                      call.out);
      return absl::OkStatus();
    };
    return plan;
  });
}

}  // namespace

DTensor conv2d(const DTensor& x, const DTensor& filter, const Conv2dOptions& options,
               const Out& out) {
  const DTensor operands[] = {x, filter};
  Window windows[2];
  for (int k = 0; k < 2; ++k) {
    windows[k] = {rank_of(filter) == 4 ? filter.shape()[k] : 1, options.strides[k],
                  options.dilation[k], options.padding[k][0], options.padding[k][1]};
  }
  return run({"conv2d", operands, attributes_of(windows), out},
             [&] { return plan_conv2d(x, filter, windows); });
}

DTensor max_pool2d(const DTensor& x, const Pool2dOptions& options, const Out& out) {
  return pool("max_pool2d", true, x, options, out);
}
DTensor avg_pool2d(const DTensor& x, const Pool2dOptions& options, const Out& out) {
  return pool("avg_pool2d", false, x, options, out);
}

}  // namespace tessera::ops
