// SPDX-License-Identifier: Apache-2.0
//
// tessera_run: the command that starts a job. Flags, help and exit codes; launcher.h does the work.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "base/status.h"
#include "base/text.h"
#include "job/environment/build.h"
#include "job/launcher/check.h"
#include "job/launcher/command_line.h"
#include "job/launcher/launcher.h"
#include "job/launcher/remote_hosts.h"

ABSL_FLAG(int, clients, 0, "How many clients to start on this host. Required.");
ABSL_FLAG(absl::optional<int>, devices_per_client, absl::nullopt,
          "Devices of each client (TESSERA_LOCAL_DEVICES).");
ABSL_FLAG(absl::Duration, timeout, absl::InfiniteDuration(),
          "Stop the job after this time, as in 90s, 10m or 1h30m, and name the clients\n"
          "that had not exited.");
ABSL_FLAG(int, max_restarts, 0,
          "When a client fails, stop all and start all again with the same ids, at most\n"
          "this many times. TESSERA_RESTART holds the count.");
ABSL_FLAG(std::string, log_dir, "", "Also write the output of client K to DIR/client_K.log.");
ABSL_FLAG(absl::Duration, grace, absl::Seconds(5),
          "From the request to stop (SIGTERM, or the signal received) to SIGKILL.");
ABSL_FLAG(absl::Duration, settle, absl::Milliseconds(250),
          "From the first failure to the request to stop: time in which other clients may\n"
          "still fail by themselves, and are then reported too.");
ABSL_FLAG(int, nodes, 1,
          "How many hosts run a tessera_run of this job. Client ids go on from host to host.\n"
          "Needs --coordinator and TESSERA_TOKEN, the same on every host.");
ABSL_FLAG(int, node_id, 0, "Which of them this one is, from 0.");
ABSL_FLAG(std::string, coordinator, "",
          "Address of the coordinator, which tessera_run hosts (with --nodes, that of node 0).\n"
          "By default a free port of 127.0.0.1.");
ABSL_FLAG(std::string, hosts, "",
          "Start --clients on each of these hosts, as in host-a,user@host-b, over ssh. Program\n"
          "and folder are those of here; TESSERA_*, UCX_* and NCCL_* variables are passed on.");
ABSL_FLAG(std::string, ssh, "",
          "What starts a command on a host, for --hosts. By default TESSERA_SSH, or\n"
          "ssh -o BatchMode=yes.");
ABSL_FLAG(bool, check, false,
          "Without a program: say what a job would find on this host, or on those of --hosts, and\n"
          "send a message between every two of them.");
ABSL_FLAG(int, relay_above, 1000,
          "Of a job of more clients, all nodes but node 0 reach the coordinator by a relay.");
ABSL_FLAG(bool, from_launcher, false, "Of the tessera_run that --hosts starts.");

namespace tessera {
namespace {

constexpr int kUsageExitCode = 2;

constexpr FlagRow kFlags[] = {
    {"clients", "N"},    {"devices-per-client", "D"},
    {"timeout", "TIME"}, {"max-restarts", "R"},
    {"log-dir", "DIR"},  {"grace", "TIME"},
    {"settle", "TIME"},  {"nodes", "M"},
    {"node-id", "K"},    {"coordinator", "HOST:PORT"},
    {"hosts", "A,B"},    {"ssh", "COMMAND"},
    {"check", ""},
};

constexpr char kHint[] =
    "see tessera_run --help, and put the flags of the program after the program";

constexpr char kUsage[] =
    R"(tessera_run starts the clients of a job on this host and ends them together.

  tessera_run --clients N [flags] program [arguments of the program]

  tessera_run --clients 4 --devices-per-client 2 --timeout 10m ./train --epochs 3
  tessera_run --clients 4 --hosts host-a,host-b ./train --epochs 3
  tessera_run --check --hosts host-a,host-b

Flags come before the program; what follows it is the program's own.
)";

constexpr char kUsageEnd[] = R"(
Each line of output is written whole, after "[client K] ". Standard input is empty.
When a client fails the others are stopped; the report says which failed, how, when, and its
last lines. SIGINT, SIGTERM, SIGQUIT and SIGHUP are passed on; a second one kills at once.

The coordinator of the job runs beside the clients: it outlives the loss of any of them.

Each client finds TESSERA_COORDINATOR, TESSERA_CLIENT_ID, TESSERA_NUM_CLIENTS, TESSERA_TOKEN,
TESSERA_RESTART, and for other libraries RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE,
MASTER_ADDR, MASTER_PORT.

Exit code: 0, or that of the first failure (128 + signal if a signal ended it); 124 after the
timeout; 128 + signal when stopped by a signal; 2 for bad flags; 126 if the program cannot be
executed; 127 if there is no such program.
)";

LauncherOptions options_from_flags(char** command, int size) {
  LauncherOptions options;
  options.num_clients = absl::GetFlag(FLAGS_clients);
  if (const absl::optional<int> devices = absl::GetFlag(FLAGS_devices_per_client)) {
    options.devices_per_client = *devices;
  }
  options.timeout = absl::GetFlag(FLAGS_timeout);
  options.grace = absl::GetFlag(FLAGS_grace);
  options.settle = absl::GetFlag(FLAGS_settle);
  options.max_restarts = absl::GetFlag(FLAGS_max_restarts);
  options.log_dir = absl::GetFlag(FLAGS_log_dir);
  options.num_nodes = absl::GetFlag(FLAGS_nodes);
  options.node_id = absl::GetFlag(FLAGS_node_id);
  options.coordinator = absl::GetFlag(FLAGS_coordinator);
  options.hosts = absl::StrSplit(absl::GetFlag(FLAGS_hosts), ',');
  if (absl::GetFlag(FLAGS_hosts).empty()) options.hosts.clear();
  const char* const ssh = std::getenv("TESSERA_SSH");
  if (ssh != nullptr && *ssh != '\0') options.ssh = ssh;
  if (!absl::GetFlag(FLAGS_ssh).empty()) options.ssh = absl::GetFlag(FLAGS_ssh);
  options.relay_above = absl::GetFlag(FLAGS_relay_above);
  options.is_from_launcher = absl::GetFlag(FLAGS_from_launcher);
  options.command.assign(command, command + size);
  return options;
}

int exit_code_of(const Status& error) {
  switch (error.code()) {
    case absl::StatusCode::kInvalidArgument:
      return kUsageExitCode;
    case absl::StatusCode::kNotFound:
      return 127;
    case absl::StatusCode::kFailedPrecondition:
      return 126;
    default:
      return 1;
  }
}

StatusOr<int> run(int argc, char** argv) {
  TESSERA_ASSIGN_OR_RETURN(const ParsedFlags parsed, parse_flags(argc, argv, kHint));
  if (parsed.wants_help) {
    std::fputs(absl::StrCat(kUsage, "\n", flags_help(kFlags), kUsageEnd).c_str(), stdout);
    return 0;
  }
  if (parsed.wants_version) {
    std::fputs(version_text("tessera_run").c_str(), stdout);
    return 0;
  }
  LauncherOptions options =
      options_from_flags(argv + parsed.program_index, argc - parsed.program_index);
  if (absl::GetFlag(FLAGS_check)) {
    if (options.hosts.empty()) return check_host(std::cout);  // NOTIDY(banned): line by line
    // A job of one client for each host, which checks it.
    options.num_clients = 1;
    std::error_code error;
    options.command = {std::filesystem::read_symlink("/proc/self/exe", error).string(), "--check"};
  }
  if (options.num_clients == 0) {
    for (const std::string& argument : options.command) {
      if (argument != "--clients" && !absl::StartsWith(argument, "--clients=")) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("--clients comes after the program ", tessera::in_quotes(options.command[0]),
                       " and so belongs to it; put it before, as in tessera_run --clients 4 ",
                       options.command[0]));
    }
  }
  if (options.is_from_launcher) TESSERA_RETURN_IF_ERROR(take_environment(STDIN_FILENO));
  return launch(options);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const tessera::StatusOr<int> code = tessera::run(argc, argv);
  if (code.ok()) return *code;
  std::fprintf(stderr, "tessera_run: %s\n", std::string(code.status().message()).c_str());
  return tessera::exit_code_of(code.status());
}
