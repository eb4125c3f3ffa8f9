// SPDX-License-Identifier: Apache-2.0
//
// k-means over rows that are split over the devices, until the centers stay.
//
//   bazel run //examples/programs:k_means
//
// Output:
//   [[10.  5.]
//    [20.  5.]
//    [30.  5.]]
#include <cstdint>
#include <iostream>
#include <string>

#include "tessera/tessera.h"

using namespace tessera;

constexpr int64_t kNumCenters = 3;

Status find_centers(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 4}}));
  // Points around (10, 5), (20, 5) and (30, 5), one after the other.
  const random::Key key = random::Key::from_seed(1);
  const DTensor noise = random::normal<float>(key, {300, 2}, Layout::parse(mesh, "[x, -]"));
  const DTensor place = ops::cast<float>(arange<int32_t>(300, Layout::parse(mesh, "[x]")) % 3 + 1);
  const DTensor x = noise + ops::pad(ops::expand_dims(10 * place, 1), {0, 0}, {0, 1}, 5);

  DTensor centers = relayout(ops::narrow(x, 0, 0, kNumCenters), "[-, -]");
  for (float moved = 1; moved > 0;) {
    // The core.
    const DTensor product = ops::einsum("nd,kd->nk", {x, centers});
    const DTensor nearest = ops::argmin(ops::sum(ops::square(centers), 1) - 2 * product, 1);
    const DTensor is_in = ops::one_hot(nearest, kNumCenters);
    const DTensor sums = ops::einsum("nk,nd->kd", {is_in, x}, "[-, -]");
    const DTensor next = sums / ops::expand_dims(ops::sum(is_in, 0), 1);
    TESSERA_ASSIGN_OR_RETURN(moved, ops::max(ops::abs(next - centers)).item<float>());
    centers = next;
    // The end of the core.
  }

  TESSERA_ASSIGN_OR_RETURN(const std::string text, to_string(ops::round(centers)));
  std::cout << text << "\n";
  return absl::OkStatus();
}

int main() {
  const Status status = run_client(find_centers, {.num_local_devices = 4});
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
