// SPDX-License-Identifier: Apache-2.0
//
// Gradients against finite differences in f64: every differentiable operation of small_ops.h, with
// random layouts of its operands (by sub-axes, partial by every reduction) on every kind of mesh of
// up to 8 devices.
//
//   first   L = sum(seed * f(x)), f by the oracle: (L(x + h e) - L(x - h e)) / 2h for each element
//           of each source, h = 1e-5; within 1e-6 max(1, |value|) + 1e-9 |L| of the tape's
//   second  G = sum(w * dL/dx of one source), of whole operands: (G(x + h v) - G(x - h v)) / 2h
//           for a random direction v of all sources; within 1e-5 max(1, |value|) + 1e-9 |G|
//
// A gradient has the layout of its source without its partial axes. $TESSERA_OPS_SAMPLES says how
// many layouts are tried for each row: 2, and 1 under sanitizers; `tools/soak ops` tries 100.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/tape.h"
#include "tests/support/clients.h"
#include "tests/support/matchers.h"
#include "tests/support/ops/cases.h"
#include "tests/support/ops/every_layout.h"
#include "tests/support/ops/oracle.h"
#include "tests/support/ops/small_ops.h"
#include "tests/support/ops/table.h"
#include "tests/support/sanitizers.h"
#include "tests/support/seed.h"

namespace tessera::testing {
namespace {

constexpr const char* kMeshes[] = {"{x=1}",      "{x=2}",      "{x=3}",           "{x=8}",
                                   "{x=2, y=3}", "{x=4, y=2}", "{x=2, y=2, z=2}", "{x=5}"};
constexpr double kStep = 1e-5;
constexpr char kSeed[] = "((14i+31)%202-99)/16";
constexpr char kWeights[] = "((14i+57)%202-100)/32";

int samples() {
  const char* text = std::getenv("TESSERA_OPS_SAMPLES");
  int count = 0;
  if (text != nullptr && absl::SimpleAtoi(text, &count)) return count;
  return kSanitized ? 1 : 2;
}

double dot(absl::Span<const double> a, absl::Span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// The rounding error of a difference is the rounding error of the function, divided by the step.
Status check_close(double actual, double expected, double bound, double magnitude) {
  const double rounding = 1e-9 * std::abs(magnitude);
  TESSERA_REQUIRE(
      std::abs(actual - expected) <= bound * std::max(1.0, std::abs(expected)) + rounding, actual,
      ", not ", expected);
  return absl::OkStatus();
}

// A row on one mesh.
class Differences {
 public:
  Differences(const Client& client, const OpCase& row, const char* mesh, std::mt19937_64& random,
              std::map<std::string, Mesh>& meshes)
      : client_(client), row_(row), mesh_(mesh), random_(random), meshes_(meshes) {}

  // Operands and the result; false where the row has no gradient.
  StatusOr<bool> prepare() {
    for (const OpOperand& operand : row_.operands) {
      TESSERA_ASSIGN_OR_RETURN(Dense dense, dense_operand(operand));
      if (operand.dtype == DType::kFloat64) sources_.push_back(values_.size());
      values_.push_back(std::move(dense));
    }
    result_ = oracle(values_);
    TESSERA_ASSIGN_OR_RETURN(seed_, formula(kSeed, result_.shape));
    return !sources_.empty() && result_.dtype == DType::kFloat64;
  }

  // With random layouts, which are appended to the subject.
  Status check(bool is_second, std::string& subject) {
    std::vector<DTensor> operands;
    Tape tape;
    for (size_t i = 0; i < values_.size(); ++i) {
      OpOperand operand = row_.operands[i];
      operand.mesh = mesh_;
      operand.layout = random_layout(operand);
      absl::StrAppend(&subject, " ", shape_to_string(operand.shape), " ", operand.layout);
      TESSERA_ASSIGN_OR_RETURN(const DTensor made, make_operand(client_, operand, meshes_));
      operands.push_back(operand.dtype == DType::kFloat64 ? tape.watch(made) : made);
    }
    return is_second ? check_second(tape, operands) : check_first(tape, operands);
  }

 private:
  Dense oracle(absl::Span<const Dense> x) const { return op_oracle().at(row_.op)(row_, x); }

  static StatusOr<std::vector<double>> formula(const char* text, const Shape& shape) {
    TESSERA_ASSIGN_OR_RETURN(Dense dense, dense_operand({"", DType::kFloat64, shape, "", text}));
    return std::move(dense.data);
  }
  StatusOr<DTensor> formula_as(const char* text, const DTensor& like) const {
    return make_operand(
        client_,
        {mesh_, DType::kFloat64, like.shape(), like.layout().without_partial().to_string(), text},
        meshes_);
  }
  std::string random_layout(const OpOperand& operand) {
    const Mesh mesh = *Mesh::parse(mesh_);
    static auto* const known = new std::map<std::string, std::vector<Layout>>();
    const std::string key =
        absl::StrCat(mesh_, operand.shape.size(), " ", dtype_name(operand.dtype));
    std::vector<Layout>& all = (*known)[key];
    if (all.empty()) {
      all = every_layout(mesh, static_cast<int>(operand.shape.size()), operand.dtype);
    }
    return all[random_() % all.size()].to_string();
  }

  Status check_first(Tape& tape, absl::Span<const DTensor> operands) {
    const DTensor result = run_row(row_, operands, {});
    TESSERA_RETURN_IF_ERROR(result.status());
    GradientOptions options;
    TESSERA_ASSIGN_OR_RETURN(options.seed, formula_as(kSeed, result));
    std::vector<DTensor> of;
    for (const size_t i : sources_) of.push_back(operands[i]);
    const std::vector<DTensor> gradients = tape.gradient(result, of, options);
    const double loss = dot(seed_, result_.data);
    for (size_t k = 0; k < sources_.size(); ++k) {
      TESSERA_REQUIRE(gradients[k].status().ok(), gradients[k].status().ToString());
      TESSERA_REQUIRE(gradients[k].layout() == of[k].layout().without_partial(), "layout ",
                      gradients[k].layout().to_string());
      TESSERA_ASSIGN_OR_RETURN(const HostTensor<double> host, gradients[k].to_host<double>());
      std::vector<Dense> x = values_;
      TESSERA_REQUIRE(host.shape == x[sources_[k]].shape);
      for (size_t i = 0; i < host.data.size(); ++i) {
        double& element = x[sources_[k]].data[i];
        const double value = element;
        element = value + kStep;
        const double above = dot(seed_, oracle(x).data);
        element = value - kStep;
        const double below = dot(seed_, oracle(x).data);
        element = value;
        TESSERA_RETURN_IF_ERROR(
            with_context(check_close(host.data[i], (above - below) / (2 * kStep), 1e-6, loss),
                         absl::StrCat("operand ", sources_[k], ", element ", i)));
      }
    }
    return absl::OkStatus();
  }

  // The gradient by a source, weighted and added up: a scalar, and a function of all sources.
  StatusOr<DTensor> weighted_gradient(Tape& tape, absl::Span<const DTensor> operands,
                                      size_t source) const {
    const DTensor result = run_row(row_, operands, {});
    TESSERA_RETURN_IF_ERROR(result.status());
    GradientOptions options = {.keep = true};
    TESSERA_ASSIGN_OR_RETURN(options.seed, formula_as(kSeed, result));
    const DTensor gradient = tape.gradient(result, {operands[source]}, options)[0];
    TESSERA_RETURN_IF_ERROR(gradient.status());
    TESSERA_ASSIGN_OR_RETURN(const DTensor weights, formula_as(kWeights, gradient));
    return ops::sum(gradient * weights);
  }
  // Computes with whole operands.
  StatusOr<double> weighted_gradient_at(const std::vector<Dense>& x, size_t source) const {
    Tape tape;
    std::vector<DTensor> operands;
    for (size_t i = 0; i < x.size(); ++i) {
      OpOperand operand = row_.operands[i];
      operand.mesh = mesh_;
      const int rank = static_cast<int>(operand.shape.size());
      operand.layout = Layout::replicated(*Mesh::parse(mesh_), rank)->to_string();
      TESSERA_ASSIGN_OR_RETURN(const DTensor made, make_operand(client_, operand, meshes_));
      const bool is_source = operand.dtype == DType::kFloat64;
      operands.push_back(
          is_source ? tape.watch(from_host<double>(x[i].data, x[i].shape, made.layout())) : made);
    }
    TESSERA_ASSIGN_OR_RETURN(const DTensor sum, weighted_gradient(tape, operands, source));
    TESSERA_ASSIGN_OR_RETURN(const HostTensor<double> host, sum.to_host<double>());
    return host.data[0];
  }

  Status check_second(Tape& tape, absl::Span<const DTensor> operands) {
    const size_t source = sources_[random_() % sources_.size()];
    TESSERA_ASSIGN_OR_RETURN(const DTensor sum, weighted_gradient(tape, operands, source));
    std::vector<DTensor> of;
    for (const size_t i : sources_) of.push_back(operands[i]);
    const std::vector<DTensor> second = tape.gradient(sum, of);
    std::vector<Dense> above = values_;
    std::vector<Dense> below = values_;
    double actual = 0;
    for (size_t k = 0; k < sources_.size(); ++k) {
      TESSERA_REQUIRE(second[k].status().ok(), second[k].status().ToString());
      TESSERA_ASSIGN_OR_RETURN(const HostTensor<double> host, second[k].to_host<double>());
      for (size_t i = 0; i < host.data.size(); ++i) {
        const double direction = std::uniform_real_distribution<double>(-1, 1)(random_);
        above[sources_[k]].data[i] += kStep * direction;
        below[sources_[k]].data[i] -= kStep * direction;
        actual += direction * host.data[i];
      }
    }
    TESSERA_ASSIGN_OR_RETURN(const double high, weighted_gradient_at(above, source));
    TESSERA_ASSIGN_OR_RETURN(const double low, weighted_gradient_at(below, source));
    return check_close(actual, (high - low) / (2 * kStep), 1e-5, high);
  }

  const Client& client_;
  const OpCase& row_;
  const char* const mesh_;
  std::mt19937_64& random_;
  std::map<std::string, Mesh>& meshes_;
  std::vector<size_t> sources_;  // operands of f64
  std::vector<Dense> values_;
  Dense result_;
  std::vector<double> seed_;
};

Status check_all(const Client& client, uint64_t seed, bool is_second) {
  std::mt19937_64 random(seed);
  TESSERA_ASSIGN_OR_RETURN(const std::vector<OpCase> rows, small_op_cases());
  std::map<std::string, Mesh> meshes;
  int num_tried = 0;
  std::string failures;
  for (const OpCase& row : rows) {
    // elementwise() has no gradient, and a gradient of local_map() has none.
    if (row.op == "elementwise" || (is_second && row.op == "local_map")) continue;
    for (int k = 0; k < samples(); ++k) {
      const char* mesh = kMeshes[random() % std::size(kMeshes)];
      std::string subject = absl::StrCat(row.id, " on ", mesh);
      for (const auto& [name, value] : row.attributes) {
        absl::StrAppend(&subject, " ", name, "=", value);
      }
      Differences differences(client, row, mesh, random, meshes);
      TESSERA_ASSIGN_OR_RETURN(const bool has_gradient, differences.prepare());
      if (!has_gradient) break;
      ++num_tried;
      const Status status = differences.check(is_second, subject);
      if (!status.ok()) absl::StrAppend(&failures, subject, ": ", status.message(), "\n");
    }
  }
  std::cout << num_tried << " gradients\n";
  TESSERA_REQUIRE(num_tried > 100);
  return failures.empty() ? absl::OkStatus() : absl::InternalError(failures);
}

Status run_all(bool is_second) {
  const uint64_t seed = test_seed();
  const JobSpec spec = {.num_clients = 1,
                        .devices_per_client = 8,
                        .deadline = samples() > 2 ? absl::Hours(24) : absl::Seconds(100)};
  return run_clients(spec, [&](Client& client) { return check_all(client, seed, is_second); });
}

TEST(OpsDifferencesTest, First) { EXPECT_THAT(run_all(false), IsOk()); }
TEST(OpsDifferencesTest, Second) { EXPECT_THAT(run_all(true), IsOk()); }

}  // namespace
}  // namespace tessera::testing
