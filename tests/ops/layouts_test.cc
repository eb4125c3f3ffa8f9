// SPDX-License-Identifier: Apache-2.0
//
// Operations and their gradients do not depend on layouts: the operations of the table of facts,
// with random layouts of all operands (partial ones too) on meshes of up to 8 devices, give the
// results of whole operands. A third of the calls request a layout of the result. facts_test
// compares the results of whole operands with the table.
//
// $TESSERA_OPS_SAMPLES says how many layouts are tried for each row: 2, and under sanitizers 1 for
// a quarter of the rows; `tools/soak ops` tries 100.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/dtype.h"
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
#include "tests/support/ops/table.h"
#include "tests/support/sanitizers.h"
#include "tests/support/seed.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

constexpr const char* kMeshes[] = {"{x=8}", "{x=2, y=4}", "{x=2, y=2, z=2}", "{x=3, y=2}"};

int samples() {
  const char* text = std::getenv("TESSERA_OPS_SAMPLES");
  int count = 0;
  if (text != nullptr && absl::SimpleAtoi(text, &count)) return count;
  return kSanitized ? 1 : 2;
}

// Layouts by mesh and rank, and a random choice among them.
class RandomLayouts {
 public:
  explicit RandomLayouts(uint64_t seed) : random_(seed) {}

  const char* mesh() { return kMeshes[random_() % std::size(kMeshes)]; }
  bool one_of(int n) { return random_() % n == 0; }
  std::string layout(const char* mesh, int rank, bool may_be_partial) {
    std::vector<Layout>& all = layouts_[{mesh, rank}];
    if (all.empty()) all = all_layouts(*Mesh::parse(mesh), rank, true);
    for (;;) {
      const Layout& layout = all[random_() % all.size()];
      if (may_be_partial || !layout.is_partial()) return layout.to_string();
    }
  }

 private:
  std::mt19937_64 random_;
  std::map<std::pair<std::string, int>, std::vector<Layout>> layouts_;
};

// The row on a mesh with random layouts, or with whole operands.
OpCase with_layouts(const OpCase& row, const char* mesh, RandomLayouts* layouts) {
  OpCase result = row;
  for (OpOperand& operand : result.operands) {
    operand.mesh = mesh;
    const int rank = static_cast<int>(operand.shape.size());
    if (layouts != nullptr) {
      operand.layout = layouts->layout(mesh, rank, operand.dtype != DType::kBool);
    } else {
      operand.layout = Layout::replicated(*Mesh::parse(mesh), rank)->to_string();
    }
  }
  result.out = "-";
  if (layouts != nullptr && layouts->one_of(3)) {
    result.out = layouts->layout(mesh, static_cast<int>(row.shape.size()), false);
  }
  return result;
}

std::string describe(const OpCase& row) {
  std::string text = absl::StrCat(row.id, " on ", row.operands[0].mesh, ":");
  for (const OpOperand& operand : row.operands) absl::StrAppend(&text, " ", operand.layout);
  return row.out == "-" ? text : absl::StrCat(text, " -> ", row.out);
}

// The result of a row of facts; the gradient by its source of a row of gradients.
StatusOr<DTensor> run_row(const Client& client, const OpCase& row,
                          std::map<std::string, Mesh>& meshes) {
  std::vector<DTensor> operands;
  Tape tape;
  for (const OpOperand& operand : row.operands) {
    TESSERA_ASSIGN_OR_RETURN(DTensor tensor, make_operand(client, operand, meshes));
    const bool is_watched = !row.seed.empty() && is_floating_point(operand.dtype);
    operands.push_back(is_watched ? tape.watch(tensor) : tensor);
  }
  TESSERA_ASSIGN_OR_RETURN(const ops::Out out, make_out(client, row, meshes));
  const DTensor result = run_row(row, operands, row.seed.empty() ? out : ops::Out());
  TESSERA_RETURN_IF_ERROR(result.status());
  if (row.seed.empty()) {
    TESSERA_REQUIRE(row.out == "-" || result.layout() == *out.layout->layout());
    return result;
  }
  const OpOperand seed = {row.operands[0].mesh, result.dtype(), result.shape(),
                          result.layout().without_partial().to_string(), row.seed};
  GradientOptions options;
  TESSERA_ASSIGN_OR_RETURN(options.seed, make_operand(client, seed, meshes));
  const DTensor& source = operands[row.source];
  const DTensor gradient = tape.gradient(result, {source}, options)[0];
  TESSERA_REQUIRE(gradient.layout() == source.layout().without_partial());
  return gradient;
}

// How far sums in another order, of terms of a partial operand, may be away.
double tolerance(const OpCase& row) {
  switch (row.dtype) {
    case DType::kFloat16:
      return 1e-2;
    case DType::kBFloat16:
      return 5e-2;
    case DType::kFloat32:
      return 1e-5;
    default:
      return 1e-11;
  }
}

Status compare(const OpCase& row, const DTensor& actual, const DTensor& expected) {
  TESSERA_ASSIGN_OR_RETURN(const HostTensor<double> a, ops::cast<double>(actual).to_host<double>());
  TESSERA_ASSIGN_OR_RETURN(const HostTensor<double> b,
                           ops::cast<double>(expected).to_host<double>());
  TESSERA_REQUIRE(a.shape == b.shape);
  for (size_t i = 0; i < a.data.size(); ++i) {
    const double x = a.data[i];
    const double y = b.data[i];
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    TESSERA_REQUIRE(is_floating_point(row.dtype) &&
                        std::abs(x - y) <= tolerance(row) * std::max(1.0, std::abs(y)),
                    "element ", i, " is ", x, ", not ", y);
  }
  return absl::OkStatus();
}

Status check_row(const Client& client, const OpCase& row, std::map<std::string, Mesh>& meshes,
                 RandomLayouts& layouts) {
  const char* mesh = layouts.mesh();
  const OpCase whole = with_layouts(row, mesh, nullptr);
  const OpCase split = with_layouts(row, mesh, &layouts);
  const auto check = [&]() -> Status {
    TESSERA_ASSIGN_OR_RETURN(const DTensor expected, run_row(client, whole, meshes));
    TESSERA_ASSIGN_OR_RETURN(const DTensor actual, run_row(client, split, meshes));
    if (actual.num_local_shards() == 0) return absl::OkStatus();
    return compare(row, actual, expected);
  };
  return with_context(check(), describe(split));
}

class OpsLayoutsTest : public JobFormTest {
 protected:
  static void check_rows(const std::vector<OpCase>& rows) {
    const uint64_t seed = test_seed();
    EXPECT_THAT(run([&](Client& client) -> Status {
                  std::map<std::string, Mesh> meshes;
                  RandomLayouts layouts(seed);
                  std::string failures;
                  for (const OpCase& row : rows) {
                    // Operands on two meshes, and programs, are rows of their own tests.
                    if (!row.error.empty() || !is_operation(row.op)) continue;
                    if (kSanitized && !layouts.one_of(4)) continue;
                    for (int k = 0; k < samples(); ++k) {
                      const Status status = check_row(client, row, meshes, layouts);
                      if (!status.ok()) absl::StrAppend(&failures, status.message(), "\n");
                    }
                  }
                  return failures.empty() ? absl::OkStatus() : absl::InternalError(failures);
                }),
                IsOk());
  }
};
INSTANTIATE_TEST_SUITE_P(Forms, OpsLayoutsTest,
                         ::testing::Values(kJobForms[0], kJobForms[1], kTwoHosts), job_form_name);
INSTANTIATE_TEST_SUITE_P(Cuda, OpsLayoutsTest, ::testing::Values(cuda_forms()[0], cuda_forms()[1]),
                         job_form_name);

TEST_P(OpsLayoutsTest, Values) {
  const StatusOr<std::vector<OpCase>> rows = read_op_cases();
  ASSERT_THAT(rows, IsOk());
  check_rows(*rows);
}

TEST_P(OpsLayoutsTest, Gradients) {
  const StatusOr<std::vector<OpCase>> rows = read_gradient_cases();
  ASSERT_THAT(rows, IsOk());
  check_rows(*rows);
}

}  // namespace
}  // namespace tessera::testing
