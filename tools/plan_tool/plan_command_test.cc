// SPDX-License-Identifier: Apache-2.0
//
// Reports of plans: the output of a table of commands, and each refusal.
#include "tools/plan_tool/plan_command.h"

#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::tessera::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// 2 nodes of 4 GPUs: 300 GB/s and 12 us inside a node, 50 GB/s and 30 us between.
constexpr char kNodes[] = R"({"devices_per_process": 1, "devices_per_host": 4, "links": {
  "process": {"latency_s": 12e-6, "bytes_per_s": 300e9},
  "host": {"latency_s": 12e-6, "bytes_per_s": 300e9},
  "network": {"latency_s": 30e-6, "bytes_per_s": 50e9}}})";

// 4 nodes of a process with 2 devices, whose links are as fast as memory; the others are slow.
constexpr char kPairs[] = R"({"devices_per_process": 2, "devices_per_host": 2, "links": {
  "process": {"latency_s": 0, "bytes_per_s": 1e9},
  "host": {"latency_s": 3e-6, "bytes_per_s": 1e6},
  "network": {"latency_s": 3e-6, "bytes_per_s": 1e6}}})";

PlanCommand gather(const std::string& shape) {
  return {.mesh = "{node=2, gpu=4}",
          .mesh_to = "",
          .from = "[(node,gpu)]",
          .to = "[-]",
          .shape = shape,
          .dtype = "f32",
          .machine = {.topology_file = "nodes.json",
                      .topology_json = kNodes,
                      .memory_cap_bytes = std::nullopt}};
}

struct ReportCase {
  std::string name;
  PlanCommand command;
  std::vector<std::string> parts;  // in the text
};

// Times by hand, in the alpha-beta model. A device of 8 lacks 7/8 of the tensor. It gets 3/8 from
// its node and 4/8 over the network in one batch, or 1/8 over the network and then 6/8 in two.
std::vector<ReportCase> report_cases() {
  std::vector<ReportCase> cases = {
      {"small_tensor_in_one_batch",
       gather("16384"),
       {"it takes 30.7 us", "1. all_gather{node,gpu}"}},
      {"large_tensor_network_first",
       gather("268435456"),
       {"topology nodes.json: 1 device per process, 4 per host", "it takes 5.41 ms", "chosen",
        "rejected", "12.1 ms", "lower bound is 896 MiB (1.00x)"}},
  };
  PlanCommand identity = gather("8");
  identity.to = "[(node,gpu)]";
  cases.push_back({"identity", identity, {"no steps: every device already holds its new box"}});
  PlanCommand by_default = gather("[16]");
  by_default.machine.topology_json.reset();
  cases.push_back({"default_topology", by_default, {"topology by default: 1 device per process"}});
  PlanCommand scalar = gather("");
  scalar.from = "[] sum{gpu}";
  scalar.to = "[]";
  cases.push_back({"rank_0", scalar, {"all_reduce{gpu}"}});
  PlanCommand sum = gather("268435456");
  sum.from = "[-] sum{node,gpu}";
  cases.push_back({"hosts_first",
                   sum,
                   {"reduce_scatter{gpu}", "all_reduce{node}",
                    "it takes 10.8 ms = 2.7 ms + 5.4 ms + 2.7 ms", "24.2 ms"}});
  PlanCommand pairs = gather("4");
  pairs.mesh = "{x=8}";
  pairs.from = "[-] sum{x}";
  pairs.dtype = "f64";
  pairs.machine.topology_json = kPairs;
  cases.push_back({"compared_without_processes",
                   pairs,
                   {"rejected  reduce_scatter{x:(4)2}, all_reduce{x:(1)4}, all_gather{x:(4)2}",
                    "chosen as if each device were a process"}});
  pairs.dtype = "i64";  // i64 sums are equal in any order
  cases.push_back({"compared_with_processes",
                   pairs,
                   {"chosen    reduce_scatter{x:(4)2}, all_reduce{x:(1)4}, all_gather{x:(4)2}"}});
  sum.machine.reduction_order = "flat";
  cases.push_back({"flat_order", sum, {"1. all_reduce{node,gpu}", "it takes 24.2 ms"}});
  PlanCommand other_mesh = gather("24");
  other_mesh.mesh_to = "{x=3}";
  other_mesh.to = "[x]";
  cases.push_back({"other_mesh", other_mesh, {"exchange", "on {x=3}"}});
  return cases;
}

TEST(PlanCommandTest, ReportsThePlanItsTimeAndTheAlternatives) {
  for (const ReportCase& row : report_cases()) {
    const StatusOr<PlanReport> report = report_plan(row.command, PlanPicture::kNone);
    ASSERT_TRUE(report.ok()) << row.name << ": " << report.status();
    for (const std::string& part : row.parts) {
      EXPECT_THAT(report->text, HasSubstr(part)) << row.name;
    }
    EXPECT_THAT(report->svg, IsEmpty()) << row.name;
  }
}

TEST(PlanCommandTest, ThePictureIsMadeWhenAskedFor) {
  const StatusOr<PlanReport> report = report_plan(gather("64"), PlanPicture::kSvg);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->svg, HasSubstr("</svg>"));
}

struct RefusedCase {
  std::string name;
  std::string PlanCommand::*field;
  std::string value;
  std::string message;
};

const RefusedCase kRefused[] = {
    {"mesh", &PlanCommand::mesh, "{node=0}", "--mesh: mesh {node=0} has size 0"},
    {"mesh_to", &PlanCommand::mesh_to, "{x}", "--mesh_to: "},
    {"from", &PlanCommand::from, "[(nod,gpu)]",
     "--from: layout \"[(nod,gpu)]\" names axis \"nod\""},
    {"to", &PlanCommand::to, "[", "--to: layout \"[\""},
    {"shape_of_words", &PlanCommand::shape, "big",
     "--shape: shape \"big\" has \"big\" at character 1"},
    {"shape_unclosed", &PlanCommand::shape, "[4", "--shape: shape \"[4\""},
    {"shape_trailing", &PlanCommand::shape, "[4] 5", "--shape: shape \"[4] 5\" has \"5\""},
    {"shape_negative", &PlanCommand::shape, "-4", "--shape: "},
    {"shape_too_large", &PlanCommand::shape, "9223372036854775807,2", "--shape: "},
    {"shape_of_other_rank", &PlanCommand::shape, "4,4", "has 1 dim, shape [4, 4] has 2"},
    {"dtype", &PlanCommand::dtype, "f23",
     "--dtype: dtype \"f23\" is none of \"bool\", \"i8\", \"u8\", \"i32\", \"i64\", \"f16\", "
     "\"bf16\", \"f32\", \"f64\"; did you mean \"f32\""},
};

TEST(PlanCommandTest, RefusesWithTheFlag) {
  for (const RefusedCase& row : kRefused) {
    PlanCommand command = gather("8");
    command.*row.field = row.value;
    EXPECT_THAT(report_plan(command, PlanPicture::kNone),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(row.message)))
        << row.name;
  }
}

TEST(PlanCommandTest, RefusesTopologiesCapsAndPictures) {
  PlanCommand command = gather("8");
  command.machine.topology_json = "{}";
  EXPECT_THAT(report_plan(command, PlanPicture::kNone),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("topology nodes.json: \"links\" is missing")));
  command = gather("8");
  command.machine.reduction_order = "any";
  EXPECT_THAT(report_plan(command, PlanPicture::kNone),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--reduction_order: order \"any\" is neither \"by_host\", ")));
  command = gather("8");
  command.machine.memory_cap_bytes = 0;
  EXPECT_THAT(report_plan(command, PlanPicture::kNone),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--memory_cap: 0 bytes")));
  command.machine.memory_cap_bytes = 35;  // source and target take 4 and 32 bytes
  EXPECT_THAT(report_plan(command, PlanPicture::kNone),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("36")));
  command = gather("128");
  command.mesh = "{node=32, gpu=4}";
  EXPECT_THAT(report_plan(command, PlanPicture::kSvg),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 64")));
}

}  // namespace
}  // namespace tessera
