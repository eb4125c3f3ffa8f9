// SPDX-License-Identifier: Apache-2.0
//
// Operations and gradients in f16 and bf16 equal the f64 results of the same numbers, rounded once,
// under every layout: every operation of small_ops.h that has a float, at five scales, whole and
// with each dim of its operands split. f64 is computed by the same operation, whole.
//
//   error <= h halves of a unit in the last place + errors of f32: 2e-5 of the largest element, and
//            5e-7 for the gradient of a softmax, which is a difference of larger numbers
//
//   h = 1  whole operands, and operations that are made of others (they compute in f32)
//   h = 3  split: a term of a partial result is rounded by itself. Numbers are positive there, so
//          that terms do not cancel
//
// $TESSERA_OPS_SAMPLES says how many random layouts are tried beside the layouts that split one
// dim, in both dtypes and at all scales. Unset, a sample is tried: one scale, whole and under one
// layout.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "Eigen/Core"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
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
#include "nn/optimizer.h"
#include "ops/contract.h"
#include "ops/nn.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/shapes.h"
#include "ops/tape.h"
#include "tests/support/clients.h"
#include "tests/support/matchers.h"
#include "tests/support/ops/cases.h"
#include "tests/support/ops/oracle.h"
#include "tests/support/ops/small_ops.h"
#include "tests/support/ops/table.h"
#include "tests/support/seed.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

constexpr double kScales[] = {1e-4, 1e-2, 1, 100, 3e4};
constexpr double kLargestOfFormulas = 6.5;
constexpr char kSeed[] = "((14i+31)%202-99)/16";
// Errors of f32, as parts of the largest element.
constexpr double kErrorOfF32 = 2e-5;
constexpr double kErrorOfSoftmax = 5e-7;
constexpr double kLargestF32 = 3.4e38;

// How many random layouts; nothing for the sample.
std::optional<int> samples() {
  const char* text = std::getenv("TESSERA_OPS_SAMPLES");
  int count = 0;
  if (text != nullptr && absl::SimpleAtoi(text, &count)) return count;
  return std::nullopt;
}

double rounded(double value, DType dtype) {
  if (dtype == DType::kFloat16) return static_cast<double>(Eigen::half(static_cast<float>(value)));
  return static_cast<double>(Eigen::bfloat16(static_cast<float>(value)));
}

// Half of the distance of numbers near the value.
double half_unit(double value, DType dtype) {
  const int digits = dtype == DType::kFloat16 ? 11 : 8;
  const int least = dtype == DType::kFloat16 ? -24 : -133;
  const int exponent = value == 0 ? least : std::ilogb(value) + 1 - digits;
  return std::ldexp(0.5, std::max(exponent, least));
}

// Whether a value is within `units` halves of a unit of the expected value.
bool is_close(double actual, double expected, double noise, double units, DType dtype) {
  if (std::isnan(expected)) return std::isnan(actual);
  // Terms of a sum were infinite in f32 and finite in f64.
  if (std::abs(expected) > kLargestF32 && !std::isfinite(actual)) return true;
  const double bound = dtype == DType::kFloat16 ? 65520 : 3.39e38;
  if (std::isinf(actual)) {
    return std::signbit(actual) == std::signbit(expected) &&
           std::abs(expected) + noise >= bound * (1 - 1e-3 * units);
  }
  if (std::isinf(expected)) return false;
  if (std::isnan(actual)) return false;
  // Each of up to 8 terms may be a subnormal number.
  const double least = units > 1 ? 8 * half_unit(0, dtype) : 0;
  return std::abs(actual - expected) <= units * half_unit(expected, dtype) * 1.01 + noise + least ||
         (std::abs(expected) >= bound * 0.999 && std::abs(actual) >= bound * 0.99);
}

Status check_values(const std::vector<double>& actual, const std::vector<double>& expected,
                    double least_noise, double units, DType dtype) {
  TESSERA_REQUIRE(actual.size() == expected.size());
  double largest = 0;
  for (const double value : expected) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  const double noise = std::max(least_noise, kErrorOfF32 * largest);
  for (size_t i = 0; i < actual.size(); ++i) {
    TESSERA_REQUIRE(is_close(actual[i], expected[i], noise, units, dtype), "element ", i, " is ",
                    actual[i], ", not ", expected[i]);
  }
  return absl::OkStatus();
}

template <class T>
StatusOr<std::vector<double>> numbers_of(const DTensor& tensor) {
  TESSERA_ASSIGN_OR_RETURN(const HostTensor<T> host, tensor.to_host<T>());
  std::vector<double> numbers;
  for (const T& value : host.data) numbers.push_back(static_cast<double>(value));
  return numbers;
}
StatusOr<std::vector<double>> values_of(const DTensor& tensor) {
  return visit_dtype(tensor.dtype(), [&]<class T>() { return numbers_of<T>(tensor); });
}

DTensor tensor_of(const Dense& dense, DType dtype, const Layout& layout) {
  return visit_dtype(dtype, [&]<class T>() {
    // Not a vector: std::vector<bool> has no array of its elements.
    const auto data = std::make_unique<T[]>(dense.data.size() + 1);
    for (size_t i = 0; i < dense.data.size(); ++i) {
      if constexpr (sizeof(T) == 2) {
        data[i] = static_cast<T>(static_cast<float>(dense.data[i]));
      } else {
        data[i] = static_cast<T>(dense.data[i]);
      }
    }
    return from_host<T>(absl::MakeConstSpan(data.get(), dense.data.size()), dense.shape, layout);
  });
}

// A result and the gradients by its operands of floats.
struct Results {
  std::vector<std::vector<double>> values;
};

bool has_softmax(const std::string& op) {
  return op == "softmax" || op == "log_softmax" || op == "softmax_cross_entropy" ||
         op == "attention";
}

// The result of one row with these numbers.
class HalfRow {
 public:
  HalfRow(const OpCase& row, const Mesh& mesh) : row_(row), mesh_(mesh) {}

  // Numbers of the dtype at the scale; absolute ones where terms may be rounded.
  Status prepare(DType dtype, double scale, bool is_positive) {
    dtype_ = dtype;
    operands_.clear();
    for (const OpOperand& operand : row_.operands) {
      TESSERA_ASSIGN_OR_RETURN(Dense dense, dense_operand(operand));
      if (dense.dtype == DType::kFloat64) round_numbers(scale, is_positive, dense.data);
      operands_.push_back(std::move(dense));
    }
    is_positive_ = is_positive;
    const std::vector<Layout> whole = whole_layouts();
    TESSERA_ASSIGN_OR_RETURN(expected_, run(DType::kFloat64, whole));
    return absl::OkStatus();
  }

  Status check(absl::Span<const Layout> layouts, double units) const {
    TESSERA_ASSIGN_OR_RETURN(const Results actual, run(dtype_, layouts));
    TESSERA_REQUIRE(actual.values.size() == expected_.values.size());
    for (size_t k = 0; k < actual.values.size(); ++k) {
      const double noise = k > 0 && has_softmax(row_.op) ? kErrorOfSoftmax : 0;
      TESSERA_RETURN_IF_ERROR(
          with_context(check_values(actual.values[k], expected_.values[k], noise, units, dtype_),
                       k == 0 ? "result" : absl::StrCat("gradient ", k - 1)));
    }
    return absl::OkStatus();
  }

  std::vector<Layout> whole_layouts() const {
    std::vector<Layout> layouts;
    for (const OpOperand& operand : row_.operands) {
      layouts.push_back(*Layout::replicated(mesh_, static_cast<int>(operand.shape.size())));
    }
    return layouts;
  }

 private:
  void round_numbers(double scale, bool is_positive, std::vector<double>& data) const {
    for (double& value : data) {
      value = rounded(value * (scale / kLargestOfFormulas), dtype_);
      if (is_positive) value = std::abs(value);
    }
  }

  StatusOr<Results> run(DType dtype, absl::Span<const Layout> layouts) const {
    Tape tape;
    std::vector<DTensor> operands;
    std::vector<DTensor> sources;
    for (size_t i = 0; i < operands_.size(); ++i) {
      const bool is_source = operands_[i].dtype == DType::kFloat64;
      const DTensor made =
          tensor_of(operands_[i], is_source ? dtype : operands_[i].dtype, layouts[i]);
      operands.push_back(is_source ? tape.watch(made) : made);
      if (is_source) sources.push_back(operands.back());
    }
    const DTensor result = run_row(row_, operands, {});
    TESSERA_RETURN_IF_ERROR(result.status());
    Results results;
    TESSERA_ASSIGN_OR_RETURN(results.values.emplace_back(), values_of(result));
    if (result.dtype() != dtype) return results;
    TESSERA_ASSIGN_OR_RETURN(Dense seed,
                             dense_operand({"", DType::kFloat64, result.shape(), "", kSeed}));
    round_numbers(1, is_positive_, seed.data);
    GradientOptions options;
    options.seed = tensor_of(seed, dtype, result.layout().without_partial());
    for (const DTensor& gradient : tape.gradient(result, sources, options)) {
      TESSERA_RETURN_IF_ERROR(gradient.status());
      TESSERA_REQUIRE(gradient.dtype() == dtype);
      TESSERA_ASSIGN_OR_RETURN(results.values.emplace_back(), values_of(gradient));
    }
    return results;
  }

  const OpCase& row_;
  const Mesh& mesh_;
  DType dtype_ = DType::kFloat16;
  bool is_positive_ = false;
  std::vector<Dense> operands_;
  Results expected_;
};

// Operations that compute in f32 from their operands to their result, which is rounded once.
bool is_composed(const std::string& op) {
  static const auto* const kNames =
      new std::set<std::string>({"var", "norm", "logsumexp", "softmax", "log_softmax", "layer_norm",
                                 "softmax_cross_entropy", "attention"});
  return kNames->count(op) != 0;
}

class Sweep {
 public:
  Sweep(const Mesh& mesh, uint64_t seed) : mesh_(mesh), random_(seed) {}

  Status row(const OpCase& row) {
    const std::optional<int> count = samples();
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      const size_t chosen = random_() % std::size(kScales);
      for (size_t k = 0; k < std::size(kScales); ++k) {
        if (count.has_value() || k == chosen) TESSERA_RETURN_IF_ERROR(at(row, dtype, kScales[k]));
      }
    }
    return absl::OkStatus();
  }

  int num_cases() const { return num_cases_; }
  const std::string& failures() const { return failures_; }

 private:
  Status at(const OpCase& row, DType dtype, double scale) {
    HalfRow half(row, mesh_);
    const std::string subject = absl::StrCat(row.id, " ", shape_to_string(row.operands[0].shape),
                                             " of ", dtype_name(dtype), " at ", scale);
    TESSERA_RETURN_IF_ERROR(with_context(half.prepare(dtype, scale, false), subject));
    note(subject, half.whole_layouts(), half.check(half.whole_layouts(), 1));
    const bool is_composed_row = is_composed(row.op);
    if (!is_composed_row) {
      TESSERA_RETURN_IF_ERROR(with_context(half.prepare(dtype, scale, true), subject));
    }
    for (const std::vector<Layout>& layouts : splits_of(half.whole_layouts())) {
      note(subject, layouts, half.check(layouts, is_composed_row ? 1 : 3));
    }
    return absl::OkStatus();
  }

  void note(const std::string& subject, absl::Span<const Layout> layouts, const Status& status) {
    ++num_cases_;
    if (status.ok()) return;
    absl::StrAppend(&failures_, subject);
    for (const Layout& layout : layouts) absl::StrAppend(&failures_, " ", layout.to_string());
    absl::StrAppend(&failures_, ": ", status.message(), "\n");
  }

  // Each dim of each operand split by x, and random layouts; in a sample one layout of them all.
  std::vector<std::vector<Layout>> splits_of(const std::vector<Layout>& whole) {
    std::vector<std::vector<Layout>> all;
    for (size_t i = 0; i < whole.size(); ++i) {
      for (int dim = 0; dim < whole[i].rank(); ++dim) {
        std::vector<DimSharding> dims(whole[i].rank());
        dims[dim] = {"x"};
        all.push_back(whole);
        all.back()[i] = *Layout::create(mesh_, std::move(dims));
      }
    }
    for (int k = 0; k < samples().value_or(2); ++k) {
      std::vector<Layout>& random = all.emplace_back();
      for (const Layout& each : whole) random.push_back(random_layout(each.rank()));
    }
    if (samples().has_value()) return all;
    return {all[random_() % all.size()]};
  }

  Layout random_layout(int rank) {
    std::vector<Layout>& all = layouts_[rank];
    if (all.empty()) all = all_layouts(mesh_, rank, false);
    return all[random_() % all.size()];
  }

  const Mesh& mesh_;
  std::mt19937_64 random_;
  std::map<int, std::vector<Layout>> layouts_;
  int num_cases_ = 0;
  std::string failures_;
};

bool has_floats(const OpCase& row) {
  return std::any_of(row.operands.begin(), row.operands.end(),
                     [](const OpOperand& operand) { return operand.dtype == DType::kFloat64; });
}

// Functions of the caller compute in the type that the caller chooses, and a cast is checked by its
// own tests.
bool is_swept(const OpCase& row) {
  return has_floats(row) && row.op != "elementwise" && row.op != "local_map" && row.op != "cast";
}

Status sweep(const Client& client, uint64_t seed) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 4}, {"y", 2}}));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<OpCase> rows, small_op_cases());
  Sweep sweep(mesh, seed);
  std::set<std::string> names;
  for (const OpCase& row : rows) {
    if (!is_swept(row)) continue;
    names.insert(row.op);
    TESSERA_RETURN_IF_ERROR(sweep.row(row));
  }
  std::cout << sweep.num_cases() << " cases of " << names.size() << " operations\n";
  TESSERA_REQUIRE(sweep.num_cases() > 300);
  return sweep.failures().empty() ? absl::OkStatus() : absl::InternalError(sweep.failures());
}

Status run_one_client(const std::function<Status(Client&)>& body) {
  const JobSpec spec = {.num_clients = 1,
                        .devices_per_client = 8,
                        .deadline = samples().has_value() ? absl::Hours(24) : absl::Seconds(100)};
  return run_clients(spec, body);
}

TEST(OpsHalfTest, RoundedOnceUnderEveryLayout) {
  const uint64_t seed = test_seed();
  EXPECT_THAT(run_one_client([&](Client& client) { return sweep(client, seed); }), IsOk());
}

// ---- Numbers that users reported (tests/facts/ops.md)

DTensor filled(DType dtype, const Shape& shape, double value, const Layout& layout) {
  return tensor_of({dtype, shape, std::vector<double>(num_elements(shape), value)}, dtype, layout);
}

Status expect_all(const DTensor& tensor, double expected, absl::string_view what) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<double> values, values_of(tensor));
  for (const double value : values) {
    TESSERA_REQUIRE(value == expected, what, " under ", tensor.layout().to_string(), ": ", value,
                    ", not ", expected);
  }
  return absl::OkStatus();
}

// A body for each of some layouts on {x=4, y=2}.
Status under_layouts(Client& client, const std::vector<const char*>& texts,
                     const std::function<Status(const Layout&)>& body) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 4}, {"y", 2}}));
  for (const char* text : texts) {
    TESSERA_ASSIGN_OR_RETURN(const Layout layout, Layout::parse(mesh, text));
    TESSERA_RETURN_IF_ERROR(with_context(body(layout), text));
  }
  return absl::OkStatus();
}

TEST(OpsHalfTest, CrossEntropyOfSplitClasses) {
  EXPECT_THAT(run_one_client([](Client& client) {
                return under_layouts(client, {"[-, -]", "[-, x]"}, [](const Layout& layout) {
                  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
                    const bool is_f16 = dtype == DType::kFloat16;
                    for (const double low : {70, 20, -100}) {
                      const Dense logits = {dtype, {1, 4}, {low + 30, low, low, low + 30}};
                      const DTensor label =
                          full<int32_t>({1}, 3, Layout::replicated(layout.mesh(), 1));
                      TESSERA_RETURN_IF_ERROR(expect_all(
                          ops::softmax_cross_entropy(tensor_of(logits, dtype, layout), label),
                          is_f16 ? 0.693359375 : 0.69140625, "cross entropy"));
                    }
                  }
                  return absl::OkStatus();
                });
              }),
              IsOk());
}

TEST(OpsHalfTest, NormOutOfTheRangeOfSquares) {
  EXPECT_THAT(
      run_one_client([](Client& client) {
        return under_layouts(client, {"[-]", "[x]"}, [](const Layout& layout) -> Status {
          const DTensor large = filled(DType::kFloat16, {4}, 300, layout);
          const DTensor small = filled(DType::kFloat16, {4}, 1e-4, layout);
          TESSERA_RETURN_IF_ERROR(expect_all(ops::norm(large), 600, "norm"));
          TESSERA_RETURN_IF_ERROR(
              expect_all(ops::norm(small), 2 * rounded(1e-4, DType::kFloat16), "norm"));
          const ClippedGradients clipped = clip_by_global_norm({large}, 1);
          TESSERA_RETURN_IF_ERROR(expect_all(clipped.norm, 600, "clipped norm"));
          TESSERA_RETURN_IF_ERROR(expect_all(clipped.gradients[0], 0.5, "clipped"));
          // The norm is infinite in f16, the gradients are not.
          const DTensor largest = filled(DType::kFloat16, {4}, 60000, layout);
          const ClippedGradients out_of_range = clip_by_global_norm({largest, largest}, 8);
          TESSERA_RETURN_IF_ERROR(expect_all(out_of_range.norm, INFINITY, "norm"));
          TESSERA_RETURN_IF_ERROR(expect_all(out_of_range.gradients[1],
                                             rounded(std::sqrt(8), DType::kFloat16), "clipped"));
          return expect_all(clip_by_global_norm({small}, 1).gradients[0],
                            rounded(1e-4, DType::kFloat16), "not clipped");
        });
      }),
      IsOk());
}

// 5,000 ones at one index: 4992 is the bf16 next to it.
TEST(OpsHalfTest, ManyUpdatesOfOneIndex) {
  constexpr int64_t kCount = 5000;
  EXPECT_THAT(run_one_client([](Client& client) {
                return under_layouts(client, {"[-]", "[x]"}, [](const Layout& layout) -> Status {
                  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
                    const double expected = dtype == DType::kFloat16 ? 5000 : 4992;
                    const DTensor indices = zeros<int32_t>({kCount}, layout);
                    const DTensor table =
                        filled(dtype, {2}, 0, *Layout::replicated(layout.mesh(), 1));
                    const DTensor sums =
                        ops::scatter_add(table, indices, filled(dtype, {kCount}, 1, layout), 0);
                    TESSERA_RETURN_IF_ERROR(
                        expect_all(ops::slice(sums, {0}, {1}), expected, "scatter_add"));
                    Tape tape;
                    const DTensor watched = tape.watch(table);
                    const DTensor gradient =
                        tape.gradient(ops::sum(ops::take(watched, indices, 0)), {watched})[0];
                    TESSERA_RETURN_IF_ERROR(
                        expect_all(ops::slice(gradient, {0}, {1}), expected, "gradient of take"));
                  }
                  return absl::OkStatus();
                });
              }),
              IsOk());
}

// Slices of several indices, some of them out of a device's range: in the order of the indices.
TEST(OpsHalfTest, UpdatesOfSlicesAreAddedInF32) {
  EXPECT_THAT(run_one_client([](Client& client) {
                return under_layouts(
                    client, {"[-, -]", "[x, -]", "[-, x]"}, [](const Layout& layout) -> Status {
                      const Layout whole = *Layout::replicated(layout.mesh(), 1);
                      const int32_t order[] = {1, 5, 1, 0, 1, 5};
                      const DTensor indices = from_host<int32_t>(order, {6}, whole);
                      const DTensor sums =
                          ops::scatter_add(filled(DType::kBFloat16, {6, 3}, 256, layout), indices,
                                           filled(DType::kBFloat16, {6, 3}, 0.75, layout), 0);
                      // Each update by itself is below half of a unit of 256.
                      return expect_all(ops::slice(sums, {1, 0}, {2, 3}), 258, "three updates");
                    });
              }),
              IsOk());
}

// A weight that is used at each of many steps.
TEST(OpsHalfTest, CotangentsOfManyUsesAreAddedInF32) {
  constexpr int kUses = 600;
  EXPECT_THAT(run_one_client([](Client& client) {
                return under_layouts(client, {"[-]", "[x]"}, [](const Layout& layout) -> Status {
                  Tape tape;
                  const DTensor weight = tape.watch(filled(DType::kBFloat16, {4}, 1, layout));
                  const DTensor input = filled(DType::kBFloat16, {4}, 1, layout);
                  std::vector<DTensor> uses;
                  for (int k = 0; k < kUses; ++k) uses.push_back(ops::sum(weight * input));
                  const DTensor total = ops::sum(ops::stack(uses, 0));
                  size_t num_finished = 0;
                  GradientOptions options;
                  options.on_finished = [&](size_t, const DTensor&) { ++num_finished; };
                  const DTensor gradient = tape.gradient(total, {weight}, options)[0];
                  TESSERA_REQUIRE(num_finished == 1);
                  return expect_all(gradient, kUses, "gradient");
                });
              }),
              IsOk());
}

// The count of a mean, and of equal elements, may be no number of the dtype.
TEST(OpsHalfTest, GradientsDividedByCounts) {
  constexpr int64_t kCount = 70'000;
  EXPECT_THAT(run_one_client([](Client& client) {
                return under_layouts(client, {"[-]", "[x]"}, [](const Layout& layout) -> Status {
                  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
                    Tape tape;
                    const DTensor x = tape.watch(filled(dtype, {kCount}, 1, layout));
                    GradientOptions options;
                    options.seed = filled(dtype, {}, 30'000, *Layout::replicated(layout.mesh(), 0));
                    const double seed = rounded(30'000, dtype);
                    const double expected = rounded(seed / kCount, dtype);
                    TESSERA_RETURN_IF_ERROR(
                        expect_all(tape.gradient(ops::mean(x), {x}, options)[0], expected, "mean"));
                    TESSERA_RETURN_IF_ERROR(
                        expect_all(tape.gradient(ops::max(x), {x}, options)[0], expected, "max"));
                  }
                  return absl::OkStatus();
                });
              }),
              IsOk());
}

TEST(OpsHalfTest, EinsumOfSeveralDTypesIsRefused) {
  EXPECT_THAT(run_one_client([](Client& client) {
                return under_layouts(client, {"[-]"}, [](const Layout& layout) -> Status {
                  const DTensor half = filled(DType::kBFloat16, {2}, 1, layout);
                  const DTensor wide = filled(DType::kFloat32, {2}, 1, layout);
                  const Status status = ops::einsum("i,i,i->", {half, wide, half}).status();
                  TESSERA_REQUIRE(
                      status.message() == "einsum: operands are bf16 and f32; cast() one of them",
                      status.ToString());
                  return absl::OkStatus();
                });
              }),
              IsOk());
}

}  // namespace
}  // namespace tessera::testing
