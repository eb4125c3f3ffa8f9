// SPDX-License-Identifier: Apache-2.0
//
// Part 4 of the guide: parameters, an optimizer and a training loop.
//
//   bazel run //examples/guide:4_training
#include <cstdio>
#include <iostream>
#include <vector>

#include "tessera/tessera.h"

namespace {

using namespace tessera;

Status part() {
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect({.num_local_devices = 4}));
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"batch", 2}, {"model", 2}}));

  // 1. The data: 256 points, split over the axis `batch`.
  const auto layout = [&](const char* text) { return Layout::parse(mesh, text); };
  const random::Key key = random::Key::from_seed(3);
  const DTensor x = random::uniform<float>(key.fold_in(0), {256, 1}, layout("[batch, -]"), -2, 2);
  const DTensor y = ops::sin(x * 2) + 0.5 * x;

  // 2. The weights are parameters: variables in order, with names. The axis `model` splits the 32
  //    hidden units.
  nn::Parameters weights;
  weights.add("w1", random::normal<float>(key.fold_in(1), {1, 32}, layout("[-, model]")));
  weights.add("b1", zeros<float>({32}, layout("[model]")));
  weights.add("w2", random::normal<float>(key.fold_in(2), {32, 1}, layout("[model, -]"), 0, 0.2));
  weights.add("b2", zeros<float>({1}, layout("[-]")));
  std::cout << weights.to_string();

  // 3. The state of the optimizer is also split over the axes that a weight does not use.
  AdamW optimizer{.learning_rate = 0.02, .shard_state = true};
  TESSERA_RETURN_IF_ERROR(optimizer.prepare(weights.variables()));
  std::cout << optimizer.state().to_string();

  DTensor last;
  for (int step = 0; step <= 200; ++step) {
    // 4. One step: the loss, the gradients, the update. Each device has the gradient of its own
    //    points, a term of a sum. The optimizer reduces the terms.
    Tape tape;
    const std::vector<DTensor> w = weights.watch(tape);
    const DTensor hidden = ops::tanh(ops::matmul(x, w[0]) + w[1]);
    const DTensor loss = ops::mean(ops::square(ops::matmul(hidden, w[2]) + w[3] - y));
    const std::vector<DTensor> gradients = tape.gradient(loss, w, {.reduce = Reduce::kLater});
    TESSERA_RETURN_IF_ERROR(optimizer.apply(weights.variables(), gradients));

    // 5. Calls return before the devices have finished. The program waits for the step before, so
    //    that it does not run ahead without end.
    if (last.valid()) TESSERA_RETURN_IF_ERROR(last.await());
    last = loss;

    // 6. Every client makes this call; one of them prints.
    if (step % 50 != 0) continue;
    TESSERA_ASSIGN_OR_RETURN(const float value, loss.item<float>());
    if (client.client_id() == 0) std::printf("step %3d  loss %.2f\n", step, value);
  }
  return client.shutdown();
}

}  // namespace

int main() {
  const Status status = part();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
