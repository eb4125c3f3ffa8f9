// SPDX-License-Identifier: Apache-2.0
#include "tests/hosts/hosts.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "dtensor/client_hooks.h"
#include "job/coordinator/coordinator_server.h"
#include "job/environment/host.h"
#include "tests/support/forked.h"
#include "tests/support/gate.h"

namespace tessera::testing {
namespace {

constexpr char kMakeHosts[] = "tests/hosts/make_hosts";
constexpr char kInHost[] = "tests/hosts/in_host";
constexpr int kCannotBeMade = 77;
// The command that make_hosts runs: it prints one line, with the hosts.
constexpr char kTellHosts[] = "echo \"$TESSERA_TEST_HOSTS.\"; exec sleep infinity";
constexpr absl::string_view kEndOfHosts = " .\n";
// make_hosts needs half a second on an idle machine.
constexpr absl::Duration kMostSetUp = absl::Seconds(120);

constexpr int kPort = 4000;  // all of them are free in new namespaces

struct Child {
  pid_t pid;
  FileDescriptor output;  // standard output and error
};

// Starts `command`, after `prepare` in the child. It dies with the calling thread.
StatusOr<Child> start(const std::vector<std::string>& command,
                      const std::function<Status()>& prepare) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "no pipe");
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    std::vector<char*> pointers;
    for (const std::string& word : command) pointers.push_back(const_cast<char*>(word.c_str()));
    pointers.push_back(nullptr);
    const Status prepared = prepare();
    if (!prepared.ok()) dprintf(STDERR_FILENO, "%s\n", prepared.ToString().c_str());
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (prepared.ok()) execv(pointers[0], pointers.data());
    dprintf(STDERR_FILENO, "%s cannot be run\n", pointers[0]);
    _exit(126);
  }
  close(ends[1]);
  if (pid < 0) return absl::ErrnoToStatus(errno, "no process");
  return Child{pid, FileDescriptor(ends[0])};
}

// The output of a child, up to this text or its end.
std::string read_output(int file, std::optional<absl::string_view> last = std::nullopt) {
  const absl::Time deadline = steady_now() + kMostSetUp;
  std::string text;
  while (!last.has_value() || !absl::StrContains(text, *last)) {
    pollfd ready = {file, POLLIN, 0};
    const auto left_ms = absl::ToInt64Milliseconds(deadline - steady_now());
    if (left_ms <= 0 || poll(&ready, 1, static_cast<int>(left_ms)) <= 0) break;
    char bytes[4096];
    const ssize_t size = read(file, bytes, sizeof bytes);
    if (size <= 0) break;
    text.append(bytes, static_cast<size_t>(size));
  }
  return text;
}

// OK where the child ends with 0.
Status wait_for(pid_t pid, const std::string& output) {
  int status = 0;
  waitpid(pid, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  const std::string text(absl::StripAsciiWhitespace(output));
  if (WIFEXITED(status) && WEXITSTATUS(status) == kCannotBeMade) {
    return absl::FailedPreconditionError(text);
  }
  return absl::InternalError(absl::StrCat("wait status ", status, ": ", text));
}

// The namespace of that kind, "net", of a process.
std::string path_of(absl::string_view pid, absl::string_view kind) {
  return absl::StrCat("/proc/", pid, "/ns/", kind);
}

bool is_own(const std::string& path, absl::string_view kind) {
  struct stat its = {};
  struct stat own = {};
  return stat(path.c_str(), &its) == 0 && stat(path_of("self", kind).c_str(), &own) == 0 &&
         its.st_ino == own.st_ino;
}

// The namespaces of a process that differ from the namespaces of this one.
StatusOr<std::vector<FileDescriptor>> open_namespaces(absl::string_view pid,
                                                      const std::vector<std::string>& kinds) {
  std::vector<FileDescriptor> result;
  for (const std::string& kind : kinds) {
    const std::string path = path_of(pid, kind);
    if (is_own(path, kind)) continue;
    result.emplace_back(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!result.back().is_open()) return absl::ErrnoToStatus(errno, path);
  }
  return result;
}

StatusOr<int64_t> counter(const char* name) {
  const std::string path = absl::StrCat("/sys/class/net/eth0/statistics/", name);
  int64_t value = 0;
  std::ifstream file(path);
  if (!(file >> value)) return absl::NotFoundError(path);
  return value;
}

}  // namespace

StatusOr<Hosts> Hosts::make(int num_hosts, const std::string& rate) {
  std::vector<std::string> command = {kMakeHosts, absl::StrCat(num_hosts)};
  if (!rate.empty()) command.insert(command.end(), {"--rate", rate});
  command.insert(command.end(), {"--", "sh", "-c", kTellHosts});
  TESSERA_ASSIGN_OR_RETURN(Child child, start(command, [] { return absl::OkStatus(); }));
  Hosts hosts(child.pid);
  hosts.output_ = std::move(child.output);
  const std::string output = read_output(hosts.output_.get(), kEndOfHosts);
  if (!absl::EndsWith(output, kEndOfHosts)) {
    const pid_t pid = std::exchange(hosts.maker_.pid, 0);
    ::kill(pid, SIGTERM);
    return wait_for(pid, output);
  }
  const absl::string_view told = absl::StripSuffix(output, kEndOfHosts);
  hosts.text_ = std::string(told.substr(told.rfind('\n') + 1));
  TESSERA_RETURN_IF_ERROR(hosts.read_places());
  return hosts;
}

Hosts::~Hosts() {
  if (maker_.pid == 0) return;
  ::kill(maker_.pid, SIGTERM);
  waitpid(maker_.pid, nullptr, 0);
}

Status Hosts::read_places() {
  for (const absl::string_view place : absl::StrSplit(text_, ' ')) {
    const std::string pid(place.substr(0, place.find(':')));
    // Entering the last one changes the permissions of this process for the others.
    if (login_.empty()) {
      TESSERA_ASSIGN_OR_RETURN(user_, open_namespaces(pid, {"user"}));
      TESSERA_ASSIGN_OR_RETURN(login_, open_namespaces(pid, {"user", "net"}));
      continue;
    }
    TESSERA_ASSIGN_OR_RETURN(Namespaces host,
                             open_namespaces(pid, {"user", "net", "ipc", "uts", "pid", "mnt"}));
    hosts_.push_back(std::move(host));
  }
  return absl::OkStatus();
}

Status Hosts::move_to(const Namespaces& place) {
  for (const FileDescriptor& space : place) {
    if (setns(space.get(), 0) != 0) return absl::ErrnoToStatus(errno, "setns");
  }
  return absl::OkStatus();
}

Status Hosts::in_host(int host, const std::vector<std::string>& command) const {
  std::vector<std::string> words = {kInHost, absl::StrCat(host)};
  words.insert(words.end(), command.begin(), command.end());
  TESSERA_ASSIGN_OR_RETURN(const Child child, start(words, [this] {
                             setenv("TESSERA_TEST_HOSTS", text_.c_str(), /*overwrite=*/1);
                             return move_to(user_);
                           }));
  return wait_for(child.pid, read_output(child.output.get(), "no such line"));
}

Status Hosts::set_apart(bool are_apart) const {
  for (int host = 0; host < size(); ++host) {
    TESSERA_RETURN_IF_ERROR(in_host(host, {"--apart", are_apart ? "on" : "off"}));
  }
  return absl::OkStatus();
}

std::vector<pid_t> Hosts::holders() const {
  std::vector<pid_t> result = {maker_.pid};
  for (const absl::string_view place : absl::StrSplit(text_, ' ')) {
    result.push_back(std::atoi(std::string(place).c_str()));
  }
  return result;
}

StatusOr<int64_t> sent_bytes() { return counter("tx_bytes"); }
StatusOr<int64_t> received_bytes() { return counter("rx_bytes"); }

std::vector<Status> run_on_hosts(const Hosts& hosts, const HostsJob& job, const ClientBody& body) {
  std::vector<int> host_of_client;
  for (size_t host = 0; host < job.clients_per_host.size(); ++host) {
    host_of_client.insert(host_of_client.end(), job.clients_per_host[host], static_cast<int>(host));
  }
  const int num_clients = static_cast<int>(host_of_client.size());
  ClientOptions options = job.options;
  options.coordinator =
      absl::StrCat(job.coordinator_is_hosted ? "10.77.0.254" : "10.77.0.1", ":", kPort);
  options.coordinator_is_hosted = job.coordinator_is_hosted;
  options.num_clients = num_clients;
  options.num_local_devices = job.devices_per_client;
  options.token = random_token();
  // A host that is killed takes the client's process along, and not the process that opens this.
  Gate ended;

  const auto serve = [&]() -> Status {
    if (!job.coordinator_is_hosted) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(hosts.enter_login());
    TESSERA_ASSIGN_OR_RETURN(
        const std::unique_ptr<CoordinatorServer> server,
        CoordinatorServer::start(
            {.address = options.coordinator, .token = options.token, .num_clients = num_clients}));
    for (int i = 0; i < num_clients;) i += ended.wait().ok() ? 1 : 0;
    server->stop();
    return absl::OkStatus();
  };
  const auto run_client = [&](int id) -> Status {
    TESSERA_RETURN_IF_ERROR(hosts.enter(host_of_client[id]));
    return run_isolated(job.deadline, [&]() -> Status {
      options.client_id = id;
      TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect(options));
      return body(client);
    });
  };
  // Beyond its own deadline a client has said so.
  std::vector<Status> result =
      run_forked(num_clients + 2, job.deadline + absl::Seconds(10), [&](int i) -> Status {
        if (i == num_clients) return job.outside();
        if (i > num_clients) return serve();
        const Status status = run_client(i);
        ended.open();
        return status;
      });
  result[num_clients].Update(result.back());
  result.pop_back();
  return result;
}

}  // namespace tessera::testing
