// SPDX-License-Identifier: Apache-2.0
#include "visualize/plan_flow.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/format.h"
#include "base/shape.h"
#include "mesh/mesh.h"
#include "visualize/svg.h"

namespace tessera {
namespace {

using internal::SvgAnchor;
using internal::SvgWriter;

std::vector<int> devices_of(const Mesh& from, const Mesh& to) {
  std::set<int> devices(from.device_ids().begin(), from.device_ids().end());
  devices.insert(to.device_ids().begin(), to.device_ids().end());
  return {devices.begin(), devices.end()};
}

// Each device of either mesh takes a row. Fails for one mesh that is too large before joining them.
Status check_can_be_drawn(const Mesh& from, const Mesh& to) {
  const auto refuse = [](absl::string_view what, int64_t devices, absl::string_view remedy) {
    return absl::InvalidArgumentError(absl::StrCat(what, " ", devices,
                                                   " devices; the picture of a plan has at most ",
                                                   kMaxPlanPictureDevices, ", draw ", remedy));
  };
  for (const Mesh& mesh : {from, to}) {
    if (mesh.size() <= kMaxPlanPictureDevices) continue;
    return refuse(absl::StrCat("mesh ", axes_to_string(mesh.axes()), " has"), mesh.size(),
                  "a smaller mesh");
  }
  const auto devices = static_cast<int64_t>(devices_of(from, to).size());
  if (devices <= kMaxPlanPictureDevices) return absl::OkStatus();
  return refuse(absl::StrCat("meshes ", axes_to_string(from.axes()), " and ",
                             axes_to_string(to.axes()), " together have"),
                devices, "meshes that share devices, or smaller ones");
}

constexpr double kBoxHeight = 36;
constexpr double kRowHeight = 48;
constexpr double kArrowsWidth = 280;
constexpr size_t kMaxLabels = 12;  // More would hide the arrows.

std::string box_text(const std::optional<Box>& box) {
  if (!box.has_value()) return "-";
  return box->is_empty() ? "nothing" : box->to_string();
}

// "7 x 128 MiB", or "896 MiB from 7".
std::string received_text(const std::vector<Flow>& flows, int device) {
  int64_t total = 0, least = 0, most = 0, count = 0;
  for (const Flow& flow : flows) {
    if (flow.device != device) continue;
    least = count == 0 ? flow.bytes : std::min(least, flow.bytes);
    most = std::max(most, flow.bytes);
    total += flow.bytes;
    ++count;
  }
  if (count == 0) return "receives nothing";
  if (least == most) return absl::StrCat("receives ", count, " x ", format_bytes(most));
  return absl::StrCat("receives ", format_bytes(total), " from ", count);
}

// One side of a step: a box for each device.
struct Column {
  double x;
  double width;
};

void draw_device(const Column& column, double y, int device, absl::string_view first,
                 absl::string_view second, SvgWriter* svg) {
  svg->rectangle({column.x, y, column.width, kBoxHeight}, internal::svg_color(device));
  const double middle = column.x + column.width / 2;
  svg->text(middle, y + (second.empty() ? kBoxHeight / 2 : 11),
            absl::StrCat("device ", device, "  ", first));
  if (!second.empty()) svg->text(middle, y + 26, second);
}

void draw_flows(const std::vector<Flow>& flows, const std::vector<int>& devices, const Column& left,
                const Column& right, double top, SvgWriter* svg) {
  const auto row = [&](int device) {
    return static_cast<double>(std::lower_bound(devices.begin(), devices.end(), device) -
                               devices.begin());
  };
  int64_t most = 1;
  for (const Flow& flow : flows) most = std::max(most, flow.bytes);
  const double from_x = left.x + left.width;
  std::vector<std::pair<double, double>> labels;
  for (const Flow& flow : flows) {
    const double from_y = top + row(flow.source_device) * kRowHeight + kBoxHeight / 2;
    const double to_y = top + row(flow.device) * kRowHeight + kBoxHeight / 2;
    const double share = static_cast<double>(flow.bytes) / static_cast<double>(most);
    svg->arrow(
        {from_x, from_y, right.x, to_y, 0.8 + 2.2 * share},
        absl::StrCat(flow.source_device, " -> ", flow.device, ": ", format_bytes(flow.bytes)));
    // Off the middle, where the arrows of a pair cross.
    labels.push_back({from_x + 0.3 * kArrowsWidth, from_y + 0.3 * (to_y - from_y)});
  }
  if (flows.size() > kMaxLabels) return;
  for (size_t i = 0; i < flows.size(); ++i) {
    svg->label(labels[i].first, labels[i].second, format_bytes(flows[i].bytes));
  }
}

// Draws a step and returns where the next one may begin.
double draw_step(const PlanStep& step, absl::string_view title, double top, SvgWriter* svg) {
  const std::vector<int> devices = devices_of(step.from().mesh(), step.to().mesh());
  const std::vector<Flow> flows = flows_of(step);
  double width = 130;
  for (int device : devices) {
    for (const std::optional<Box>& box : {step.old_box(device), step.new_box(device)}) {
      const std::string text = absl::StrCat("device ", device, "  ", box_text(box));
      width = std::max(width, internal::svg_text_width(text) + 16);
    }
    width = std::max(width, internal::svg_text_width(received_text(flows, device)) + 16);
  }
  const Column left = {0, width};
  const Column right = {width + kArrowsWidth, width};
  svg->text(0, top, title, SvgAnchor::kStart);
  top += 20;
  for (size_t row = 0; row < devices.size(); ++row) {
    const double y = top + static_cast<double>(row) * kRowHeight;
    draw_device(left, y, devices[row], box_text(step.old_box(devices[row])), "", svg);
    draw_device(right, y, devices[row], box_text(step.new_box(devices[row])),
                received_text(flows, devices[row]), svg);
  }
  draw_flows(flows, devices, left, right, top, svg);
  return top + static_cast<double>(devices.size()) * kRowHeight + 20;
}

}  // namespace

std::vector<Flow> flows_of(const PlanStep& step) {
  std::vector<Flow> flows;
  for (int device : devices_of(step.from().mesh(), step.to().mesh())) {
    std::map<int, int64_t> bytes_from;
    for (const Pull& pull : step.pulls(device)) {
      bytes_from[pull.source_device] += num_bytes(pull.box.sizes, step.dtype());
    }
    const std::vector<int> terms = step.terms(device);
    // The algorithm of a reduction shares its bytes; the remainder goes to the first terms.
    int64_t left = terms.size() > 1 ? step.received_bytes(device) : 0;
    int64_t others = static_cast<int64_t>(terms.size()) - 1;
    for (int term : terms) {
      if (term == device || others == 0) continue;
      const int64_t share = (left + others - 1) / others;
      bytes_from[term] += share;
      left -= share;
      --others;
    }
    for (const auto& [source, bytes] : bytes_from) {
      if (source != device && bytes > 0) flows.push_back({source, device, bytes});
    }
  }
  return flows;
}

StatusOr<std::string> visualize_svg(const RelayoutPlan& plan) {
  TESSERA_RETURN_IF_ERROR(check_can_be_drawn(plan.from().mesh(), plan.to().mesh()));
  SvgWriter svg;
  svg.text(0, 8, plan.to_string(), SvgAnchor::kStart);
  double top = 40;
  int number = 0;
  for (const PlanStep& step : plan.steps()) {
    std::string title = absl::StrCat(++number, ". ", step.to_string());
    if (step.shape() != plan.shape()) {
      absl::StrAppend(&title, " as ", shape_to_string(step.shape()));
    }
    top = draw_step(step, title, top, &svg);
  }
  return svg.finish();
}

}  // namespace tessera
