// SPDX-License-Identifier: Apache-2.0
//
// The heat equation in two dimensions, with cold edges. A step is a convolution with the stencil;
// the devices exchange only the rows and columns at the edges of their blocks.
//
//   bazel run //examples/programs:heat
//
// Output:
//   [-, x, y, -] on {x=2, y=2}
//   [[ 1.  4.  6.  6.  4.  1.]
//    [ 4. 10. 16. 16. 10.  4.]
//    [ 6. 16. 26. 26. 16.  6.]
//    [ 6. 16. 26. 26. 16.  6.]
//    [ 4. 10. 16. 16. 10.  4.]
//    [ 1.  4.  6.  6.  4.  1.]]
#include <iostream>
#include <string>

#include "tessera/tessera.h"

using namespace tessera;

Status heat(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}, {"y", 2}}));
  const auto layout = [&](const char* text) { return Layout::parse(mesh, text); };
  DTensor u =
      ops::pad(full<float>({1, 2, 2, 1}, 100, layout("[-, x, y, -]")), {0, 2, 2, 0}, {0, 2, 2, 0});

  // The core.
  const DTensor stencil = from_host<float>({0, 0.1f, 0, 0.1f, 0.6f, 0.1f, 0, 0.1f, 0}, {3, 3, 1, 1},
                                           layout("[-, -, -, -]"));
  for (int step = 0; step < 10; ++step) {
    u = ops::conv2d(u, stencil, {.padding = {{{1, 1}, {1, 1}}}});
    TESSERA_RETURN_IF_ERROR(u.await());
  }
  // The end of the core.

  std::cout << u.layout() << "\n";
  TESSERA_ASSIGN_OR_RETURN(const std::string text, to_string(ops::round(u[{0, kAll, kAll, 0}])));
  std::cout << text << "\n";
  return absl::OkStatus();
}

int main() {
  const Status status = run_client(heat, {.num_local_devices = 4});
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
