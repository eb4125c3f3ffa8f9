// SPDX-License-Identifier: Apache-2.0
#include "tests/support/clients.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/format.h"
#include "dtensor/spawn.h"
#include "job/host.h"
#include "job/port.h"

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

Status run_isolated(absl::Duration deadline, const std::function<Status()>& body) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::InternalError("pipe");
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0);
    const Status status = body();
    const std::string report =
        std::string(1, static_cast<char>(status.code())) + std::string(status.message());
    (void)!write(ends[1], report.data(), report.size());
    std::fflush(nullptr);
    _exit(0);
  }
  close(ends[1]);
  const absl::Time end = absl::Now() + deadline;
  std::string report;
  bool expired = false;
  while (true) {
    pollfd waiting = {ends[0], POLLIN, 0};
    const int left_ms = static_cast<int>(absl::ToInt64Milliseconds(end - absl::Now()));
    expired = left_ms <= 0 || poll(&waiting, 1, left_ms) == 0;
    char buffer[4096];
    const ssize_t count = expired ? 0 : read(ends[0], buffer, sizeof buffer);
    if (count <= 0) break;
    report.append(buffer, static_cast<size_t>(count));
  }
  close(ends[0]);
  // The group: clients that are processes of their own die with it.
  kill(-pid, SIGKILL);
  int wait_status = 0;
  waitpid(pid, &wait_status, 0);
  if (expired) {
    return absl::AbortedError(
        absl::StrCat("the job did not end in ", format_duration(deadline), " and was killed"));
  }
  if (report.empty()) {
    return absl::AbortedError(
        WIFSIGNALED(wait_status)
            ? absl::StrCat("the job died of signal ", strsignal(WTERMSIG(wait_status)))
            : absl::StrCat("the job exited early with code ", WEXITSTATUS(wait_status)));
  }
  return Status(static_cast<absl::StatusCode>(report[0]), report.substr(1));
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
