// SPDX-License-Identifier: Apache-2.0
//
// Data-parallel training: batches of a data set, a network of two layers, AdamW.
//
//   bazel run //examples/programs:train
//
// Output:
//   step   0  loss 0.8
//   step  40  loss 0.2
//   step  80  loss 0.1
//   step 120  loss 0.1
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <optional>
#include <vector>

#include "tessera/tessera.h"

using namespace tessera;

// Point k of a grid in a square, and whether it is inside a circle.
StatusOr<input::Element> point(input::Element element) {
  const int64_t k = element[0].view<int64_t>()[0];
  const float x = static_cast<float>(k % 32) / 16 - 1, y = static_cast<float>(k / 32) / 16 - 1;
  const int32_t is_inside = x * x + y * y < 0.5f ? 1 : 0;
  return input::Element{HostArray::of<float>({x, y, 1}, {3}), HostArray::scalar(is_inside)};
}

Status train(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"batch", 4}}));
  const auto layout = [&](const char* text) { return Layout::parse(mesh, text); };
  const random::Key key = random::Key::from_seed(1);

  // The core.
  const auto points = input::Dataset::range(1024).map(point).shuffle(1).repeat(20).batch(128);
  TESSERA_ASSIGN_OR_RETURN(
      const input::Loader loader,
      input::distribute(client, points, {layout("[batch, -]"), layout("[batch]")}));
  TESSERA_ASSIGN_OR_RETURN(input::Iterator batches, loader.iterate());
  nn::Parameters weights;
  weights.add("w1", random::normal<float>(key.fold_in(1), {3, 32}, layout("[-, -]")));
  weights.add("w2", random::normal<float>(key.fold_in(2), {32, 2}, layout("[-, -]"), 0, 0.1));
  AdamW optimizer{.learning_rate = 0.02};
  for (int step = 0;; ++step) {
    TESSERA_ASSIGN_OR_RETURN(const std::optional<input::Batch> batch, batches.next());
    if (!batch.has_value()) break;
    Tape tape;
    const std::vector<DTensor> w = weights.watch(tape);
    const DTensor logits = ops::matmul(ops::relu(ops::matmul(batch->tensors[0], w[0])), w[1]);
    const DTensor loss = ops::mean(ops::softmax_cross_entropy(logits, batch->tensors[1]));
    const auto gradients = tape.gradient(loss, w, {.reduce = Reduce::kLater});
    TESSERA_RETURN_IF_ERROR(optimizer.apply(weights.variables(), gradients));
    if (step % 40 != 0) continue;
    TESSERA_ASSIGN_OR_RETURN(const float value, loss.item<float>());
    std::printf("step %3d  loss %.1f\n", step, value);
  }
  // The end of the core.
  return absl::OkStatus();
}

int main() {
  const Status status = run_client(train, {.num_local_devices = 4});
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
