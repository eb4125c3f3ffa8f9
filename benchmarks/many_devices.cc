// SPDX-License-Identifier: Apache-2.0
//
// The times of a client with many devices, from connect to shutdown:
//
//   many_devices 100 1000 2000
//
// Prints one line for each number of devices, with the seconds to connect, to make a mesh of all
// devices and gather one element of each on all, to gather again, to gather one copy for all, to
// meet at a barrier, and to shut down.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "layout/layout.h"
#include "mesh/mesh.h"

namespace tessera {
namespace {

// Prints the seconds since the last call.
class Laps {
 public:
  void print(const char* name) {
    const absl::Time now = steady_now();
    std::printf("  %s %.3f s", name, absl::ToDoubleSeconds(now - last_));
    std::fflush(stdout);
    last_ = now;
  }

 private:
  absl::Time last_ = steady_now();
};

Status measure(int num_devices, bool gathers) {
  std::printf("%d devices:", num_devices);
  Laps laps;
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect({.num_local_devices = num_devices}));
  laps.print("connect");
  if (gathers) {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", num_devices}}));
    TESSERA_ASSIGN_OR_RETURN(const Layout split, Layout::parse(mesh, "[x]"));
    TESSERA_ASSIGN_OR_RETURN(const Layout whole, Layout::parse(mesh, "[-]"));
    const DTensor tensor = iota<float>({num_devices}, split);
    TESSERA_RETURN_IF_ERROR(relayout(tensor, whole).await());
    laps.print("gather");
    TESSERA_RETURN_IF_ERROR(relayout(tensor, whole).await());
    laps.print("again");
    TESSERA_RETURN_IF_ERROR(relayout(tensor, whole, Replicas::kShared).await());
    laps.print("shared");
    TESSERA_RETURN_IF_ERROR(mesh.barrier("end"));
    laps.print("barrier");
  }
  TESSERA_RETURN_IF_ERROR(client.shutdown());
  laps.print("shutdown");
  std::printf("\n");
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

// A number with a minus sign: that many devices, without the gather.
int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const int number = std::atoi(argv[i]);
    const tessera::Status status = tessera::measure(std::abs(number), number > 0);
    if (!status.ok()) {
      std::printf("\n%s\n", status.ToString().c_str());
      return 1;
    }
  }
  return 0;
}
