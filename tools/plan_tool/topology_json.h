// SPDX-License-Identifier: Apache-2.0
//
// The JSON form of a Topology. tools/plan reads it, so the machine itself is not needed.
//
//   {
//     "description": "free text, ignored",
//     "devices_per_process": 1,        the first form: blocks of devices; or lists, one entry a
//     "devices_per_host": 4,           device: "process_of": [0, 0, 1, 1], "host_of": [0, 0, 0, 0]
//     "links": {
//       "process": {"latency_s": 2e-6, "bytes_per_s": 300e9},
//       "host": {"latency_s": 12e-6, "bytes_per_s": 300e9},
//       "network": {"latency_s": 30e-6, "bytes_per_s": 50e9}
//     }
//   }
//
// Every field except "description" is required, in either of the two forms. Any other field is an
// error, so a misspelt field never means a default.
#ifndef TESSERA_TOOLS_PLAN_TOOL_TOPOLOGY_JSON_H_
#define TESSERA_TOOLS_PLAN_TOOL_TOPOLOGY_JSON_H_

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "relayout/topology.h"

namespace tessera {

// Reads `text`; `file` names it in messages. InvalidArgument names the file and the field, and says
// which value it must have:
//   topology h100.json: "links.host.bytes_per_s" is "fast"; give a number greater than 0
StatusOr<Topology> parse_topology(absl::string_view text, absl::string_view file);

}  // namespace tessera

#endif  // TESSERA_TOOLS_PLAN_TOOL_TOPOLOGY_JSON_H_
