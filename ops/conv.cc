// SPDX-License-Identifier: Apache-2.0
//
// Operations of nn.h over windows: conv2d, max_pool2d, avg_pool2d.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/math.h"
#include "base/shape.h"
#include "base/status.h"
#include "compute/engine.h"
#include "ops/broadcast.h"
#include "ops/catalog_entries.h"
#include "ops/gradient.h"
#include "ops/moving.h"
#include "ops/nn.h"
#include "ops/op.h"
#include "ops/operand_type.h"

namespace tessera::ops {
namespace {

using kernels::BoxArray;
using kernels::ImageCall;
using kernels::ImageKind;
using kernels::Window;

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

// The kernel of an image operation: applies `function` to one or two operands.
Status image(const LocalCall& call, const ImageCall& function, DType dtype) {
  const BoxArray a = {call.in[0], call.in_boxes[0]};
  if (call.in.size() == 1) {
    return call.engine.image(function, dtype, a, nullptr, call.out_box, call.out);
  }
  const BoxArray b = {call.in[1], call.in_boxes[1]};
  return call.engine.image(function, dtype, a, &b, call.out_box, call.out);
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
Status set_windows(const char* name, const OperandType& x, const Window (&windows)[2],
                   OpPlan& plan) {
  for (int k = 0; k < 2; ++k) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t size, result_size(name, x.shape()[1 + k], windows[k]));
    set_moved(plan, 1 + k, size, reach_of(windows[k]));
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

StatusOr<OpPlan> plan_conv2d(const OperandType& x, const OperandType& filter,
                             const Window (&windows)[2]) {
  TESSERA_RETURN_IF_ERROR(check_image("conv2d", x));
  TESSERA_RETURN_IF_ERROR(check_same_dtype("conv2d", {x, filter}));
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
  plan.kernel = [dtype = x.dtype(), height = windows[0],
                 width = windows[1]](const LocalCall& call) -> Status {
    return image(call, {ImageKind::kConv, height, width}, dtype);
  };
  return plan;
}

// Gradients of a convolution of an image of this shape, by the image; c is the cotangent.
OpPlan plan_conv2d_by_x(const OperandType& c, const OperandType& filter, const Shape& shape,
                        const Window (&windows)[2]) {
  OpPlan plan = plan_same(c);
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
  plan.kernel = [dtype = c.dtype(), height = windows[0],
                 width = windows[1]](const LocalCall& call) -> Status {
    return image(call, {ImageKind::kConvByX, height, width}, dtype);
  };
  return plan;
}

OpPlan plan_conv2d_by_filter(const OperandType& x, const OperandType& c, const Shape& shape,
                             const Window (&windows)[2]) {
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
  plan.kernel = [dtype = x.dtype(), height = windows[0],
                 width = windows[1]](const LocalCall& call) -> Status {
    return image(call, {ImageKind::kConvByFilter, height, width}, dtype);
  };
  return plan;
}

// A convolution and its two gradients: each is linear in its operands, and their gradients are the
// other two.
struct Convolution {
  Window windows[2];
  Shape x;
  Shape filter;

  DTensor forward(const DTensor& image, const DTensor& weights, const Out& out = {}) const {
    const DTensor operands[] = {image, weights};
    DTensor result = run({"conv2d", operands, attributes_of(windows), out},
                         [&] { return plan_conv2d(image, weights, windows); });
    return differentiable(std::move(result), operands,
                          [*this](const GradientCall& call) -> Gradients {
                            return {by_x(call.cotangent, call.operands[1]),
                                    by_filter(call.operands[0], call.cotangent)};
                          });
  }
  DTensor by_x(const DTensor& c, const DTensor& weights) const {
    const DTensor operands[] = {c, weights};
    DTensor result = run({"conv2d by x", operands, attributes(x), {}}, [&]() -> StatusOr<OpPlan> {
      return plan_conv2d_by_x(c, weights, x, windows);
    });
    return differentiable(std::move(result), operands,
                          [*this](const GradientCall& call) -> Gradients {
                            return {forward(call.cotangent, call.operands[1]),
                                    by_filter(call.cotangent, call.operands[0])};
                          });
  }
  DTensor by_filter(const DTensor& image, const DTensor& c) const {
    const DTensor operands[] = {image, c};
    DTensor result =
        run({"conv2d by filter", operands, attributes(filter), {}},
            [&]() -> StatusOr<OpPlan> { return plan_conv2d_by_filter(image, c, filter, windows); });
    return differentiable(std::move(result), operands,
                          [*this](const GradientCall& call) -> Gradients {
                            return {by_x(call.operands[1], call.cotangent),
                                    forward(call.operands[0], call.cotangent)};
                          });
  }

 private:
  std::vector<int64_t> attributes(const Shape& shape) const {
    std::vector<int64_t> all = attributes_of(windows);
    all.insert(all.end(), shape.begin(), shape.end());
    return all;
  }
};

// A window that has padding alone has no mean and no largest element. The first or the last one is
// such, if any is.
Status check_pool_windows(const char* name, const Shape& shape, const Window (&windows)[2]) {
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

// A plan over images of one shape.
StatusOr<OpPlan> plan_pool(const char* name, absl::Span<const OperandType> images,
                           const Window (&windows)[2], LocalKernel kernel) {
  TESSERA_RETURN_IF_ERROR(check_image(name, images[0]));
  TESSERA_RETURN_IF_ERROR(check_pool_windows(name, images[0].shape(), windows));
  OpPlan plan = plan_same(images[0]);
  TESSERA_RETURN_IF_ERROR(set_windows(name, images[0], windows, plan));
  plan.rule.linearity = Linearity::kNone;
  plan.rule.operands.assign(images.size(), plan.rule.operands[0]);
  const std::vector<MovedDim> moved = plan.rule.moved;
  for (size_t i = 1; i < images.size(); ++i) {
    for (const MovedDim& each : moved) {
      plan.rule.moved.push_back({static_cast<int>(i), each.dim, each.reach});
    }
  }
  plan.kernel = std::move(kernel);
  return plan;
}

// The gradient of a pool of images of this shape. The last operand is the cotangent, the others are
// images.
OpPlan plan_pool_gradient(absl::Span<const OperandType> operands, const Shape& shape,
                          const Window (&windows)[2], LocalKernel kernel) {
  OpPlan plan = plan_same(operands.back());
  const int cotangent = static_cast<int>(operands.size()) - 1;
  plan.rule.operands.assign(operands.size(), plan.rule.operands[0]);
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
  plan.kernel = std::move(kernel);
  return plan;
}

StatusOr<OpPlan> plan_avg_pool(const OperandType& x, const Window (&windows)[2]) {
  return plan_pool("avg_pool2d", {x}, windows,
                   [dtype = x.dtype(), height = windows[0],
                    width = windows[1]](const LocalCall& call) -> Status {
                     return image(call, {ImageKind::kAvgPool, height, width}, dtype);
                   });
}

// Takes an image and values. The values may be the image itself: then devices fetch it once.
StatusOr<OpPlan> plan_max_pool(absl::Span<const OperandType> images, const Window (&windows)[2]) {
  return plan_pool("max_pool2d", images, windows,
                   [dtype = images[0].dtype(), height = windows[0],
                    width = windows[1]](const LocalCall& call) -> Status {
                     const BoxArray x = {call.in[0], call.in_boxes[0]};
                     const BoxArray values = {call.in.back(), call.in_boxes.back()};
                     return call.engine.image({ImageKind::kMaxPool, height, width}, dtype, x,
                                              &values, call.out_box, call.out);
                   });
}

// Means of windows, which are linear: the gradient and its gradient are each other's.
struct AvgPool {
  Window windows[2];
  Shape shape;

  DTensor forward(const DTensor& x, const Out& out = {}) const {
    DTensor result = run({"avg_pool2d", {&x, 1}, attributes_of(windows), out},
                         [&] { return plan_avg_pool(x, windows); });
    return differentiable(
        std::move(result), {&x, 1},
        [*this](const GradientCall& call) -> Gradients { return {backward(call.cotangent)}; });
  }
  DTensor backward(const DTensor& c) const {
    std::vector<int64_t> attributes = attributes_of(windows);
    attributes.insert(attributes.end(), shape.begin(), shape.end());
    DTensor result = run({"avg_pool2d by x", {&c, 1}, attributes, {}}, [&]() -> StatusOr<OpPlan> {
      return plan_pool_gradient(
          {c}, shape, windows,
          [dtype = c.dtype(), height = windows[0], width = windows[1], rows = shape[1],
           columns = shape[2]](const LocalCall& call) -> Status {
            return image(call, {ImageKind::kAvgPoolByX, height, width, rows, columns}, dtype);
          });
    });
    return differentiable(
        std::move(result), {&c, 1},
        [*this](const GradientCall& call) -> Gradients { return {forward(call.cotangent)}; });
  }
};

// max_pool2d: the elements of `values` at the places where x is largest; linear in the values.
struct MaxPool {
  Window windows[2];

  DTensor largest(const DTensor& x, const Out& out) const {
    DTensor result = run({"max_pool2d", {&x, 1}, attributes_of(windows), out},
                         [&] { return plan_max_pool({x}, windows); });
    return differentiable(std::move(result), {&x, 1},
                          [*this](const GradientCall& call) -> Gradients {
                            return {backward(call.operands[0], call.cotangent)};
                          });
  }
  DTensor forward(const DTensor& x, const DTensor& values) const {
    const DTensor operands[] = {x, values};
    DTensor result = run({"max_pool2d", operands, attributes_of(windows), {}}, [&] {
      return plan_max_pool({x, values}, windows);
    });
    return differentiable(std::move(result), operands,
                          [*this](const GradientCall& call) -> Gradients {
                            return {std::nullopt, backward(call.operands[0], call.cotangent)};
                          });
  }
  DTensor backward(const DTensor& x, const DTensor& c) const {
    const DTensor operands[] = {x, c};
    DTensor result =
        run({"max_pool2d by x", operands, attributes_of(windows), {}}, [&]() -> StatusOr<OpPlan> {
          return plan_pool_gradient(
              {x, c}, x.shape(), windows,
              [dtype = x.dtype(), height = windows[0],
               width = windows[1]](const LocalCall& call) -> Status {
                return image(call, {ImageKind::kMaxPoolByValues, height, width}, dtype);
              });
        });
    return differentiable(std::move(result), operands,
                          [*this](const GradientCall& call) -> Gradients {
                            return {std::nullopt, forward(call.operands[0], call.cotangent)};
                          });
  }
};

// Fills in the windows of a pool.
void set_pool(const Pool2dOptions& options, Window (&windows)[2]) {
  for (int k = 0; k < 2; ++k) {
    windows[k] = {options.window[k], options.strides[k], 1, options.padding[k][0],
                  options.padding[k][1]};
  }
}

}  // namespace

DTensor conv2d(const DTensor& x, const DTensor& filter, const Conv2dOptions& options,
               const Out& out) {
  Convolution convolution = {{}, x.shape(), filter.shape()};
  for (int k = 0; k < 2; ++k) {
    convolution.windows[k] = {rank_of(filter) == 4 ? filter.shape()[k] : 1, options.strides[k],
                              options.dilation[k], options.padding[k][0], options.padding[k][1]};
  }
  return convolution.forward(x, filter, out);
}

DTensor max_pool2d(const DTensor& x, const Pool2dOptions& options, const Out& out) {
  MaxPool pool;
  set_pool(options, pool.windows);
  return pool.largest(x, out);
}

DTensor avg_pool2d(const DTensor& x, const Pool2dOptions& options, const Out& out) {
  AvgPool pool = {{}, x.shape()};
  set_pool(options, pool.windows);
  return pool.forward(x, out);
}

namespace {

// Strides, padding and dilation of windows whose sizes the caller sets.
Status read_windows(const Attributes& attributes, int64_t stride, Window (&windows)[2]) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> strides,
                           attributes.integers("strides", 2, {stride, stride}));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> padding,
                           attributes.integers("padding", 4, {0, 0, 0, 0}));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> dilation,
                           attributes.integers("dilation", 2, {1, 1}));
  for (int k = 0; k < 2; ++k) {
    windows[k] = {1, strides[k], dilation[k], padding[2 * k], padding[2 * k + 1]};
  }
  return absl::OkStatus();
}

StatusOr<OpPlan> plan_conv2d_entry(Operands x, const Attributes& attributes) {
  Window windows[2];
  TESSERA_RETURN_IF_ERROR(read_windows(attributes, 1, windows));
  for (int k = 0; k < 2; ++k) {
    if (rank_of(x[1]) == 4) windows[k].size = x[1].shape()[k];
  }
  return plan_conv2d(x[0], x[1], windows);
}

template <class Plan>
CatalogEntry pool_entry(const char* name, Plan plan) {
  return {name,
          1,
          1,
          {},
          {"window=[2, 2]", "strides=[2, 2]", "padding=[[0, 0], [0, 0]]"},
          {{DType::kFloat32, {2, 8, 8, 3}}},
          [plan](Operands x, const Attributes& attributes) -> StatusOr<OpPlan> {
            Window windows[2];
            TESSERA_RETURN_IF_ERROR(read_windows(attributes, 2, windows));
            TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes,
                                     attributes.integers("window", 2, {2, 2}));
            for (int k = 0; k < 2; ++k) windows[k].size = sizes[k];
            return plan(x[0], windows);
          }};
}

}  // namespace

std::vector<CatalogEntry> window_entries() {
  return {
      {"conv2d",
       2,
       2,
       {},
       {"strides=[1, 1]", "padding=[[1, 1], [1, 1]]", "dilation=[1, 1]"},
       {{DType::kFloat32, {2, 8, 8, 3}}, {DType::kFloat32, {3, 3, 3, 4}}},
       plan_conv2d_entry},
      pool_entry("max_pool2d",
                 [](const OperandType& x, const Window(&windows)[2]) {
                   return plan_max_pool({x}, windows);
                 }),
      pool_entry("avg_pool2d", plan_avg_pool),
  };
}

}  // namespace tessera::ops
