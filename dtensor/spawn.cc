// SPDX-License-Identifier: Apache-2.0
#include "dtensor/spawn.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
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
  int report = -1;           // read end of what the child has to say
  std::string report_bytes;  // what has come: ReportHeader, message
  bool done = false;         // it has ended, and
  int wait_status = 0;       // how
};

void write_all(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t count = write(fd, text.data() + done, text.size() - done);
    if (count < 0 && errno != EINTR) return;
    if (count > 0) done += static_cast<size_t>(count);
  }
}

// What a child writes: this, then the message of its status.
struct ReportHeader {
  int64_t time_ns;  // CLOCK_MONOTONIC
  int32_t code;
};

// Ends the child. It reports before its client goes, so that the parent can read of a failure
// before it can read of what the failure does to the others.
[[noreturn]] void report_and_exit(int report, const Status& status) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  const ReportHeader header = {now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec,
                               static_cast<int32_t>(status.code())};
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes.append(status.message().data(), status.message().size());
  write_all(report, bytes);
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

// What the child reported; none as long as it has not, or if it died first.
std::optional<ReportHeader> header_of(const Child& child) {
  ReportHeader header;
  if (child.report_bytes.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, child.report_bytes.data(), sizeof header);
  return header;
}

// The result of a child that has ended, from what it reported and how it ended.
Status outcome(int client_id, const Child& child) {
  const std::string who = absl::StrCat("client ", client_id, " (pid ", child.pid, ")");
  if (const std::optional<ReportHeader> header = header_of(child)) {
    const auto code = static_cast<absl::StatusCode>(header->code);
    return with_context(Status(code, child.report_bytes.substr(sizeof(ReportHeader))), who);
  }
  if (WIFSIGNALED(child.wait_status)) {
    const int signal = WTERMSIG(child.wait_status);
    return absl::UnavailableError(
        absl::StrCat(who, " was killed by signal ", signal, " (", strsignal(signal), ")"));
  }
  return absl::UnavailableError(absl::StrCat(
      who, " exited with code ", WEXITSTATUS(child.wait_status), " before its function returned"));
}

// Reads what has come from a child, and reaps it when it has closed its end.
void read_report(Child& child) {
  char buffer[4096];
  const ssize_t count = read(child.report, buffer, sizeof buffer);
  if (count < 0 && errno == EINTR) return;
  if (count > 0) {
    child.report_bytes.append(buffer, static_cast<size_t>(count));
    return;
  }
  while (waitpid(child.pid, &child.wait_status, 0) < 0 && errno == EINTR) {
  }
  close(child.report);
  child.done = true;
}

// Reads from every child that has something to say within `timeout_ms` (-1: for ever). False if
// none had.
bool read_reports(std::vector<Child>& children, int timeout_ms) {
  std::vector<pollfd> waiting;
  std::vector<Child*> reporting;
  for (Child& child : children) {
    if (child.done) continue;
    waiting.push_back({child.report, POLLIN, 0});
    reporting.push_back(&child);
  }
  if (poll(waiting.data(), waiting.size(), timeout_ms) <= 0) return false;
  for (size_t k = 0; k < waiting.size(); ++k) {
    if (waiting[k].revents != 0) read_report(*reporting[k]);
  }
  return true;
}

// The failure that came first: a child that died without a word, for what that does to others
// comes later; else the earliest report.
std::optional<size_t> first_failure(const std::vector<Child>& children) {
  std::optional<size_t> first;
  int64_t earliest = 0;
  for (size_t i = 0; i < children.size(); ++i) {
    const std::optional<ReportHeader> header = header_of(children[i]);
    if (!header.has_value() && children[i].done) return i;
    if (!header.has_value() || header->code == 0) continue;
    if (first.has_value() && earliest <= header->time_ns) continue;
    first = i;
    earliest = header->time_ns;
  }
  return first;
}

void signal_all(const std::vector<Child>& children, int signal) {
  for (const Child& child : children) {
    if (!child.done) kill(child.pid, signal);
  }
}

// Waits for all children; the first failure by time. After it the others are stopped.
Status wait_for_all(std::vector<Child>& children) {
  std::optional<size_t> failed;
  const auto is_done = [](const Child& child) { return child.done; };
  while (!std::all_of(children.begin(), children.end(), is_done)) {
    const bool any = read_reports(children, failed.has_value() ? kGraceMs : -1);
    if (!any && failed.has_value()) signal_all(children, SIGKILL);
    if (failed.has_value() || !first_failure(children).has_value()) continue;
    // Whatever caused this failure can be read by now: look once more before judging.
    while (read_reports(children, 0)) {
    }
    failed = first_failure(children);
    for (const Child& child : children) {
      if (!child.done && !header_of(child).has_value()) kill(child.pid, SIGTERM);
    }
  }
  return failed.has_value() ? outcome(static_cast<int>(*failed), children[*failed])
                            : absl::OkStatus();
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
    children[i].pid = pid;
    children[i].report = pipe_ends[0];
    children[i].done = pid < 0;
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
