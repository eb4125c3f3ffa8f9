// SPDX-License-Identifier: Apache-2.0
#include "tools/plan_tool/scaling.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "base/format.h"
#include "base/shape.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "relayout/plan.h"
#include "tools/plan_tool/plan_command.h"

namespace tessera {
namespace {

constexpr int64_t kHosts[] = {2, 16, 128, 1024, 4096};
// Of the f32 that a client holds, or more where the size of an operation counts otherwise.
constexpr int64_t kElements[] = {int64_t{32} << 10, int64_t{4} << 20, int64_t{256} << 20};

// What n, the elements of the size S, mean for the shape of the tensor.
enum class SizeOf {
  kTensor,     // the whole tensor, of n elements
  kRow,        // one row of n elements for each client
  kHostShard,  // an equal shard of n elements for each client of a host
};

struct Operation {
  const char* name;
  const char* from;
  const char* to;
  SizeOf size_of;
};

constexpr Operation kOperations[] = {
    {"all_reduce", "[-] sum{host,client}", "[-]", SizeOf::kTensor},
    {"reduce_scatter", "[-] sum{host,client}", "[(host,client)]", SizeOf::kTensor},
    {"all_gather", "[(host,client)]", "[-]", SizeOf::kTensor},
    {"all_to_all", "[(host,client), -]", "[-, (host,client)]", SizeOf::kRow},
    {"sums over hosts", "[client] sum{host}", "[client]", SizeOf::kHostShard},
    {"gather over hosts", "[(client,host)]", "[client]", SizeOf::kHostShard},
    {"swap of axes", "[host, client]", "[client, host]", SizeOf::kRow},
};

StatusOr<RelayoutPlan> plan_of(const Operation& operation, int64_t elements, int64_t num_hosts,
                               const Topology& topology) {
  const int64_t per_host = topology.block_sizes().second;
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh,
                           Mesh::create({{"host", num_hosts}, {"client", per_host}}));
  TESSERA_ASSIGN_OR_RETURN(const Layout from, Layout::parse(mesh, operation.from));
  TESSERA_ASSIGN_OR_RETURN(const Layout to, Layout::parse(mesh, operation.to));
  Shape shape;
  switch (operation.size_of) {
    case SizeOf::kTensor:
      shape = {elements};
      break;
    case SizeOf::kRow:
      shape = {num_hosts * per_host, elements};
      break;
    case SizeOf::kHostShard:
      shape = {per_host * elements};
      break;
  }
  return plan_relayout(from, to, shape, DType::kFloat32, {.topology = topology});
}

// What the device gets over the network in a step. Of an all-reduce: the terms of its chunk, and
// the sums of the others'.
int64_t network_bytes(const PlanStep& step, int device, const Topology& topology) {
  const auto is_far = [&](int other) {
    return topology.link(device, other) == LinkClass::kNetwork;
  };
  const int64_t size = dtype_size(step.dtype());
  int64_t bytes = 0;
  for (const Pull& pull : step.pulls(device)) {
    if (is_far(pull.source_device)) bytes += pull.box.num_elements() * size;
  }
  const std::vector<int> terms = step.terms(device);
  int64_t num_far = 0;
  for (const int term : terms) num_far += is_far(term);
  if (num_far == 0) return bytes;
  const int64_t new_bytes = step.new_elements(device) * size;
  if (step.kind() != StepKind::kAllReduce) return bytes + num_far * new_bytes;
  return bytes + 2 * num_far * new_bytes / static_cast<int64_t>(terms.size());
}

// The most that a client of the first host or the last one gets over the network: the others get as
// much as one of these.
int64_t most_network_bytes(const RelayoutPlan& plan, int64_t num_hosts) {
  const Topology& topology = plan.topology();
  const auto per_host = static_cast<int>(topology.block_sizes().second);
  const auto last = static_cast<int>((num_hosts - 1) * per_host);
  int64_t most = 0;
  for (int client = 0; client < per_host; ++client) {
    for (const int device : {client, last + client}) {
      int64_t bytes = 0;
      for (const PlanStep& step : plan.steps()) bytes += network_bytes(step, device, topology);
      most = std::max(most, bytes);
    }
  }
  return most;
}

std::string table_head(absl::string_view what) {
  std::string head = absl::StrCat("| ", what, " | S |");
  std::string line = "| --- | ---: |";
  for (const int64_t hosts : kHosts) {
    absl::StrAppend(&head, " ", hosts, " hosts |");
    absl::StrAppend(&line, " ---: |");
  }
  return absl::StrCat(head, "\n", line, "\n");
}

}  // namespace

StatusOr<std::string> scaling_tables(const Topology& topology) {
  const auto [per_process, per_host] = topology.block_sizes();
  if (per_process != 1 || per_host < 2 || topology.num_devices().has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--scaling: the topology has ", topology.to_string(),
                     "; give one with devices_per_process 1 and devices_per_host 2 or more"));
  }
  std::string times = table_head("predicted time");
  std::string bytes = table_head("received from other hosts");
  for (const Operation& operation : kOperations) {
    for (const int64_t elements : kElements) {
      const std::string row = absl::StrCat(
          "| ", operation.name, " | ", format_bytes(elements * dtype_size(DType::kFloat32)), " |");
      absl::StrAppend(&times, row);
      absl::StrAppend(&bytes, row);
      for (const int64_t num_hosts : kHosts) {
        TESSERA_ASSIGN_OR_RETURN(const RelayoutPlan plan,
                                 plan_of(operation, elements, num_hosts, topology));
        const int64_t received = most_network_bytes(plan, num_hosts);
        absl::StrAppend(&times, " ", time_text(plan.predicted_time()), " |");
        absl::StrAppend(&bytes, " ", format_bytes(received), " |");
      }
      absl::StrAppend(&times, "\n");
      absl::StrAppend(&bytes, "\n");
    }
  }
  return absl::StrCat(times, "\n", bytes);
}

}  // namespace tessera
