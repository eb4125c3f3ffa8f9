// SPDX-License-Identifier: Apache-2.0
//
// Prints the cost of many real connections to one coordinator (coordinator_connections.h).
// Arguments: the number of clients (1000), of processes that they share (4), of hosts of clients of
// dtensor (0: calls of the coordinator only), and of relays (0).
#include <cstdio>
#include <cstdlib>
#include <string>

#include "benchmarks/coordinator_connections.h"

int main(int argc, char** argv) {
  tessera::benchmarks::ManyClients clients;
  if (argc > 1) clients.num_clients = std::atoi(argv[1]);
  if (argc > 2) clients.num_processes = std::atoi(argv[2]);
  if (argc > 3) clients.num_hosts = std::atoi(argv[3]);
  if (argc > 4) clients.num_relays = std::atoi(argv[4]);
  const auto times = tessera::benchmarks::connect_many(clients);
  if (!times.ok()) {
    std::fprintf(stderr, "%s\n", times.status().ToString().c_str());
    return 1;
  }
  std::printf(
      "%d clients of %d hosts in %d processes: connected in %.2f s, first create_mesh %.1f ms and "
      "barrier %.1f ms, then %.1f ms and %.1f ms, left in %.2f s\n"
      "service %ld KiB with all connected (%ld KiB at its peak), clients %ld KiB, at most "
      "%ld descriptors in a process of clients\n",
      clients.num_clients, clients.num_hosts, clients.num_processes, times->connect_seconds,
      1e3 * times->first_mesh_seconds, 1e3 * times->first_barrier_seconds,
      1e3 * times->create_mesh_seconds, 1e3 * times->barrier_seconds, times->leave_seconds,
      times->service_kib, times->service_peak_kib, times->clients_kib, times->most_descriptors);
}
