// SPDX-License-Identifier: Apache-2.0
//
// Tables of what collectives and relayouts of many hosts are predicted to take (docs/scaling.md).
#ifndef TESSERA_TOOLS_PLAN_TOOL_SCALING_H_
#define TESSERA_TOOLS_PLAN_TOOL_SCALING_H_

#include <string>

#include "base/status.h"
#include "relayout/topology.h"

namespace tessera {

// Two tables of Markdown, of 2 to 4,096 hosts as the topology has them: the predicted time of each
// operation and size, and the bytes that the client which receives most gets from other hosts.
// InvalidArgument unless the topology has hosts of equally many devices, a process each.
StatusOr<std::string> scaling_tables(const Topology& topology);

}  // namespace tessera

#endif  // TESSERA_TOOLS_PLAN_TOOL_SCALING_H_
