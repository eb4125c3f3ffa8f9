// SPDX-License-Identifier: Apache-2.0
//
// tessera_coordinator: the coordinator of one job as a program of its own, for jobs that other
// launchers start: the loss of any client, 0 included, leaves it running.
//
//   tessera_coordinator --port 4000 --clients 4
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/text.h"
#include "job/coordinator/coordinator_server.h"
#include "job/environment/address.h"
#include "job/environment/build.h"
#include "job/environment/host.h"
#include "job/environment/token_file.h"
#include "job/launcher/command_line.h"

ABSL_FLAG(int, port, 0, "Port to serve at, 1 to 65535. Required.");
ABSL_FLAG(int, clients, 0, "How many clients the job has. Required.");
ABSL_FLAG(std::string, host, "",
          "Address to serve at. By default 0.0.0.0, all of this host, with a token that you give;\n"
          "127.0.0.1 without one.");
ABSL_FLAG(
    std::string, token_file, "",
    "File whose first line is the job token; by default $TESSERA_TOKEN. With neither, one is\n"
    "made, which clients of this user on this host find by themselves.");

namespace tessera {
namespace {

constexpr int kUsageExitCode = 2;

constexpr char kUsage[] =
    R"(tessera_coordinator hosts the coordinator of one job until it is stopped by a signal.

  tessera_coordinator --port 4000 --clients 4 [--token-file FILE]

Start each client with TESSERA_COORDINATOR and TESSERA_HOSTED_COORDINATOR set to HOST:PORT of this
program, and with its token. The loss of any client, 0 included, leaves the others their job.
)";

constexpr FlagRow kFlags[] = {
    {"port", "P"},
    {"clients", "N"},
    {"host", "ADDRESS"},
    {"token-file", "FILE"},
};

Status refuse(absl::string_view flag, absl::string_view value, absl::string_view should_be) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, " is ", value, "; it should be ", should_be));
}

// The token that the user gives; empty if there is none.
StatusOr<std::string> given_token() {
  const std::string path = absl::GetFlag(FLAGS_token_file);
  if (path.empty()) {
    const char* const token = std::getenv("TESSERA_TOKEN");
    return std::string(token == nullptr ? "" : token);
  }
  std::ifstream file(path);
  std::string token;
  if (!std::getline(file, token) || token.empty()) {
    return refuse("token-file", in_quotes(path),
                  "a file that can be read, whose first line is the token");
  }
  return token;
}

// Serves until a signal asks for the end. The signals are blocked.
Status serve(const sigset_t& signals) {
  const int port = absl::GetFlag(FLAGS_port);
  const int num_clients = absl::GetFlag(FLAGS_clients);
  if (port < 1 || port > 65535) return refuse("port", absl::StrCat(port), "from 1 to 65535");
  if (num_clients < 1) return refuse("clients", absl::StrCat(num_clients), "at least 1");
  TESSERA_ASSIGN_OR_RETURN(std::string token, given_token());
  std::string host = absl::GetFlag(FLAGS_host);
  if (host.empty()) host = token.empty() ? "127.0.0.1" : "0.0.0.0";
  const std::string address = join_address(host, port);

  std::optional<TokenFile> file;
  if (token.empty()) {
    token = random_token();
    TESSERA_ASSIGN_OR_RETURN(TokenFile published, TokenFile::publish(address, token));
    file.emplace(std::move(published));
  }
  TESSERA_ASSIGN_OR_RETURN(
      const std::unique_ptr<CoordinatorServer> server,
      CoordinatorServer::start({.address = address, .token = token, .num_clients = num_clients}));
  std::fputs(absl::StrCat("tessera_coordinator: a job of ", num_clients, " clients at ", address,
                          file.has_value() ? ", for this user on this host\n" : "\n")
                 .c_str(),
             stdout);
  std::fflush(stdout);
  int signal = 0;
  sigwait(&signals, &signal);
  server->stop();
  return absl::OkStatus();
}

Status run(int argc, char** argv, const sigset_t& signals) {
  TESSERA_ASSIGN_OR_RETURN(const ParsedFlags parsed,
                           parse_flags(argc, argv, "see tessera_coordinator --help"));
  if (parsed.wants_help) {
    std::fputs(absl::StrCat(kUsage, "\n", flags_help(kFlags)).c_str(), stdout);
    return absl::OkStatus();
  }
  if (parsed.wants_version) {
    std::fputs(version_text("tessera_coordinator").c_str(), stdout);
    return absl::OkStatus();
  }
  if (parsed.program_index < argc) {
    return absl::InvalidArgumentError(absl::StrCat(
        in_quotes(argv[parsed.program_index]), " is not a flag; see tessera_coordinator --help"));
  }
  return serve(signals);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  // Before gRPC starts threads, which inherit it.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM}) sigaddset(&signals, signal);
  // Under nohup it is ignored, and would yet end the wait if it were blocked.
  struct sigaction on_hangup = {};
  sigaction(SIGHUP, nullptr, &on_hangup);
  if (on_hangup.sa_handler != SIG_IGN) sigaddset(&signals, SIGHUP);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  const tessera::Status status = tessera::run(argc, argv, signals);
  if (status.ok()) return 0;
  std::fprintf(stderr, "tessera_coordinator: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? tessera::kUsageExitCode : 1;
}
