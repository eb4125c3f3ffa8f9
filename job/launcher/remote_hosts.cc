// SPDX-License-Identifier: Apache-2.0
#include "job/launcher/remote_hosts.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "job/environment/address.h"
#include "job/environment/file_descriptor.h"
#include "job/environment/host.h"

namespace tessera {
namespace {

// A pipe accepts as many bytes before it is read.
constexpr size_t kMostInputBytes = size_t{60} << 10;
// Below the ports that the kernel gives to connections.
constexpr int kFirstHostPort = 20000;
constexpr int kLastHostPort = 32767;
constexpr absl::string_view kEndOfEntry("\0", 1);

// One word of a shell.
std::string quote(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// Whether a variable goes to all hosts. The variables of one host or one process stay here.
bool is_for_all_hosts(absl::string_view entry) {
  for (const char* own :
       {"TESSERA_HOST_ID=", "TESSERA_STATUS_FD=", "TESSERA_TOKEN=", "TESSERA_COORDINATOR=",
        "TESSERA_HOSTED_COORDINATOR=", "TESSERA_COORDINATOR_RELAY="}) {
    if (absl::StartsWith(entry, own)) return false;
  }
  return absl::StartsWith(entry, "TESSERA_") || absl::StartsWith(entry, "UCX_") ||
         absl::StartsWith(entry, "NCCL_");
}

// Holds a port against other jobs that are started here, by a name that only one process can have:
// an abstract socket, which ends with its owner. Sets `port`. Closed: all are held.
FileDescriptor hold_port(int& port) {
  constexpr int kNumPorts = kLastHostPort - kFirstHostPort + 1;
  std::random_device random;
  const int first = std::uniform_int_distribution<int>(0, kNumPorts - 1)(random);
  for (int i = 0; i < kNumPorts; ++i) {
    port = kFirstHostPort + (first + i) % kNumPorts;
    FileDescriptor fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    const std::string name = absl::StrCat("tessera_run --hosts ", port);
    name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) == 0) return fd;
  }
  return FileDescriptor();
}

// "host-b" of "user@host-b".
absl::string_view name_of(absl::string_view host) {
  return host.substr(host.find('@') == absl::string_view::npos ? 0 : host.find('@') + 1);
}

}  // namespace

StatusOr<RemoteJob> RemoteJob::create(const LauncherOptions& options) {
  RemoteJob job;
  job.coordinator = options.coordinator;
  if (job.coordinator.empty()) {
    int port = 0;
    job.held_port = hold_port(port);
    if (!job.held_port.is_open()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("jobs that were started here hold all ports from ", kFirstHostPort, " to ",
                       kLastHostPort, "; give --coordinator HOST:PORT, with another port"));
    }
    job.coordinator = join_address(name_of(options.hosts[0]), port);
  }
  const char* const token = std::getenv("TESSERA_TOKEN");
  std::vector<std::string> entries = {
      absl::StrCat("TESSERA_TOKEN=", token == nullptr || *token == '\0' ? random_token() : token)};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (is_for_all_hosts(*entry)) entries.emplace_back(*entry);
  }
  for (const std::string& entry : entries) absl::StrAppend(&job.input, entry, kEndOfEntry);
  absl::StrAppend(&job.input, kEndOfEntry);
  if (job.input.size() <= kMostInputBytes) return job;
  return absl::ResourceExhaustedError(
      absl::StrCat("the variables TESSERA_*, UCX_* and NCCL_* have ", job.input.size(),
                   " bytes; tessera_run --hosts passes on at most ", kMostInputBytes));
}

std::vector<std::string> RemoteJob::command(const LauncherOptions& options, int node) const {
  std::error_code error;
  std::vector<std::string> words = {
      std::filesystem::read_symlink("/proc/self/exe", error).string(),
      "--from-launcher=true",
      absl::StrCat("--clients=", options.num_clients),
      absl::StrCat("--nodes=", options.hosts.size()),
      absl::StrCat("--node-id=", node),
      absl::StrCat("--coordinator=", coordinator),
      absl::StrCat("--grace=", absl::FormatDuration(options.grace)),
      absl::StrCat("--settle=", absl::FormatDuration(options.settle)),
      absl::StrCat("--relay-above=", options.relay_above),
  };
  if (options.devices_per_client.has_value()) {
    words.push_back(absl::StrCat("--devices-per-client=", *options.devices_per_client));
  }
  if (!options.log_dir.empty()) words.push_back(absl::StrCat("--log-dir=", options.log_dir));
  words.insert(words.end(), options.command.begin(), options.command.end());
  const std::string folder = std::filesystem::current_path(error).string();
  std::vector<std::string> command = absl::StrSplit(options.ssh, ' ', absl::SkipEmpty());
  command.push_back(options.hosts[node]);
  command.push_back(
      absl::StrCat("cd ", quote(folder), " && exec ",
                   absl::StrJoin(words, " ", [](std::string* text, const std::string& word) {
                     absl::StrAppend(text, quote(word));
                   })));
  return command;
}

Status take_environment(int fd) {
  for (std::string entry;; entry.clear()) {
    char byte = '\0';
    for (;;) {
      const ssize_t size = read(fd, &byte, 1);
      if (size < 0 && errno == EINTR) continue;
      if (size != 1) {
        return absl::InvalidArgumentError(
            "--from-launcher is for the tessera_run that tessera_run --hosts starts, and its "
            "standard input ended before the environment did");
      }
      if (byte == '\0') break;
      entry.push_back(byte);
    }
    if (entry.empty()) return absl::OkStatus();
    const size_t equals = entry.find('=');
    if (equals == std::string::npos) continue;
    setenv(entry.substr(0, equals).c_str(), entry.substr(equals + 1).c_str(), /*overwrite=*/1);
  }
}

}  // namespace tessera
