// SPDX-License-Identifier: Apache-2.0
//
// The program behind tools/plan: flags, files and exit codes; plan_command.h does the work.
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/status.h"
#include "tools/plan_tool/plan_command.h"

ABSL_FLAG(std::string, mesh, "", "The mesh of --from, as in '{node=2, gpu=4}'. Required.");
ABSL_FLAG(std::string, mesh_to, "", "The mesh of --to, if it is another.");
ABSL_FLAG(std::string, from, "", "The layout before, as in '[(node,gpu), -] sum{x}'. Required.");
ABSL_FLAG(std::string, to, "", "The layout after. Required.");
ABSL_FLAG(std::string, shape, "", "The shape of the tensor, as in 1024,512. None: rank 0.");
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
  const bool failed = std::ferror(file) != 0;  // A folder opens and does not read.
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

Status run(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "plan shows how a relayout would run on a machine, which need not be there.\n\n"
      "  tools/plan --mesh '{node=2, gpu=4}' --from '[(node,gpu)]' --to '[-]' \\\n"
      "    --shape 268435456 --dtype f32 --topology tools/topologies/h100.json");
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", rest[1], "\" is no flag; put layouts in quotes, as in --from '[x, -]'"));
  }
  PlanCommand command = {.mesh = absl::GetFlag(FLAGS_mesh),
                         .mesh_to = absl::GetFlag(FLAGS_mesh_to),
                         .from = absl::GetFlag(FLAGS_from),
                         .to = absl::GetFlag(FLAGS_to),
                         .shape = absl::GetFlag(FLAGS_shape),
                         .dtype = absl::GetFlag(FLAGS_dtype),
                         .topology_file = absl::GetFlag(FLAGS_topology),
                         .topology_json = std::nullopt,
                         .memory_cap_bytes = std::nullopt,
                         .reduction_order = absl::GetFlag(FLAGS_reduction_order)};
  for (const auto& [flag, value] :
       {std::pair("--mesh", &command.mesh), {"--from", &command.from}, {"--to", &command.to}}) {
    if (value->empty()) {
      return absl::InvalidArgumentError(absl::StrCat(flag, " is missing; --help has an example"));
    }
  }
  if (const absl::optional<int64_t> cap = absl::GetFlag(FLAGS_memory_cap)) {
    command.memory_cap_bytes = *cap;
  }
  if (!command.topology_file.empty()) {
    TESSERA_ASSIGN_OR_RETURN(command.topology_json, read_file(command.topology_file));
  }
  const std::string svg = absl::GetFlag(FLAGS_svg);
  TESSERA_ASSIGN_OR_RETURN(
      const PlanReport report,
      report_plan(command, svg.empty() ? PlanPicture::kNone : PlanPicture::kSvg));
  if (!svg.empty()) TESSERA_RETURN_IF_ERROR(write_file(svg, report.svg));
  std::fputs(report.text.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const tessera::Status status = tessera::run(argc, argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "plan: %s\n", std::string(status.message()).c_str());
  return status.code() == absl::StatusCode::kInvalidArgument ? tessera::kUsageExitCode : 1;
}
