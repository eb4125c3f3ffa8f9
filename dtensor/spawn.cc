// SPDX-License-Identifier: Apache-2.0
#include "dtensor/spawn.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/exception_status.h"
#include "base/system_call.h"
#include "dtensor/client_hooks.h"
#include "job/coordinator/coordinator_server.h"
#include "job/environment/file_descriptor.h"
#include "job/environment/host.h"
#include "job/environment/port.h"
#include "job/launcher/coordinator_process.h"
#include "job/launcher/exit_status.h"
#include "job/launcher/process.h"

namespace tessera {
namespace {

// How long the other clients have to end by themselves once one has failed.
constexpr absl::Duration kGrace = absl::Seconds(2);

struct Child {
  Process process;
  pid_t pid = 0;
  FileDescriptor report;          // read end of the child's pipe, non-blocking
  std::string report_bytes = {};  // received so far: ReportHeader, message
  int64_t stopped_ns = 0;   // when this process asked it to end; 0: never, or it was ending already
  bool was_killed = false;  // this process sent it SIGKILL
  bool done = false;        // it has ended and was reaped, and
  ExitStatus exit = {};     // how
};

void write_all(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t count = write(fd, text.data() + done, text.size() - done);
    if (count < 0 && errno != EINTR) return;
    if (count > 0) done += static_cast<size_t>(count);
  }
}

// A child's report: this, then the message of its status.
struct ReportHeader {
  int64_t time_ns;  // steady_now()
  int32_t code;
};

// Ends the child. It reports before its client ends, so that the parent can read the failure before
// it can read the effects of the failure on the others.
[[noreturn]] void report_and_exit(int report, const Status& status) {
  const ReportHeader header = {absl::ToUnixNanos(steady_now()),
                               static_cast<int32_t>(status.code())};
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes.append(status.message().data(), status.message().size());
  write_all(report, bytes);
  std::fflush(nullptr);
  _exit(status.ok() ? 0 : 1);
}

// An exception that leaves the function is its error: in spawn() it would leave the child's copy.
Status call_function(absl::FunctionRef<Status(const Client&)> fn, const Client& client) {
  try {
    return fn(client);
  } catch (...) {
    return exception_status();
  }
}

[[noreturn]] void child_main(int report, const ClientOptions& options,
                             const internal::ClientHooks& hooks,
                             absl::FunctionRef<Status(const Client&)> fn) {
  StatusOr<Client> client = internal::connect(options, hooks);
  if (!client.ok()) report_and_exit(report, client.status());
  Status status = call_function(fn, *client);
  if (status.ok()) status = client->shutdown();
  report_and_exit(report, status);
}

// The header of the child's report; none before it reports, or if it died first.
std::optional<ReportHeader> header_of(const Child& child) {
  ReportHeader header;
  if (child.report_bytes.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, child.report_bytes.data(), sizeof header);
  return header;
}

// The result of a child that has ended, from its report and its exit status.
Status outcome(int client_id, const Child& child) {
  const std::string name = absl::StrCat("client ", client_id, " (pid ", child.pid, ")");
  if (const std::optional<ReportHeader> header = header_of(child)) {
    const auto code = static_cast<absl::StatusCode>(header->code);
    return with_context(Status(code, child.report_bytes.substr(sizeof(ReportHeader))), name);
  }
  const bool by_signal = child.exit.signal != 0;
  return absl::UnavailableError(absl::StrCat(name, " ", child.exit.to_string(),
                                             by_signal ? "" : " before its function returned"));
}

// Reads the bytes that a child has written.
void read_report(Child& child) {
  char buffer[4096];
  while (child.report.is_open()) {
    const ssize_t count = read(child.report.get(), buffer, sizeof buffer);
    if (count > 0) child.report_bytes.append(buffer, static_cast<size_t>(count));
    if (count > 0 || (count < 0 && errno == EINTR)) continue;
    if (count < 0 && errno == EAGAIN) return;
    child.report.close();
  }
}

// Reads the last output of a child that has ended. A process that it left behind may still hold the
// other end of its pipe, so the end of the pipe is not waited for.
void reap(Child& child) {
  read_report(child);
  child.report.close();
  child.exit = child.process.reap();
  child.done = true;
}

// Reads from every child that reports before `deadline`, and reaps ended children. False at the
// deadline; a signal that interrupts the wait does not end it.
bool read_reports(std::vector<Child>& children, absl::Time deadline) {
  std::vector<pollfd> waiting;
  std::vector<Child*> reporting;
  for (Child& child : children) {
    if (child.done) continue;
    waiting.push_back({child.process.pidfd(), POLLIN, 0});
    waiting.push_back({child.report.get(), POLLIN, 0});
    reporting.push_back(&child);
  }
  int ready;
  do {
    ready = poll(waiting.data(), waiting.size(), poll_timeout_ms(deadline - steady_now()));
  } while (ready <= 0 && steady_now() < deadline);
  for (size_t k = 0; k < reporting.size() && ready > 0; ++k) {
    if (waiting[2 * k].revents != 0) {
      reap(*reporting[k]);
    } else if (waiting[2 * k + 1].revents != 0) {
      read_report(*reporting[k]);
    }
  }
  return ready > 0;
}

// How likely a child is the root cause, the likeliest first: it died without a report, for what
// that does to others comes later; it reported an error of its own; it reported the loss of a peer.
// None: it did not fail, or this process stopped it, or it has not ended yet.
std::optional<std::pair<int, int64_t>> rank(const Child& child) {
  const std::optional<ReportHeader> header = header_of(child);
  if (!header.has_value()) {
    // A SIGKILL of another sender, the kernel's for memory say, struck as it was asked to end.
    const bool is_own_death = child.exit.signal == SIGKILL && !child.was_killed;
    if (!child.done || (child.stopped_ns != 0 && !is_own_death)) return std::nullopt;
    return std::make_pair(0, int64_t{0});
  }
  const bool is_consequence = child.stopped_ns != 0 && header->time_ns >= child.stopped_ns;
  if (header->code == 0 || is_consequence) return std::nullopt;
  const bool lost_a_peer =
      static_cast<absl::StatusCode>(header->code) == absl::StatusCode::kUnavailable;
  return std::make_pair(lost_a_peer ? 2 : 1, header->time_ns);
}

std::optional<size_t> likeliest_cause(const std::vector<Child>& children) {
  std::optional<size_t> first;
  for (size_t i = 0; i < children.size(); ++i) {
    if (!rank(children[i]).has_value()) continue;
    if (!first.has_value() || *rank(children[i]) < *rank(children[*first])) first = i;
  }
  return first;
}

// Asks the children that have not reported to end. A child that the kernel is already ending does
// not count as stopped by this.
void stop_others(std::vector<Child>& children) {
  for (Child& child : children) {
    if (child.done || header_of(child).has_value()) continue;
    if (!child.process.is_ending()) child.stopped_ns = absl::ToUnixNanos(steady_now());
    child.process.kill(SIGTERM);
  }
}

void kill_all(std::vector<Child>& children) {
  for (Child& child : children) {
    if (child.done) continue;
    child.was_killed = true;
    child.process.kill(SIGKILL);
  }
}

// Waits for all children. After the first failure the others are stopped. The result is judged when
// all have ended: the kernel tells the peers of a child of its death before it has freed its
// memory, so that a survivor may report before this process can see that death.
Status wait_for_all(std::vector<Child>& children) {
  absl::Time kill_time = absl::InfiniteFuture();
  bool is_stopping = false;
  const auto is_done = [](const Child& child) { return child.done; };
  while (!std::all_of(children.begin(), children.end(), is_done)) {
    if (!read_reports(children, kill_time)) {
      kill_all(children);
      kill_time = absl::InfiniteFuture();
    }
    if (is_stopping || !likeliest_cause(children).has_value()) continue;
    stop_others(children);
    kill_time = steady_now() + kGrace;
    is_stopping = true;
  }
  const std::optional<size_t> failed = likeliest_cause(children);
  return failed.has_value() ? outcome(static_cast<int>(*failed), children[*failed])
                            : absl::OkStatus();
}

// Forks one more client, which runs `main` with the pipe to report to; it does not return.
Status start_child(std::vector<Child>& children, absl::FunctionRef<void(int report)> main) {
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) return no_resource("a pipe");
  FileDescriptor read_end(pipe_ends[0]);
  const FileDescriptor write_end(pipe_ends[1]);
  const auto body = [&] {
    read_end.close();
    children.clear();  // closes the pipes of the clients before this one
    main(write_end.get());
  };
  TESSERA_ASSIGN_OR_RETURN(Process process, Process::start(body));
  fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
  const pid_t pid = process.pid();
  children.push_back({.process = std::move(process), .pid = pid, .report = std::move(read_end)});
  // The kernel has reaped it already, as it does while SIGCHLD is ignored.
  if (pid == 0) reap(children.back());
  return absl::OkStatus();
}

}  // namespace

Status spawn(int num_clients, absl::FunctionRef<Status(const Client& client)> fn,
             const ClientOptions& options) {
  return internal::spawn(num_clients, fn, options, {});
}

namespace internal {

Status spawn(int num_clients, absl::FunctionRef<Status(const Client& client)> fn,
             const ClientOptions& options, const ClientHooks& hooks) {
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
  client_options.coordinator_is_hosted = num_clients > 1;
  std::fflush(nullptr);
  std::optional<CoordinatorProcess> coordinator;
  if (num_clients > 1) {
    TESSERA_ASSIGN_OR_RETURN(CoordinatorProcess started,
                             CoordinatorProcess::start({.address = client_options.coordinator,
                                                        .token = client_options.token,
                                                        .num_clients = num_clients},
                                                       ProcessGroup::kOfCaller));
    coordinator.emplace(std::move(started));
  }
  std::vector<Child> children;
  Status failure;
  for (int i = 0; i < num_clients && failure.ok(); ++i) {
    client_options.client_id = i;
    failure =
        start_child(children, [&](int report) { child_main(report, client_options, hooks, fn); });
  }
  if (!failure.ok()) {
    kill_all(children);
    wait_for_all(children).IgnoreError();
    return failure;
  }
  return wait_for_all(children);
}

}  // namespace internal
Status run_client(absl::FunctionRef<Status(const Client&)> fn, const ClientOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect(options));
  TESSERA_RETURN_IF_ERROR(call_function(fn, client));
  return client.shutdown();
}

}  // namespace tessera
