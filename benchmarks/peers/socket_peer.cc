// SPDX-License-Identifier: Apache-2.0
//
// Plain TCP sockets as a contestant of tools/bench hosts: the limit of the link. There is one
// process for each host, with a connection from the previous process and a connection to the next.
//
//   socket_peer RANK SIZE PREFIX REGION_BYTES ADDRESS PORT NEXT_ADDRESS
//
//   swap bytes=N     each sends N bytes to the next and receives N from the previous, at once
//   stream bytes=N   the first sends N bytes to the next, and the others send nothing
//   ping             8 bytes travel around once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "benchmarks/peers/worker.h"

namespace tessera::bench {
namespace {

constexpr int64_t kBlockBytes = 256 << 10;  // of one read or write
constexpr int64_t kSamples = 997;

std::string error_of(const char* what) { return std::string(what) + ": " + std::strerror(errno); }

sockaddr_in address_of(const char* host, int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, host, &address.sin_addr);
  return address;
}

int without_delay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

class SocketPeer : public Contestant {
 public:
  SocketPeer(int rank, int size, int64_t region_bytes)
      : rank_(rank), size_(size), regions_(Regions::allocate(region_bytes, rank)) {}

  std::string connect(const char* host, int port, const char* next_host) {
    const sockaddr_in own = address_of(host, port);
    const sockaddr_in next = address_of(next_host, port);
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    const int on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0 ||
        listen(listener, 1) != 0) {
      return error_of("listen");
    }
    // The next process may not be listening yet.
    for (int tries = 0; to_ < 0; ++tries) {
      const int fd = socket(AF_INET, SOCK_STREAM, 0);
      if (::connect(fd, reinterpret_cast<const sockaddr*>(&next), sizeof next) == 0) {
        to_ = without_delay(fd);
        break;
      }
      if (tries == 1000) return error_of("connect");
      close(fd);
      usleep(10'000);  // sleep: no event says that another process listens
    }
    from_ = accept(listener, nullptr, nullptr);
    close(listener);
    if (from_ < 0) return error_of("accept");
    without_delay(from_);
    return "";
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  // Goes around twice. After the first time the first process knows that all have arrived; the
  // second time tells the others.
  std::string barrier() override {
    for (int i = 0; i < 2; ++i) {
      if (std::string error = pass_around(); !error.empty()) return error;
    }
    return "";
  }

  std::string prepare(const Command& command, Operation* operation) override {
    operation->poison = [](int, bool) {};
    operation->check = [](int, bool) { return std::string(); };
    if (command.operation == "ping") {
      operation->call = [this](int) { return pass_around(); };
      return "";
    }
    const bool all_send = command.operation == "swap";
    if (!all_send && command.operation != "stream") {
      return "socket_peer cannot " + command.operation;
    }
    const int64_t bytes = command.number("bytes", 0);
    if (bytes > regions_.size_bytes()) return "the regions are too small";
    regions_.fill(bytes);
    const bool sends = all_send || rank_ == 0;
    const bool receives = all_send || rank_ == 1;
    operation->call = [=, this](int) { return exchange(sends ? bytes : 0, receives ? bytes : 0); };
    operation->poison = [=, this](int, bool) { std::memset(regions_.out(), 0xA5, bytes); };
    operation->check = [=, this](int, bool full) { return receives ? check(bytes, full) : ""; };
    return "";
  }

 private:
  std::string exchange(int64_t send_bytes, int64_t receive_bytes) {
    if (send_bytes == 0) return read_all(regions_.out(), receive_bytes);
    if (receive_bytes == 0) return write_all(regions_.in(), send_bytes);
    std::string sent;
    std::thread sender([&] { sent = write_all(regions_.in(), send_bytes); });
    const std::string received = read_all(regions_.out(), receive_bytes);
    sender.join();
    return sent.empty() ? received : sent;
  }

  std::string pass_around() {
    std::byte word[8] = {};
    if (rank_ == 0) {
      if (std::string error = write_all(word, sizeof word); !error.empty()) return error;
      return read_all(word, sizeof word);
    }
    if (std::string error = read_all(word, sizeof word); !error.empty()) return error;
    return write_all(word, sizeof word);
  }

  std::string check(int64_t bytes, bool full) const {
    const int previous = (rank_ + size_ - 1) % size_;
    const int64_t stride = full ? 1 : std::max<int64_t>(1, bytes / kSamples);
    for (int64_t i = 0; i < bytes; i += stride) {
      if (regions_.out()[i] != pattern_byte(previous, i)) {
        return "wrong byte " + std::to_string(i) + " on rank " + std::to_string(rank_);
      }
    }
    return "";
  }

  std::string write_all(const std::byte* data, int64_t size) const {
    for (int64_t done = 0; done < size;) {
      const ssize_t count = write(to_, data + done, std::min(size - done, kBlockBytes));
      if (count <= 0) return error_of("write");
      done += count;
    }
    return "";
  }
  std::string read_all(std::byte* data, int64_t size) const {
    for (int64_t done = 0; done < size;) {
      const ssize_t count = read(from_, data + done, std::min(size - done, kBlockBytes));
      if (count <= 0) return error_of("read");
      done += count;
    }
    return "";
  }

  const int rank_;
  const int size_;
  Regions regions_;
  int to_ = -1;
  int from_ = -1;
};

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  if (argc != 8) return 2;
  tessera::bench::SocketPeer peer(std::atoi(argv[1]), std::atoi(argv[2]), std::atoll(argv[4]));
  const std::string error = peer.connect(argv[5], std::atoi(argv[6]), argv[7]);
  if (!error.empty()) {
    std::fprintf(stderr, "socket_peer: %s\n", error.c_str());
    return 1;
  }
  return tessera::bench::serve(peer, argv[3]);
}
