// SPDX-License-Identifier: Apache-2.0
//
// Variables and optimizers: every row of ops/testdata/optimizer_cases.tsv, under several layouts of
// the variable and the gradient, with whole and with sharded state; and every refusal.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "Eigen/Core"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "nn/optimizer.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/variable.h"
#include "tests/support/clients.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/ops/cases.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

struct OptimizerCase {
  std::string id, optimizer;
  std::map<std::string, double> options;  // 1 of a flag
  std::string initial, gradients;
  int64_t steps = 0;
  std::string values;
  double tolerance = 0;
};

double number(absl::string_view text) {
  double value = 0;
  return absl::SimpleAtod(text, &value) ? value : NAN;
}

StatusOr<std::vector<OptimizerCase>> read_cases() {
  std::ifstream file("ops/testdata/optimizer_cases.tsv");
  if (!file.is_open()) return absl::NotFoundError("no table of optimizers");
  std::vector<OptimizerCase> rows;
  std::string line;
  std::getline(file, line);  // The names of the columns.
  while (std::getline(file, line)) {
    const std::vector<std::string> cells = absl::StrSplit(line, '\t');
    TESSERA_REQUIRE(cells.size() == 9, "cells of ", line);
    OptimizerCase& row = rows.emplace_back();
    row.id = cells[0];
    row.optimizer = cells[1];
    for (absl::string_view option : absl::StrSplit(cells[2], "; ")) {
      const std::vector<std::string> pair = absl::StrSplit(option, '=');
      row.options[pair[0]] = pair.size() == 1 ? 1 : number(pair[1]);
    }
    row.initial = cells[4];
    row.gradients = cells[5];
    row.steps = cells[6] == "-" ? 0 : static_cast<int64_t>(number(cells[6]));
    row.values = cells[7];
    row.tolerance = number(cells[8]);
  }
  return rows;
}

// Element i has the value of the formula at first + i.
DTensor make(const std::string& formula, int64_t first, const Shape& shape, const Layout& layout) {
  return from_function<double>(shape, layout, [&](const Box& box, absl::Span<double> out) {
    int64_t place = 0;
    for_each_element(box, [&](const std::vector<int64_t>& index, int64_t) {
      out[place++] = *formula_at(formula, first + flat_index(shape, index));
    });
  });
}

template <class Optimizer>
Optimizer configured(const OptimizerCase& row, bool shard_state) {
  Optimizer optimizer;
  const auto set = [&](const char* name, auto& field) {
    const auto option = row.options.find(name);
    if (option != row.options.end()) field = option->second;
  };
  set("learning_rate", optimizer.learning_rate);
  set("weight_decay", optimizer.weight_decay);
  if constexpr (requires { optimizer.momentum; }) {
    set("momentum", optimizer.momentum);
    set("nesterov", optimizer.nesterov);
  }
  if constexpr (requires { optimizer.beta1; }) {
    set("beta1", optimizer.beta1);
    set("beta2", optimizer.beta2);
  }
  if constexpr (requires { optimizer.epsilon; }) set("epsilon", optimizer.epsilon);
  if constexpr (requires { optimizer.initial_accumulator; }) {
    set("initial_accumulator", optimizer.initial_accumulator);
  }
  optimizer.shard_state = shard_state;
  return optimizer;
}

// The layouts of a variable and its gradients.
struct Form {
  const char* variable;
  const char* gradient;
  bool shard_state;
};
constexpr Form kForms[] = {
    {"[-]", "[-]", false},       {"[-]", "[-]", true},        {"[x]", "[x]", false},
    {"[x]", "[-] sum{x}", true}, {"[-]", "[y] sum{x}", true}, {"[y]", "[-] sum{x,y}", false},
};

template <class Optimizer>
Status run_steps(const Mesh& mesh, const OptimizerCase& row, const Form& form,
                 std::vector<double>& values) {
  constexpr int64_t kSize = 5;
  TESSERA_ASSIGN_OR_RETURN(const Layout layout, Layout::parse(mesh, form.variable));
  TESSERA_ASSIGN_OR_RETURN(const Layout whole, Layout::parse(mesh, "[-]"));
  std::vector<Variable> variables = {Variable("w", make(row.initial, 0, {kSize}, layout))};
  Optimizer optimizer = configured<Optimizer>(row, form.shard_state);
  for (int64_t step = 0; step < row.steps; ++step) {
    const DTensor gradient = relayout(make(row.gradients, step * kSize, {kSize}, whole),
                                      Layout::parse(mesh, form.gradient));
    TESSERA_RETURN_IF_ERROR(optimizer.apply(variables, {gradient}));
  }
  TESSERA_REQUIRE(variables[0].value().layout() == layout);
  TESSERA_ASSIGN_OR_RETURN(const HostTensor<double> host, variables[0].value().to_host<double>());
  values = host.data;
  return absl::OkStatus();
}

Status run_row(const Mesh& mesh, const OptimizerCase& row, const Form& form,
               std::vector<double>& values) {
  if (row.optimizer == "Sgd") return run_steps<Sgd>(mesh, row, form, values);
  if (row.optimizer == "Adam") return run_steps<Adam>(mesh, row, form, values);
  if (row.optimizer == "AdamW") return run_steps<AdamW>(mesh, row, form, values);
  return run_steps<Adagrad>(mesh, row, form, values);
}

Status check_steps(const Mesh& mesh, const OptimizerCase& row) {
  const std::vector<std::string> expected = absl::StrSplit(row.values, ", ");
  std::vector<double> first;
  for (const Form& form : kForms) {
    std::vector<double> values;
    TESSERA_RETURN_IF_ERROR(run_row(mesh, row, form, values));
    for (size_t i = 0; i < expected.size(); ++i) {
      const double value = number(expected[i]);
      TESSERA_REQUIRE(std::abs(values[i] - value) <= row.tolerance * std::max(1.0, std::abs(value)),
                      form.variable, " ", form.gradient, " element ", i, ": ", values[i]);
    }
    // The layouts and the split of the state change no bit.
    if (first.empty()) first = values;
    TESSERA_REQUIRE(values == first, form.variable, " ", form.gradient);
  }
  return absl::OkStatus();
}

// "norm 3.6; first 1, 2; sum of second 3"
Status check_clip(const Mesh& mesh, const OptimizerCase& row) {
  TESSERA_ASSIGN_OR_RETURN(const Layout rows, Layout::parse(mesh, "[y]"));
  TESSERA_ASSIGN_OR_RETURN(const Layout blocks, Layout::parse(mesh, "[-, x]"));
  const DTensor gradients[] = {make(row.gradients, 0, {5}, rows),
                               make(row.gradients, 5, {2, 5}, blocks)};
  const double max_norm = row.options.at("max_norm");
  const ClippedGradients clipped = clip_by_global_norm(gradients, max_norm);
  TESSERA_REQUIRE(clipped.gradients[1].layout() == blocks);
  std::map<std::string, std::vector<double>> expected;
  for (absl::string_view part : absl::StrSplit(row.values, "; ")) {
    const size_t begin = part.find_first_of("-0123456789");
    for (absl::string_view value : absl::StrSplit(part.substr(begin), ", ")) {
      expected[std::string(part.substr(0, begin - 1))].push_back(number(value));
    }
  }
  const auto check = [&](const char* name, const DTensor& tensor) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const HostTensor<double> host, tensor.to_host<double>());
    TESSERA_REQUIRE(host.data.size() == expected[name].size(), name, " ", expected[name].size());
    for (size_t i = 0; i < host.data.size(); ++i) {
      TESSERA_REQUIRE(std::abs(host.data[i] - expected[name][i]) <= 1e-12, name, " ", host.data[i]);
    }
    return absl::OkStatus();
  };
  TESSERA_RETURN_IF_ERROR(check("norm", clipped.norm));
  TESSERA_RETURN_IF_ERROR(check("first", clipped.gradients[0]));
  return check("sum of second", ops::sum(clipped.gradients[1]));
}

class OptimizersTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, OptimizersTest, ::testing::ValuesIn(kJobForms), job_form_name);
INSTANTIATE_TEST_SUITE_P(Cuda, OptimizersTest, ::testing::ValuesIn(cuda_forms()), job_form_name);

TEST_P(OptimizersTest, Rows) {
  const StatusOr<std::vector<OptimizerCase>> rows = read_cases();
  ASSERT_THAT(rows, IsOk());
  EXPECT_THAT(
      run([&](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}, {"y", 4}}));
        std::string failures;
        for (const OptimizerCase& row : *rows) {
          const Status status = row.optimizer == "clip_by_global_norm" ? check_clip(mesh, row)
                                                                       : check_steps(mesh, row);
          if (!status.ok()) {
            absl::StrAppend(&failures, row.id, ": ", status.message(), "\n");
          }
        }
        return failures.empty() ? absl::OkStatus() : absl::InternalError(failures);
      }),
      IsOk());
}

Status refused(const Status& status, const char* text) {
  TESSERA_REQUIRE(absl::IsInvalidArgument(status) && absl::StrContains(status.message(), text),
                  status.ToString(), " instead of ", text);
  return absl::OkStatus();
}

TEST_P(OptimizersTest, Refusals) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
        const auto layout = Layout::parse(mesh, "[x]");
        const DTensor zero = zeros<float>({4}, layout);
        std::vector<Variable> one = {Variable("w", zero)};
        std::vector<Variable> twice = {one[0], one[0]};
        std::vector<Variable> integers = {Variable("n", zeros<int32_t>({4}, layout))};
        const auto apply = [](std::vector<Variable>& variables, std::vector<DTensor> gradients) {
          return Sgd{}.apply(variables, gradients);
        };
        TESSERA_RETURN_IF_ERROR(refused(apply(one, {}), "Sgd: 1 variables and 0 gradients"));
        TESSERA_RETURN_IF_ERROR(refused(apply(one, {zeros<float>({5}, layout)}),
                                        "Sgd: variable \"w\" is f32 [4], its gradient f32 [5]"));
        TESSERA_RETURN_IF_ERROR(refused(apply(one, {zeros<double>({4}, layout)}), "gradient f64"));
        TESSERA_RETURN_IF_ERROR(
            refused(apply(twice, {zero, zero}), "variable \"w\" is given twice"));
        TESSERA_RETURN_IF_ERROR(refused(apply(integers, {zeros<int32_t>({4}, layout)}),
                                        "is i32; optimizers change floats"));
        TESSERA_RETURN_IF_ERROR(refused(Sgd{.learning_rate = -1}.apply({}, {}),
                                        "Sgd: learning_rate is -1; it should be at least 0"));
        TESSERA_RETURN_IF_ERROR(refused(Adam{.beta1 = 1}.apply({}, {}), "Adam: beta1 is 1"));
        TESSERA_RETURN_IF_ERROR(refused(AdamW{.epsilon = NAN}.apply({}, {}), "AdamW: epsilon"));
        TESSERA_RETURN_IF_ERROR(
            refused(Adagrad{.initial_accumulator = -1}.apply({}, {}), "initial_accumulator"));
        TESSERA_RETURN_IF_ERROR(
            refused(clip_by_global_norm({}, 1).norm.status(), "of no gradients"));
        TESSERA_RETURN_IF_ERROR(
            refused(clip_by_global_norm({zero}, 0).norm.status(), "max_norm is 0"));
        TESSERA_RETURN_IF_ERROR(refused(one[0].assign(zeros<float>({5}, layout)),
                                        "variable \"w\" is f32 [4], assign got f32 [5]"));
        TESSERA_RETURN_IF_ERROR(
            refused(one[0].assign_add(zeros<double>({4}, layout)), "assign_add got f64 [4]"));
        return refused(
            Variable("p", zeros<float>({4}, Layout::parse(mesh, "[-] sum{x}"))).value().status(),
            "variable \"p\": the initial value is [-] sum{x}");
      }),
      IsOk());
}

TEST_P(OptimizersTest, VariablesAreHandlesAndValuesStay) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
                const auto split = Layout::parse(mesh, "[x]");
                Variable variable("v", iota<float>({10}, split));
                Variable same = variable;
                const DTensor before = variable.value();
                const DTensor partial =
                    relayout(ones<float>({10}, split), Layout::parse(mesh, "[-] sum{x}"));
                TESSERA_RETURN_IF_ERROR(same.assign_add(partial));
                TESSERA_RETURN_IF_ERROR(same.assign_sub(ones<float>({10}, split) * 3));
                TESSERA_REQUIRE(same == variable && variable.name() == "v");
                TESSERA_REQUIRE(variable.value().layout() == *split);
                TESSERA_RETURN_IF_ERROR(expect_iota<float>(before));
                return expect_shards<float>(variable.value(),
                                            [](int64_t i) { return static_cast<float>(i - 2); });
              }),
              IsOk());
}

// The memory of each local shard.
StatusOr<std::vector<const float*>> shards_of(const DTensor& tensor) {
  std::vector<const float*> result;
  for (int k = 0; k < tensor.num_local_shards(); ++k) {
    TESSERA_ASSIGN_OR_RETURN(const ShardView<float> shard, tensor.shard<float>(k));
    result.push_back(shard.data.data());
  }
  return result;
}

// Steps in place, unless a handle of the old value is held: it keeps its elements.
TEST_P(OptimizersTest, StepsAreInPlaceUnlessTheOldValueIsHeld) {
  const bool is_gpu = GetParam().num_gpus > 0;
  EXPECT_THAT(run([is_gpu](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
                const auto split = Layout::parse(mesh, "[x]");
                // Small steps run on the calling thread, large ones on the threads of the devices.
                for (const int64_t size : {16, 80'000}) {
                  std::vector<Variable> one = {Variable("v", iota<float>({size}, split))};
                  Sgd sgd{.learning_rate = 1, .momentum = 0.5};
                  const DTensor gradient = ones<float>({size}, split);
                  TESSERA_RETURN_IF_ERROR(sgd.apply(one, {gradient}));
                  TESSERA_ASSIGN_OR_RETURN(const auto first, shards_of(one[0].value()));
                  TESSERA_RETURN_IF_ERROR(sgd.apply(one, {gradient}));
                  TESSERA_ASSIGN_OR_RETURN(const auto second, shards_of(one[0].value()));
                  // Views of a GPU's memory are copies.
                  if (!is_gpu) TESSERA_REQUIRE(first == second, size);
                  const DTensor held = one[0].value();
                  TESSERA_RETURN_IF_ERROR(sgd.apply(one, {gradient}));
                  TESSERA_RETURN_IF_ERROR(expect_shards<float>(
                      held, [](int64_t i) { return static_cast<float>(i) - 2.5f; }));
                  TESSERA_RETURN_IF_ERROR(expect_shards<float>(
                      one[0].value(), [](int64_t i) { return static_cast<float>(i) - 4.25f; }));
                }
                return absl::OkStatus();
              }),
              IsOk());
}

// The optimizer state is computed in f32: 1 - 0.999 is 0 in bf16.
TEST_P(OptimizersTest, HalvesAreComputedInF32) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
                const auto split = Layout::parse(mesh, "[x]");
                std::vector<Variable> one = {Variable("v", zeros<Eigen::bfloat16>({9}, split))};
                Adam adam{.learning_rate = 0.5, .epsilon = 0};
                const DTensor gradient = full<Eigen::bfloat16>({9}, Eigen::bfloat16(4), split);
                for (int step = 0; step < 2; ++step) {
                  TESSERA_RETURN_IF_ERROR(adam.apply(one, {gradient}));
                }
                TESSERA_ASSIGN_OR_RETURN(const auto host,
                                         one[0].value().to_host<Eigen::bfloat16>());
                for (const Eigen::bfloat16 value : host.data) {
                  TESSERA_REQUIRE(std::abs(static_cast<float>(value) + 1) < 0.02f,
                                  static_cast<float>(value));
                }
                return absl::OkStatus();
              }),
              IsOk());
}

// How far step number kSteps moves a variable of T from 0, under the same gradient at each step.
template <class T, class Optimizer>
StatusOr<double> length_of_last_step(const Layout& layout, Optimizer optimizer, double gradient) {
  constexpr int kSteps = 400;
  constexpr int64_t kSize = 9;
  std::vector<Variable> one = {Variable("v", zeros<T>({kSize}, layout))};
  const DTensor same = full<T>({kSize}, static_cast<T>(static_cast<float>(gradient)), layout);
  for (int step = 0; step < kSteps; ++step) {
    TESSERA_RETURN_IF_ERROR(one[0].assign(zeros<T>({kSize}, layout)));
    TESSERA_RETURN_IF_ERROR(optimizer.apply(one, {same}));
  }
  for (const Variable& state : optimizer.state().variables()) {
    if (state.name() == "v/step") continue;
    TESSERA_REQUIRE(state.dtype() == DType::kFloat32, dtype_name(state.dtype()));
    TESSERA_REQUIRE(state.layout() == layout);
  }
  TESSERA_ASSIGN_OR_RETURN(const HostTensor<T> host, one[0].value().template to_host<T>());
  for (const T value : host.data) TESSERA_REQUIRE(value == host.data[0]);
  return -static_cast<double>(host.data[0]);
}

// State of f16 and bf16 would stop: 0.001 g^2 may be below the least f16, 0.999 v rounds to v in
// bf16, and so does 256 + 1.
TEST_P(OptimizersTest, StateOfHalvesIsF32) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
        TESSERA_ASSIGN_OR_RETURN(const Layout split, Layout::parse(mesh, "[x]"));
        const auto check = [](const char* name, StatusOr<double> step, double expected) -> Status {
          TESSERA_RETURN_IF_ERROR(step.status());
          TESSERA_REQUIRE(std::abs(*step / expected - 1) < 0.004, name, " ", *step, ", not ",
                          expected);
          return absl::OkStatus();
        };
        using Half = Eigen::half;
        using BFloat16 = Eigen::bfloat16;
        const AdamW adamw{.learning_rate = 0.01, .weight_decay = 0};
        TESSERA_RETURN_IF_ERROR(
            check("AdamW f16", length_of_last_step<Half>(split, adamw, 1e-3), 0.01));
        TESSERA_RETURN_IF_ERROR(
            check("AdamW bf16", length_of_last_step<BFloat16>(split, adamw, 1), 0.01));
        TESSERA_RETURN_IF_ERROR(
            check("Adam bf16", length_of_last_step<BFloat16>(split, Adam{.learning_rate = 0.01}, 1),
                  0.01));
        TESSERA_RETURN_IF_ERROR(check(
            "Adagrad bf16", length_of_last_step<BFloat16>(split, Adagrad{.learning_rate = 1}, 1),
            1 / std::sqrt(400)));
        const Sgd sgd{.learning_rate = 0.001, .momentum = 0.999};
        return check("Sgd bf16", length_of_last_step<BFloat16>(split, sgd, 1),
                     1 - std::pow(0.999, 400));
      }),
      IsOk());
}

}  // namespace
}  // namespace tessera::testing
