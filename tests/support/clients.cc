// SPDX-License-Identifier: Apache-2.0
#include "tests/support/clients.h"

#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/client_hooks.h"
#include "dtensor/spawn.h"
#include "job/environment/host.h"
#include "job/environment/port.h"
#include "tests/support/forked.h"

namespace tessera::testing {
namespace {

// The options that all clients of the job share; they are on this machine.
ClientOptions common_options(const JobSpec& spec, const ReservedPort& port) {
  ClientOptions options = spec.options;
  options.coordinator = absl::StrCat("127.0.0.1:", port.port());
  options.num_clients = spec.num_clients;
  options.num_local_devices = spec.devices_per_client;
  options.token = random_token();
  return options;
}

// Calls `body` in one thread per client, with the client or the error of connecting it.
Status for_each_in_threads(const JobSpec& spec,
                           const std::function<void(int id, StatusOr<Client>& client)>& body) {
  TESSERA_ASSIGN_OR_RETURN(const ReservedPort port, ReservedPort::create());
  const ClientOptions common = common_options(spec, port);
  std::vector<std::thread> threads;
  for (int id = 0; id < spec.num_clients; ++id) {
    threads.emplace_back([&, id] {
      ClientOptions options = common;
      options.client_id = id;
      if (!spec.num_devices.empty()) options.num_local_devices = spec.num_devices[id];
      StatusOr<Client> client = internal::connect(options, spec.hooks);
      body(id, client);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return absl::OkStatus();
}

Status run_as_threads(const JobSpec& spec, const ClientBody& body) {
  std::mutex mutex;
  Status first;
  const auto note = [&](int id, const Status& status) {
    std::lock_guard<std::mutex> lock(mutex);
    first.Update(with_context(status, absl::StrCat("client ", id)));
  };
  TESSERA_RETURN_IF_ERROR(for_each_in_threads(spec, [&](int id, StatusOr<Client>& client) {
    Status status = client.status();
    if (status.ok()) status = body(*client);
    // An error is noted before the client goes, so that what its loss does to the others comes
    // second.
    note(id, status.ok() ? client->shutdown() : status);
  }));
  return first;
}

}  // namespace

std::vector<std::string> on_hosts(int num_clients, int num_hosts) {
  std::vector<std::string> hosts;
  for (int i = 0; i < num_clients; ++i) {
    hosts.push_back(absl::StrCat(
        "host-", std::string(1, static_cast<char>('a' + i * num_hosts / num_clients))));
  }
  return hosts;
}

std::vector<Status> run_threads(const JobSpec& spec, const ClientBody& body) {
  std::vector<Status> statuses(spec.num_clients);
  const Status started = for_each_in_threads(spec, [&](int id, StatusOr<Client>& client) {
    statuses[id] = client.ok() ? body(*client) : client.status();
  });
  if (!started.ok()) statuses.assign(spec.num_clients, started);
  return statuses;
}

std::vector<Status> run_processes(const JobSpec& spec, const ClientBody& body) {
  const StatusOr<ReservedPort> port = ReservedPort::create();
  if (!port.ok()) return std::vector<Status>(spec.num_clients, port.status());
  ClientOptions options = common_options(spec, *port);
  return run_forked(spec.num_clients, spec.deadline, [&](int id) -> Status {
    options.client_id = id;
    if (!spec.num_devices.empty()) options.num_local_devices = spec.num_devices[id];
    TESSERA_ASSIGN_OR_RETURN(Client client, internal::connect(options, spec.hooks));
    return body(client);
  });
}

Status run_clients(const JobSpec& spec, const ClientBody& body) {
  return run_isolated(spec.deadline, [&]() -> Status {
    if (spec.setting == Setting::kThreads) return run_as_threads(spec, body);
    ClientOptions options = spec.options;
    options.num_local_devices = spec.devices_per_client;
    return internal::spawn(
        spec.num_clients,
        [&](const Client& client) -> Status {
          Client mine = client;
          return body(mine);
        },
        options, spec.hooks);
  });
}

}  // namespace tessera::testing
