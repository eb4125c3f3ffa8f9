// SPDX-License-Identifier: Apache-2.0
//
// Brute force: every operation, with every layout of every operand (by whole axes and by sub-axes,
// partial by every reduction that the dtype has) on every mesh of up to 8 devices, against the
// oracle. Checks of each result:
//
//   1. it is the oracle's: the terms of a partial one, combined here, are;
//   2. all devices that hold an element (of one term) hold the same bits;
//   3. its layout is the layout asked for (two calls of three ask for none); nothing is split that
//      no operand splits.
//
// $TESSERA_OPS_LAYOUTS says how many combinations of layouts are tried at most for each operation
// and mesh: then these are evenly spaced, and all where there are no more. CI takes a sample by
// $TESSERA_TEST_SEED. `tools/soak ops` sets it, and $TESSERA_OPS_SHARE=0/2 to run every second one.
#include "tests/support/ops/oracle.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "Eigen/Core"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "ops/out.h"
#include "tests/support/clients.h"
#include "tests/support/matchers.h"
#include "tests/support/ops/cases.h"
#include "tests/support/ops/every_layout.h"
#include "tests/support/ops/small_ops.h"
#include "tests/support/ops/table.h"
#include "tests/support/sanitizers.h"
#include "tests/support/seed.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

// All of up to 8 devices.
constexpr const char* kMeshes[] = {
    "{x=1}",      "{x=2}",      "{x=3}",      "{x=4}",           "{x=5}",
    "{x=6}",      "{x=7}",      "{x=8}",      "{x=2, y=2}",      "{x=2, y=3}",
    "{x=3, y=2}", "{x=2, y=4}", "{x=4, y=2}", "{x=2, y=2, z=2}",
};

// ---- Values

double combined(ReduceOp op, absl::Span<const double> terms) {
  double value = terms[0];
  for (const double term : terms.subspan(1)) {
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg:
        value += term;
        break;
      case ReduceOp::kProd:
        value *= term;
        break;
      case ReduceOp::kMin:
        value = std::fmin(value, term);
        break;
      case ReduceOp::kMax:
        value = std::fmax(value, term);
        break;
    }
  }
  return op == ReduceOp::kAvg ? value / static_cast<double>(terms.size()) : value;
}

bool same_bits(double a, double b) {
  return a == b ? std::signbit(a) == std::signbit(b) : std::isnan(a) && std::isnan(b);
}

double tolerance_of(DType dtype) {
  if (!is_floating_point(dtype)) return 0;
  return dtype == DType::kFloat64 ? 1e-11 : 1e-5;
}

// The terms of each element, from the shards of all devices, which one client has.
template <class T>
StatusOr<std::vector<std::vector<double>>> terms_of(const DTensor& result) {
  const Layout& layout = result.layout();
  const auto num_terms = static_cast<size_t>(layout.num_partial_terms());
  std::vector<std::vector<double>> terms(num_elements(result.shape()),
                                         std::vector<double>(num_terms));
  std::vector<std::vector<bool>> is_known(terms.size(), std::vector<bool>(num_terms));
  for (int position = 0; position < result.num_local_shards(); ++position) {
    TESSERA_ASSIGN_OR_RETURN(const ShardView<T> shard, result.shard<T>(position));
    TESSERA_REQUIRE(shard.box == layout.box(result.shape(), position), "box of ", position);
    const int64_t term = layout.partial_index(position);
    bool agrees = true;
    for_each_element(shard.box, [&](const std::vector<int64_t>& index, int64_t place) {
      const int64_t i = flat_index(result.shape(), index);
      const auto value = static_cast<double>(shard.data[place]);
      agrees = agrees && (!is_known[i][term] || same_bits(terms[i][term], value));
      is_known[i][term] = true;
      terms[i][term] = value;
    });
    TESSERA_REQUIRE(agrees, "device ", position, " differs from another replica");
  }
  return terms;
}

Status check_values(const DTensor& result, const Dense& expected) {
  TESSERA_RETURN_IF_ERROR(result.await());
  TESSERA_REQUIRE(result.dtype() == expected.dtype, dtype_name(result.dtype()));
  TESSERA_REQUIRE(result.shape() == expected.shape, shape_to_string(result.shape()));
  TESSERA_ASSIGN_OR_RETURN(const auto terms, visit_dtype(result.dtype(), [&]<class T>() {
                             return terms_of<T>(result);
                           }));
  const ReduceOp op = result.layout().partial_op().value_or(ReduceOp::kSum);
  for (size_t i = 0; i < terms.size(); ++i) {
    const double actual = combined(op, terms[i]);
    const double wanted = expected.data[i];
    const double bound = tolerance_of(expected.dtype) * std::max(1.0, std::abs(wanted));
    TESSERA_REQUIRE(same_bits(actual, wanted) || std::abs(actual - wanted) <= bound, "element ", i,
                    " is ", actual, ", not ", wanted);
  }
  return absl::OkStatus();
}

// ---- Combinations

// Counts combinations, and keeps the first failures.
struct Tally {
  int64_t tried = 0;
  int num_failures = 0;
  std::string failures;

  void add(const Status& status, const std::string& subject) {
    ++tried;
    if (status.ok()) return;
    if (++num_failures <= 20) absl::StrAppend(&failures, subject, ": ", status.message(), "\n");
  }
};

// The layouts of a mesh by rank and dtype.
class MeshLayouts {
 public:
  MeshLayouts(const char* text, Mesh mesh) : text_(text), mesh_(std::move(mesh)) {}

  const std::vector<Layout>& of(const Shape& shape, DType dtype) {
    std::vector<Layout>& known = layouts_[{shape.size(), dtype}];
    if (known.empty()) {
      known = every_layout(mesh_, static_cast<int>(shape.size()), dtype);
    }
    return known;
  }
  const char* text() const { return text_; }

 private:
  const char* const text_;
  const Mesh mesh_;
  std::map<std::pair<size_t, DType>, std::vector<Layout>> layouts_;
};

// An operation on a mesh. Combinations of layouts have numbers.
class Combinations {
 public:
  Combinations(const Client& client, const OpCase& row, const Dense& expected, MeshLayouts& layouts,
               std::map<std::string, Mesh>& meshes)
      : client_(client),
        row_(row),
        expected_(expected),
        mesh_(layouts.text()),
        meshes_(meshes),
        outs_(layouts.of(expected.shape, expected.dtype)),
        tensors_(row.operands.size()) {
    for (const OpOperand& operand : row.operands) {
      choices_.push_back(&layouts.of(operand.shape, operand.dtype));
    }
  }

  int64_t count() const {
    int64_t count = 1;
    for (const auto* choices : choices_) count *= static_cast<int64_t>(choices->size());
    return count;
  }

  // With a layout for the result that the number decides, or with none.
  void check(int64_t number, Tally& tally) {
    std::string subject = absl::StrCat(row_.id, " on ", mesh_);
    for (const auto& [name, value] : row_.attributes)
      absl::StrAppend(&subject, " ", name, "=", value);
    const Status status = check(number, subject);
    tally.add(status, subject);
  }

 private:
  Status check(int64_t number, std::string& subject) {
    int64_t rest = number;
    std::vector<Layout> chosen;
    std::vector<DTensor> operands;
    for (size_t i = 0; i < choices_.size(); ++i) {
      const auto size = static_cast<int64_t>(choices_[i]->size());
      const Layout& layout = chosen.emplace_back((*choices_[i])[rest % size]);
      rest /= size;
      absl::StrAppend(&subject, " ", shape_to_string(row_.operands[i].shape), " ",
                      layout.to_string());
      TESSERA_ASSIGN_OR_RETURN(const DTensor operand, tensor(i, layout));
      operands.push_back(operand);
    }
    ops::Out out;
    if (number % 3 == 0) {
      out = outs_[(number / 3) % outs_.size()];
      absl::StrAppend(&subject, " -> ", out.layout->layout()->to_string());
    }
    const DTensor result = run_row(row_, operands, out);
    TESSERA_RETURN_IF_ERROR(result.status());
    if (out.layout.has_value()) {
      TESSERA_REQUIRE(result.layout() == *out.layout->layout(), result.layout().to_string());
    } else {
      absl::StrAppend(&subject, " -> (", result.layout().to_string(), ")");
      TESSERA_RETURN_IF_ERROR(check_only_split_as(chosen, result.layout()));
    }
    return check_values(result, expected_);
  }

  StatusOr<DTensor> tensor(size_t i, const Layout& layout) {
    const std::string text = layout.to_string();
    const auto known = tensors_[i].find(text);
    if (known != tensors_[i].end()) return known->second;
    OpOperand operand = row_.operands[i];
    operand.mesh = mesh_;
    operand.layout = text;
    TESSERA_ASSIGN_OR_RETURN(const DTensor made, make_operand(client_, operand, meshes_));
    return tensors_[i].emplace(text, made).first->second;
  }

  const Client& client_;
  const OpCase& row_;
  const Dense& expected_;
  const std::string mesh_;
  std::map<std::string, Mesh>& meshes_;
  const std::vector<Layout>& outs_;
  std::vector<const std::vector<Layout>*> choices_;
  std::vector<std::map<std::string, DTensor>> tensors_;
};

StatusOr<Dense> expected_of(const OpCase& row) {
  TESSERA_REQUIRE(op_oracle().count(row.op) == 1, "no oracle for ", row.op);
  std::vector<Dense> operands;
  for (const OpOperand& operand : row.operands) {
    TESSERA_ASSIGN_OR_RETURN(Dense dense, dense_operand(operand));
    operands.push_back(std::move(dense));
  }
  return op_oracle().at(row.op)(row, operands);
}

// "0/2" or nothing: {0, 2}, {0, 1}.
std::pair<int64_t, int64_t> share() {
  std::pair<int64_t, int64_t> share = {0, 1};
  const char* text = std::getenv("TESSERA_OPS_SHARE");
  if (text == nullptr) return share;
  const std::vector<std::string> parts = absl::StrSplit(text, '/');
  EXPECT_TRUE(parts.size() == 2 && absl::SimpleAtoi(parts[0], &share.first) &&
              absl::SimpleAtoi(parts[1], &share.second))
      << "TESSERA_OPS_SHARE=" << text;
  return share;
}

// Evenly spaced ones, of which this process has its share.
void check_evenly(Combinations& all, int64_t most, Tally& tally) {
  const auto [first, num_shares] = share();
  const int64_t step = (all.count() + most - 1) / most;
  for (int64_t k = first; k * step < all.count(); k += num_shares) all.check(k * step, tally);
}

// How many random combinations of each operation, over all meshes.
constexpr int kSamples = kSanitized ? 2 : 12;

Status check_all(const Client& client, uint64_t seed, std::optional<int64_t> most) {
  std::mt19937_64 random(seed);
  TESSERA_ASSIGN_OR_RETURN(const std::vector<OpCase> rows, small_op_cases());
  std::map<std::string, Mesh> meshes;
  std::vector<MeshLayouts> layouts;
  for (const char* text : kMeshes) {
    const Mesh abstract = *Mesh::parse(text);
    std::vector<int> ids(abstract.size());
    std::iota(ids.begin(), ids.end(), 0);
    TESSERA_ASSIGN_OR_RETURN(
        const Mesh mesh,
        create_mesh(client, {abstract.axes().begin(), abstract.axes().end()}, std::move(ids)));
    meshes.emplace(text, mesh);
    layouts.emplace_back(text, mesh);
  }
  std::set<std::string> seen;
  Tally tally;
  for (const OpCase& row : rows) {
    seen.insert(row.op);
    TESSERA_ASSIGN_OR_RETURN(const Dense expected, expected_of(row));
    for (int k = 0; k < kSamples && !most.has_value(); ++k) {
      Combinations some(client, row, expected, layouts[random() % layouts.size()], meshes);
      some.check(static_cast<int64_t>(random() % some.count()), tally);
    }
    for (size_t k = 0; k < layouts.size() && most.has_value(); ++k) {
      Combinations all(client, row, expected, layouts[k], meshes);
      check_evenly(all, *most, tally);
      std::cout << row.id << " on " << kMeshes[k] << ": " << all.count() << " combinations; "
                << tally.tried << " tried so far, " << tally.num_failures << " failed" << std::endl;
    }
  }
  for (const std::string& name : operation_names()) {
    TESSERA_REQUIRE(seen.count(name) == 1, "no row of ", name);
  }
  std::cout << tally.tried << " combinations\n";
  TESSERA_REQUIRE(tally.num_failures == 0, tally.num_failures, " failed:\n", tally.failures);
  return absl::OkStatus();
}

TEST(OpsOracleTest, EveryLayoutGivesTheOraclesValue) {
  const uint64_t seed = test_seed();
  std::optional<int64_t> most;
  const char* text = std::getenv("TESSERA_OPS_LAYOUTS");
  if (text != nullptr) {
    ASSERT_TRUE(absl::SimpleAtoi(text, &most.emplace())) << "TESSERA_OPS_LAYOUTS=" << text;
  }
  const JobSpec spec = {.num_clients = 1,
                        .devices_per_client = 8,
                        .deadline = most.has_value() ? absl::Hours(24) : absl::Seconds(100)};
  EXPECT_THAT(run_clients(spec, [&](Client& client) { return check_all(client, seed, most); }),
              IsOk());
}

}  // namespace
}  // namespace tessera::testing
