// SPDX-License-Identifier: Apache-2.0
//
// Hosts: several hosts on one machine, as namespaces that a bridge joins (make_hosts), for as long
// as the object lives; and run_on_hosts, a job whose clients run in them.
//
//   TESSERA_MAKE_HOSTS(hosts, 2);                     or the test is skipped, with the reason
//   for (const Status& status : run_on_hosts(hosts, {.clients_per_host = {2, 2}},
//                                            [](Client& client) -> Status { ... })) {
//     EXPECT_THAT(status, IsOk());
//   }
//
// Properties of these hosts:
//   1. processes of two hosts share no memory, except memory that the test maps before it forks
//      them (Shared, Gate, Verdicts): /dev/shm, /tmp, System V IPC, process ids and abstract
//      sockets belong to each host;
//   2. all bytes that pass between two hosts are counted at eth0 (sent_bytes());
//   3. when the process that made them ends, killed or not, the kernel removes them with all that
//      runs in them.
//
// The test must not be in a sandbox of Bazel (tag "no-sandbox"), where no namespaces can be made,
// nor under TSan, whose thread keeps a process from moving to other namespaces.
#ifndef TESSERA_TESTS_HOSTS_HOSTS_H_
#define TESSERA_TESTS_HOSTS_HOSTS_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "dtensor/client.h"
#include "gtest/gtest.h"
#include "job/environment/file_descriptor.h"
#include "tests/support/clients.h"

namespace tessera::testing {

class Hosts {
 public:
  // Host k has the address 10.77.0.(k+1) and the name host-a, host-b, ...; `rate` limits the
  // sending of each ("1gbit"). FailedPrecondition, with the reason, where hosts cannot be made.
  static StatusOr<Hosts> make(int num_hosts, const std::string& rate = "");
  Hosts(Hosts&& other) = default;
  ~Hosts();

  int size() const { return static_cast<int>(hosts_.size()); }
  // Moves the calling process, which must have one thread, to a host: children that it forks from
  // then on are in the host entirely. The working directory is then /.
  Status enter(int host) const { return move_to(hosts_[host]); }
  // Moves it to the network of the hosts (10.77.0.254), and nothing else.
  Status enter_login() const { return move_to(login_); }

  // Pulls or plugs a host's cable, from a process outside of all hosts. Both ends see the change.
  Status set_link(int host, bool is_up) const {
    return in_host(host, {"--link", is_up ? "up" : "down"});
  }
  // Breaks or repairs the switch: if it is broken nothing passes, and no end sees it.
  Status set_switch(int host, bool passes) const {
    return in_host(host, {passes ? "--join" : "--cut"});
  }
  // Cuts all hosts off from each other; all of them still reach login.
  Status set_apart(bool are_apart) const;
  // Cuts the power: the processes of the host end without a message to their peers.
  Status kill(int host) const { return in_host(host, {"--kill"}); }
  // Returns OK if the command succeeds in that host. It runs in /, with the environment of the
  // test.
  Status in_host(int host, const std::vector<std::string>& command) const;

  // The processes that hold login and hosts, and the process that made them.
  std::vector<pid_t> holders() const;

 private:
  // The namespaces for setns(), in its order.
  using Namespaces = std::vector<FileDescriptor>;
  struct Process {
    explicit Process(pid_t pid) : pid(pid) {}
    Process(Process&& other) noexcept : pid(std::exchange(other.pid, 0)) {}
    pid_t pid;
  };

  explicit Hosts(pid_t pid) : maker_(pid) {}
  Status read_places();
  static Status move_to(const Namespaces& place);

  Process maker_;
  FileDescriptor output_;  // of make_hosts; open, as make_hosts may write until its end
  std::string text_;       // $TESSERA_TEST_HOSTS
  Namespaces user_;        // empty: the namespaces need none
  Namespaces login_;
  std::vector<Namespaces> hosts_;
};

// Declares `hosts`, so many of them, or skips the test. A third argument is the rate.
#define TESSERA_MAKE_HOSTS(hosts, ...)                            \
  auto hosts##_or = ::tessera::testing::Hosts::make(__VA_ARGS__); \
  if (absl::IsFailedPrecondition(hosts##_or.status())) {          \
    GTEST_SKIP() << hosts##_or.status().message();                \
  }                                                               \
  ASSERT_TRUE(hosts##_or.ok()) << hosts##_or.status();            \
  const ::tessera::testing::Hosts hosts = *std::move(hosts##_or)

// Whether this build has the engine on Gloo (Backend::kGloo between hosts).
#ifdef TESSERA_TESTS_HAVE_GLOO
constexpr bool kHasGloo = true;
#else
constexpr bool kHasGloo = false;
#endif

// The bytes that eth0 of the caller's host has sent and received, with headers.
StatusOr<int64_t> sent_bytes();
StatusOr<int64_t> received_bytes();

struct HostsJob {
  std::vector<int> clients_per_host = {1, 1};
  int devices_per_client = 1;
  // A process on the network of the hosts has the coordinator; else client 0.
  bool coordinator_is_hosted = true;
  // Over the whole job; far above what any test needs.
  absl::Duration deadline = absl::Seconds(100);
  // The options of every client, except ids, address and token.
  ClientOptions options = {};
  // Runs beside the clients in a process outside of all hosts.
  std::function<Status()> outside = [] { return absl::OkStatus(); };
};

// Each client is a process of its host; ids go up from host to host. As of run_processes(): a
// failure of one does not stop the others, none shuts down by itself, and the Status of a client
// that died is Aborted. The last Status is for `outside` and the coordinator's process.
std::vector<Status> run_on_hosts(const Hosts& hosts, const HostsJob& job, const ClientBody& body);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_HOSTS_HOSTS_H_
