// SPDX-License-Identifier: Apache-2.0
//
// Operations of nn.h over windows: conv2d, max_pool2d, avg_pool2d.
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/math.h"
#include "base/shape.h"
#include "base/status.h"
#include "compute/engine.h"
#include "ops/all_operations.h"
#include "ops/apply.h"
#include "ops/broadcast.h"
#include "ops/moving.h"
#include "ops/nn.h"
#include "ops/operand_type.h"
#include "ops/operation.h"

namespace tessera::ops {
namespace {

using kernels::BoxArray;
using kernels::ImageCall;
using kernels::ImageKind;
using kernels::Window;
using Windows = std::array<Window, 2>;  // along the height and the width

constexpr AttributeSpec kStrides = {"strides", AttributeKind::kInts, "[1, 1]", "[1, 1]", 2};
constexpr AttributeSpec kPadding = {"padding", AttributeKind::kInts, "[[1, 1], [1, 1]]",
                                    "[[0, 0], [0, 0]]", 4};
constexpr AttributeSpec kDilation = {"dilation", AttributeKind::kInts, "[1, 1]", "[1, 1]", 2};
// The shape of the result of a gradient.
constexpr AttributeSpec kShape = {"shape", AttributeKind::kInts, "[2, 8, 8, 3]"};
constexpr AttributeSpec kConvAttributes[] = {kStrides, kPadding, kDilation};
constexpr AttributeSpec kConvGradientAttributes[] = {kStrides, kPadding, kDilation, kShape};

constexpr AttributeSpec kPoolWindow = {"window", AttributeKind::kInts, "[2, 2]", "[2, 2]", 2};
constexpr AttributeSpec kPoolStrides = {"strides", AttributeKind::kInts, "[2, 2]", "[2, 2]", 2};
constexpr AttributeSpec kPoolPadding = {"padding", AttributeKind::kInts, "[[0, 0], [0, 0]]",
                                        "[[0, 0], [0, 0]]", 4};
constexpr AttributeSpec kPoolAttributes[] = {kPoolWindow, kPoolStrides, kPoolPadding};
constexpr AttributeSpec kPoolGradientAttributes[] = {kPoolWindow, kPoolStrides, kPoolPadding,
                                                     kShape};

Windows windows_of(const Attributes& attributes, absl::Span<const int64_t> sizes) {
  const std::vector<int64_t>& strides = attributes.integers("strides");
  const std::vector<int64_t>& padding = attributes.integers("padding");
  Windows windows;
  for (int k = 0; k < 2; ++k) {
    windows[k] = {sizes[k], strides[k], 1, padding[2 * k], padding[2 * k + 1]};
  }
  return windows;
}

Windows windows_of_filter(const Attributes& attributes, const Shape& filter) {
  Windows windows = windows_of(attributes, filter);
  for (int k = 0; k < 2; ++k) windows[k].dilation = attributes.integers("dilation")[k];
  return windows;
}

Windows windows_of_pool(const Attributes& attributes) {
  return windows_of(attributes, attributes.integers("window"));
}

// The size of a dim of the result.
StatusOr<int64_t> result_size(const char* name, int64_t size, const Window& window) {
  if (window.size < 1 || window.stride < 1 || window.dilation < 1 || window.before < 0 ||
      window.after < 0) {
    return refusal(name, "window ", window.size, ", stride ", window.stride, ", dilation ",
                   window.dilation, ", padding ", window.before, " and ", window.after,
                   ": the first three are 1 at least, padding is not negative");
  }
  // Far from the end of int64, so that sums of a few of them are exact.
  constexpr int64_t kMost = int64_t{1} << 60;
  for (const int64_t number :
       {window.size, window.stride, window.dilation, window.before, window.after, size}) {
    if (number > kMost) {
      return refusal(name, number, " is more than 2^60; windows, strides and padding are less");
    }
  }
  const int64_t reach = saturating_add(saturating_mul(window.size - 1, window.dilation), 1);
  const int64_t padded = size + window.before + window.after;
  if (padded < reach) {
    return refusal(name, "a window that reaches over ", reach, " elements does not fit a dim of ",
                   size, " with padding ", window.before, " and ", window.after);
  }
  return (padded - reach) / window.stride + 1;
}

// The kernel of a function of images. Means are of the first operand, other functions of the first
// and the last one, which may be the same: then devices fetch it once.
LocalKernel image_kernel(const ImageCall& function, DType dtype) {
  return [function, dtype](const LocalCall& call) -> Status {
    const BoxArray a = {call.in[0], call.in_boxes[0]};
    const BoxArray b = {call.in.back(), call.in_boxes.back()};
    const bool is_mean =
        function.kind == ImageKind::kAvgPool || function.kind == ImageKind::kAvgPoolByX;
    return call.engine.image(function, dtype, a, is_mean ? nullptr : &b, call.out_box, call.out);
  };
}

Status check_image(const char* name, const OperandType& x) {
  if (rank_of(x) != 4) {
    return refusal(name, "x is [batch, height, width, channels], of rank 4, not rank ", rank_of(x));
  }
  if (is_floating_point(x.dtype())) return absl::OkStatus();
  return refusal(name, "takes floating-point numbers, not ", dtype_name(x.dtype()),
                 "; cast() first");
}

// The elements that the window at an index of the result covers.
Reach reach_of(const Window& window) {
  return {window.stride, -window.before, (window.size - 1) * window.dilation - window.before};
}
// The windows that reach an index of the image, and all that these windows reach.
Reach reached_by(const Window& window) {
  const int64_t reach = (window.size - 1) * window.dilation;
  return {1, window.before - reach + window.stride - 1, window.before, window.stride};
}
Reach reach_of_neighbours(const Window& window) {
  const int64_t reach = (window.size - 1) * window.dilation;
  return {1, -reach, reach};
}

// The result of windows over x: its height and width are moved.
Status set_windows(const char* name, const OperandType& x, const Windows& windows, OpPlan& plan) {
  for (int k = 0; k < 2; ++k) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t size, result_size(name, x.shape()[1 + k], windows[k]));
    set_moved(plan, 1 + k, size, reach_of(windows[k]));
  }
  return absl::OkStatus();
}

StatusOr<OpPlan> plan_conv2d(Operands operands, const Attributes& attributes) {
  const OperandType& x = operands[0];
  const OperandType& filter = operands[1];
  TESSERA_RETURN_IF_ERROR(check_image("conv2d", x));
  TESSERA_RETURN_IF_ERROR(check_same_dtype("conv2d", operands));
  if (rank_of(filter) != 4) {
    return refusal("conv2d", "the filter is [height, width, in, out], of rank 4, not rank ",
                   rank_of(filter));
  }
  if (x.shape()[3] != filter.shape()[2]) {
    return refusal("conv2d", "x has ", x.shape()[3], " channels, the filter takes ",
                   filter.shape()[2]);
  }
  const Windows windows = windows_of_filter(attributes, filter.shape());
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
  plan.kernel = image_kernel({ImageKind::kConv, windows[0], windows[1]}, plan.dtype);
  return plan;
}

// The gradient of a convolution by its image, from the cotangent and the filter.
StatusOr<OpPlan> plan_conv2d_by_x(Operands operands, const Attributes& attributes) {
  const OperandType& filter = operands[1];
  const Shape& shape = attributes.integers("shape");
  const Windows windows = windows_of_filter(attributes, filter.shape());
  OpPlan plan = plan_same(operands[0]);
  for (int k = 0; k < 2; ++k) set_moved(plan, 1 + k, shape[1 + k], reached_by(windows[k]));
  Rule& rule = plan.rule;
  const RuleDim features = rule.result[3];
  rule.factors[features[0]].kind = FactorKind::kContracted;
  const int channels = rule.add_factor(shape[3]);
  rule.operands.push_back({{rule.add_factor(filter.shape()[0], FactorKind::kWhole)},
                           {rule.add_factor(filter.shape()[1], FactorKind::kWhole)},
                           {channels},
                           features});
  rule.result[3] = {channels};
  plan.shape = shape;
  rule.linearity = Linearity::kEach;
  rule.reductions = kSums;
  plan.kernel = image_kernel({ImageKind::kConvByX, windows[0], windows[1]}, plan.dtype);
  return plan;
}

// The gradient by the filter, from the image and the cotangent.
StatusOr<OpPlan> plan_conv2d_by_filter(Operands operands, const Attributes& attributes) {
  const OperandType& x = operands[0];
  const OperandType& c = operands[1];
  const Shape& shape = attributes.integers("shape");
  const Windows windows = windows_of_filter(attributes, shape);
  OpPlan plan;
  plan.dtype = x.dtype();
  plan.shape = shape;
  Rule& rule = plan.rule;
  // A sum over the batch and the places of the result, which need the image around them.
  const RuleDim batch = {rule.add_factor(x.shape()[0], FactorKind::kContracted)};
  const RuleDim rows = {rule.add_factor(c.shape()[1], FactorKind::kContracted)};
  const RuleDim columns = {rule.add_factor(c.shape()[2], FactorKind::kContracted)};
  rule.result = {{rule.add_factor(shape[0], FactorKind::kWhole)},
                 {rule.add_factor(shape[1], FactorKind::kWhole)},
                 {rule.add_factor(shape[2])},
                 {rule.add_factor(shape[3])}};
  rule.operands = {{batch, rows, columns, rule.result[2]}, {batch, rows, columns, rule.result[3]}};
  for (int k = 0; k < 2; ++k) rule.moved.push_back({0, 1 + k, reach_of(windows[k])});
  rule.linearity = Linearity::kEach;
  rule.reductions = kSums;
  plan.kernel = image_kernel({ImageKind::kConvByFilter, windows[0], windows[1]}, plan.dtype);
  return plan;
}

// A window that has padding alone has no mean and no largest element. The first or the last one is
// such, if any is.
Status check_pool_windows(const char* name, const Shape& shape, const Windows& windows) {
  for (int k = 0; k < 2; ++k) {
    const Window& window = windows[k];
    const int64_t size = shape[1 + k];
    TESSERA_ASSIGN_OR_RETURN(const int64_t count, result_size(name, size, window));
    for (const int64_t number : {int64_t{0}, count - 1}) {
      const int64_t begin = number * window.stride - window.before;
      if (begin + window.size > 0 && begin < size) continue;
      return refusal(name, "window ", number, " along dim ", 1 + k,
                     " has padding alone: windows of ", window.size, ", stride ", window.stride,
                     ", padding ", window.before, " and ", window.after, ", over ", size,
                     " elements; pad by less than the window");
    }
  }
  return absl::OkStatus();
}

// A pool of an image, or what a second image holds at the places of the first one's largest
// elements.
template <ImageKind kKind>
StatusOr<OpPlan> plan_pool(Operands images, const Attributes& attributes) {
  constexpr const char* kName = kKind == ImageKind::kAvgPool ? "avg_pool2d" : "max_pool2d";
  const Windows windows = windows_of_pool(attributes);
  TESSERA_RETURN_IF_ERROR(check_image(kName, images[0]));
  TESSERA_RETURN_IF_ERROR(check_pool_windows(kName, images[0].shape(), windows));
  OpPlan plan = plan_same(images[0]);
  TESSERA_RETURN_IF_ERROR(set_windows(kName, images[0], windows, plan));
  plan.rule.linearity = Linearity::kNone;
  plan.rule.operands.assign(images.size(), plan.rule.result);
  const std::vector<MovedDim> moved = plan.rule.moved;
  for (size_t i = 1; i < images.size(); ++i) {
    for (const MovedDim& each : moved) {
      plan.rule.moved.push_back({static_cast<int>(i), each.dim, each.reach});
    }
  }
  plan.kernel = image_kernel({kKind, windows[0], windows[1]}, plan.dtype);
  return plan;
}

// The gradient of a pool. The last operand is the cotangent; max_pool2d has its image before it.
template <ImageKind kKind>
StatusOr<OpPlan> plan_pool_gradient(Operands operands, const Attributes& attributes) {
  const Windows windows = windows_of_pool(attributes);
  const Shape& shape = attributes.integers("shape");
  OpPlan plan = plan_same(operands.back());
  const int cotangent = static_cast<int>(operands.size()) - 1;
  plan.rule.operands.assign(operands.size(), plan.rule.result);
  for (int k = 0; k < 2; ++k) {
    const int dim = 1 + k;
    plan.rule.factors[plan.rule.result[dim][0]].size = shape[dim];
    plan.shape[dim] = shape[dim];
    for (int i = 0; i < cotangent; ++i) {
      plan.rule.moved.push_back({i, dim, reach_of_neighbours(windows[k])});
    }
    plan.rule.moved.push_back({cotangent, dim, reached_by(windows[k])});
  }
  plan.rule.linearity = Linearity::kNone;
  plan.kernel = image_kernel({kKind, windows[0], windows[1], shape[1], shape[2]}, plan.dtype);
  return plan;
}

// ---- Gradients

// Applies an operation with the strides, the padding and so on of the call; a gradient also has the
// shape of its result.
DTensor apply_like(const GradientCall& call, const Operation& operation,
                   std::initializer_list<DTensor> operands, const Shape* shape = nullptr) {
  const Attributes::Values& values = call.attributes.values();
  Attributes::Values own(values.begin(), values.begin() + 3);
  if (shape != nullptr) own.emplace_back(*shape);
  return only(apply(operation, operands, std::move(own)));
}

// A convolution is linear in each operand, as are its gradients: the gradients of each of the three
// are the other two.
Gradients conv2d_gradient(const GradientCall& call) {
  const DTensor& x = call.operands[0];
  const DTensor& filter = call.operands[1];
  // An image that nothing watches, as of a first layer, needs no gradient.
  Gradients found(2);
  if (call.needed[0]) {
    found[0] = apply_like(call, kConv2dByX, {call.cotangent, filter}, &x.shape());
  }
  if (call.needed[1]) {
    found[1] = apply_like(call, kConv2dByFilter, {x, call.cotangent}, &filter.shape());
  }
  return found;
}

Gradients conv2d_by_x_gradient(const GradientCall& call) {
  const DTensor& c = call.operands[0];
  const DTensor& filter = call.operands[1];
  return {apply_like(call, kConv2d, {call.cotangent, filter}),
          apply_like(call, kConv2dByFilter, {call.cotangent, c}, &filter.shape())};
}

Gradients conv2d_by_filter_gradient(const GradientCall& call) {
  const DTensor& x = call.operands[0];
  const DTensor& c = call.operands[1];
  return {apply_like(call, kConv2dByX, {c, call.cotangent}, &x.shape()),
          apply_like(call, kConv2d, {x, call.cotangent})};
}

Gradients max_pool_gradient(const GradientCall& call) {
  const DTensor& x = call.operands[0];
  return {apply_like(call, kMaxPool2dByX, {x, call.cotangent}, &x.shape())};
}

// By the values; the places are constant.
Gradients max_pool_at_places_gradient(const GradientCall& call) {
  return {std::nullopt, max_pool_gradient(call)[0]};
}

Gradients max_pool_by_x_gradient(const GradientCall& call) {
  return {std::nullopt, apply_like(call, kMaxPool2dAtPlaces, {call.operands[0], call.cotangent})};
}

Gradients avg_pool_gradient(const GradientCall& call) {
  return {apply_like(call, kAvgPool2dByX, {call.cotangent}, &call.operands[0].shape())};
}

Gradients avg_pool_by_x_gradient(const GradientCall& call) {
  return {apply_like(call, kAvgPool2d, {call.cotangent})};
}

std::vector<int64_t> list_of(const std::array<int64_t, 2>& pair) { return {pair[0], pair[1]}; }
std::vector<int64_t> list_of(const std::array<std::array<int64_t, 2>, 2>& pairs) {
  return {pairs[0][0], pairs[0][1], pairs[1][0], pairs[1][1]};
}

Attributes::Values pool_values(const Pool2dOptions& options) {
  return {list_of(options.window), list_of(options.strides), list_of(options.padding)};
}

}  // namespace

constinit const Operation kConv2d = {.name = "conv2d",
                                     .arity = {2, 2},
                                     .attributes = kConvAttributes,
                                     .plan = plan_conv2d,
                                     .gradient = conv2d_gradient,
                                     .sample = "f32 [2, 8, 8, 3]; f32 [3, 3, 3, 4]"};
constinit const Operation kConv2dByX = {.name = "conv2d by x",
                                        .arity = {2, 2},
                                        .attributes = kConvGradientAttributes,
                                        .plan = plan_conv2d_by_x,
                                        .gradient = conv2d_by_x_gradient};
constinit const Operation kConv2dByFilter = {.name = "conv2d by filter",
                                             .arity = {2, 2},
                                             .attributes = kConvGradientAttributes,
                                             .plan = plan_conv2d_by_filter,
                                             .gradient = conv2d_by_filter_gradient};

constinit const Operation kMaxPool2d = {.name = "max_pool2d",
                                        .arity = {1, 1},
                                        .attributes = kPoolAttributes,
                                        .plan = plan_pool<ImageKind::kMaxPool>,
                                        .gradient = max_pool_gradient,
                                        .sample = "f32 [2, 8, 8, 3]"};
constinit const Operation kMaxPool2dAtPlaces = {.name = "max_pool2d at the places of x",
                                                .arity = {2, 2},
                                                .attributes = kPoolAttributes,
                                                .plan = plan_pool<ImageKind::kMaxPool>,
                                                .gradient = max_pool_at_places_gradient};
constinit const Operation kMaxPool2dByX = {.name = "max_pool2d by x",
                                           .arity = {2, 2},
                                           .attributes = kPoolGradientAttributes,
                                           .plan = plan_pool_gradient<ImageKind::kMaxPoolByValues>,
                                           .gradient = max_pool_by_x_gradient};

constinit const Operation kAvgPool2d = {.name = "avg_pool2d",
                                        .arity = {1, 1},
                                        .attributes = kPoolAttributes,
                                        .plan = plan_pool<ImageKind::kAvgPool>,
                                        .gradient = avg_pool_gradient,
                                        .sample = "f32 [2, 8, 8, 3]"};
constinit const Operation kAvgPool2dByX = {.name = "avg_pool2d by x",
                                           .arity = {1, 1},
                                           .attributes = kPoolGradientAttributes,
                                           .plan = plan_pool_gradient<ImageKind::kAvgPoolByX>,
                                           .gradient = avg_pool_by_x_gradient};

DTensor conv2d(const DTensor& x, const DTensor& filter, const Conv2dOptions& options,
               const Out& out) {
  return only(apply(kConv2d, {x, filter},
                    {list_of(options.strides), list_of(options.padding), list_of(options.dilation)},
                    out));
}

DTensor max_pool2d(const DTensor& x, const Pool2dOptions& options, const Out& out) {
  return only(apply(kMaxPool2d, {x}, pool_values(options), out));
}

DTensor avg_pool2d(const DTensor& x, const Pool2dOptions& options, const Out& out) {
  return only(apply(kAvgPool2d, {x}, pool_values(options), out));
}

}  // namespace tessera::ops
