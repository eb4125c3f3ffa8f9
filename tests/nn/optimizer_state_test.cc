// SPDX-License-Identifier: Apache-2.0
//
// The named state of optimizers: its names and order, its layouts, and training that goes on from
// values of it, bit for bit.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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
#include "nn/parameters.h"
#include "ops/pointwise.h"
#include "ops/shapes.h"
#include "ops/variable.h"
#include "tests/support/clients.h"
#include "tests/support/expect_error.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

class OptimizerStateTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, OptimizerStateTest, ::testing::ValuesIn(kJobForms), job_form_name);
INSTANTIATE_TEST_SUITE_P(Cuda, OptimizerStateTest, ::testing::ValuesIn(cuda_forms()),
                         job_form_name);

// A matrix, a vector of f16 and a scalar, in several layouts.
StatusOr<nn::Parameters> make_model(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}, {"y", 4}}));
  const auto layout = [&](const char* text) { return Layout::parse(mesh, text); };
  nn::Parameters model;
  model.add("w", iota<float>({6, 5}, layout("[x, -]")) / 8);
  model.add("b", ops::cast(iota<float>({9}, layout("[-]")), DType::kFloat16));
  model.add("last/c", full<double>({}, 3, layout("[]")));
  TESSERA_RETURN_IF_ERROR(model.status());
  return model;
}

std::vector<DTensor> gradients_of(const nn::Parameters& model, int step) {
  std::vector<DTensor> gradients;
  for (const Variable& variable : model.variables()) {
    gradients.push_back(variable.value() * 0.25 + (step % 3 - 1));
  }
  return gradients;
}

template <class Optimizer>
Status train(Optimizer& optimizer, const nn::Parameters& model, int first, int limit) {
  for (int step = first; step < limit; ++step) {
    TESSERA_RETURN_IF_ERROR(optimizer.apply(model.variables(), gradients_of(model, step)));
  }
  return absl::OkStatus();
}

Status expect_names(const nn::Parameters& state, const std::string& expected) {
  const std::string names = absl::StrJoin(state.names(), " ");
  TESSERA_REQUIRE(names == expected, names, " instead of ", expected);
  return absl::OkStatus();
}

// The bits of all variables, as f64, which has all numbers of the dtypes in use.
StatusOr<std::vector<double>> values_of(const nn::Parameters& parameters) {
  std::vector<double> values;
  for (const Variable& variable : parameters.variables()) {
    TESSERA_ASSIGN_OR_RETURN(const HostTensor<double> host,
                             ops::cast<double>(variable.value()).to_host<double>());
    values.insert(values.end(), host.data.begin(), host.data.end());
  }
  return values;
}

Status assign_all(const nn::Parameters& to, const nn::Parameters& from) {
  TESSERA_REQUIRE(to.names() == from.names());
  for (size_t i = 0; i < to.names().size(); ++i) {
    TESSERA_RETURN_IF_ERROR(to.variables()[i].assign(from.variables()[i].value()));
  }
  return absl::OkStatus();
}

// Names are as documented, and the same after prepare() and after a step.
template <class Optimizer>
Status check_names(const Client& client, Optimizer optimizer, const std::string& expected) {
  TESSERA_ASSIGN_OR_RETURN(const nn::Parameters model, make_model(client));
  Optimizer prepared = optimizer;
  TESSERA_RETURN_IF_ERROR(prepared.prepare(model.variables()));
  TESSERA_RETURN_IF_ERROR(expect_names(prepared.state(), expected));
  TESSERA_RETURN_IF_ERROR(train(optimizer, model, 0, 2));
  return expect_names(optimizer.state(), expected);
}

TEST_P(OptimizerStateTest, NamesAndOrder) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_RETURN_IF_ERROR(check_names(client, Sgd{}, ""));
        for (const bool nesterov : {false, true}) {
          TESSERA_RETURN_IF_ERROR(check_names(client, Sgd{.momentum = 0.9, .nesterov = nesterov},
                                              "w/momentum b/momentum last/c/momentum"));
        }
        const std::string adam =
            "w/first_moment w/second_moment w/step b/first_moment b/second_moment b/step "
            "last/c/first_moment last/c/second_moment last/c/step";
        TESSERA_RETURN_IF_ERROR(check_names(client, Adam{}, adam));
        TESSERA_RETURN_IF_ERROR(check_names(client, AdamW{}, adam));
        return check_names(client, Adagrad{}, "w/sum b/sum last/c/sum");
      }),
      IsOk());
}

// Variables of one name, and variables that come later.
TEST_P(OptimizerStateTest, NamesOfVariablesThatShareOne) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
                const DTensor zero = zeros<float>({8}, Layout::parse(mesh, "[x]"));
                std::vector<Variable> later = {Variable("w#2", zero), Variable("w", zero),
                                               Variable("w", zero)};
                std::vector<Variable> first(later.begin(), later.begin() + 2);
                Sgd sgd{.momentum = 0.5};
                TESSERA_RETURN_IF_ERROR(sgd.apply(first, {zero, zero}));
                TESSERA_RETURN_IF_ERROR(expect_names(sgd.state(), "w#2/momentum w/momentum"));
                TESSERA_RETURN_IF_ERROR(sgd.apply(later, {zero, zero, zero}));
                return expect_names(sgd.state(), "w#2/momentum w/momentum w#3/momentum");
              }),
              IsOk());
}

// Values before the first step, dtypes, layouts, and the number of steps of each variable.
TEST_P(OptimizerStateTest, PartsOfTheState) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const nn::Parameters model, make_model(client));
        Adagrad adagrad{.initial_accumulator = 0.5, .shard_state = true};
        TESSERA_RETURN_IF_ERROR(adagrad.prepare(model.variables()));
        const std::pair<DType, const char*> expected[] = {
            {DType::kFloat32, "[x, y]"}, {DType::kFloat32, "[(x,y)]"}, {DType::kFloat64, "[]"}};
        for (size_t i = 0; i < 3; ++i) {
          const Variable& sum = adagrad.state().variables()[i];
          TESSERA_REQUIRE(sum.dtype() == expected[i].first, sum.name());
          TESSERA_REQUIRE(sum.shape() == model.variables()[i].shape(), sum.name());
          TESSERA_REQUIRE(sum.layout().to_string() == expected[i].second, sum.layout().to_string());
        }
        TESSERA_ASSIGN_OR_RETURN(const std::vector<double> values, values_of(adagrad.state()));
        TESSERA_REQUIRE(values == std::vector<double>(6 * 5 + 9 + 1, 0.5));

        // Where a variable joins later, its number of steps is smaller.
        Adam adam;
        TESSERA_RETURN_IF_ERROR(
            adam.apply(model.variables().first(1), {gradients_of(model, 0)[0]}));
        TESSERA_RETURN_IF_ERROR(train(adam, model, 1, 3));
        for (const auto& [name, steps] : {std::pair("w/step", 3), {"b/step", 2}}) {
          const Variable& step = adam.state()[name];
          TESSERA_REQUIRE(step.shape().empty() && step.layout().to_string() == "[]");
          TESSERA_ASSIGN_OR_RETURN(const HostTensor<int64_t> host, step.value().to_host<int64_t>());
          TESSERA_REQUIRE(host.data[0] == steps, name, " is ", host.data[0]);
        }
        return absl::OkStatus();
      }),
      IsOk());
}

// Seven steps at once, and three steps, then four with a fresh optimizer that has the values of the
// state and of the model.
template <class Optimizer>
Status check_resumed(const Client& client, const Optimizer& fresh) {
  TESSERA_ASSIGN_OR_RETURN(const nn::Parameters whole, make_model(client));
  Optimizer undisturbed = fresh;
  TESSERA_RETURN_IF_ERROR(train(undisturbed, whole, 0, 7));

  TESSERA_ASSIGN_OR_RETURN(const nn::Parameters first, make_model(client));
  Optimizer before = fresh;
  TESSERA_RETURN_IF_ERROR(train(before, first, 0, 3));
  TESSERA_ASSIGN_OR_RETURN(const nn::Parameters second, make_model(client));
  Optimizer after = fresh;
  TESSERA_RETURN_IF_ERROR(after.prepare(second.variables()));
  TESSERA_RETURN_IF_ERROR(assign_all(second, first));
  TESSERA_RETURN_IF_ERROR(assign_all(after.state(), before.state()));
  TESSERA_RETURN_IF_ERROR(train(after, second, 3, 7));

  for (const auto& [a, b] :
       {std::pair(whole, second), {undisturbed.state(), nn::Parameters(after.state())}}) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<double> expected, values_of(a));
    TESSERA_ASSIGN_OR_RETURN(const std::vector<double> values, values_of(b));
    TESSERA_REQUIRE(values == expected);
  }
  return absl::OkStatus();
}

TEST_P(OptimizerStateTest, GoesOnFromRestoredValuesBitForBit) {
  EXPECT_THAT(run([](Client& client) -> Status {
                for (const bool shard_state : {false, true}) {
                  TESSERA_RETURN_IF_ERROR(
                      check_resumed(client, Sgd{.momentum = 0.9, .shard_state = shard_state}));
                  TESSERA_RETURN_IF_ERROR(check_resumed(
                      client, Adam{.learning_rate = 0.1, .shard_state = shard_state}));
                  TESSERA_RETURN_IF_ERROR(check_resumed(
                      client, AdamW{.learning_rate = 0.1, .shard_state = shard_state}));
                  TESSERA_RETURN_IF_ERROR(check_resumed(
                      client, Adagrad{.learning_rate = 0.1, .shard_state = shard_state}));
                }
                return absl::OkStatus();
              }),
              IsOk());
}

// A copy goes on from the values of the original, and neither changes the other.
TEST_P(OptimizerStateTest, CopiesAreApart) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const nn::Parameters model, make_model(client));
                AdamW original{.learning_rate = 0.1};
                TESSERA_RETURN_IF_ERROR(train(original, model, 0, 3));
                AdamW copy = original;
                TESSERA_REQUIRE(copy.state().names() == original.state().names());
                TESSERA_ASSIGN_OR_RETURN(const auto before, values_of(original.state()));
                TESSERA_RETURN_IF_ERROR(train(copy, model, 3, 4));
                TESSERA_ASSIGN_OR_RETURN(const auto after, values_of(original.state()));
                TESSERA_ASSIGN_OR_RETURN(const auto of_copy, values_of(copy.state()));
                TESSERA_REQUIRE(before == after && of_copy != after);
                TESSERA_REQUIRE(of_copy[6 * 5 * 2] == 4, of_copy[6 * 5 * 2]);

                // A move keeps the variables; what was moved from is as new.
                const Variable first = copy.state().variables()[0];
                AdamW moved = std::move(copy);
                TESSERA_REQUIRE(moved.state().variables()[0] == first);
                TESSERA_REQUIRE(copy.state().names().empty());  // NOLINT
                return train(copy, model, 0, 1);
              }),
              IsOk());
}

// The memory of each local shard.
StatusOr<std::vector<const float*>> shards_of(const Variable& variable) {
  const DTensor tensor = variable.value();
  std::vector<const float*> result;
  for (int k = 0; k < tensor.num_local_shards(); ++k) {
    TESSERA_ASSIGN_OR_RETURN(const ShardView<float> shard, tensor.shard<float>(k));
    result.push_back(shard.data.data());
  }
  return result;
}

TEST_P(OptimizerStateTest, ChangesInPlaceUnlessAValueIsHeld) {
  const bool is_gpu = GetParam().num_gpus != 0;
  EXPECT_THAT(
      run([is_gpu](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
        const auto split = Layout::parse(mesh, "[x]");
        for (const int64_t size : {16, 80'000}) {
          nn::Parameters model;
          model.add("v", zeros<float>({size}, split));
          Adagrad adagrad{.learning_rate = 1};
          TESSERA_RETURN_IF_ERROR(adagrad.prepare(model.variables()));
          const DTensor one = ones<float>({size}, split);
          const Variable& sum = adagrad.state()["v/sum"];
          TESSERA_ASSIGN_OR_RETURN(const auto before, shards_of(sum));
          TESSERA_RETURN_IF_ERROR(adagrad.apply(model.variables(), {one}));
          TESSERA_RETURN_IF_ERROR(adagrad.apply(model.variables(), {one}));
          TESSERA_ASSIGN_OR_RETURN(const auto after, shards_of(sum));
          // Views of a GPU's memory are copies.
          if (!is_gpu) TESSERA_REQUIRE(before == after, size);
          const DTensor held = sum.value();
          TESSERA_RETURN_IF_ERROR(adagrad.apply(model.variables(), {one}));
          TESSERA_RETURN_IF_ERROR(expect_shards<float>(held, [](int64_t) { return 2.0f; }));
          TESSERA_RETURN_IF_ERROR(expect_shards<float>(sum.value(), [](int64_t) { return 3.0f; }));
        }
        return absl::OkStatus();
      }),
      IsOk());
}

TEST_P(OptimizerStateTest, Refusals) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
        const auto whole = Layout::parse(mesh, "[-]");
        const auto invalid = [](const Status& status, const std::string& text) {
          return expect_error(status, absl::StatusCode::kInvalidArgument, {text});
        };
        const Variable w("w", zeros<float>({4}, whole));
        const Variable n("n", zeros<int32_t>({4}, whole));
        const Variable failed("f", zeros<float>({4}, Layout::parse(mesh, "[y]")));
        Adam adam;
        TESSERA_RETURN_IF_ERROR(
            invalid(adam.prepare({w, w}), "Adam: variable \"w\" is given twice"));
        TESSERA_RETURN_IF_ERROR(
            invalid(adam.prepare({w, n}), "variable \"n\" is i32; optimizers change floats"));
        TESSERA_RETURN_IF_ERROR(invalid(adam.prepare({failed}), "\"y\""));
        TESSERA_RETURN_IF_ERROR(invalid(Adam{.beta1 = 1}.prepare({w}), "Adam: beta1 is 1"));
        TESSERA_RETURN_IF_ERROR(expect_names(adam.state(), ""));

        // Numbers of steps, restored.
        nn::Parameters model;
        model.add("w", zeros<float>({4}, whole));
        TESSERA_RETURN_IF_ERROR(adam.prepare(model.variables()));
        Variable step = adam.state()["w/step"];
        const DTensor one = ones<float>({4}, whole);
        for (const int64_t count : {int64_t{-1}, int64_t{1} << 54}) {
          TESSERA_RETURN_IF_ERROR(step.assign(full<int64_t>({}, count, step.layout())));
          TESSERA_RETURN_IF_ERROR(
              invalid(adam.apply(model.variables(), {one}),
                      absl::StrCat("Adam: \"w/step\" is ", count,
                                   "; it should be from 0 to 9007199254740992")));
        }
        TESSERA_RETURN_IF_ERROR(invalid(step.assign(zeros<float>({}, step.layout())),
                                        "variable \"w/step\" is i64 [], assign got f32 []"));
        // Nothing was changed.
        TESSERA_RETURN_IF_ERROR(step.assign(full<int64_t>({}, 41, step.layout())));
        TESSERA_RETURN_IF_ERROR(adam.apply(model.variables(), {one}));
        TESSERA_ASSIGN_OR_RETURN(const std::vector<double> state, values_of(adam.state()));
        TESSERA_REQUIRE(state.back() == 42, state.back());
        return absl::OkStatus();
      }),
      IsOk());
}

}  // namespace
}  // namespace tessera::testing
