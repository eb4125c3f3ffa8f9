// SPDX-License-Identifier: Apache-2.0
//
// Strategies agree: the same model, data and seed has the same losses under one device, on replicas
// of one client and of several, and with variables in a central storage.
//
// Where replicas are dealt to clients differently, every bit is the same. Another number of
// replicas adds in another order, so that bits may differ, but not where arithmetic is exact.
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/reduce_op.h"
#include "base/status.h"
#include "distribute/strategy.h"
#include "distribute/values.h"
#include "distribute/variable.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "nn/optimizer.h"
#include "ops/contract.h"
#include "ops/nn.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reductions.h"
#include "ops/tape.h"
#include "tests/support/clients.h"
#include "tests/support/matchers.h"
#include "tests/support/shared.h"

namespace tessera::testing {
namespace {

using distribute::DistributedVariable;
using distribute::PerReplica;
using distribute::ReplicaContext;
using distribute::Strategy;

constexpr int kMostNumbers = 64;
using Numbers = std::vector<float>;

// A job, and the strategy of its clients.
struct Form {
  const char* name;
  int num_clients;
  int devices_per_client;
  std::function<StatusOr<Strategy>(const Client&)> strategy;
};

StatusOr<Strategy> mirrored(const Client& client) { return distribute::mirrored_strategy(client); }
StatusOr<Strategy> multi_worker(const Client& client) {
  return distribute::multi_worker_mirrored_strategy(client);
}
StatusOr<Strategy> central(const Client& client) {
  return distribute::central_storage_strategy(client);
}
StatusOr<Strategy> one_device(const Client& client) {
  return distribute::one_device_strategy(client);
}

const Form kOneDevice = {"one device", 1, 1, one_device};
const Form kDefault = {"default", 1, 1, distribute::default_strategy};
const Form kMirrored2 = {"mirrored 2", 1, 2, mirrored};
const Form kMirrored4 = {"mirrored 4", 1, 4, mirrored};
const Form kMirrored8 = {"mirrored 8", 1, 8, mirrored};
const Form kMultiWorker2x2 = {"multi-worker 2 x 2", 2, 2, multi_worker};
const Form kMultiWorker4x2 = {"multi-worker 4 x 2", 4, 2, multi_worker};
const Form kCentral4 = {"central storage 4", 1, 4, central};

// The result of `train`, which has to be equal in all clients. Clients are processes.
using Train = std::function<StatusOr<Numbers>(const Strategy& strategy)>;
Numbers numbers_of(const Form& form, const Train& train) {
  Shared<std::array<std::array<float, kMostNumbers>, 4>> shared;
  Shared<std::array<size_t, 4>> sizes;
  const Status status =
      run_clients({.setting = Setting::kProcesses,
                   .num_clients = form.num_clients,
                   .devices_per_client = form.devices_per_client},
                  [&](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Strategy strategy, form.strategy(client));
                    TESSERA_ASSIGN_OR_RETURN(const Numbers numbers, train(strategy));
                    TESSERA_REQUIRE(numbers.size() <= kMostNumbers);
                    const int id = client.client_id();
                    std::copy(numbers.begin(), numbers.end(), (*shared)[id].begin());
                    (*sizes)[id] = numbers.size();
                    return absl::OkStatus();
                  });
  EXPECT_THAT(status, IsOk()) << form.name;
  const auto of_client = [&](int id) {
    return Numbers((*shared)[id].begin(), (*shared)[id].begin() + (*sizes)[id]);
  };
  for (int id = 1; id < form.num_clients; ++id) EXPECT_EQ(of_client(id), of_client(0)) << form.name;
  return of_client(0);
}

// The sum of a value of the replicas, here.
StatusOr<float> total_of(const Strategy& strategy, const PerReplica& value) {
  TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> host,
                           strategy.reduce(ReduceOp::kSum, value).to_host<float>());
  return host.data[0];
}

Layout split_for(const Strategy& strategy, int rank) {
  return *Layout::batch_sharded(strategy.mesh(), strategy.mesh().axes()[0].name, rank);
}

DTensor rows(const Strategy& strategy, int64_t num_rows, int64_t num_columns,
             const std::function<float(int64_t row, int64_t column)>& value) {
  const auto fill = [&](const Box& box, absl::Span<float> out) {
    for (int64_t i = 0; i < box.sizes[0]; ++i) {
      for (int64_t j = 0; j < num_columns; ++j) {
        out[i * num_columns + j] = value(box.offsets[0] + i, j);
      }
    }
  };
  return from_function<float>({num_rows, num_columns}, split_for(strategy, 2), fill);
}

// A network of two layers on examples that every replica has some of, uneven for 2, 4 and 8
// replicas: the losses of ten steps of Adam.
StatusOr<Numbers> train_network(const Strategy& strategy) {
  constexpr int64_t kExamples = 27;
  constexpr int64_t kInputs = 12;
  constexpr int64_t kHidden = 16;
  constexpr int64_t kClasses = 5;
  const DTensor examples = rows(strategy, kExamples, kInputs, [](int64_t row, int64_t column) {
    return static_cast<float>((row * 7 + column * 3) % 11) / 11;
  });
  const DTensor classes = from_function<int32_t>(
      {kExamples}, split_for(strategy, 1), [](const Box& box, absl::Span<int32_t> out) {
        for (int64_t i = 0; i < box.sizes[0]; ++i) {
          out[i] = static_cast<int32_t>((box.offsets[0] + i) % kClasses);
        }
      });
  const Layout replicated = *Layout::replicated(strategy.mesh(), 2);
  const random::Key key = random::Key::from_seed(7);
  std::vector<DistributedVariable> variables;
  for (const auto& [name, from, to] :
       {std::tuple("first", kInputs, kHidden), std::tuple("second", kHidden, kClasses)}) {
    const DTensor initial =
        random::normal<float>(key.fold_in(variables.size()), {from, to}, replicated) * 0.3;
    TESSERA_ASSIGN_OR_RETURN(DistributedVariable variable, strategy.variable(name, initial));
    variables.push_back(std::move(variable));
  }
  std::vector<Variable> weights;
  for (DistributedVariable& variable : variables) weights.push_back(variable.variable());
  Adam optimizer{.learning_rate = 0.05};
  Numbers losses;
  for (int step = 0; step < 10; ++step) {
    const std::vector<PerReplica> results = strategy.run(
        [&](ReplicaContext& replica, const DTensor& x, const DTensor& wanted) {
          Tape tape;
          const DTensor first = tape.watch(variables[0].value(replica));
          const DTensor second = tape.watch(variables[1].value(replica));
          const DTensor scores = ops::matmul(ops::tanh(ops::matmul(x, first)), second);
          const DTensor loss = ops::sum(ops::softmax_cross_entropy(scores, wanted)) / kExamples;
          std::vector<DTensor> all = tape.gradient(loss, {first, second});
          all = replica.all_reduce(ReduceOp::kSum, all, {.name = "gradients"});
          all.push_back(loss);
          return all;
        },
        examples, classes);
    TESSERA_ASSIGN_OR_RETURN(losses.emplace_back(), total_of(strategy, results.back()));
    std::vector<DTensor> gradients;
    for (size_t i = 0; i < weights.size(); ++i) {
      gradients.push_back(strategy.reduce_to(ReduceOp::kAvg, results[i], weights[i].layout()));
    }
    TESSERA_RETURN_IF_ERROR(optimizer.apply(weights, gradients));
  }
  for (const DistributedVariable& variable : variables) {
    TESSERA_RETURN_IF_ERROR(strategy.check_replicas(variable));
  }
  return losses;
}

// Two steps of linear regression on small integers. Every sum is exact in f32, so that no order
// of adding shows: the losses of the steps, and the weights.
StatusOr<Numbers> train_exactly(const Strategy& strategy) {
  constexpr int64_t kExamples = 24;
  constexpr int64_t kInputs = 6;
  const DTensor inputs = rows(strategy, kExamples, kInputs, [](int64_t row, int64_t column) {
    return static_cast<float>((row >> column) & 1);
  });
  const DTensor targets = rows(strategy, kExamples, 1, [](int64_t row, int64_t) {
    return static_cast<float>(row * row % 4);
  });
  TESSERA_ASSIGN_OR_RETURN(
      DistributedVariable weights,
      strategy.variable("weights",
                        zeros<float>({kInputs, 1}, Layout::replicated(strategy.mesh(), 2))));
  Numbers numbers;
  for (int step = 0; step < 2; ++step) {
    const std::vector<PerReplica> results = strategy.run(
        [&](ReplicaContext& replica, const DTensor& x, const DTensor& wanted) {
          Tape tape;
          const DTensor w = tape.watch(weights.value(replica));
          const DTensor loss = ops::sum(ops::square(ops::matmul(x, w) - wanted));
          return std::vector<DTensor>{loss, tape.gradient(loss, {w})[0]};
        },
        inputs, targets);
    TESSERA_ASSIGN_OR_RETURN(numbers.emplace_back(), total_of(strategy, results[0]));
    const DTensor gradient = strategy.reduce(ReduceOp::kSum, results[1]);
    TESSERA_RETURN_IF_ERROR(weights.assign_sub(gradient / 128));
  }
  TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> values, weights.value().to_host<float>());
  numbers.insert(numbers.end(), values.data.begin(), values.data.end());
  return numbers;
}

TEST(DistributeAgreementTest, NetworkHasTheSameLosses) {
  const Numbers one = numbers_of(kOneDevice, train_network);
  ASSERT_EQ(one.size(), 10u);
  EXPECT_LT(one.back(), one.front() * 0.8F);
  EXPECT_EQ(numbers_of(kOneDevice, train_network), one) << "from run to run";
  EXPECT_EQ(numbers_of(kDefault, train_network), one);

  const Numbers four = numbers_of(kMirrored4, train_network);
  EXPECT_EQ(numbers_of(kMultiWorker2x2, train_network), four);
  EXPECT_EQ(numbers_of(kCentral4, train_network), four);
  const Numbers eight = numbers_of(kMirrored8, train_network);
  EXPECT_EQ(numbers_of(kMultiWorker4x2, train_network), eight);

  for (const Numbers& other : {numbers_of(kMirrored2, train_network), four, eight}) {
    ASSERT_EQ(other.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_NEAR(other[i], one[i], 1e-5F * one[i]) << "step " << i;
    }
  }
}

TEST(DistributeAgreementTest, ExactArithmeticHasTheSameBits) {
  const Numbers one = numbers_of(kOneDevice, train_exactly);
  ASSERT_EQ(one.size(), 2u + 6u);
  EXPECT_LT(one[1], one[0]);
  for (const Form& form : {kDefault, kMirrored2, kMirrored4, kMirrored8, kMultiWorker2x2,
                           kMultiWorker4x2, kCentral4}) {
    EXPECT_EQ(numbers_of(form, train_exactly), one) << form.name;
  }
}

}  // namespace
}  // namespace tessera::testing
