// SPDX-License-Identifier: Apache-2.0
//
// run_clients: one test body as every client of a job, with clients as threads or as processes.
//
//   EXPECT_THAT(run_clients({.setting = Setting::kProcesses, .num_clients = 4},
//                           [](Client& client) -> Status {
//     TESSERA_ASSIGN_OR_RETURN(Mesh mesh, create_mesh(client, {{"x", 4}}));
//     TESSERA_REQUIRE(mesh.size() == 4);
//     return mesh.barrier("end", absl::Seconds(10));
//   }), IsOk());
//
// Both run in a forked child (forked.h), so that the test's own process never starts gRPC.
#ifndef TESSERA_TESTS_SUPPORT_CLIENTS_H_
#define TESSERA_TESTS_SUPPORT_CLIENTS_H_

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "tests/support/forked.h"

namespace tessera::testing {

enum class Setting { kThreads, kProcesses };

inline std::ostream& operator<<(std::ostream& out, Setting setting) {
  return out << (setting == Setting::kThreads ? "Threads" : "Processes");
}

struct JobSpec {
  Setting setting = Setting::kThreads;
  int num_clients = 1;
  int devices_per_client = 1;
  // The number of devices of each client, where it differs.
  std::vector<int> num_devices = {};
  // Over the whole job; far above what any test needs.
  absl::Duration deadline = absl::Seconds(100);
  // The options of every client, except ids, address and token.
  ClientOptions options = {};
  // Doubles and faults, also for every client.
  internal::ClientHooks hooks = {};
};

// ClientHooks::host_ids of clients that are dealt to so many hosts, in order: on_hosts(4, 2) is
// {"host-a", "host-a", "host-b", "host-b"}. Clients of different hosts share no memory, and reach
// each other over a network of this machine.
std::vector<std::string> on_hosts(int num_clients, int num_hosts);

using ClientBody = std::function<Status(Client& client)>;

// The first failure, naming the client; OK when every client connected, ran `body` and shut down.
Status run_clients(const JobSpec& spec, const ClientBody& body);

// For tests of loss: a failure of one client does not stop the others, and each client's Status is
// returned. Clients do not shut down by themselves. In run_processes() each is a separate process
// (Aborted if it died); in run_threads() a thread of this process, and the client is destroyed when
// its body returns.
std::vector<Status> run_processes(const JobSpec& spec, const ClientBody& body);
std::vector<Status> run_threads(const JobSpec& spec, const ClientBody& body);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_CLIENTS_H_
