// SPDX-License-Identifier: Apache-2.0
//
// Jobs of a few clients for the cases of engine_conformance.h.
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "job/coordinator/connect_coordinator.h"
#include "job/environment/host.h"
#include "job/environment/port.h"
#include "tests/support/coordinator/fake_coordinator.h"
#include "tests/support/forked.h"
#include "transport/testing/engine_losses.h"

namespace tessera::transport {
namespace {

// The first error other than a DeadlineExceeded, which a client has that waited for the failed one.
Status cause_of(const std::vector<Status>& results) {
  Status first;
  for (const Status& status : results) {
    if (status.ok()) continue;
    if (!absl::IsDeadlineExceeded(status)) return status;
    if (first.ok()) first = status;
  }
  return first;
}

Status run_client(const EngineCase& c, const MakeEngine& make, EngineTraits traits,
                  Coordinator& coordinator) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, make(coordinator));
  EngineMember member{.coordinator = coordinator, .engine = *engine, .traits = traits};
  TESSERA_RETURN_IF_ERROR(with_context(c.run(member), absl::StrCat("client ", self(member))));
  // All are done before the first engine stops.
  if (!c.loses_client_1) return barrier(member, "end");
  return barrier(member, "end", {0, 2});
}

}  // namespace

Status run_as_client(const EngineCase& c, const MakeEngine& make, EngineTraits traits,
                     const std::string& address, int client) {
  CoordinatorOptions options;
  options.address = address;
  options.token = "secret";
  options.num_clients = c.num_clients;
  options.self = describe_this_process();
  options.self.client_id = client;
  options.self.num_local_devices = 1;
  options.self.device_type = "cpu";
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Coordinator> coordinator,
                           connect_coordinator(options));
  TESSERA_RETURN_IF_ERROR(run_client(c, make, traits, *coordinator));
  const Status left = coordinator->leave(soon());
  return c.loses_client_1 ? absl::OkStatus() : left;
}

Status run_as_threads(const EngineCase& c, const MakeEngine& make, EngineTraits traits) {
  const std::vector<int> devices(c.num_clients, 1);
  testing::FakeJob job(devices);
  std::vector<Status> results(c.num_clients);
  std::vector<std::thread> threads;
  for (int i = 0; i < c.num_clients; ++i) {
    threads.emplace_back([&, i] { results[i] = run_client(c, make, traits, job.coordinator(i)); });
  }
  for (std::thread& thread : threads) thread.join();
  return cause_of(results);
}

Status run_as_processes(const EngineCase& c, const MakeEngine& make, EngineTraits traits) {
  TESSERA_ASSIGN_OR_RETURN(const ReservedPort port, ReservedPort::create());
  const std::string address = absl::StrCat("127.0.0.1:", port.port());
  std::vector<Status> results = testing::run_forked(
      c.num_clients, absl::Minutes(4),
      [&](int client) { return run_as_client(c, make, traits, address, client); });
  if (c.loses_client_1) results[1] = absl::OkStatus();
  return cause_of(results);
}

}  // namespace tessera::transport
