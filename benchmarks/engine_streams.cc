// SPDX-License-Identifier: Apache-2.0
//
// engine_streams: the bytes per second and the latency of an Engine between two processes, beside a
// plain socket over the same interface.
//
//   engine_streams SERVER_ADDRESS INTERFACE 0|1      the client of this id; client 0 is the server
//
// Each round measures, in turn, for the socket and for UCX:
//   one way    64 MiB from client 1 to client 0, in blocks of 256 KiB, four in flight
//   both ways  as one way, in both directions at once
//   8 B        half of a round trip; the engine's steps are submitted by callbacks
// Each row has GB/s or us, and the CPU time of the process: seconds per GB sent, or us per half
// round trip.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/status.h"
#include "job/coordinator/connect_coordinator.h"
#include "job/coordinator/coordinator.h"
#include "job/environment/file_descriptor.h"
#include "job/environment/host.h"
#include "transport/engine.h"
#include "transport/testing/outcomes.h"
#include "transport/ucx/ucx_engine.h"

namespace tessera {
namespace {

using transport::Engine;
using transport::Outcomes;

constexpr size_t kBytes = size_t{64} << 20;
constexpr size_t kBlock = size_t{256} << 10;
constexpr size_t kInFlight = 4;
constexpr int kRoundTrips = 2000;
constexpr int kRounds = 5;
constexpr int kPort = 29417;
constexpr int kSocketPort = 29418;

struct Options {
  std::string address;
  std::string interface;
  int client;
};

double cpu_seconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return t.tv_sec + 1e-6 * t.tv_usec; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The blocks of one direction. Keeps `in_flight` blocks submitted until all are done.
class Stream {
 public:
  Stream(Engine& engine, bool sends, int peer, absl::Span<std::byte> memory, Engine::Done end)
      : engine_(engine),
        sends_(sends),
        peer_(peer),
        memory_(memory),
        in_flight_(sends ? kInFlight : num_blocks()),
        end_(std::move(end)) {}

  // Posts the first blocks on the caller's thread; the engine's thread posts the others.
  void post_first() {
    for (size_t i = 0; i < in_flight_; ++i) post(i);
  }

 private:
  void post(size_t block) {
    auto done = [this, block](const Status& status) {
      if (block + in_flight_ < num_blocks()) post(block + in_flight_);
      if (!status.ok() || ++num_done_ == num_blocks()) end_(status);
    };
    const auto bytes = memory_.subspan(block * kBlock, kBlock);
    if (sends_) {
      engine_.send(peer_, 1, bytes, nullptr, std::move(done));
    } else {
      engine_.receive(peer_, 1, bytes, nullptr, std::move(done));
    }
  }
  size_t num_blocks() const { return memory_.size() / kBlock; }

  Engine& engine_;
  const bool sends_;
  const int peer_;
  const absl::Span<std::byte> memory_;
  const size_t in_flight_;  // all receives are posted before the first send
  Engine::Done end_;
  size_t num_done_ = 0;
};

// The two ends of one measurement.
class Bench {
 public:
  Bench(Coordinator& coordinator, Engine& engine, int socket)
      : coordinator_(coordinator), engine_(engine), socket_(socket), in_(kBytes), out_(kBytes) {
    std::memset(in_.data(), 1, kBytes);
    std::memset(out_.data(), 2, kBytes);
  }

  Status round() {
    for (const bool both : {false, true}) {
      const char* const name = both ? "both ways" : "one way";
      TESSERA_RETURN_IF_ERROR(
          measure(absl::StrCat("socket ", name), both ? 2 : 1, [&] { return by_socket(both); }));
      TESSERA_RETURN_IF_ERROR(
          measure(absl::StrCat("ucx ", name), both ? 2 : 1, [&] { return by_engine(both); }));
    }
    TESSERA_RETURN_IF_ERROR(measure("socket 8 B", 0, [&] { return ping_socket(); }));
    return measure("ucx 8 B", 0, [&] { return ping_engine(); });
  }

 private:
  Status measure(const std::string& name, int directions, const std::function<Status()>& body) {
    TESSERA_RETURN_IF_ERROR(coordinator_.check_in("start", name, {0, 1}, soon()));
    const double cpu = cpu_seconds();
    const absl::Time start = steady_now();
    TESSERA_RETURN_IF_ERROR(body());
    const double seconds = absl::ToDoubleSeconds(steady_now() - start);
    const double spent = cpu_seconds() - cpu;
    const double gigabytes = 1e-9 * kBytes * directions;
    if (directions > 0) {
      std::printf("client %d  %-17s %6.3f GB/s  %5.2f CPU s/GB\n", self(), name.c_str(),
                  gigabytes / seconds, spent / gigabytes);
    } else {
      std::printf("client %d  %-17s %6.2f us    %5.2f CPU us\n", self(), name.c_str(),
                  seconds / kRoundTrips / 2 * 1e6, spent / kRoundTrips / 2 * 1e6);
    }
    std::fflush(stdout);
    return coordinator_.check_in("end", name, {0, 1}, soon());
  }

  Status by_engine(bool both) {
    Outcomes ends;
    const bool receives = both || self() == 0;
    const bool sends = both || self() == 1;
    Stream incoming(engine_, false, peer(), absl::MakeSpan(in_), receives ? ends.next() : nullptr);
    Stream outgoing(engine_, true, peer(), absl::MakeSpan(out_), sends ? ends.next() : nullptr);
    // A message says that the receives are posted.
    Outcomes posted;
    uint64_t word = 0;
    if (receives) incoming.post_first();
    const absl::Span<std::byte> bytes(reinterpret_cast<std::byte*>(&word), sizeof word);
    if (receives) engine_.send(peer(), 2, bytes, nullptr, posted.next());
    if (sends) engine_.receive(peer(), 2, bytes, nullptr, posted.next());
    TESSERA_RETURN_IF_ERROR(posted.wait());
    if (sends) outgoing.post_first();
    return ends.wait();
  }

  Status by_socket(bool both) {
    const bool receives = both || self() == 0;
    const bool sends = both || self() == 1;
    bool is_sent = true;
    std::thread sender([&] {
      if (sends) is_sent = write_all(out_.data(), kBytes);
    });
    const bool is_read = !receives || read_all(in_.data(), kBytes);
    sender.join();
    return is_sent && is_read ? absl::OkStatus() : absl::InternalError("socket");
  }

  Status ping_socket() {
    char word[8] = {};
    for (int i = 0; i < kRoundTrips; ++i) {
      const bool is_passed = self() == 0 ? write_all(word, 8) && read_all(word, 8)
                                         : read_all(word, 8) && write_all(word, 8);
      if (!is_passed) return absl::InternalError("socket");
    }
    return absl::OkStatus();
  }

  Status ping_engine() {
    Outcomes ends;
    uint64_t word = 0;
    const absl::Span<std::byte> bytes(reinterpret_cast<std::byte*>(&word), sizeof word);
    int left = kRoundTrips;
    auto end = ends.next();
    std::function<void()> step = [&] {
      engine_.receive(peer(), 3, bytes, nullptr, [&](const Status& status) {
        --left;
        const bool is_last = left == 0 || !status.ok();
        if (is_last && self() == 0) return end(status);
        engine_.send(peer(), 3, bytes, nullptr, [&, is_last](const Status& sent) {
          if (is_last) end(sent);
        });
        if (!is_last) step();
      });
    };
    step();
    uint64_t first = 0;
    if (self() == 0) {
      engine_.send(peer(), 3, {reinterpret_cast<std::byte*>(&first), sizeof first}, nullptr,
                   ends.next());
    }
    return ends.wait();
  }

  bool write_all(const void* data, size_t size) {
    for (auto* p = static_cast<const char*>(data); size > 0;) {
      const ssize_t count = write(socket_, p, std::min(size, kBlock));
      if (count <= 0) return false;
      p += count, size -= count;
    }
    return true;
  }
  bool read_all(void* data, size_t size) {
    for (auto* p = static_cast<char*>(data); size > 0;) {
      const ssize_t count = read(socket_, p, std::min(size, kBlock));
      if (count <= 0) return false;
      p += count, size -= count;
    }
    return true;
  }

  int self() const { return coordinator_.client_id(); }
  int peer() const { return 1 - self(); }
  static absl::Time soon() { return steady_now() + absl::Minutes(2); }

  Coordinator& coordinator_;
  Engine& engine_;
  const int socket_;
  std::vector<std::byte> in_, out_;
};

// Client 0 listens before it registers with the coordinator, so client 1 finds the socket.
StatusOr<FileDescriptor> open_socket(const Options& options, int* listener) {
  FileDescriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(kSocketPort);
  inet_pton(AF_INET, options.address.c_str(), &address.sin_addr);
  const auto* const generic = reinterpret_cast<const sockaddr*>(&address);
  const int on = 1;
  if (options.client == 0) {
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd.get(), generic, sizeof address) != 0 || listen(fd.get(), 1) != 0) {
      return absl::InternalError(absl::StrCat("listen: ", std::strerror(errno)));
    }
    *listener = fd.get();
    return fd;
  }
  if (::connect(fd.get(), generic, sizeof address) != 0) {
    return absl::InternalError(absl::StrCat("connect: ", std::strerror(errno)));
  }
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

Status run(const Options& options) {
  int listener = -1;
  FileDescriptor fd;
  if (options.client == 0) {
    TESSERA_ASSIGN_OR_RETURN(fd, open_socket(options, &listener));
  }
  CoordinatorOptions joining;
  joining.address = absl::StrCat(options.address, ":", kPort);
  joining.token = "benchmark";
  joining.num_clients = 2;
  joining.self = describe_this_process();
  joining.self.client_id = options.client;
  joining.self.num_local_devices = 1;
  joining.self.device_type = "cpu";
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Coordinator> coordinator,
                           connect_coordinator(joining));
  FileDescriptor accepted;
  if (options.client == 0) {
    accepted = FileDescriptor(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    const int on = 1;
    setsockopt(accepted.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  } else {
    TESSERA_ASSIGN_OR_RETURN(accepted, open_socket(options, &listener));
  }
  TESSERA_ASSIGN_OR_RETURN(
      const std::unique_ptr<Engine> engine,
      ucx::make_ucx_engine(*coordinator, {.interface = options.interface, .wait_policy = {}}));
  const int peer = 1 - options.client;
  TESSERA_RETURN_IF_ERROR(engine->connect({peer}, steady_now() + absl::Seconds(30)));
  Bench bench(*coordinator, *engine, accepted.get());
  for (int i = 0; i < kRounds; ++i) TESSERA_RETURN_IF_ERROR(bench.round());
  return coordinator->leave(steady_now() + absl::Seconds(30));
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "engine_streams SERVER_ADDRESS INTERFACE 0|1\n");
    return 2;
  }
  const tessera::Status status = tessera::run({argv[1], argv[2], std::atoi(argv[3])});
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
