// SPDX-License-Identifier: Apache-2.0
//
// The cost of a closure, and the rate of pulls and pushes of variables: a chief, two workers and
// two parameter servers, all processes of this host.
//
//   parameter_servers [SECONDS]                      of each row; 2
//
// - A round trip is schedule() and await() of one closure, with no other work; the median is
//   printed.
// - A rate is measured over many closures, from the first schedule() to the end of join().
// - A pull or a push moves one f32 variable with a shard on each parameter server. Its rate is the
//   bytes of the variable divided by the median round trip.
// - Processor time is the sum over all five processes, in steps of 10 ms, per round trip.
// - For comparison as many bytes are sent from one process to another by a TCP socket of this host.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "job/environment/port.h"
#include "tessera/tessera.h"

namespace tessera::distribute {
namespace {

using Args = absl::Span<const Argument>;
using Results = StatusOr<std::vector<DTensor>>;

constexpr int64_t kLargeBytes = int64_t{64} << 20;

Results nothing(WorkerContext&, Args) { return std::vector<DTensor>(); }

Results next(WorkerContext& context, Args args) {
  TESSERA_RETURN_IF_ERROR(context.next(std::get<RemoteDataset>(args[0])).status());
  return std::vector<DTensor>();
}

Results pull(WorkerContext& context, Args args) {
  TESSERA_RETURN_IF_ERROR(context.pull(std::get<RemoteVariable>(args[0])).await());
  return std::vector<DTensor>();
}

// Adds 1 to each element.
Results push(WorkerContext& context, Args args) {
  const auto& v = std::get<RemoteVariable>(args[0]);
  static std::map<std::string, DTensor> ones_like;
  auto it = ones_like.find(v.name());
  if (it == ones_like.end()) {
    it = ones_like.emplace(v.name(), ones<float>(v.shape(), Layout::replicated(context.mesh(), 1)))
             .first;
  }
  TESSERA_RETURN_IF_ERROR(context.push_add(v, it->second));
  return std::vector<DTensor>();
}

// The sum of a variable.
Results sum(WorkerContext& context, Args args) {
  return std::vector<DTensor>{
      ops::sum(ops::cast(context.pull(std::get<RemoteVariable>(args[0])), DType::kFloat64))};
}

StatusOr<input::Dataset> batches(const InputContext&) {
  return input::Dataset::range(1000).repeat().batch(32);
}

StatusOr<FunctionRegistry> functions() {
  FunctionRegistry registry;
  TESSERA_RETURN_IF_ERROR(registry.add("nothing", nothing));
  TESSERA_RETURN_IF_ERROR(registry.add("next", next));
  TESSERA_RETURN_IF_ERROR(registry.add("pull", pull));
  TESSERA_RETURN_IF_ERROR(registry.add("push", push));
  TESSERA_RETURN_IF_ERROR(registry.add("sum", sum));
  TESSERA_RETURN_IF_ERROR(registry.add_dataset("batches", batches));
  return registry;
}

// The CPU time of a process: fields 14 and 15 of its line in /proc, in ticks.
double cpu_seconds(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  const std::string line(std::istreambuf_iterator<char>(file), {});
  const std::vector<std::string> fields =
      absl::StrSplit(line.substr(std::min(line.size(), line.rfind(')') + 2)), ' ');
  double ticks = 0;
  for (const size_t field : {11, 12}) {
    int64_t number = 0;
    if (field < fields.size() && absl::SimpleAtoi(fields[field], &number)) ticks += number;
  }
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}
double cpu_seconds(const std::vector<pid_t>& processes) {
  double seconds = 0;
  for (const pid_t pid : processes) seconds += cpu_seconds(pid);
  return seconds;
}

struct Time {
  absl::Duration median;
  absl::Duration cpu;  // of all processes, the mean
};

// The time of a call, repeated for `length`, and at least three times.
StatusOr<Time> measure(absl::Duration length, const std::vector<pid_t>& processes,
                       const std::function<Status()>& call, int64_t* num_calls) {
  std::vector<absl::Duration> times;
  const double cpu_start = cpu_seconds(processes);
  const absl::Time end = absl::Now() + length;
  while (times.size() < 3 || absl::Now() < end) {
    const absl::Time start = absl::Now();
    TESSERA_RETURN_IF_ERROR(call());
    times.push_back(absl::Now() - start);
  }
  const auto count = static_cast<int64_t>(times.size());
  *num_calls += count;
  std::sort(times.begin(), times.end());
  return Time{times[times.size() / 2], absl::Seconds(cpu_seconds(processes) - cpu_start) / count};
}

void print_bytes(absl::string_view name, int64_t num_bytes, const Time& time) {
  std::printf("%-32s %9.1f us %9.1f us of processors", std::string(name).c_str(),
              absl::ToDoubleMicroseconds(time.median), absl::ToDoubleMicroseconds(time.cpu));
  const double rate = static_cast<double>(num_bytes) / absl::ToDoubleSeconds(time.median) / 1e9;
  if (rate >= 0.01) std::printf(" %7.2f GB/s", rate);
  std::printf("\n");
  std::fflush(stdout);
}

class Benchmark {
 public:
  Benchmark(ClusterCoordinator& coordinator, std::vector<pid_t> processes, absl::Duration length)
      : coordinator_(coordinator), processes_(std::move(processes)), length_(length) {}

  Status run();

 private:
  // Round trips, and the rate of all workers.
  Status measure_closures(absl::string_view name, const std::string& function,
                          const std::vector<Argument>& args);
  // Pulls and pushes of a variable of `num_bytes` bytes.
  Status measure_variable(int64_t num_bytes);
  StatusOr<Time> round_trip(const std::string& function, const std::vector<Argument>& args,
                            int64_t* num_calls) {
    return measure(
        length_, processes_, [&] { return coordinator_.schedule(function, args).await(); },
        num_calls);
  }

  ClusterCoordinator& coordinator_;
  const std::vector<pid_t> processes_;
  const absl::Duration length_;
};

Status Benchmark::measure_closures(absl::string_view name, const std::string& function,
                                   const std::vector<Argument>& args) {
  int64_t num_calls = 0;
  TESSERA_ASSIGN_OR_RETURN(const Time time, round_trip(function, args, &num_calls));
  const int64_t count = std::max<int64_t>(100, 2 * (length_ / time.median));
  const absl::Time start = absl::Now();
  for (int64_t i = 0; i < count; ++i) coordinator_.schedule(function, args);
  TESSERA_RETURN_IF_ERROR(coordinator_.join());
  std::printf("%-32s %9.1f us %9.1f us of processors %7.0f closures/s by two workers\n",
              std::string(name).c_str(), absl::ToDoubleMicroseconds(time.median),
              absl::ToDoubleMicroseconds(time.cpu),
              static_cast<double>(count) / absl::ToDoubleSeconds(absl::Now() - start));
  std::fflush(stdout);
  return absl::OkStatus();
}

Status Benchmark::measure_variable(int64_t num_bytes) {
  const std::string size = absl::StrCat(num_bytes >> 10, " KiB");
  const std::vector<float> zeros(static_cast<size_t>(num_bytes / 4));
  TESSERA_ASSIGN_OR_RETURN(
      const RemoteVariable v,
      coordinator_.variable(size, HostArray::of<float>(zeros, {num_bytes / 4})));
  int64_t num_pulls = 0;
  TESSERA_ASSIGN_OR_RETURN(const Time pulled, round_trip("pull", {v}, &num_pulls));
  print_bytes(absl::StrCat("pull of ", size), num_bytes, pulled);
  int64_t num_pushes = 0;
  TESSERA_ASSIGN_OR_RETURN(const Time pushed, round_trip("push", {v}, &num_pushes));
  print_bytes(absl::StrCat("push of ", size), num_bytes, pushed);
  // Checks that every push has counted once.
  TESSERA_ASSIGN_OR_RETURN(const std::vector<HostArray> total,
                           coordinator_.schedule("sum", {v}).fetch());
  const double expected = static_cast<double>(num_pushes) * static_cast<double>(num_bytes / 4);
  if (total[0].view<double>()[0] == expected) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the pushes to the variable of ", size, " sum to ",
                                          total[0].view<double>()[0], ", not ", expected));
}

Status Benchmark::run() {
  TESSERA_RETURN_IF_ERROR(measure_closures("a function that does nothing", "nothing", {}));
  TESSERA_ASSIGN_OR_RETURN(const RemoteDataset data,
                           coordinator_.create_per_worker_dataset("batches"));
  TESSERA_RETURN_IF_ERROR(measure_closures("the next batch of 32 numbers", "next", {data}));
  for (const int64_t num_bytes : {int64_t{1} << 10, int64_t{1} << 20, kLargeBytes}) {
    TESSERA_RETURN_IF_ERROR(measure_variable(num_bytes));
  }
  return absl::OkStatus();
}

// A free address of this host, and a socket that listens on it.
std::pair<int, sockaddr_in> listen_anywhere() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  (void)bind(fd, reinterpret_cast<sockaddr*>(&address), length);
  (void)listen(fd, 1);
  (void)getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  return {fd, address};
}
std::string address_of(const ReservedPort& port) { return absl::StrCat("127.0.0.1:", port.port()); }

// Another process sends bytes without end; a call reads kLargeBytes of them.
Status measure_socket(absl::Duration length) {
  const auto [listener, address] = listen_anywhere();
  std::vector<char> buffer(kLargeBytes);
  const pid_t sender = fork();
  if (sender == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) _exit(1);
    while (send(fd, buffer.data(), buffer.size(), MSG_NOSIGNAL) > 0) {
    }
    _exit(0);
  }
  const int fd = accept(listener, nullptr, nullptr);
  const auto receive = [&]() -> Status {
    for (int64_t got = 0; got < kLargeBytes;) {
      const ssize_t n = recv(fd, buffer.data() + got, buffer.size() - got, 0);
      if (n <= 0) return absl::InternalError("the socket has ended");
      got += n;
    }
    return absl::OkStatus();
  };
  int64_t num_calls = 0;
  const StatusOr<Time> time = measure(length, {getpid(), sender}, receive, &num_calls);
  close(fd);
  close(listener);
  kill(sender, SIGKILL);
  waitpid(sender, nullptr, 0);
  TESSERA_RETURN_IF_ERROR(time.status());
  print_bytes("64 MiB by a TCP socket", kLargeBytes, *time);
  return absl::OkStatus();
}

Status serve(const cluster::Cluster& cluster) {
  TESSERA_ASSIGN_OR_RETURN(FunctionRegistry registry, functions());
  TESSERA_ASSIGN_OR_RETURN(Server server, Server::start(cluster, std::move(registry)));
  return server.join();
}

Status run(absl::Duration length) {
  TESSERA_RETURN_IF_ERROR(measure_socket(length));
  std::vector<ReservedPort> ports;
  while (ports.size() < 5) {
    TESSERA_ASSIGN_OR_RETURN(ReservedPort port, ReservedPort::create());
    ports.push_back(std::move(port));
  }
  TESSERA_ASSIGN_OR_RETURN(
      const cluster::ClusterSpec spec,
      cluster::ClusterSpec::create({{"chief", {address_of(ports[0])}},
                                    {"worker", {address_of(ports[1]), address_of(ports[2])}},
                                    {"ps", {address_of(ports[3]), address_of(ports[4])}}}));
  std::vector<pid_t> processes = {getpid()};
  for (const char* const job : {"ps", "worker"}) {
    for (const int task : {0, 1}) {
      processes.push_back(fork());
      if (processes.back() != 0) continue;
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const StatusOr<cluster::Cluster> cluster = cluster::simple(spec, job, task);
      const Status status = cluster.ok() ? serve(*cluster) : cluster.status();
      if (!status.ok()) std::fprintf(stderr, "%s %d: %s\n", job, task, status.ToString().c_str());
      std::_Exit(status.ok() ? 0 : 1);
    }
  }
  TESSERA_ASSIGN_OR_RETURN(const cluster::Cluster cluster, cluster::simple(spec, "chief", 0));
  Status status;
  {
    TESSERA_ASSIGN_OR_RETURN(ClusterCoordinator coordinator,
                             ClusterCoordinator::create(cluster, fixed_shards(2)));
    status = Benchmark(coordinator, std::move(processes), length).run();
  }
  while (wait(nullptr) > 0) {
  }
  return status;
}

}  // namespace
}  // namespace tessera::distribute

int main(int argc, char** argv) {
  double seconds = 2;
  if (argc > 2 || (argc == 2 && (!absl::SimpleAtod(argv[1], &seconds) || seconds <= 0))) {
    std::fprintf(stderr, "parameter_servers [SECONDS]: a number above 0\n");
    return 2;
  }
  const absl::Status status = tessera::distribute::run(absl::Seconds(seconds));
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
