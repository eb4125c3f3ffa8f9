// SPDX-License-Identifier: Apache-2.0
//
// Dims of no elements: every operation of small_ops.h with each dim of its operands of size 0,
// alone and with dims of equal size. Each case is checked in three ways:
//
//   1. whole operands are taken, or refused with a message that begins with the operation's name;
//   2. under random layouts, partial ones too, result and gradients equal the results of whole
//      operands, and a refusal has the same text;
//   3. gradients have the shapes of their operands.
//
// A table has the expected results. $TESSERA_OPS_SAMPLES says how many layouts are tried for each
// case: 1; `tools/soak numbers` tries more. The count of cases is printed.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "ops/out.h"
#include "ops/pointwise.h"
#include "ops/tape.h"
#include "tests/support/clients.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/ops/cases.h"
#include "tests/support/ops/small_ops.h"
#include "tests/support/ops/table.h"
#include "tests/support/sanitizers.h"
#include "tests/support/seed.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

constexpr const char* kMeshes[] = {"{x=4}", "{x=2, y=2}", "{x=3, y=2}"};

int samples() {
  const char* text = std::getenv("TESSERA_OPS_SAMPLES");
  int count = 0;
  if (text != nullptr && absl::SimpleAtoi(text, &count)) return count;
  return 1;
}

// ---- Cases

void clear_dim(OpCase& row, std::pair<size_t, size_t> place) {
  row.operands[place.first].shape[place.second] = 0;
}

// The row with a dim of size 0: alone, with one other of equal size, with all of them.
void add_cases(const OpCase& row, std::vector<OpCase>& cases) {
  if (row.op == "local_map") return;  // the function is the table's, for shapes that fit
  std::vector<std::pair<size_t, size_t>> places;
  for (size_t i = 0; i < row.operands.size(); ++i) {
    for (size_t dim = 0; dim < row.operands[i].shape.size(); ++dim) places.emplace_back(i, dim);
  }
  std::set<std::vector<Shape>> seen;
  const auto add = [&](const OpCase& empty) {
    std::vector<Shape> shapes;
    for (const OpOperand& operand : empty.operands) shapes.push_back(operand.shape);
    if (seen.insert(shapes).second) cases.push_back(empty);
  };
  for (const auto& place : places) {
    OpCase alone = row;
    clear_dim(alone, place);
    add(alone);
    OpCase all = alone;
    for (const auto& other : places) {
      if (row.operands[other.first].shape[other.second] !=
          row.operands[place.first].shape[place.second]) {
        continue;
      }
      OpCase both = alone;
      clear_dim(both, other);
      add(both);
      clear_dim(all, other);
    }
    add(all);
  }
}

// ---- Layouts

class RandomLayouts {
 public:
  explicit RandomLayouts(uint64_t seed) : random_(seed) {}

  std::string mesh() { return kMeshes[random_() % std::size(kMeshes)]; }
  OpCase split(const OpCase& row, const std::string& mesh) {
    OpCase result = row;
    for (OpOperand& operand : result.operands) {
      operand.mesh = mesh;
      const auto rank = static_cast<int>(operand.shape.size());
      std::vector<Layout>& all = layouts_[{mesh, rank}];
      if (all.empty()) all = all_layouts(*Mesh::parse(mesh), rank, true);
      const Layout* layout = &all[random_() % all.size()];
      while (operand.dtype == DType::kBool && layout->is_partial()) {
        layout = &all[random_() % all.size()];
      }
      operand.layout = layout->to_string();
    }
    return result;
  }
  static OpCase whole(const OpCase& row, const std::string& mesh) {
    OpCase result = row;
    for (OpOperand& operand : result.operands) {
      operand.mesh = mesh;
      operand.layout =
          Layout::replicated(*Mesh::parse(mesh), static_cast<int>(operand.shape.size()))
              ->to_string();
    }
    return result;
  }

 private:
  std::mt19937_64 random_;
  std::map<std::pair<std::string, int>, std::vector<Layout>> layouts_;
};

std::string describe(const OpCase& row) {
  std::string text = row.id;
  for (const auto& [name, value] : row.attributes) absl::StrAppend(&text, " ", name, "=", value);
  for (const OpOperand& operand : row.operands) {
    absl::StrAppend(&text, " ", shape_to_string(operand.shape), " ", operand.layout);
  }
  return text;
}

// ---- Runs

// A result and its gradients by operands of floats, or the error.
struct Ran {
  Status error;
  std::vector<HostTensor<double>> values;
};

StatusOr<Ran> run_case(const Client& client, const OpCase& row,
                       std::map<std::string, Mesh>& meshes) {
  Ran ran;
  Tape tape;
  std::vector<DTensor> operands;
  std::vector<DTensor> watched;
  for (const OpOperand& operand : row.operands) {
    TESSERA_ASSIGN_OR_RETURN(const DTensor tensor, make_operand(client, operand, meshes));
    operands.push_back(is_floating_point(operand.dtype) ? tape.watch(tensor) : tensor);
    if (is_floating_point(operand.dtype)) watched.push_back(operands.back());
  }
  const DTensor result = run_row(row, operands, {});
  ran.error = result.status();
  if (ran.error.ok()) ran.error = result.await();
  if (!ran.error.ok()) return ran;
  std::vector<DTensor> tensors = {result};
  const bool is_of_caller = row.op == "elementwise" || row.op == "local_map";
  if (is_floating_point(result.dtype()) && !is_of_caller && !watched.empty()) {
    GradientOptions options;
    const OpOperand seed = {row.operands[0].mesh, result.dtype(), result.shape(),
                            result.layout().without_partial().to_string(), "(7i+3)%11-5"};
    TESSERA_ASSIGN_OR_RETURN(options.seed, make_operand(client, seed, meshes));
    const std::vector<DTensor> gradients = tape.gradient(result, watched, options);
    for (size_t i = 0; i < watched.size(); ++i) {
      TESSERA_RETURN_IF_ERROR(gradients[i].status());
      TESSERA_REQUIRE(gradients[i].shape() == watched[i].shape(), "the gradient has shape ",
                      shape_to_string(gradients[i].shape()));
      tensors.push_back(gradients[i]);
    }
  }
  for (const DTensor& tensor : tensors) {
    TESSERA_ASSIGN_OR_RETURN(HostTensor<double> host, ops::cast<double>(tensor).to_host<double>());
    ran.values.push_back(std::move(host));
  }
  return ran;
}

bool is_same(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b)) ||
         std::abs(a - b) <= 1e-5 * std::max(1.0, std::abs(b));
}

// Compares on one client, which has all values.
Status compare(const Ran& actual, const Ran& expected) {
  TESSERA_REQUIRE(actual.error.ok() == expected.error.ok() &&
                      actual.error.message() == expected.error.message(),
                  "\"", actual.error.ToString(), "\", and of whole operands \"",
                  expected.error.ToString(), "\"");
  TESSERA_REQUIRE(actual.values.size() == expected.values.size());
  for (size_t k = 0; k < actual.values.size(); ++k) {
    const char* what = k == 0 ? "the result" : "a gradient";
    const HostTensor<double>& a = actual.values[k];
    const HostTensor<double>& b = expected.values[k];
    TESSERA_REQUIRE(a.shape == b.shape, what);
    for (size_t i = 0; i < a.data.size(); ++i) {
      TESSERA_REQUIRE(is_same(a.data[i], b.data[i]), what, " has ", a.data[i], " as element ", i,
                      ", and of whole operands ", b.data[i]);
    }
  }
  return absl::OkStatus();
}

// A refusal names the function that was called. Indices are looked at when the devices compute.
Status check_error(const OpCase& row, const Status& error) {
  if (error.ok() || absl::IsOutOfRange(error)) return absl::OkStatus();
  const bool is_named = absl::StartsWith(error.message(), absl::StrCat(row.op, ":"));
  TESSERA_REQUIRE(absl::IsInvalidArgument(error) && is_named, error.ToString());
  return absl::OkStatus();
}

Status check_case(const Client& client, const OpCase& row, std::map<std::string, Mesh>& meshes,
                  RandomLayouts& layouts) {
  const std::string mesh = layouts.mesh();
  const OpCase whole = RandomLayouts::whole(row, mesh);
  const StatusOr<Ran> expected = run_case(client, whole, meshes);
  TESSERA_RETURN_IF_ERROR(with_context(expected.status(), describe(whole)));
  TESSERA_RETURN_IF_ERROR(with_context(check_error(row, expected->error), describe(whole)));
  for (int k = 0; k < samples(); ++k) {
    const OpCase split = layouts.split(row, mesh);
    const auto check = [&]() -> Status {
      TESSERA_ASSIGN_OR_RETURN(const Ran actual, run_case(client, split, meshes));
      return compare(actual, *expected);
    };
    TESSERA_RETURN_IF_ERROR(with_context(check(), absl::StrCat(mesh, " ", describe(split))));
  }
  return absl::OkStatus();
}

TEST(OpsEmptyTest, EveryOperationWithDimsOfNoElements) {
  const uint64_t seed = test_seed();
  const JobSpec spec = {.num_clients = 1, .devices_per_client = 8, .deadline = absl::Hours(1)};
  EXPECT_THAT(run_clients(spec,
                          [&](Client& client) -> Status {
                            TESSERA_ASSIGN_OR_RETURN(const std::vector<OpCase> rows,
                                                     small_op_cases());
                            std::map<std::string, Mesh> meshes;
                            RandomLayouts layouts(seed);
                            std::vector<OpCase> cases;
                            for (const OpCase& row : rows) add_cases(row, cases);
                            std::string failures;
                            int num_tried = 0;
                            for (const OpCase& row : cases) {
                              if (kSanitized && num_tried++ % 5 != 0) continue;
                              const Status status = check_case(client, row, meshes, layouts);
                              if (!status.ok()) absl::StrAppend(&failures, status.message(), "\n");
                            }
                            std::cout << cases.size() << " cases of dims of no elements\n";
                            TESSERA_REQUIRE(cases.size() > 500);
                            TESSERA_REQUIRE(failures.empty(), failures);
                            return absl::OkStatus();
                          }),
              IsOk());
}

// ---- What results are

struct EmptyRow {
  const char* op;
  const char* attributes;
  const char* dtypes;
  const char* shapes;
  Shape shape;   // of the result
  double value;  // of its elements
};
constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

// clang-format off
const EmptyRow kRows[] = {
    // op, attributes, dtypes, shapes, shape, value
    {"softmax", "dim=0", "f32", "[0, 2]", {0, 2}, 0},
    {"softmax", "dim=1", "f32", "[2, 0]", {2, 0}, 0},
    {"softmax", "dim=1", "f32", "[0, 2]", {0, 2}, 0},
    {"log_softmax", "dim=0", "f32", "[0, 2]", {0, 2}, 0},
    {"log_softmax", "dim=-1", "f16", "[2, 0]", {2, 0}, 0},
    {"logsumexp", "dims=[0]", "f32", "[0, 2]", {2}, -kInf},
    {"logsumexp", "dims=[0]; keep_dims", "bf16", "[0, 2]", {1, 2}, -kInf},
    {"logsumexp", "-", "f32", "[0, 2]", {}, -kInf},
    {"logsumexp", "dims=[1]", "f32", "[0, 2]", {0}, 0},
    {"sum", "dims=[0]", "f32", "[0, 2]", {2}, 0},
    {"prod", "dims=[0]", "f32", "[0, 2]", {2}, 1},
    {"mean", "dims=[0]", "f32", "[0, 2]", {2}, kNan},
    {"var", "dims=[0]", "f32", "[0, 2]", {2}, kNan},
    {"norm", "dims=[0]", "f32", "[0, 2]", {2}, 0},
    {"all", "dims=[0]", "bool", "[0, 2]", {2}, 1},
    {"any", "dims=[0]", "bool", "[0, 2]", {2}, 0},
    {"max", "dims=[1]", "f32", "[0, 2]", {0}, 0},
    {"argmax", "dim=1", "f32", "[0, 2]", {0}, 0},
    {"cumsum", "dim=0", "f32", "[0, 2]", {0, 2}, 0},
    {"sort", "dim=0", "f32", "[0, 2]", {0, 2}, 0},
    {"top_k", "dim=0; k=0", "f32", "[0, 2]", {0, 2}, 0},
    {"matmul", "-", "f32; f32", "[3, 0]; [0, 2]", {3, 2}, 0},
    {"matmul", "-", "f32; f32", "[0]; [0]", {}, 0},
    {"einsum", "equation=ij->j", "f32", "[0, 2]", {2}, 0},
    {"layer_norm", "epsilon=1e-3", "f32; f32; f32", "[0, 2]; [2]; [2]", {0, 2}, 0},
    {"layer_norm", "epsilon=1e-3", "f32; f32; f32", "[2, 0]; [0]; [0]", {2, 0}, 0},
    {"softmax_cross_entropy", "-", "f32; i32", "[0, 3]; [0]", {0}, 0},
    {"softmax_cross_entropy", "-", "f32; f32", "[3, 0]; [3, 0]", {3}, 0},
    {"attention", "causal=false", "f32; f32; f32", "[1, 1, 2, 3]; [1, 1, 0, 3]; [1, 1, 0, 4]", {1, 1, 2, 4}, 0},
    {"attention", "causal=true", "f32; f32; f32", "[1, 1, 0, 3]; [1, 1, 2, 3]; [1, 1, 2, 4]", {1, 1, 0, 4}, 0},
    {"conv2d", "strides=[1, 1]; padding=[[1, 1], [1, 1]]", "f32; f32", "[1, 2, 2, 0]; [1, 1, 0, 3]", {1, 4, 4, 3}, 0},
    {"conv2d", "strides=[1, 1]; padding=[[0, 0], [0, 0]]", "f32; f32", "[0, 2, 2, 1]; [1, 1, 1, 3]", {0, 2, 2, 3}, 0},
    {"avg_pool2d", "window=[1, 1]; strides=[1, 1]; padding=[[0, 0], [0, 0]]", "f32", "[0, 2, 2, 1]", {0, 2, 2, 1}, 0},
    {"concat", "dim=0", "f32; f32", "[0, 2]; [0, 2]", {0, 2}, 0},
    {"stack", "dim=0", "f32; f32", "[0]; [0]", {2, 0}, 0},
    {"pad", "low=[2, 0]; high=[1, 0]; value=7", "f32", "[0, 2]", {3, 2}, 7},
    {"tile", "repeats=[3, 2]", "f32", "[0, 2]", {0, 4}, 0},
    {"roll", "shift=3; dim=0", "f32", "[0, 2]", {0, 2}, 0},
    {"reshape", "shape=[3, -1]", "f32", "[0, 2]", {3, 0}, 0},
    {"broadcast_to", "shape=[2, 0, 3]", "f32", "[1, 3]", {2, 0, 3}, 0},
    {"take", "dim=0", "f32; i32", "[3, 2]; [0]", {0, 2}, 0},
    {"take", "dim=0", "f32; i32", "[0, 2]; [0]", {0, 2}, 0},
    {"scatter_add", "dim=0", "f32; i32; f32", "[3, 2]; [0]; [0, 2]", {3, 2}, 0},
    {"one_hot", "depth=0", "i32", "[3]", {3, 0}, 0},
    {"one_hot", "depth=2", "i32", "[0]", {0, 2}, 0},
};
// clang-format on

TEST(OpsEmptyTest, Rows) {
  const uint64_t seed = test_seed();
  const JobSpec spec = {.num_clients = 1, .devices_per_client = 8};
  const auto check_row = [](const Client& client, const EmptyRow& row,
                            std::map<std::string, Mesh>& meshes, RandomLayouts& layouts) -> Status {
    std::string formulas = "-";
    for (const char* at = row.dtypes; *at != 0; ++at) {
      if (*at == ';') formulas += "; -";
    }
    TESSERA_ASSIGN_OR_RETURN(
        const OpCase given,
        make_op_case({row.op, row.op, row.attributes, "-", row.dtypes, row.shapes, "-", formulas}));
    const std::string mesh = layouts.mesh();
    for (int k = 0; k < 4; ++k) {
      const OpCase each = k == 0 ? RandomLayouts::whole(given, mesh) : layouts.split(given, mesh);
      TESSERA_ASSIGN_OR_RETURN(const Ran ran, run_case(client, each, meshes));
      TESSERA_RETURN_IF_ERROR(with_context(ran.error, describe(each)));
      TESSERA_REQUIRE(ran.values[0].shape == row.shape, describe(each), ": ",
                      shape_to_string(ran.values[0].shape));
      for (const double value : ran.values[0].data) {
        TESSERA_REQUIRE(is_same(value, row.value), describe(each), ": ", value);
      }
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(run_clients(spec,
                          [&](Client& client) -> Status {
                            std::map<std::string, Mesh> meshes;
                            RandomLayouts layouts(seed);
                            std::string failures;
                            for (const EmptyRow& row : kRows) {
                              const Status status = check_row(client, row, meshes, layouts);
                              if (!status.ok()) absl::StrAppend(&failures, status.message(), "\n");
                            }
                            TESSERA_REQUIRE(failures.empty(), failures);
                            return absl::OkStatus();
                          }),
              IsOk());
}

}  // namespace
}  // namespace tessera::testing
