// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/coordinator_connections.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/thread.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "job/coordinator/connect_coordinator.h"
#include "job/coordinator/coordinator.h"
#include "job/environment/host.h"
#include "job/environment/port.h"
#include "job/launcher/coordinator_process.h"
#include "mesh/mesh.h"
#include "tests/support/forked.h"

namespace tessera::benchmarks {
namespace {

constexpr int kRounds = 5;
constexpr absl::Duration kDeadline = absl::Minutes(10);
constexpr absl::Duration kStepTimeout = absl::Minutes(5);

// The steps that all clients finish together, in order.
enum Step { kStart, kConnected, kHasMesh, kHasMet, kFirstBarrier };
constexpr int kFirstMesh = kFirstBarrier + kRounds;
constexpr int kLeft = kFirstMesh + kRounds;

// Memory that the processes share: when the last client ended each step, and the memory sizes.
struct Shared {
  std::array<std::atomic<int64_t>, kLeft + 1> ended_ns;
  std::atomic<int64_t> service_kib;
  std::atomic<int64_t> service_peak_kib;
  std::atomic<int64_t> clients_kib;
  std::atomic<int64_t> most_descriptors;

  void end(int step) {
    const int64_t now_ns = absl::ToUnixNanos(steady_now());
    int64_t latest = ended_ns[step];
    while (latest < now_ns && !ended_ns[step].compare_exchange_weak(latest, now_ns)) {
    }
  }
  double seconds(int step) const { return 1e-9 * (ended_ns[step] - ended_ns[step - 1]); }
  double median_seconds(int first_step) const {
    std::array<double, kRounds> all;
    for (int i = 0; i < kRounds; ++i) all[i] = seconds(first_step + i);
    std::sort(all.begin(), all.end());
    return all[kRounds / 2];
  }
};

// A line of /proc/PID/status, "VmRSS:     1234 kB".
int64_t memory_kib(pid_t pid, const std::string& field) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, field.size(), field) == 0) {
      return std::atoll(line.c_str() + field.size() + 1);
    }
  }
  return 0;
}

// The descriptors that this process has open.
int64_t count_descriptors() {
  std::error_code error;
  const std::filesystem::directory_iterator all("/proc/self/fd", error);
  return error ? 0 : std::distance(begin(all), end(all));
}

// The calls of a client of either kind.
struct Calls {
  std::function<Status()> create_mesh;
  std::function<Status()> barrier;
  std::function<Status()> leave;
};

Status run_calls(const Calls& calls, bool is_client_0, pid_t service, Shared& shared) {
  shared.end(kConnected);
  const auto do_step = [&](int step, const std::function<Status()>& call) -> Status {
    TESSERA_RETURN_IF_ERROR(call());
    shared.end(step);
    return absl::OkStatus();
  };
  TESSERA_RETURN_IF_ERROR(do_step(kHasMesh, calls.create_mesh));
  TESSERA_RETURN_IF_ERROR(do_step(kHasMet, calls.barrier));
  for (int i = 0; i < kRounds; ++i) {
    TESSERA_RETURN_IF_ERROR(do_step(kFirstBarrier + i, calls.barrier));
  }
  for (int i = 0; i < kRounds; ++i) {
    TESSERA_RETURN_IF_ERROR(do_step(kFirstMesh + i, calls.create_mesh));
  }
  // The first client of a process to arrive counts the descriptors of all its clients.
  const int64_t descriptors = count_descriptors();
  int64_t most = shared.most_descriptors;
  while (most < descriptors && !shared.most_descriptors.compare_exchange_weak(most, descriptors)) {
  }
  if (is_client_0) {
    shared.service_kib = memory_kib(service, "VmRSS:");
    shared.service_peak_kib = memory_kib(service, "VmHWM:");
  }
  return do_step(kLeft, calls.leave);
}

// A client that uses only the coordinator.
Status run_connection(const CoordinatorOptions& options, pid_t service, Shared& shared) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Coordinator> client, connect_coordinator(options));
  std::vector<int> all(options.num_clients);
  std::iota(all.begin(), all.end(), 0);
  const std::string mesh =
      absl::StrCat("{x=", 8 * all.size(), "} of devices [0-", 8 * all.size() - 1, "]");
  const auto meet = [&](absl::string_view name, absl::string_view value) {
    return client->check_in(name, value, all, steady_now() + kStepTimeout);
  };
  return run_calls({.create_mesh = [&] { return meet("create_mesh", mesh); },
                    .barrier = [&] { return meet("barrier", "end of epoch"); },
                    .leave = [&] { return client->leave(steady_now() + kStepTimeout); }},
                   options.self.client_id == 0, service, shared);
}

Status run_client(const CoordinatorOptions& options, int num_hosts, pid_t service, Shared& shared) {
  internal::ClientHooks hooks;
  for (int i = 0; i < options.num_clients; ++i) {
    hooks.host_ids.push_back(absl::StrCat("host-", i * num_hosts / options.num_clients));
  }
  TESSERA_ASSIGN_OR_RETURN(Client client,
                           internal::connect({.coordinator = options.address,
                                              .client_id = options.self.client_id,
                                              .num_clients = options.num_clients,
                                              .coordinator_is_hosted = true,
                                              .token = options.token,
                                              .connect_timeout = options.connect_timeout,
                                              .heartbeat_interval = options.heartbeat_interval},
                                             hooks));
  std::optional<Mesh> mesh;
  return run_calls(
      {.create_mesh = [&]() -> Status {
         TESSERA_ASSIGN_OR_RETURN(
             mesh, create_mesh(client, {{"x", options.num_clients}}, {.timeout = kStepTimeout}));
         return absl::OkStatus();
       },
       .barrier = [&] { return mesh->barrier("end of epoch", kStepTimeout); },
       .leave = [&] { return client.shutdown(); }},
      options.self.client_id == 0, service, shared);
}

// The clients of one process, each in a thread.
Status run_clients_of(int process, const ManyClients& clients, CoordinatorOptions options,
                      pid_t service, Shared& shared) {
  options.self = describe_this_process();
  options.self.num_local_devices = 8;
  options.self.device_type = "cpu";
  std::vector<int> ids;
  // Clients of one host are in one process.
  for (int id = 0; id < clients.num_clients; ++id) {
    const int part = clients.num_hosts == 0 ? id : id * clients.num_hosts / clients.num_clients;
    if (part % clients.num_processes == process) ids.push_back(id);
  }
  std::vector<Status> results(ids.size());
  std::vector<Thread> threads;
  for (size_t i = 0; i < ids.size(); ++i) {
    options.self.client_id = ids[i];
    TESSERA_ASSIGN_OR_RETURN(Thread thread, start_thread("a client", [&, options, i] {
                               results[i] =
                                   clients.num_hosts == 0
                                       ? run_connection(options, service, shared)
                                       : run_client(options, clients.num_hosts, service, shared);
                               // Reported at once, because the others wait for this client.
                               if (!results[i].ok()) {
                                 std::fprintf(stderr, "client %d: %s\n", options.self.client_id,
                                              results[i].ToString().c_str());
                               }
                             }));
    threads.push_back(std::move(thread));
  }
  for (Thread& thread : threads) thread.join();
  shared.clients_kib += memory_kib(getpid(), "VmHWM:");
  for (const Status& result : results) TESSERA_RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

}  // namespace

StatusOr<ConnectionTimes> connect_many(const ManyClients& clients) {
  void* const memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return absl::ResourceExhaustedError("no memory to share");
  const std::unique_ptr<Shared, void (*)(Shared*)> shared(
      new (memory) Shared(), [](Shared* at) { munmap(at, sizeof(Shared)); });
  TESSERA_ASSIGN_OR_RETURN(const ReservedPort port, ReservedPort::create());
  CoordinatorOptions options;
  options.address = absl::StrCat("127.0.0.1:", port.port());
  options.service_host = ServiceHost::kElsewhere;
  options.token = "secret";
  options.num_clients = clients.num_clients;
  options.connect_timeout = kStepTimeout;
  options.heartbeat_interval = absl::Minutes(1);  // all share one machine, which may be busy
  TESSERA_ASSIGN_OR_RETURN(
      const CoordinatorProcess service,
      CoordinatorProcess::start({.address = options.address,
                                 .token = options.token,
                                 .num_clients = clients.num_clients,
                                 .heartbeat_interval = options.heartbeat_interval}));
  std::vector<ReservedPort> relay_ports;
  std::vector<CoordinatorProcess> relays;
  for (int i = 0; i < clients.num_relays; ++i) {
    TESSERA_ASSIGN_OR_RETURN(ReservedPort relay_port, ReservedPort::create());
    TESSERA_ASSIGN_OR_RETURN(
        CoordinatorProcess relay,
        CoordinatorProcess::start({.address = absl::StrCat("127.0.0.1:", relay_port.port()),
                                   .token = options.token,
                                   .num_clients = clients.num_clients,
                                   .upstream = options.address}));
    relay_ports.push_back(std::move(relay_port));
    relays.push_back(std::move(relay));
  }
  shared->end(kStart);
  for (const Status& result :
       testing::run_forked(clients.num_processes, kDeadline, [&](int process) {
         if (!relays.empty()) {
           const int port_of_relay = relay_ports[process % relays.size()].port();
           options.relay = absl::StrCat("127.0.0.1:", port_of_relay);
         }
         return run_clients_of(process, clients, options, service.pid(), *shared);
       })) {
    TESSERA_RETURN_IF_ERROR(result);
  }
  return ConnectionTimes{.connect_seconds = shared->seconds(kConnected),
                         .first_mesh_seconds = shared->seconds(kHasMesh),
                         .first_barrier_seconds = shared->seconds(kHasMet),
                         .barrier_seconds = shared->median_seconds(kFirstBarrier),
                         .create_mesh_seconds = shared->median_seconds(kFirstMesh),
                         .leave_seconds = shared->seconds(kLeft),
                         .service_kib = shared->service_kib,
                         .service_peak_kib = shared->service_peak_kib,
                         .clients_kib = shared->clients_kib,
                         .most_descriptors = shared->most_descriptors};
}

}  // namespace tessera::benchmarks
