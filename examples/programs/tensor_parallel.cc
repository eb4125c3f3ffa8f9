// SPDX-License-Identifier: Apache-2.0
//
// A network of two layers whose hidden units are split over the axis `model`. The product explains
// how it is computed: nothing is sent, and each device has a term of the sum.
//
//   bazel run //examples/programs:tensor_parallel
//
// Output:
//   f32 [8, 16] under [batch, -] sum{model} on {batch=2, model=2}
//     by matmul: [a, b] [b, c] -> [a, c]; b contracted (sum)
//     operand 0: [batch, model] as it is
//     operand 1: [model, -] as it is
#include <iostream>

#include "tessera/tessera.h"

using namespace tessera;

Status multiply(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"batch", 2}, {"model", 2}}));
  const auto layout = [&](const char* text) { return Layout::parse(mesh, text); };
  const random::Key key = random::Key::from_seed(1);
  const DTensor x = random::normal<float>(key.fold_in(2), {8, 16}, layout("[batch, -]"));

  // The core.
  const DTensor w1 = random::normal<float>(key.fold_in(0), {16, 64}, layout("[-, model]"));
  const DTensor w2 = random::normal<float>(key.fold_in(1), {64, 16}, layout("[model, -]"));
  const DTensor y = ops::matmul(ops::gelu(ops::matmul(x, w1)), w2);
  std::cout << y.explain();
  // The end of the core.
  return y.await();
}

int main() {
  const Status status = run_client(multiply, {.num_local_devices = 4});
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
