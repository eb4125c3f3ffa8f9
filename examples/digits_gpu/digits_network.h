// SPDX-License-Identifier: Apache-2.0
//
// DigitsNetwork: the network of 03_digits written by hand for local_map(), with its gradients: the
// work of operations and tapes, in full. With the same seed its losses equal those of 03_digits.
//
//   hidden = relu(x W1 + b1)     p = softmax(hidden W2 + b2)     loss = mean of -log p[label]
//
// The mesh has an axis `batch`, which splits the images (data parallel), and an axis `model`, which
// splits the H hidden units (tensor parallel):
//
//   tensor      shape          layout                  gradient, before it is reduced
//   x           [images, 64]   [batch, -]
//   W1, b1      [64, H], [H]   [-, model], [model]     ... sum{batch}
//   hidden      [images, H]    [batch, model]
//   W2          [H, 10]        [model, -]              [model, -] sum{batch}
//   hidden W2   [images, 10]   [batch, -] sum{model}
//   b2          [10]           [-]                     [-] sum{batch}
//
// Nothing here knows how many devices or clients there are, and the mathematics is the same for
// every mesh: losses are means over the whole batch, and weights and batches depend on global
// indices alone.
//
// This class has the layouts and collectives. DigitsMath (digits_math.h) computes on a device's
// shards; there is one for CPUs and one for GPUs.
//
// All clients call every function in the same order. Errors travel with the tensors and come out
// of read_tally() and of the weights.
#ifndef TESSERA_EXAMPLES_DIGITS_GPU_DIGITS_NETWORK_H_
#define TESSERA_EXAMPLES_DIGITS_GPU_DIGITS_NETWORK_H_

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "examples/digits_csv.h"
#include "examples/digits_gpu/digits_math.h"
#include "tessera.h"

namespace tessera::examples {

struct NetworkOptions {
  int64_t num_hidden = 96;
  float learning_rate = 0.05f;
  float momentum = 0.9f;
  uint64_t seed = 1;
};

// The sums of a pass over some images.
struct Tally {
  double loss = 0;  // sum over the images
  double num_right = 0;
};

class DigitsNetwork {
 public:
  // Fresh weights. The mesh must have the axes `batch` and `model`.
  DigitsNetwork(Mesh mesh, const NetworkOptions& options, DigitsMath math = math_on_cpu());

  // One step of gradient descent with momentum on these images, in this order.
  void train(const Digits& digits, absl::Span<const int64_t> images);
  // The loss and the right answers on these images; the weights stay.
  void evaluate(const Digits& digits, absl::Span<const int64_t> images);
  // The sum over all that train() and evaluate() have seen since the last call. Waits for it.
  StatusOr<Tally> read_tally();

  // W1, b1, W2, b2.
  std::vector<DTensor> weights() const;
  const Mesh& mesh() const { return mesh_; }

 private:
  struct Batch {
    int64_t size;
    DTensor x;
    DTensor labels;
  };
  struct Parameter {
    DTensor value;
    DTensor velocity;
  };

  // Layouts are cheap to make, so they stand as text where they are used.
  StatusOr<Layout> layout(absl::string_view text) const { return Layout::parse(mesh_, text); }

  Batch load(const Digits& digits, absl::Span<const int64_t> images) const;
  DTensor hidden_of(const Batch& batch) const;
  DTensor probabilities_of(const Batch& batch, const DTensor& hidden) const;
  void count(const Batch& batch, const DTensor& probabilities);
  void descend(Parameter& parameter, const DTensor& gradient) const;

  Mesh mesh_;
  NetworkOptions options_;
  DigitsMath math_;
  Parameter w1_, b1_, w2_, b2_;
  DTensor tally_;  // terms of the sum along `batch`
};

struct Data {
  Digits digits;
  std::vector<int64_t> train, held_out;  // indices of images
};

// Holds out a fifth of the images, which the seed decides alone: so all clients agree on them.
StatusOr<Data> hold_out(Digits digits, const Mesh& mesh, uint64_t seed);

struct EpochOptions {
  uint64_t seed = 1;
  int epoch = 1;
  int64_t batch_size = 64;
};

// Every training image once, in an order that seed and epoch decide. The calls of the network
// enqueue work and return; the only wait is for the tally at the end.
StatusOr<Tally> train_epoch(DigitsNetwork& network, const Data& data, const EpochOptions& options);

}  // namespace tessera::examples

#endif  // TESSERA_EXAMPLES_DIGITS_GPU_DIGITS_NETWORK_H_
