// SPDX-License-Identifier: Apache-2.0
#include "dtensor/spawn.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "job/coordinator.h"
#include "job/host.h"
#include "job/port.h"

namespace tessera {
namespace {

// How long the other clients have to end by themselves once one has failed.
constexpr int kGraceMs = 2000;

struct Child {
  pid_t pid = -1;
  int report = -1;     // read end: the Status of the child, as code byte and message
  std::string status;  // what has come
  bool done = false;
};

void write_all(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t count = write(fd, text.data() + done, text.size() - done);
    if (count < 0 && errno != EINTR) return;
    if (count > 0) done += static_cast<size_t>(count);
  }
}

// Ends the child. It reports before its client goes, so that the parent hears of a failure before
// it hears of what the failure does to the others.
[[noreturn]] void report_and_exit(int report, const Status& status) {
  write_all(report,
            std::string(1, static_cast<char>(status.code())) + std::string(status.message()));
  std::fflush(nullptr);
  _exit(status.ok() ? 0 : 1);
}

[[noreturn]] void child_main(int report, const ClientOptions& options,
                             absl::FunctionRef<Status(const Client&)> fn) {
  StatusOr<Client> client = Client::connect(options);
  if (!client.ok()) report_and_exit(report, client.status());
  Status status = fn(*client);
  if (status.ok()) status = client->shutdown();
  report_and_exit(report, status);
}

// The failure of a child that has ended, from what it reported and how it ended.
Status outcome(int client_id, const Child& child, int wait_status) {
  const std::string who = absl::StrCat("client ", client_id, " (pid ", child.pid, ")");
  if (!child.status.empty()) {
    const auto code = static_cast<absl::StatusCode>(child.status[0]);
    return with_context(Status(code, child.status.substr(1)), who);
  }
  if (WIFSIGNALED(wait_status)) {
    return absl::UnavailableError(absl::StrCat(who, " was killed by signal ", WTERMSIG(wait_status),
                                               " (", strsignal(WTERMSIG(wait_status)), ")"));
  }
  return absl::UnavailableError(absl::StrCat(who, " exited with code ", WEXITSTATUS(wait_status),
                                             " before its function returned"));
}

// Reads what has come from a child; true when it has closed its end.
bool read_report(Child& child) {
  char buffer[4096];
  const ssize_t count = read(child.report, buffer, sizeof buffer);
  if (count < 0) return errno != EINTR;
  child.status.append(buffer, static_cast<size_t>(count));
  return count == 0;
}

void signal_all(const std::vector<Child>& children, int signal) {
  for (const Child& child : children) {
    if (!child.done) kill(child.pid, signal);
  }
}

// Waits for all children; the first failure by time. After it the others are stopped.
Status wait_for_all(std::vector<Child>& children) {
  Status first;
  bool stopping = false;
  size_t num_done = 0;
  while (num_done < children.size()) {
    std::vector<pollfd> waiting;
    std::vector<size_t> index;
    for (size_t i = 0; i < children.size(); ++i) {
      if (children[i].done) continue;
      waiting.push_back({children[i].report, POLLIN, 0});
      index.push_back(i);
    }
    const int ready = poll(waiting.data(), waiting.size(), stopping ? kGraceMs : -1);
    if (ready == 0) signal_all(children, SIGKILL);
    for (size_t k = 0; k < waiting.size(); ++k) {
      if (waiting[k].revents == 0) continue;
      Child& child = children[index[k]];
      if (!read_report(child)) continue;
      int wait_status = 0;
      while (waitpid(child.pid, &wait_status, 0) < 0 && errno == EINTR) {
      }
      close(child.report);
      child.done = true;
      ++num_done;
      const Status status = outcome(static_cast<int>(index[k]), child, wait_status);
      if (status.ok() || stopping) continue;
      first = status;
      stopping = true;
      signal_all(children, SIGTERM);
    }
  }
  return first;
}

}  // namespace

Status spawn(int num_clients, absl::FunctionRef<Status(const Client& client)> fn,
             const ClientOptions& options) {
  if (num_clients < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("spawn of ", num_clients, " clients; give 1 or more"));
  }
  if (coordinator_service_was_used()) {
    return absl::FailedPreconditionError(
        "spawn forks, and gRPC already runs in this process; call it before Client::connect, or "
        "start the clients with tessera_run");
  }
  TESSERA_ASSIGN_OR_RETURN(const ReservedPort port, ReservedPort::create());
  ClientOptions client_options = options;
  client_options.coordinator = absl::StrCat("127.0.0.1:", port.port());
  client_options.num_clients = num_clients;
  client_options.token = random_token();
  const pid_t parent = getpid();
  std::fflush(nullptr);
  std::vector<Child> children(num_clients);
  Status failure;
  for (int i = 0; i < num_clients && failure.ok(); ++i) {
    int pipe_ends[2];
    if (pipe2(pipe_ends, O_CLOEXEC) != 0) {
      failure = absl::ResourceExhaustedError(absl::StrCat("spawn: pipe: ", std::strerror(errno)));
      break;
    }
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      close(pipe_ends[0]);
      for (const Child& sibling : children) {
        if (sibling.report >= 0) close(sibling.report);
      }
      client_options.client_id = i;
      child_main(pipe_ends[1], client_options, fn);
    }
    close(pipe_ends[1]);
    children[i] = {pid, pipe_ends[0], {}, pid < 0};
    if (pid < 0) {
      failure = absl::ResourceExhaustedError(absl::StrCat("spawn: fork: ", std::strerror(errno)));
    }
  }
  if (!failure.ok()) {
    std::erase_if(children, [](const Child& child) { return child.pid < 0; });
    signal_all(children, SIGKILL);
    wait_for_all(children).IgnoreError();
    return failure;
  }
  return wait_for_all(children);
}

}  // namespace tessera
