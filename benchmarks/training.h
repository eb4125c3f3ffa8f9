// SPDX-License-Identifier: Apache-2.0
//
// Training: the networks of examples/03_digits.cc and 07_language_model.cc on fixed data, one step
// of the optimizer at a time. benchmarks/peers/ops_peer.py has the same networks, weights and data,
// so the losses of equal steps are equal up to rounding.
#ifndef TESSERA_BENCHMARKS_TRAINING_H_
#define TESSERA_BENCHMARKS_TRAINING_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tessera/tessera.h"

namespace tessera::bench {

// The element of a tensor of f32 with this index is noise(seed, index) * factor + offset.
DTensor noise_tensor(uint32_t seed, const Shape& shape, const LayoutArg& layout, float factor = 1,
                     float offset = 0);

// Images of `inputs` numbers, in `classes` classes.
struct DigitsSize {
  int64_t images = 64;
  int64_t inputs = 64;
  int64_t hidden = 96;
  int64_t classes = 10;
};
// Pieces of text of `context` tokens out of `vocabulary`.
struct TransformerSize {
  int64_t pieces = 32;
  int64_t context = 32;
  int64_t width = 64;
  int64_t heads = 8;
  int64_t blocks = 2;
  int64_t vocabulary = 64;
  // Weights are f32. The network computes with their values in this type, and the loss in f32.
  DType dtype = DType::kFloat32;

  int64_t depth() const { return width / heads; }
  int64_t hidden() const { return 4 * width; }
};

// Variables, in the order in which the network asks for them. Weight i is noise of seed i + 1.
class Weights {
 public:
  Weights(Mesh mesh, DType dtype) : mesh_(std::move(mesh)), dtype_(dtype) {}

  // The next weight, cast to the dtype. The first request of the network makes it.
  DTensor next(const Shape& shape, absl::string_view layout, float factor, float offset = 0);
  // Restarts next() at the first weight; its values are watched by the tape from now on.
  void read(Tape& tape);

  absl::Span<Variable> variables() { return absl::MakeSpan(variables_); }
  absl::Span<const Variable> variables() const { return variables_; }
  const std::vector<DTensor>& values() const { return values_; }

 private:
  const Mesh mesh_;
  const DType dtype_;
  Tape* tape_ = nullptr;
  size_t next_ = 0;
  std::vector<Variable> variables_;
  std::vector<DTensor> values_;
};

// Two layers, trained by SGD with momentum, or a transformer, trained by AdamW. The mesh has the
// axes `batch`, which splits the images or pieces, and `model`, which splits hidden units, heads
// and the vocabulary.
class Training {
 public:
  Training(const Mesh& mesh, const DigitsSize& size);
  Training(const Mesh& mesh, const TransformerSize& size);

  // Returns when the step has been submitted to the devices.
  Status start_step();
  // Waits until the devices have the weights and the loss of the last step.
  Status await() const;
  // start_step(), then await().
  Status step();
  // The loss of the last step, before its update.
  StatusOr<float> loss() const;
  // The loss of the last step as a tensor, which the devices may not have computed yet.
  const std::optional<DTensor>& last_loss() const { return loss_; }

 private:
  Weights weights_;
  std::function<DTensor(Weights&)> network_;
  std::function<Status(absl::Span<Variable>, absl::Span<const DTensor>)> optimizer_;
  std::optional<DTensor> loss_;
};

// The two layers, trained by the replicas of a strategy on parts of the images.
class ReplicaTraining {
 public:
  static StatusOr<ReplicaTraining> create(distribute::Strategy strategy, const DigitsSize& size);

  // Does one step, as Training::step().
  Status step();
  StatusOr<float> loss() const;

 private:
  ReplicaTraining(distribute::Strategy strategy, const DigitsSize& size)
      : strategy_(std::move(strategy)), size_(size) {}
  // The gradients of a replica's part of the mean loss, and the part.
  std::vector<DTensor> gradients(distribute::ReplicaContext& replica, const DTensor& x,
                                 const DTensor& labels) const;

  distribute::Strategy strategy_;
  DigitsSize size_;
  std::vector<DTensor> data_;  // images and labels
  std::vector<distribute::DistributedVariable> weights_;
  Sgd optimizer_{.learning_rate = 0.05, .momentum = 0.9};
  std::optional<distribute::PerReplica> loss_;
};

}  // namespace tessera::bench

#endif  // TESSERA_BENCHMARKS_TRAINING_H_
