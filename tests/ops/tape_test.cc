// SPDX-License-Identifier: Apache-2.0
//
// The tensors that a tape knows and for how long, and variables that several threads change.
#include "ops/tape.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/status.h"
#include "device/buffer.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "nn/optimizer.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/variable.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class TapeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TESSERA_ASSERT_OK_AND_ASSIGN(client_, Client::connect({.num_local_devices = 2}));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, create_mesh(*client_, {{"x", 2}}));
    rows_ = Layout::parse(mesh, "[x]");
    whole_ = Layout::parse(mesh, "[-]");
  }

  DTensor numbers() const { return iota<double>({4}, rows_); }
  static std::vector<double> values(const DTensor& tensor) {
    const StatusOr<HostTensor<double>> host = tensor.to_host<double>();
    EXPECT_THAT(host.status(), IsOk());
    return host.ok() ? host->data : std::vector<double>();
  }

  // The buffers that something holds besides the devices, which have done all work.
  int num_alive(const std::vector<std::weak_ptr<const void>>& buffers) {
    EXPECT_THAT(client_->sync_devices(), IsOk());
    int count = 0;
    for (const auto& each : buffers) count += each.expired() ? 0 : 1;
    return count;
  }

  std::optional<Client> client_;
  StatusOr<Layout> rows_;   // [x] on {x=2}
  StatusOr<Layout> whole_;  // [-]
};

// ---- The end of a tape

// The buffers of a tensor, as long as something holds them.
std::weak_ptr<const void> buffer_of(const DTensor& tensor) {
  const StatusOr<ShardView<double>> shard = tensor.shard<double>(0);
  return shard.ok() ? shard->buffer : std::shared_ptr<const void>();
}

// A sum of the losses of all steps, with a tape for each, holds nothing of the steps.
TEST_F(TapeTest, ASumOfLossesHoldsNoStep) {
  const DTensor weights = numbers();
  DTensor total = full<double>({}, 0, Layout::replicated(rows_->mesh(), 0));
  std::vector<std::weak_ptr<const void>> activations;
  for (int step = 0; step < 1000; ++step) {
    Tape tape;
    const DTensor w = tape.watch(weights);
    const DTensor hidden = ops::square(w);
    activations.push_back(buffer_of(hidden));
    const DTensor loss = ops::sum(ops::mul(hidden, w));
    total = total + loss;
    // The activation of this step alone.
    ASSERT_LE(num_alive(activations), 1) << step;
    if (step % 2 == 0) tape.gradient(loss, {w});
  }
  EXPECT_EQ(num_alive(activations), 0);
  EXPECT_EQ(values(total)[0], 1000 * 36.0);
}

// Weights that are not variables.
TEST_F(TapeTest, WeightsThatAreComputedHoldNoStep) {
  DTensor weights = numbers();
  std::vector<std::weak_ptr<const void>> activations;
  for (int step = 0; step < 200; ++step) {
    Tape tape;
    const DTensor w = tape.watch(weights);
    const DTensor hidden = ops::square(w);
    activations.push_back(buffer_of(hidden));
    const DTensor gradient = tape.gradient(ops::sum(hidden), {w}, {.keep = true})[0];
    weights = w - ops::mul(gradient, 0.25);
    ASSERT_LE(num_alive(activations), 1) << step;
  }
  EXPECT_EQ(num_alive(activations), 0);
}

// Operations after the end of a tape are recorded by other tapes alone.
TEST_F(TapeTest, OtherTapesRecordWhatIsMadeOfTensorsOfAnEndedOne) {
  auto ended = std::make_unique<Tape>();
  Tape tape;
  const DTensor x = tape.watch(ended->watch(numbers()));
  const DTensor y = ops::square(x);
  ended.reset();
  EXPECT_THAT(values(tape.gradient(ops::sum(ops::mul(y, x)), {x})[0]),
              ::testing::ElementsAre(0, 3, 12, 27));
}

// Tensors of a tape are dropped on another thread while the tape ends.
TEST_F(TapeTest, EndsWhileAnotherThreadDropsItsTensors) {
  for (int round = 0; round < 50; ++round) {
    auto tape = std::make_unique<Tape>();
    std::vector<DTensor> tensors = {tape->watch(numbers())};
    for (int k = 0; k < 20; ++k) tensors.push_back(ops::square(tensors.back()));
    std::thread drops([tensors = std::move(tensors)]() mutable {
      while (!tensors.empty()) tensors.pop_back();
    });
    tape.reset();
    drops.join();
  }
}

// ---- Sources and targets that a tape does not know

TEST_F(TapeTest, NamesASourceThatItDoesNotKnow) {
  Variable variable("w", numbers());
  Tape tape;
  Tape other;
  auto ended = std::make_unique<Tape>();
  const DTensor of_ended = ended->watch(numbers());
  ended.reset();
  const DTensor w = tape.watch(variable.value());
  const DTensor loss = ops::sum(ops::square(w));
  struct Row {
    const char* name;
    DTensor source;
    const char* reason;
  };
  const Row rows[] = {
      {"value of the variable", variable.value(), "this tape does not watch it"},
      {"stopped", stop_gradient(w), "this tape does not watch it"},
      {"of another tape", other.watch(variable.value()), "it belongs to another tape"},
      {"of a tape that has ended", of_ended, "it belongs to a tape that has ended"},
      {"without a gradient", ops::cast<int32_t>(w), "this tape does not watch it"},
  };
  for (const Row& row : rows) {
    // All gradients are the error, also the gradient of the watched source.
    for (const DTensor& each : tape.gradient(loss, {w, row.source}, {.keep = true})) {
      EXPECT_THAT(each.status(),
                  StatusIs(kInvalid,
                           absl::StrCat("gradient: source 1, ", dtype_name(row.source.dtype()),
                                        " [4], is not known: ", row.reason,
                                        "; compute the target from what watch() returns, and give "
                                        "that as the source")))
          << row.name;
    }
  }
  EXPECT_THAT(values(tape.gradient(loss, {w})[0]), ::testing::ElementsAre(0, 2, 4, 6));
}

TEST_F(TapeTest, GivesZerosWhereTheTargetDoesNotDependOnAWatchedSource) {
  Tape tape;
  const DTensor x = tape.watch(numbers());
  const DTensor y = tape.watch(numbers());
  EXPECT_THAT(values(tape.gradient(ops::sum(x), {x, y})[1]), Each(0.0));
  // The gradients of a constant and of the slope of a linear function.
  EXPECT_THAT(values(tape.gradient(ops::sum(numbers()), {x})[0]), Each(0.0));
  Tape outer;
  Tape inner;
  const DTensor z = inner.watch(outer.watch(numbers()));
  const DTensor slope = inner.gradient(ops::sum(3 * z), {z})[0];
  EXPECT_THAT(values(outer.gradient(ops::sum(slope), {z})[0]), Each(0.0));
}

TEST_F(TapeTest, NamesATargetThatOtherTapesKnow) {
  Tape tape;
  Tape other;
  const DTensor x = tape.watch(numbers());
  const DTensor target = ops::sum(ops::square(other.watch(numbers())));
  EXPECT_THAT(tape.gradient(target, {x})[0].status(),
              StatusIs(kInvalid, HasSubstr("gradient: the target, f64 [], is not known: it belongs "
                                           "to another tape; compute it from what watch() of this "
                                           "tape returns")));
  auto ended = std::make_unique<Tape>();
  const DTensor late = ops::sum(ops::square(ended->watch(numbers())));
  ended.reset();
  EXPECT_THAT(tape.gradient(late, {x})[0].status(),
              StatusIs(kInvalid, HasSubstr("it belongs to a tape that has ended")));
  // The second derivative by the tape that made the first one and was not asked to keep it.
  Tape outer;
  Tape inner;
  const DTensor z = inner.watch(outer.watch(numbers()));
  const DTensor slope = inner.gradient(ops::sum(ops::square(z) * z), {z})[0];
  EXPECT_THAT(inner.gradient(ops::sum(slope), {z})[0].status(),
              StatusIs(kInvalid, HasSubstr("it belongs to another tape")));
  EXPECT_THAT(values(outer.gradient(ops::sum(slope), {z})[0]),
              ::testing::ElementsAre(0, 6, 12, 18));
}

TEST_F(TapeTest, RematerializesWhatDoesNotDependOnItsInputs) {
  Tape tape;
  const DTensor x = tape.watch(numbers());
  const DTensor y = tape.watch(numbers());
  const DTensor indices = ops::cast<int64_t>(numbers());
  const Forward of_indices = [](absl::Span<const DTensor> in) {
    return ops::square(ops::cast<double>(in[1]));
  };
  const DTensor loss = ops::sum(ops::rematerialize(of_indices, {x, indices}) * y);
  EXPECT_THAT(values(tape.gradient(loss, {x}, {.keep = true})[0]), Each(0.0));
  const Forward of_captured = [&](absl::Span<const DTensor>) { return ops::square(y); };
  EXPECT_THAT(values(tape.gradient(ops::sum(ops::rematerialize(of_captured, {x})), {x})[0]),
              Each(0.0));
}

// ---- Variables and threads

// Each thread makes `count` calls.
template <class Call>
void run_threads(int num_threads, int count, Call call) {
  std::vector<std::thread> threads;
  for (int t = 0; t < num_threads; ++t) {
    threads.emplace_back([&, t] {
      for (int k = 0; k < count; ++k) EXPECT_THAT(call(t), IsOk());
    });
  }
  for (std::thread& each : threads) each.join();
}

TEST_F(TapeTest, NoUpdateOfAVariableIsLost) {
  const DTensor one = ones<double>({4}, rows_);
  for (const StatusOr<Layout>& layout : {rows_, whole_}) {
    Variable variable("w", zeros<double>({4}, layout));
    run_threads(3, 300, [&](int thread) {
      return thread == 0 ? variable.assign_sub(one) : variable.assign_add(one);
    });
    EXPECT_THAT(values(variable.value()), Each(300.0));
  }
}

TEST_F(TapeTest, NoStepOfAnOptimizerIsLost) {
  const DTensor minus_one = full<double>({4}, -1, rows_);
  const DTensor one = ones<double>({4}, rows_);
  for (const bool shard_state : {false, true}) {
    Variable variable("w", zeros<double>({4}, whole_));
    Sgd optimizers[2];
    for (Sgd& each : optimizers) {
      each.learning_rate = 1;
      each.shard_state = shard_state;
    }
    run_threads(3, 200, [&](int thread) {
      std::vector<Variable> variables = {variable};
      return thread == 2 ? variable.assign_add(one)
                         : optimizers[thread].apply(variables, {minus_one});
    });
    EXPECT_THAT(values(variable.value()), Each(600.0)) << shard_state;
  }
}

}  // namespace
}  // namespace tessera::testing
