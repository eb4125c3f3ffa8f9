// SPDX-License-Identifier: Apache-2.0
//
// What tools/plan says of operations: reports word for word, every refusal, and the table of rules.
#include "tools/plan_tool/op_command.h"

#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "ops/all_operations.h"
#include "ops/operation.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::IsOkAndHolds;
using testing::StatusIs;

constexpr char kOneHost[] = R"({"devices_per_process": 1, "devices_per_host": 8, "links": {
  "process": {"latency_s": 1e-6, "bytes_per_s": 1e9},
  "host": {"latency_s": 1e-6, "bytes_per_s": 1e9},
  "network": {"latency_s": 1e-6, "bytes_per_s": 1e9}}})";

OpCommand command(const std::string& op, const std::string& shapes,
                  const std::string& attributes = "") {
  return {.mesh = "{batch=4, model=2}",
          .op = op,
          .shapes = shapes,
          .dtypes = "f32",
          .attributes = attributes,
          .out = "",
          .machine = {.topology_file = "one.json",
                      .topology_json = kOneHost,
                      .memory_cap_bytes = std::nullopt}};
}

constexpr char kTopology[] =
    "topology one.json: 1 device per process, 8 per host; process 1 us, 1 GB/s, host 1 us, 1 GB/s, "
    "network 1 us, 1 GB/s\n";

// Bytes and times by hand: an all-gather of a dim that 4 devices split brings each 3/4 of the
// tensor; 1 us and 1 ns a byte.
TEST(OpCommandTest, Reports) {
  EXPECT_THAT(report_operation(command("matmul [batch, -] [-, model]", "1024,512; 512,2048")),
              IsOkAndHolds(absl::StrCat(kTopology,
                                        "f32 [1024, 2048] under [batch, model] on {batch=4, "
                                        "model=2}\n"
                                        "  by matmul: [a, b] [b, c] -> [a, c]; b contracted (sum)\n"
                                        "  operand 0: [batch, -] as it is\n"
                                        "  operand 1: [-, model] as it is\n"
                                        "  the operands agree: nothing was compared\n")));
  EXPECT_THAT(
      report_operation(command("matmul [batch, -] [-, batch]", "1024,500; 500,2048")),
      IsOkAndHolds(
          AllOf(HasSubstr("f32 [1024, 2048] under [-, batch] on"),
                HasSubstr("operand 0: [batch, -] -> [-, -] on {batch=4, model=2}, f32 [1024, 500]: "
                          "all_gather{batch}, predicted 1.54 ms, 1.465 MiB to a device at most\n"),
                HasSubstr("operand 1: [-, batch] as it is\n"),
                HasSubstr("the best of 3 assignments of axes, predicted "))));
}

// Four devices split the first dim of [1024], or the rows of an image.
TEST(OpCommandTest, MovedDims) {
  struct Row {
    const char* op;
    const char* shapes;
    const char* attributes;
    const char* operand;  // the line of the last one
  };
  const Row rows[] = {
      // A row of 8 pixels of 4 bytes from each neighbour.
      {"conv2d [-, batch, -, -] [-, -, -, -]", "1,64,8,1; 3,3,1,4", "padding=[[1, 1], [1, 1]]",
       "operand 0: [-, batch, -, -], of which each device fetches what it needs: predicted 1.06 "
       "us, "
       "64 B to a device at most\n"},
      {"conv2d [-, batch, -, -] [-, -, -, -]", "1,64,8,1; 1,1,1,4", "",
       "operand 0: [-, batch, -, -] as it is\n"},
      {"avg_pool2d [-, batch, -, -]", "1,64,8,1", "", "operand 0: [-, batch, -, -] as it is\n"},
      {"roll [batch]", "1024", "shift=1; dim=0", ", 4 B to a device at most\n"},
      {"slice [batch]", "1024", "starts=[1]; limits=[1024]", ", 4 B to a device at most\n"},
      {"slice [-]", "1024", "starts=[1]; limits=[1024]", "operand 0: [-] as it is\n"},
      {"flip [batch]", "1024", "dims=[0]", ", 1 KiB to a device at most\n"},
      {"pad [batch]", "1024", "low=[1]; high=[0]", "operand 0: [batch] as it is\n"},
      {"concat [batch] [batch]", "1024; 1024", "dim=0",
       "operand 1: [batch], of which each device fetches what it needs: predicted 3.05 us, 2 KiB "
       "to "
       "a device at most\n"},
      {"concat [batch] [-]", "1024; 1024", "dim=0", "operand 1: [-] as it is\n"},
      {"tile [batch]", "1024", "repeats=[2]", ", 2 KiB to a device at most\n"},
  };
  for (const Row& row : rows) {
    EXPECT_THAT(report_operation(command(row.op, row.shapes, row.attributes)),
                IsOkAndHolds(HasSubstr(row.operand)))
        << row.op;
  }
  EXPECT_THAT(
      report_operation(command("argmax [batch]", "1024", "dim=0")),
      IsOkAndHolds(HasSubstr(
          "  along a split dim, made of the extremes of shards and their indices instead\n")));
  // The layout that is asked for is not what the operand has: first relaid out, then fetched.
  OpCommand partial = command("conv2d [-, batch, -, -] sum{model} [-, -, -, model]",
                              "1,64,8,2; 3,3,2,4", "padding=[[1, 1], [1, 1]]");
  EXPECT_THAT(report_operation(partial),
              IsOkAndHolds(HasSubstr("to a device at most\n    then [-, batch, -, -], of which")));
}

TEST(OpCommandTest, ReadsAllThatACallHas) {
  OpCommand take = command("take [model, -] [batch]", "50000,512; 4096", "dim=0");
  take.dtypes = "f32; i32";
  EXPECT_THAT(report_operation(take), IsOkAndHolds(HasSubstr("under [batch, -] sum{model} on")));
  EXPECT_THAT(report_operation(command("sum [batch, model]", "[8, 6]", "dims=[1]; keep_dims")),
              IsOkAndHolds(HasSubstr("f32 [8, 1] under [batch, -] sum{model} on")));
  EXPECT_THAT(report_operation(command("sum [batch, model]", "8,6")),
              IsOkAndHolds(HasSubstr("f32 [] under [] sum{batch,model} on")));
  EXPECT_THAT(report_operation(command("einsum [-, -, batch] [batch, model]", "3,5,8; 8,6",
                                       "equation=bik,kj->bij")),
              IsOkAndHolds(HasSubstr("f32 [3, 5, 6] under [-, -, model] sum{batch} on")));
  EXPECT_THAT(report_operation(command("add [batch] sum{model}", "8", "scalar=1.5")),
              IsOkAndHolds(HasSubstr("under [batch] sum{model} on")));
  EXPECT_THAT(report_operation(
                  command("concat [batch, -] [batch, -] [batch, -]", "8,2; 8,3; 8,4", "dim=-1")),
              IsOkAndHolds(HasSubstr("f32 [8, 9] under [batch, -] on")));
  EXPECT_THAT(report_operation(command("conv2d [batch, -, -, -] [-, -, -, model]",
                                       "8,32,32,3; 3,3,3,16", "padding=[[1, 1], [1, 1]]")),
              IsOkAndHolds(HasSubstr("f32 [8, 32, 32, 16] under [batch, -, -, model] on")));
  EXPECT_THAT(report_operation(command("max_pool2d [batch, -, -, -]", "8,32,32,3")),
              IsOkAndHolds(HasSubstr("f32 [8, 16, 16, 3] under [batch, -, -, -] on")));
  OpCommand out = command("neg [batch, -]", "8,8");
  out.out = "[-, batch]";
  EXPECT_THAT(report_operation(out), IsOkAndHolds(AllOf(HasSubstr("f32 [8, 8] under [-, batch] on"),
                                                        HasSubstr("all_to_all{batch}"))));
}

TEST(OpCommandTest, PlansForMachinesThatAreNotThere) {
  OpCommand large = command("matmul [x, y] [x, y]", "65536,65536; 65536,65536");
  large.mesh = "{x=256, y=256}";
  EXPECT_THAT(report_operation(large), IsOkAndHolds(HasSubstr("under [x, y] on {x=256, y=256}")));
}

struct RefusedCase {
  std::string op;
  std::string shapes;
  std::string attributes;
  std::string message;
};

const RefusedCase kRefused[] = {
    // What the command says.
    {"[batch]", "8", "", "--op: \"[batch]\" is not an operation with a layout for each operand"},
    {"neg", "8", "", "--op: \"neg\" is not an operation with a layout for each operand"},
    {"neg [batc]", "8", "", "--op: layout \"[batc]\" names axis \"batc\""},
    {"neg [batch]", "8,8", "", "--op: layout [batch] has 1 dim, shape [8, 8] has 2"},
    {"add [batch] [batch]", "8", "", "--shape: \"8\" has 1 entry for 2 operands; separate them"},
    {"neg [batch]", "8; 8", "", "--shape: \"8; 8\" has 2 entries for 1 operands"},
    {"neg [batch]", "big", "", "--shape: shape \"big\""},
    {"sum [batch]", "8", "=1", "--attributes: attribute \"=1\" has no name; give one, as in dim=0"},
    {"sum [batch]", "8", "dims=[0]; dims=[0]", "--attributes: attribute dims is given twice"},
    // Refusals of plan_operation().
    {"matmull [batch]", "8", "", "--op: operation \"matmull\" is unknown; did you mean \"matmul\""},
    {"var [batch]", "8", "", "var: made of mean, sub, square and mean, each with a rule"},
    {"softmax [batch, -]", "8,6", "dim=0",
     "softmax: dim 0 is not the last; along it softmax is made of other operations, each with"},
    {"matmul [batch, -]", "8,8", "", "matmul: takes 2 operands, not 1"},
    {"neg [batch] [batch]", "8; 8", "", "neg: takes 1 operand, not 2"},
    {"add [-] [-] [-]", "8; 8; 8", "", "add: takes 1 or 2 operands, not 3"},
    {"cumsum [batch]", "8", "", "cumsum: attribute dim is missing; give one, as in dim=1"},
    {"cumsum [batch]", "8", "dim=x", "attribute dim=x is not a whole number"},
    {"sum [batch]", "8", "dim=0",
     "sum: has no attribute \"dim\"; it has \"dims\", \"keep_dims\"; did you mean \"dims\""},
    {"neg [batch]", "8", "dim=0", "neg: has no attribute \"dim\""},
    {"sum [batch]", "8", "dims=[x]",
     "attribute dims=[x] is not a list of whole numbers, as [0, 2]"},
    {"clip [batch]", "8", "low=a; high=1", "attribute low=a is not a number"},
    {"cast [batch]", "8", "dtype=f23", "attribute dtype=f23 is none of \"bool\", \"i8\""},
    {"avg_pool2d [-, -, -, -]", "1,4,4,1", "window=[2]",
     "attribute window=[2] has 1 numbers, not 2"},
    {"add [batch]", "8", "", "add: takes 2 operands, or one and the attribute scalar"},
    {"add [batch] [batch]", "8; 8", "scalar=1", "add: takes one operand beside a scalar, not 2"},
    {"sub [batch]", "8", "scalar=1; scalar_side=up", "scalar_side=up is neither left nor right"},
    {"einsum [-, -] [-]", "2,3; 4", "equation=ab,c->ac",
     "einsum: 'b' is in one operand alone, which is summed over it first"},
    // What operations refuse.
    {"matmul [-, -] [-, -]", "4,5; 6,7", "", "matmul: shapes [4, 5] and [6, 7] do not fit"},
    {"cumsum [batch]", "8", "dim=3", "cumsum: dim 3 is out of range for a tensor of rank 1"},
    {"concat [-, -] [-, -]", "4,5; 6,7", "dim=0", "differ in more than dim 0"},
};

TEST(OpCommandTest, Refuses) {
  for (const RefusedCase& row : kRefused) {
    EXPECT_THAT(report_operation(command(row.op, row.shapes, row.attributes)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(row.message)))
        << row.op;
  }
  OpCommand mesh = command("neg [batch]", "8");
  mesh.mesh = "{x=0}";
  EXPECT_THAT(report_operation(mesh),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--mesh: mesh {x=0}")));
  OpCommand dtypes = command("add [-] [-]", "8; 8");
  dtypes.dtypes = "f32; f64; f32";
  EXPECT_THAT(report_operation(dtypes), StatusIs(absl::StatusCode::kInvalidArgument,
                                                 HasSubstr("--dtype: \"f32; f64; f32\" has 3")));
  OpCommand out = command("neg [batch]", "8");
  out.out = "[batch, -]";
  EXPECT_THAT(report_operation(out),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the result [8] has rank 1")));
}

TEST(OpCommandTest, TheTableHasEveryOperationOnce) {
  const std::string table = operations_table();
  for (const ops::Operation* const operation : ops::called_operations()) {
    const char* const name = operation->name;
    const bool is_there = absl::StrContains(table, absl::StrCat("| ", name, " |")) ||
                          absl::StrContains(table, absl::StrCat("| ", name, ", ")) ||
                          absl::StrContains(table, absl::StrCat(", ", name, ", ")) ||
                          absl::StrContains(table, absl::StrCat(", ", name, " |"));
    EXPECT_TRUE(is_there) << name;
  }
}

}  // namespace
}  // namespace tessera
