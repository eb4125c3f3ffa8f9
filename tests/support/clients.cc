// SPDX-License-Identifier: Apache-2.0
#include "tests/support/clients.h"

#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/spawn.h"
#include "job/host.h"
#include "job/port.h"
#include "tests/support/forked.h"

namespace tessera::testing {
namespace {

Status run_as_threads(const JobSpec& spec, const ClientBody& body) {
  TESSERA_ASSIGN_OR_RETURN(const ReservedPort port, ReservedPort::create());
  ClientOptions options = spec.options;
  options.coordinator = absl::StrCat("127.0.0.1:", port.port());
  options.num_clients = spec.num_clients;
  options.num_local_devices = spec.devices_per_client;
  options.token = random_token();
  std::mutex mutex;
  Status first;
  std::vector<std::thread> threads;
  for (int i = 0; i < spec.num_clients; ++i) {
    threads.emplace_back([&, options, i]() mutable {
      options.client_id = i;
      Status status;
      {
        StatusOr<Client> client = Client::connect(options);
        status = client.status();
        if (status.ok()) status = body(*client);
        if (!status.ok()) {
          // Before the client goes, so that what its loss does to the others comes second.
          std::lock_guard<std::mutex> lock(mutex);
          if (first.ok()) first = with_context(status, absl::StrCat("client ", i));
        } else {
          status = client->shutdown();
        }
      }
      std::lock_guard<std::mutex> lock(mutex);
      if (first.ok()) first = with_context(status, absl::StrCat("client ", i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return first;
}

}  // namespace

std::vector<Status> run_processes(const JobSpec& spec, const ClientBody& body) {
  const StatusOr<ReservedPort> port = ReservedPort::create();
  if (!port.ok()) return {port.status()};
  ClientOptions options = spec.options;
  options.coordinator = absl::StrCat("127.0.0.1:", port->port());
  options.num_clients = spec.num_clients;
  options.num_local_devices = spec.devices_per_client;
  options.token = random_token();
  return run_forked(spec.num_clients, spec.deadline, [&](int id) -> Status {
    options.client_id = id;
    TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect(options));
    return body(client);
  });
}

Status run_clients(const JobSpec& spec, const ClientBody& body) {
  return run_isolated(spec.deadline, [&]() -> Status {
    if (spec.setting == Setting::kThreads) return run_as_threads(spec, body);
    ClientOptions options = spec.options;
    options.num_local_devices = spec.devices_per_client;
    return spawn(
        spec.num_clients,
        [&](const Client& client) -> Status {
          Client mine = client;
          return body(mine);
        },
        options);
  });
}

}  // namespace tessera::testing
