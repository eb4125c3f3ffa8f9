// SPDX-License-Identifier: Apache-2.0
#include "job/launcher/check.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <ostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/machine.h"
#include "base/status.h"
#include "job/cluster/job_environment.h"
#include "job/coordinator/connect_coordinator.h"
#include "job/environment/address.h"
#include "job/environment/file_descriptor.h"
#include "job/environment/host.h"
#include "job/environment/interface.h"
#include "job/environment/job_token.h"

namespace tessera {
namespace {

constexpr absl::Duration kStepTime = absl::Seconds(60);  // until all clients have done the same
constexpr int kConnectMs = 10'000;
constexpr int64_t kLeastShmBytes = int64_t{128} << 20;
constexpr int64_t kLeastDescriptors = 1024;

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// The addresses of a host given as a number; null where it is no number.
Addresses look_up(const Address& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  const std::string port = absl::StrCat(address.port);
  if (getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found) != 0) found = nullptr;
  return {found, freeaddrinfo};
}

Status system_error(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// Listens at a free port of `host`, and sets `port`.
StatusOr<FileDescriptor> listen_at(const std::string& host, int& port) {
  const Addresses address = look_up({host, 0});
  if (address == nullptr) return absl::UnavailableError(absl::StrCat(host, " is not an address"));
  FileDescriptor fd(socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own = {};
  socklen_t size = sizeof own;
  if (!fd.is_open() || bind(fd.get(), address->ai_addr, address->ai_addrlen) != 0 ||
      listen(fd.get(), SOMAXCONN) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) {
    return system_error(absl::StrCat("cannot listen at ", host));
  }
  char text[NI_MAXSERV] = "";
  getnameinfo(reinterpret_cast<sockaddr*>(&own), size, nullptr, 0, text, sizeof text,
              NI_NUMERICSERV);
  port = std::atoi(text);
  return fd;
}

// Sends the byte to a listener, which may take the connection later.
Status send_byte(const std::string& to, char byte, FileDescriptor& connection) {
  const Addresses address = look_up(parse_address(to).value_or(Address()));
  if (address == nullptr) return absl::UnavailableError("that is not an address");
  FileDescriptor fd(socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.is_open()) return system_error("no socket");
  int error = 0;
  if (connect(fd.get(), address->ai_addr, address->ai_addrlen) != 0) error = errno;
  if (error == EINPROGRESS) {
    pollfd ready = {fd.get(), POLLOUT, 0};
    socklen_t size = sizeof error;
    error = ETIMEDOUT;
    if (poll(&ready, 1, kConnectMs) == 1) {
      getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
  }
  if (error != 0) return absl::UnavailableError(std::strerror(error));
  if (send(fd.get(), &byte, 1, MSG_NOSIGNAL) != 1) return system_error("cannot send");
  connection = std::move(fd);
  return absl::OkStatus();
}

// How many of `count` connections have come, each with its byte.
int receive_bytes(int listener, int count) {
  int received = 0;
  for (int i = 0; i < count; ++i) {
    pollfd ready = {listener, POLLIN, 0};
    if (poll(&ready, 1, kConnectMs) != 1) break;
    const FileDescriptor fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    char byte = 0;
    ready.fd = fd.get();
    if (poll(&ready, 1, kConnectMs) == 1 && read(fd.get(), &byte, 1) == 1) ++received;
  }
  return received;
}

// The message from this client to every other one. Adds to `findings`.
Status exchange(Coordinator& job, const std::string& address, std::vector<std::string>& findings,
                std::ostream& out) {
  int port = 0;
  TESSERA_ASSIGN_OR_RETURN(const FileDescriptor listener, listen_at(address, port));
  const auto place_of = [](int client) { return absl::StrCat("check/", client); };
  const auto reached_by = [](int client) { return absl::StrCat("check/", client, "/reached"); };
  const int self = job.client_id();
  TESSERA_RETURN_IF_ERROR(job.put(place_of(self), join_address(address, port)));
  std::vector<FileDescriptor> connections(job.num_clients());
  std::string reached(job.num_clients(), '0');  // '1' at the place of each client that is
  for (int other = 0; other < job.num_clients(); ++other) {
    if (other == self) continue;
    const std::string name = job.members()[other].to_string();
    TESSERA_ASSIGN_OR_RETURN(const std::string to,
                             job.get(place_of(other), other, steady_now() + kStepTime));
    const Status sent = send_byte(to, 'm', connections[other]);
    if (sent.ok()) {
      reached[other] = '1';
      out << "a message reached " << name << " at " << to << std::endl;
    } else {
      findings.push_back(
          absl::StrCat(job.members()[self].to_string(), " does not reach ", name, " at ", to,
                       " from ", address, ": ", sent.message(),
                       "; see the firewalls of both hosts, and set TESSERA_INTERFACE to "
                       "the network that joins them"));
    }
  }
  TESSERA_RETURN_IF_ERROR(job.put(reached_by(self), reached));
  MessagesHere here;
  for (int other = 0; other < job.num_clients(); ++other) {
    if (other == self) continue;
    TESSERA_ASSIGN_OR_RETURN(const std::string of_other,
                             job.get(reached_by(other), other, steady_now() + kStepTime));
    if (of_other[self] == '1') {
      ++here.num_sent;
    } else {
      here.silent.push_back(job.members()[other].to_string());
    }
  }
  here.num_received = receive_bytes(listener.get(), here.num_sent);
  out << here.num_received << " of " << job.num_clients() - 1 << " messages have come" << std::endl;
  for (std::string& finding : judge(here)) findings.push_back(std::move(finding));
  return absl::OkStatus();
}

// Checks the job as the client that the environment names. Returns the job, to be left.
StatusOr<std::unique_ptr<Coordinator>> check_job(const JobEnvironment& environment,
                                                 const std::vector<NetworkInterface>& interfaces,
                                                 std::vector<std::string>& findings,
                                                 std::ostream& out) {
  const absl::Time deadline = steady_now() + kStepTime;
  TESSERA_ASSIGN_OR_RETURN(const JobToken token, find_job_token(environment, deadline));
  MemberInfo self = describe_this_process();
  self.client_id = environment.client_id;
  self.num_local_devices = 1;
  self.device_type = "cpu";
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Coordinator> job,
                           connect_coordinator({.address = environment.coordinator,
                                                .service_host = environment.coordinator_is_hosted
                                                                    ? ServiceHost::kElsewhere
                                                                    : ServiceHost::kClient0,
                                                .token = token.text,
                                                .num_clients = environment.num_clients,
                                                .self = self,
                                                .connect_timeout = kStepTime,
                                                .job = environment.job}));
  const std::string route = job->local_address();
  TESSERA_ASSIGN_OR_RETURN(const NetworkInterface chosen,
                           choose_interface(asked_interface(), route, interfaces));
  out << "uses interface " << chosen.to_string() << std::endl;
  // Where the chosen interface is not the interface of the route, uses its first address.
  const bool is_of_route =
      std::find(chosen.addresses.begin(), chosen.addresses.end(), route) != chosen.addresses.end();
  TESSERA_RETURN_IF_ERROR(exchange(*job, is_of_route ? route : chosen.addresses[0], findings, out));
  return job;
}

// Empty where the library cannot be loaded.
std::string version_of_ucx() {
  void* const library = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return "";
  const auto version =
      reinterpret_cast<const char* (*)()>(dlsym(library, "ucp_get_version_string"));
  return version == nullptr ? "of unknown version" : version();
}

std::string version_of_nccl() {
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return "";
  const auto version = reinterpret_cast<int (*)(int*)>(dlsym(library, "ncclGetVersion"));
  int number = 0;  // 21803 for 2.18.3
  if (version == nullptr || version(&number) != 0) return "of unknown version";
  return absl::StrCat(number / 10000, ".", number / 100 % 100, ".", number % 100);
}

}  // namespace

HostFacts find_host_facts() {
  HostFacts facts;
  facts.num_cores = usable_cores();
  facts.memory_bytes = available_memory_bytes();
  struct statvfs shm = {};
  if (statvfs("/dev/shm", &shm) == 0) {
    facts.shm_bytes = static_cast<int64_t>(shm.f_bavail) * static_cast<int64_t>(shm.f_frsize);
  }
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    facts.num_descriptors = static_cast<int64_t>(limit.rlim_cur);
  }
  while (access(absl::StrCat("/dev/nvidia", facts.num_gpus).c_str(), F_OK) == 0) ++facts.num_gpus;
  facts.ucx_version = version_of_ucx();
  facts.nccl_version = version_of_nccl();
  facts.interfaces = list_interfaces();
  return facts;
}

std::string describe(const HostFacts& facts, absl::string_view host) {
  std::string text = absl::StrCat(
      "host ", host, ": ", facts.num_cores, " cores, ", facts.memory_bytes >> 20,
      " MiB of memory, ", facts.shm_bytes >> 20, " MiB of /dev/shm, ", facts.num_descriptors,
      " descriptors, ", facts.num_gpus, " GPUs\ntransports: shared memory inside the host");
  if (!facts.ucx_version.empty()) absl::StrAppend(&text, ", UCX ", facts.ucx_version);
  if (!facts.nccl_version.empty()) absl::StrAppend(&text, ", NCCL ", facts.nccl_version);
  absl::StrAppend(&text, "\n");
  if (facts.interfaces.ok()) {
    absl::StrAppend(&text, "interfaces: ", describe_interfaces(*facts.interfaces), "\n");
  }
  return text;
}

std::vector<std::string> judge(const HostFacts& facts, bool has_several_hosts) {
  std::vector<std::string> findings;
  // Clients share memory by descriptors, which takes no file system.
  if (facts.num_gpus > 1 && facts.shm_bytes < kLeastShmBytes) {
    findings.push_back(absl::StrCat("/dev/shm has ", facts.shm_bytes >> 20,
                                    " MiB free, too few for NCCL between ", facts.num_gpus,
                                    " GPUs; mount it larger"));
  }
  if (facts.num_descriptors < kLeastDescriptors) {
    findings.push_back(absl::StrCat("a process may have ", facts.num_descriptors,
                                    " descriptors, too few for many clients; raise `ulimit -n`"));
  }
  if (has_several_hosts && facts.ucx_version.empty()) {
    findings.emplace_back("libucp.so.0 cannot be loaded; install libucx0, which moves the bytes");
  }
  if (facts.num_gpus > 0 && facts.nccl_version.empty()) {
    findings.emplace_back("libnccl.so.2 cannot be loaded; several GPUs need it, install libnccl2");
  }
  if (!facts.interfaces.ok()) {
    findings.emplace_back(facts.interfaces.status().message());
  }
  return findings;
}

std::vector<std::string> judge(const MessagesHere& messages) {
  std::vector<std::string> findings;
  for (const std::string& client : messages.silent) {
    findings.push_back(absl::StrCat("no message from ", client, "; see what is found there"));
  }
  if (messages.num_received < messages.num_sent) {
    findings.push_back(absl::StrCat(
        messages.num_sent - messages.num_received, " of ", messages.num_sent,
        " messages were sent and did not come; a firewall between the hosts may answer for this "
        "one"));
  }
  return findings;
}

int check_host(std::ostream& out) {
  const HostFacts facts = find_host_facts();
  out << describe(facts, describe_this_process().host) << std::flush;
  const StatusOr<JobEnvironment> environment = read_job_environment({});
  const bool has_peers = environment.ok() && environment->num_clients > 1;
  std::vector<std::string> findings = judge(facts, has_peers);
  if (!environment.ok()) findings.emplace_back(environment.status().message());
  std::unique_ptr<Coordinator> job;
  if (has_peers && facts.interfaces.ok()) {
    StatusOr<std::unique_ptr<Coordinator>> checked =
        check_job(*environment, *facts.interfaces, findings, out);
    if (checked.ok()) job = std::move(*checked);
    if (!checked.ok()) findings.emplace_back(checked.status().message());
  }
  for (const std::string& finding : findings) out << "found: " << finding << std::endl;
  if (findings.empty()) out << "no finding" << std::endl;
  // The launcher stops a job whose first client exits with a finding: a client exits when all have
  // written theirs.
  if (job != nullptr) {
    const Status left = job->leave(steady_now() + kStepTime);
    if (!left.ok()) {
      out << "found: " << left.message() << std::endl;
      return 1;
    }
  }
  return findings.empty() ? 0 : 1;
}

}  // namespace tessera
