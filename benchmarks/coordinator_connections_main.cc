// SPDX-License-Identifier: Apache-2.0
//
// Prints what many real connections to one coordinator take: coordinator_connections.h. Arguments:
// the number of clients (1000) and of processes that they share (4).
#include <cstdio>
#include <cstdlib>
#include <string>

#include "benchmarks/coordinator_connections.h"

int main(int argc, char** argv) {
  const int num_clients = argc > 1 ? std::atoi(argv[1]) : 1000;
  const int num_processes = argc > 2 ? std::atoi(argv[2]) : 4;
  const auto times = tessera::benchmarks::connect_many(num_clients, num_processes);
  if (!times.ok()) {
    std::fprintf(stderr, "%s\n", times.status().ToString().c_str());
    return 1;
  }
  std::printf(
      "%d clients in %d processes: connected in %.2f s, barrier %.1f ms, create_mesh %.1f ms, "
      "left in %.2f s\nservice %ld KiB with all connected (%ld KiB at its peak), clients %ld KiB\n",
      num_clients, num_processes, times->connect_seconds, 1e3 * times->barrier_seconds,
      1e3 * times->create_mesh_seconds, times->leave_seconds, times->service_kib,
      times->service_peak_kib, times->clients_kib);
}
