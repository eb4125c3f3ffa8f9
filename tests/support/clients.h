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
// Both run in a forked child, so that the test's own process never starts gRPC, survives whatever
// the clients do, and can put a deadline on all of it: on expiry everything is killed and the
// Status says so. The body reports by its Status, for expectations of a child are not counted.
#ifndef TESSERA_TESTS_SUPPORT_CLIENTS_H_
#define TESSERA_TESTS_SUPPORT_CLIENTS_H_

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "dtensor/client.h"

// Returns Internal with the text of the condition from the enclosing function unless it holds.
// Further arguments are appended to the message.
#define TESSERA_REQUIRE(condition, ...)                                                          \
  do {                                                                                           \
    if (!(condition)) {                                                                          \
      return absl::InternalError(absl::StrCat(                                                   \
          __FILE__, ":", __LINE__, ": not true: ", #condition __VA_OPT__(, " ", ) __VA_ARGS__)); \
    }                                                                                            \
  } while (false)

namespace tessera::testing {

enum class Setting { kThreads, kProcesses };

inline std::ostream& operator<<(std::ostream& out, Setting setting) {
  return out << (setting == Setting::kThreads ? "Threads" : "Processes");
}

struct JobSpec {
  Setting setting = Setting::kThreads;
  int num_clients = 1;
  int devices_per_client = 1;
  // Over the whole job; far above what any test needs.
  absl::Duration deadline = absl::Seconds(100);
  // Of every client, but for ids, address and token.
  ClientOptions options = {};
};

using ClientBody = std::function<Status(Client& client)>;

// The first failure, naming the client; OK when every client connected, ran `body` and shut down.
Status run_clients(const JobSpec& spec, const ClientBody& body);

// For tests of loss: each client is a process of its own, nobody stops the others when one fails,
// and each one's Status comes back (Aborted for one that died). Clients do not shut down by
// themselves.
std::vector<Status> run_processes(const JobSpec& spec, const ClientBody& body);

// Runs `body` in a forked child with a deadline, and returns its Status; a crash is Aborted.
Status run_isolated(absl::Duration deadline, const std::function<Status()>& body);
// The same in so many children at a time; `body` is told which one it is in.
std::vector<Status> run_forked(int num_children, absl::Duration deadline,
                               const std::function<Status(int child)>& body);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_CLIENTS_H_
