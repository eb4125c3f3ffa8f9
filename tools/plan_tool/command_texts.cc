// SPDX-License-Identifier: Apache-2.0
#include "tools/plan_tool/command_texts.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "tools/plan_tool/topology_json.h"

namespace tessera {
namespace {

StatusOr<ReductionOrder> read_order(absl::string_view text) {
  if (text == "by_host") return ReductionOrder::kByHost;
  if (text == "flat") return ReductionOrder::kFlat;
  return absl::InvalidArgumentError(
      absl::StrCat("order ", in_quotes(text), " is neither ", quoted_list({"by_host", "flat"})));
}

}  // namespace

StatusOr<Shape> read_shape(absl::string_view text) {
  TextCursor cursor("shape", text);
  const bool has_bracket = cursor.consume('[');
  const auto is_over = [&] { return has_bracket ? cursor.next_is(']') : cursor.at_end(); };
  Shape shape;
  while (!is_over()) {
    if (!shape.empty() && !cursor.consume(',')) return cursor.expected("\",\" or the end");
    const std::optional<int64_t> size = cursor.read_integer();
    if (!size.has_value()) return cursor.expected("the size of a dim, as in 1024,512");
    shape.push_back(*size);
  }
  if (has_bracket) cursor.consume(']');
  if (!cursor.at_end()) return cursor.expected("the end");
  TESSERA_RETURN_IF_ERROR(validate_shape(shape));
  return shape;
}

StatusOr<DType> read_dtype(absl::string_view text) {
  std::vector<std::string> names;
  for (int i = 0; i < kNumDTypes; ++i) {
    const DType dtype = static_cast<DType>(i);
    if (text == dtype_name(dtype)) return dtype;
    names.push_back(std::string(dtype_name(dtype)));
  }
  return absl::InvalidArgumentError(absl::StrCat("dtype ", in_quotes(text), " is none of ",
                                                 quoted_list(names), did_you_mean(text, names)));
}

StatusOr<PlanOptions> read_plan_options(const MachineTexts& machine) {
  PlanOptions options;
  options.memory_cap_bytes = machine.memory_cap_bytes;
  if (machine.memory_cap_bytes.value_or(1) < 1) {
    return absl::InvalidArgumentError(absl::StrCat("--memory_cap: ", *machine.memory_cap_bytes,
                                                   " bytes hold nothing; give at least 1"));
  }
  TESSERA_ASSIGN_OR_RETURN(options.reduction_order,
                           of_flag("--reduction_order", read_order(machine.reduction_order)));
  if (machine.topology_json.has_value()) {
    TESSERA_ASSIGN_OR_RETURN(options.topology,
                             parse_topology(*machine.topology_json, machine.topology_file));
  }
  return options;
}

std::string topology_text(const MachineTexts& machine, const Topology& topology) {
  if (!machine.topology_json.has_value()) {
    return absl::StrCat("topology by default: ", topology.to_string(), "\n");
  }
  return absl::StrCat("topology ", machine.topology_file, ": ", topology.to_string(), "\n");
}

}  // namespace tessera
