// SPDX-License-Identifier: Apache-2.0
//
// Part 3 of the guide: operations and gradients.
//
//   bazel run //examples/guide:3_operations
#include <iostream>
#include <string>

#include "tessera/tessera.h"

namespace {

using namespace tessera;

// Prints a name and the whole value. Every client calls it, because to_string() gathers.
Status print(const char* name, const DTensor& x) {
  TESSERA_ASSIGN_OR_RETURN(const std::string text, to_string(x));
  std::cout << name << ":\n" << text << "\n";
  return absl::OkStatus();
}

Status compute(const Mesh& mesh) {
  // 1. The program gives layouts to the tensors that it makes.
  const random::Key key = random::Key::from_seed(1);
  const DTensor x = random::normal<float>(key.fold_in(0), {64, 32}, Layout::parse(mesh, "[x, -]"));
  const DTensor w = random::normal<float>(key.fold_in(1), {32, 16}, Layout::parse(mesh, "[-, y]"));

  // 2. Results get layouts from their operands.
  const DTensor y = ops::relu(ops::matmul(x, w));
  std::cout << y.layout() << "\n";

  // 3. explain() says how a result was made, and what was sent for it.
  std::cout << y.explain() << ops::matmul(x, w).explain();

  // 4. The sum over a split dim is partial: no device has sent anything yet.
  const DTensor columns = ops::sum(y, 0);
  std::cout << columns.layout() << "\n";

  // 5. The last argument of an operation asks for the layout of its result.
  const DTensor whole = ops::sum(y, 0, ops::KeepDims::kNo, "[-]");
  std::cout << whole.layout() << "\n";

  // 6. Shapes follow NumPy's rules. A C++ number takes the dtype of the tensor.
  const DTensor small = iota<float>({2, 3}, Layout::replicated(mesh, 2));
  TESSERA_RETURN_IF_ERROR(print("small * 2 + 1", small * 2 + 1));
  TESSERA_RETURN_IF_ERROR(
      print("minus the mean", small - ops::mean(small, 1, ops::KeepDims::kYes)));

  // 7. A function of the program for every element, in one pass over memory.
  const DTensor steps =
      ops::elementwise<float, float>([](float value) { return value < 3 ? 0.0f : value; }, small);
  return print("steps", steps);
}

Status differentiate(const Mesh& mesh) {
  // 8. A tape records the operations on the tensors that it watches.
  Tape tape;
  const DTensor w = tape.watch(iota<float>({4}, Layout::parse(mesh, "[x]")));
  const DTensor loss = ops::sum(ops::square(w));
  TESSERA_RETURN_IF_ERROR(print("gradient", tape.gradient(loss, {w})[0]));

  // 9. A gradient is made of operations, so an outer tape gives second derivatives.
  Tape outer, inner;
  const DTensor v = inner.watch(outer.watch(iota<float>({4}, Layout::parse(mesh, "[x]"))));
  const DTensor slope = inner.gradient(ops::sum(v * v * v), {v})[0];
  return print("curvature", outer.gradient(ops::sum(slope), {v})[0]);
}

Status part() {
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect({.num_local_devices = 4}));
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}, {"y", 2}}));
  TESSERA_RETURN_IF_ERROR(compute(mesh));
  TESSERA_RETURN_IF_ERROR(differentiate(mesh));
  return client.shutdown();
}

}  // namespace

int main() {
  const Status status = part();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
