// SPDX-License-Identifier: Apache-2.0
//
// Reads the texts of the command line. InvalidArgument begins with the flag, or names the topology
// file and its field.
#ifndef TESSERA_TOOLS_PLAN_TOOL_COMMAND_TEXTS_H_
#define TESSERA_TOOLS_PLAN_TOOL_COMMAND_TEXTS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "relayout/plan.h"
#include "relayout/topology.h"

namespace tessera {

// The error of a flag begins with its name.
template <class T>
StatusOr<T> of_flag(const char* flag, StatusOr<T> result) {
  if (result.ok()) return result;
  return with_context(result.status(), flag);
}

// "1024,512", also in brackets as messages write it; "" and "[]" for rank 0.
StatusOr<Shape> read_shape(absl::string_view text);
StatusOr<DType> read_dtype(absl::string_view text);

// The flags that describe the machine.
struct MachineTexts {
  // The name and the content of the topology file. Without a file: one host, one process per
  // device.
  std::string topology_file;
  std::optional<std::string> topology_json;
  std::optional<int64_t> memory_cap_bytes;
  std::string reduction_order = "by_host";  // or "flat"
};
StatusOr<PlanOptions> read_plan_options(const MachineTexts& machine);
// "topology h100.json: ...".
std::string topology_text(const MachineTexts& machine, const Topology& topology);

}  // namespace tessera

#endif  // TESSERA_TOOLS_PLAN_TOOL_COMMAND_TEXTS_H_
