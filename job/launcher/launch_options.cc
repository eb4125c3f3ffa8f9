// SPDX-License-Identifier: Apache-2.0
#include "job/launcher/launch_options.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <limits>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/text.h"
#include "job/environment/address.h"
#include "job/environment/launch_form.h"

namespace tessera {
namespace {

// Descriptors for a client that starts: its output, errors, status and end, and whether its
// program was found.
constexpr int64_t kDescriptorsOfClient = 5;

Status refuse(absl::string_view flag, absl::string_view value, absl::string_view should_be) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, " is ", value, "; it should be ", should_be));
}

Status refuse_coordinator(const std::string& address) {
  return refuse("coordinator", in_quotes(address), "HOST:PORT, as in host-a:4000");
}

Status check_duration(absl::string_view flag, absl::Duration value, bool may_be_zero) {
  if (value > absl::ZeroDuration() || (may_be_zero && value == absl::ZeroDuration())) {
    return absl::OkStatus();
  }
  return refuse(flag, absl::FormatDuration(value), "a positive time such as 90s or 10m");
}

Status check_hosts(const LauncherOptions& options) {
  const std::string all = in_quotes(absl::StrJoin(options.hosts, ","));
  for (const std::string& host : options.hosts) {
    if (host.empty() || host[0] == '-' || host.find_first_of(" \t") != std::string::npos) {
      return refuse("hosts", all, "names of hosts, as in host-a,host-b");
    }
  }
  if (options.num_nodes != 1 || options.node_id != 0 || options.is_from_launcher) {
    return refuse("hosts", all, "without --nodes and --node-id, which it gives to each host");
  }
  if (options.max_restarts > 0) {
    return refuse("max-restarts", absl::StrCat(options.max_restarts), "0 with --hosts");
  }
  if (absl::StripAsciiWhitespace(options.ssh).empty()) {
    return refuse("ssh", "empty", "a program that takes a host and a command, such as ssh");
  }
  if (options.coordinator.empty() || parse_address(options.coordinator).has_value()) {
    return absl::OkStatus();
  }
  return refuse_coordinator(options.coordinator);
}

Status check_nodes(const LauncherOptions& options) {
  if (!options.hosts.empty()) return check_hosts(options);
  if (options.num_nodes < 1) return refuse("nodes", absl::StrCat(options.num_nodes), "at least 1");
  if (options.node_id < 0 || options.node_id >= options.num_nodes) {
    return refuse(
        "node-id", absl::StrCat(options.node_id),
        absl::StrCat("from 0 to ", options.num_nodes - 1, " with --nodes ", options.num_nodes));
  }
  if (int64_t{options.num_clients} * options.num_nodes > kMostClients) {
    return refuse("nodes", absl::StrCat(options.num_nodes),
                  absl::StrCat("fewer with --clients ", options.num_clients, ": a job has at most ",
                               kMostClients, " clients"));
  }
  if (options.num_nodes > 1 && options.coordinator.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--coordinator is not given; with --nodes ", options.num_nodes,
        " it should be HOST:PORT of the host with --node-id 0, the same on every host"));
  }
  if (options.num_nodes > 1 && options.max_restarts > 0) {
    return refuse("max-restarts", absl::StrCat(options.max_restarts),
                  "0 with --nodes, because the launchers of the other hosts would not restart");
  }
  if (options.coordinator.empty() || parse_address(options.coordinator).has_value()) {
    return absl::OkStatus();
  }
  return refuse_coordinator(options.coordinator);
}

}  // namespace

Status check_limits(const LauncherOptions& options) {
  if (!options.hosts.empty()) return absl::OkStatus();
  const auto limit_of = [](auto resource) {
    rlimit limit = {};
    const bool is_known = getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    return is_known ? static_cast<int64_t>(limit.rlim_cur) : std::numeric_limits<int64_t>::max();
  };
  const auto refuse_number = [&](absl::string_view needs, int64_t limit, absl::string_view name) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "--clients is ", options.num_clients, ", for which ", needs, ", and the limit is ", limit,
        " (", name, "); start fewer clients on this host, or raise the limit"));
  };
  const int64_t num_clients = options.num_clients;
  const int64_t num_descriptors =
      num_clients * (kDescriptorsOfClient + (options.log_dir.empty() ? 0 : 1));
  const int64_t most_descriptors = limit_of(RLIMIT_NOFILE);
  if (num_descriptors > most_descriptors) {
    return refuse_number(absl::StrCat("tessera_run needs ", num_descriptors, " descriptors"),
                         most_descriptors, "ulimit -n");
  }
  // It does not hold for root.
  const int64_t most_processes = limit_of(RLIMIT_NPROC);
  if (geteuid() != 0 && num_clients > most_processes) {
    return refuse_number(absl::StrCat("the user needs ", num_clients, " processes"), most_processes,
                         "ulimit -u");
  }
  return absl::OkStatus();
}

Status check_coordinator_name(const LauncherOptions& options, absl::string_view route) {
  const std::optional<Address> address = parse_address(options.coordinator);
  if (options.num_nodes == 1 || options.node_id != 0 || !address.has_value()) {
    return absl::OkStatus();
  }
  const bool is_number = address->host.find(':') != std::string::npos ||
                         absl::ascii_isdigit(static_cast<unsigned char>(address->host.back()));
  const bool is_loopback = absl::StartsWith(route, "127.") || route == "::1";
  if (is_number || address->host == "localhost" || !is_loopback) return absl::OkStatus();
  return refuse("coordinator", options.coordinator,
                absl::StrCat("a name or an address that the other hosts reach: on this host ",
                             in_quotes(address->host), " leads to ", route,
                             ", so the coordinator would listen there alone; see /etc/hosts"));
}

Status LauncherOptions::validate() const {
  if (num_clients < 1) {
    return refuse("clients", absl::StrCat(num_clients),
                  "at least 1, as in tessera_run --clients 4 ./train");
  }
  if (num_clients > kMostClients) {
    return refuse("clients", absl::StrCat(num_clients), absl::StrCat("at most ", kMostClients));
  }
  if (devices_per_client.has_value() && *devices_per_client < 1) {
    return refuse("devices-per-client", absl::StrCat(*devices_per_client), "at least 1");
  }
  if (max_restarts < 0) return refuse("max-restarts", absl::StrCat(max_restarts), "at least 0");
  TESSERA_RETURN_IF_ERROR(check_duration("timeout", timeout, /*may_be_zero=*/false));
  TESSERA_RETURN_IF_ERROR(check_duration("grace", grace, /*may_be_zero=*/true));
  TESSERA_RETURN_IF_ERROR(check_duration("settle", settle, /*may_be_zero=*/true));
  TESSERA_RETURN_IF_ERROR(check_nodes(*this));
  if (command.empty() || command[0].empty()) {
    return absl::InvalidArgumentError(
        "no program is given; put it after the flags, as in tessera_run --clients 4 ./train");
  }
  return absl::OkStatus();
}

std::vector<std::string> ClientEnvironment::variables(const LauncherOptions& options) const {
  std::map<std::string, std::string> values;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) values[text.substr(0, equals)] = text.substr(equals + 1);
  }

  const int client_id = options.node_id * options.num_clients + local_index;
  const int num_clients = options.num_nodes * options.num_clients;
  // It comes from launch(), which has checked it.
  const Address master = parse_address(master_address).value_or(Address());
  values["TESSERA_COORDINATOR"] = coordinator;
  if (num_clients > 1) {
    values["TESSERA_HOSTED_COORDINATOR"] = coordinator;
  } else {
    values.erase("TESSERA_HOSTED_COORDINATOR");  // no coordinator is started
  }
  values.erase("TESSERA_COORDINATOR_RELAY");
  if (!relay.empty()) values["TESSERA_COORDINATOR_RELAY"] = relay;
  values["TESSERA_JOB"] = job;
  values["TESSERA_CLIENT_ID"] = absl::StrCat(client_id);
  values["TESSERA_NUM_CLIENTS"] = absl::StrCat(num_clients);
  values["TESSERA_TOKEN"] = token;
  values["TESSERA_RESTART"] = absl::StrCat(attempt);
  if (options.devices_per_client.has_value()) {
    values["TESSERA_LOCAL_DEVICES"] = absl::StrCat(*options.devices_per_client);
  }
  values["RANK"] = absl::StrCat(client_id);
  values["LOCAL_RANK"] = absl::StrCat(local_index);
  values["WORLD_SIZE"] = absl::StrCat(num_clients);
  values["LOCAL_WORLD_SIZE"] = absl::StrCat(options.num_clients);
  values["MASTER_ADDR"] = master.host;
  values["MASTER_PORT"] = absl::StrCat(master.port);

  std::vector<std::string> variables;
  for (const auto& [name, value] : values) variables.push_back(absl::StrCat(name, "=", value));
  return variables;
}

}  // namespace tessera
