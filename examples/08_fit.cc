// SPDX-License-Identifier: Apache-2.0
//
// Fitting a network to a function: operations, gradients, random numbers and an optimizer. The
// program gives layouts to the tensors that it creates; all other layouts follow.
//
//   bazel build //job:tessera_run //examples:08_fit
//   bazel-bin/job/tessera_run --clients 2 --devices-per-client 4 bazel-bin/examples/08_fit
#include <cstdint>
#include <cstdio>
#include <vector>

#include "tessera/tessera.h"

namespace {

using namespace tessera;

Status fit() {
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect());
  const int64_t num_devices = static_cast<int64_t>(client.devices().size());
  const int64_t model = num_devices % 2 == 0 ? 2 : 1;
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh,
                           create_mesh(client, {{"batch", num_devices / model}, {"model", model}}));
  const auto layout = [&](const char* text) { return Layout::parse(mesh, text); };
  constexpr int64_t kPoints = 256;
  constexpr int64_t kHidden = 32;

  // 1. Points are split over the axis `batch`, the hidden units over the axis `model`.
  const random::Key key = random::Key::from_seed(3);
  const DTensor x =
      random::uniform<float>(key.fold_in(0), {kPoints, 1}, layout("[batch, -]"), -2, 2);
  const DTensor y = ops::sin(x * 2) + 0.5 * x;
  nn::Parameters weights;
  weights.add("w1", random::normal<float>(key.fold_in(1), {1, kHidden}, layout("[-, model]")));
  weights.add("b1", zeros<float>({kHidden}, layout("[model]")));
  weights.add("w2",
              random::normal<float>(key.fold_in(2), {kHidden, 1}, layout("[model, -]"), 0, 0.2));
  weights.add("b2", zeros<float>({1}, layout("[-]")));

  // 2. The state of the optimizer is also split over the axes that a weight does not use.
  AdamW optimizer{.learning_rate = 0.02, .shard_state = true};
  for (int step = 0; step <= 200; ++step) {
    // 3. The tape records operations on watched tensors.
    Tape tape;
    const std::vector<DTensor> w = weights.watch(tape);
    const DTensor hidden = ops::tanh(ops::matmul(x, w[0]) + w[1]);
    const DTensor loss = ops::mean(ops::square(ops::matmul(hidden, w[2]) + w[3] - y));

    // 4. Each device has the gradient of its own points. It is a term of a sum, which the optimizer
    //    reduces.
    const std::vector<DTensor> gradients = tape.gradient(loss, w, {.reduce = Reduce::kLater});
    TESSERA_RETURN_IF_ERROR(optimizer.apply(weights.variables(), gradients));
    if (step % 50 != 0) continue;
    TESSERA_ASSIGN_OR_RETURN(const float value, loss.item<float>());
    if (client.client_id() == 0) std::printf("step %3d  loss %.5f\n", step, value);
  }
  return client.shutdown();
}

}  // namespace

int main() {
  const Status status = fit();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
