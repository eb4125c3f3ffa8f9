// SPDX-License-Identifier: Apache-2.0
//
// The program behind tools/plan: flags, files and exit codes; plan_command.h and op_command.h
// do the work.
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/status.h"
#include "base/text.h"
#include "job/environment/build.h"
#include "tools/plan_tool/command_texts.h"
#include "tools/plan_tool/op_command.h"
#include "tools/plan_tool/plan_command.h"

ABSL_FLAG(std::string, mesh, "",
          "The mesh of --from, or of --op, as in '{node=2, gpu=4}'. Required.");
ABSL_FLAG(std::string, mesh_to, "", "The mesh of --to, if it is another.");
ABSL_FLAG(std::string, from, "", "The layout before, as in '[(node,gpu), -] sum{x}'.");
ABSL_FLAG(std::string, to, "", "The layout after.");
ABSL_FLAG(std::string, op, "",
          "Instead of --from and --to: an operation, and a layout for each operand, as in\n"
          "'matmul [node, -] [-, gpu]'. --shape has a shape for each, --dtype a dtype for each or\n"
          "one for all.");
ABSL_FLAG(std::string, attributes, "",
          "Of --op: whatever else it is given, as in 'dims=[1]; keep_dims' or\n"
          "'equation=bik,kj->bij'; --ops has an example for each operation.");
ABSL_FLAG(std::string, out, "", "Of --op: the layout of the result. None: inferred.");
ABSL_FLAG(bool, ops, false, "Only print a Markdown table of all operations and their rules.");
ABSL_FLAG(std::string, shape, "",
          "The shape of the tensor, as in 1024,512. None: rank 0. Of --op: a shape for each\n"
          "operand, as in '1024,512; 512,64'.");
ABSL_FLAG(std::string, dtype, "f32", "bool, i8, u8, i32, i64, f16, bf16, f32 or f64.");
ABSL_FLAG(std::string, topology, "",
          "A JSON file with the links and their costs, as tools/topologies/h100.json.\n"
          "None: one host, each device a process, default costs.");
ABSL_FLAG(absl::optional<int64_t>, memory_cap, absl::nullopt,
          "The most bytes that a device may hold at once. None: no cap.");
ABSL_FLAG(std::string, reduction_order, "by_host",
          "by_host: each host's terms may be added first; flat: all terms in one step.");
ABSL_FLAG(std::string, svg, "", "Also draw the data flow into this file.");

namespace tessera {
namespace {

constexpr int kUsageExitCode = 2;

StatusOr<std::string> read_file(const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    return absl::NotFoundError(absl::StrCat("topology ", path, " cannot be opened; give a file"));
  }
  std::string text;
  char chunk[4096];
  size_t count;
  while ((count = std::fread(chunk, 1, sizeof(chunk), file)) > 0) text.append(chunk, count);
  const bool failed = std::ferror(file) != 0;  // a folder opens, but cannot be read
  std::fclose(file);
  if (failed) {
    return absl::InvalidArgumentError(
        absl::StrCat("topology ", path, " cannot be read; give a file"));
  }
  return text;
}

Status write_file(const std::string& path, const std::string& text) {
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  const bool wrote =
      file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = file != nullptr && std::fclose(file) == 0;
  if (wrote && closed) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("--svg: ", path, " cannot be written"));
}

StatusOr<MachineTexts> machine_of_flags() {
  MachineTexts machine = {.topology_file = absl::GetFlag(FLAGS_topology),
                          .topology_json = std::nullopt,
                          .memory_cap_bytes = std::nullopt,
                          .reduction_order = absl::GetFlag(FLAGS_reduction_order)};
  if (const absl::optional<int64_t> cap = absl::GetFlag(FLAGS_memory_cap)) {
    machine.memory_cap_bytes = *cap;
  }
  if (!machine.topology_file.empty()) {
    TESSERA_ASSIGN_OR_RETURN(machine.topology_json, read_file(machine.topology_file));
  }
  return machine;
}

using Flags = std::vector<std::pair<const char*, std::string>>;

Status check_given(const Flags& flags) {
  for (const auto& [flag, value] : flags) {
    if (!value.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(flag, " is missing; --help has an example"));
  }
  return absl::OkStatus();
}

Status check_absent(const Flags& flags, const char* why) {
  for (const auto& [flag, value] : flags) {
    if (value.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(flag, " is given ", why, "; leave it out"));
  }
  return absl::OkStatus();
}

Status run_plan() {
  PlanCommand command = {.mesh = absl::GetFlag(FLAGS_mesh),
                         .mesh_to = absl::GetFlag(FLAGS_mesh_to),
                         .from = absl::GetFlag(FLAGS_from),
                         .to = absl::GetFlag(FLAGS_to),
                         .shape = absl::GetFlag(FLAGS_shape),
                         .dtype = absl::GetFlag(FLAGS_dtype)};
  TESSERA_RETURN_IF_ERROR(
      check_given({{"--mesh", command.mesh}, {"--from", command.from}, {"--to", command.to}}));
  TESSERA_RETURN_IF_ERROR(check_absent(
      {{"--attributes", absl::GetFlag(FLAGS_attributes)}, {"--out", absl::GetFlag(FLAGS_out)}},
      "without --op"));
  TESSERA_ASSIGN_OR_RETURN(command.machine, machine_of_flags());
  const std::string svg = absl::GetFlag(FLAGS_svg);
  TESSERA_ASSIGN_OR_RETURN(
      const PlanReport report,
      report_plan(command, svg.empty() ? PlanPicture::kNone : PlanPicture::kSvg));
  if (!svg.empty()) TESSERA_RETURN_IF_ERROR(write_file(svg, report.svg));
  std::fputs(report.text.c_str(), stdout);
  return absl::OkStatus();
}

Status run_op() {
  OpCommand command = {.mesh = absl::GetFlag(FLAGS_mesh),
                       .op = absl::GetFlag(FLAGS_op),
                       .shapes = absl::GetFlag(FLAGS_shape),
                       .dtypes = absl::GetFlag(FLAGS_dtype),
                       .attributes = absl::GetFlag(FLAGS_attributes),
                       .out = absl::GetFlag(FLAGS_out)};
  TESSERA_RETURN_IF_ERROR(check_given({{"--mesh", command.mesh}}));
  TESSERA_RETURN_IF_ERROR(check_absent({{"--from", absl::GetFlag(FLAGS_from)},
                                        {"--to", absl::GetFlag(FLAGS_to)},
                                        {"--mesh_to", absl::GetFlag(FLAGS_mesh_to)},
                                        {"--svg", absl::GetFlag(FLAGS_svg)}},
                                       "with --op"));
  TESSERA_ASSIGN_OR_RETURN(command.machine, machine_of_flags());
  TESSERA_ASSIGN_OR_RETURN(const std::string report, report_operation(command));
  std::fputs(report.c_str(), stdout);
  return absl::OkStatus();
}

Status run(int argc, char** argv) {
  absl::FlagsUsageConfig config;
  // By default --help shows the flags of sources whose name is that of the program.
  config.contains_help_flags = [](absl::string_view source) {
    return absl::EndsWith(source, "plan_tool.cc");
  };
  config.version_string = [] { return version_text("tessera_plan"); };
  absl::SetFlagsUsageConfig(config);
  absl::SetProgramUsageMessage(
      "shows how a relayout or an operation would run on a machine, which need not be there.\n\n"
      "  tessera_plan --mesh '{node=2, gpu=4}' --from '[(node,gpu)]' --to '[-]' \\\n"
      "    --shape 268435456 --dtype f32 --topology h100.json\n"
      "  tessera_plan --mesh '{batch=4, model=2}' --op 'matmul [batch, -] [-, model]' \\\n"
      "    --shape '1024,512; 512,2048'\n\n"
      "In Tessera's own tree it is tools/plan. Topologies are in share/tessera/topologies of an "
      "installed Tessera, and in tools/topologies of the tree.");
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        in_quotes(rest[1]), " is not a flag; put layouts in quotes, as in --from '[x, -]'"));
  }
  if (absl::GetFlag(FLAGS_ops)) {
    std::fputs(operations_table().c_str(), stdout);
    return absl::OkStatus();
  }
  return absl::GetFlag(FLAGS_op).empty() ? run_plan() : run_op();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const tessera::Status status = tessera::run(argc, argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "plan: %s\n", std::string(status.message()).c_str());
  return status.code() == absl::StatusCode::kInvalidArgument ? tessera::kUsageExitCode : 1;
}
