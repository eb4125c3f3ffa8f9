// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator/listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/clock.h"
#include "base/text.h"
#include "job/environment/address.h"

namespace tessera {
namespace {

// The most connections that wait to be accepted.
constexpr int kBacklog = 4096;
// How often a lack of descriptors is looked at again.
constexpr int kRetryMs = 50;

FileDescriptor open_spare() { return FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

uint16_t port_of(const sockaddr_storage& address) {
  return address.ss_family == AF_INET6
             ? ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port)
             : ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

// "127.0.0.1:4711" or "[::1]:4711", as gRPC has it behind "ipv4:" or "ipv6:".
std::string name_of(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET6) {
    const in6_addr& host = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    if (!IN6_IS_ADDR_V4MAPPED(&host)) {
      inet_ntop(AF_INET6, &host, text, sizeof text);
      return absl::StrCat("[", text, "]:", port_of(address));
    }
    inet_ntop(AF_INET, host.s6_addr + 12, text, sizeof text);
  } else {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text, sizeof text);
  }
  return absl::StrCat(text, ":", port_of(address));
}

// Whether an entry before `at` in the list that starts at `first` has the same address.
bool is_repeated(const addrinfo* first, const addrinfo* at) {
  for (const addrinfo* one = first; one != at; one = one->ai_next) {
    if (one->ai_addrlen == at->ai_addrlen &&
        std::memcmp(one->ai_addr, at->ai_addr, at->ai_addrlen) == 0) {
      return true;
    }
  }
  return false;
}

// A connection has two descriptors: its own, and the one to see its end. The rest is for the job.
int most_unproven() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::numeric_limits<int>::max();
  return static_cast<int>(std::clamp<rlim_t>(limit.rlim_cur / 8, 1, 1 << 20));
}

}  // namespace

StatusOr<std::unique_ptr<Listener>> Listener::listen(const std::string& address,
                                                     const Options& options) {
  const std::optional<Address> parts = parse_address(address, 0);
  if (!parts.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(options.name, "'s address is ",
                                                   in_quotes(address),
                                                   "; it must be HOST:PORT, as in host-a:4000"));
  }
  const auto cannot = [&](absl::string_view why) {
    return absl::UnavailableError(absl::StrCat(options.name, " cannot listen on ", address, ": ",
                                               why, "; use a free port of this host"));
  };
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(parts->host.c_str(), absl::StrCat(parts->port).c_str(), &hints, &found);
  if (error != 0) return cannot(gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  std::unique_ptr<Listener> listener(new Listener(options));
  listener->options_.max_unproven = std::min(options.max_unproven, most_unproven());
  Status failed;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    // A name may have one address twice, by two lines of /etc/hosts say.
    if (is_repeated(found, at)) continue;
    const Status added = listener->add_socket(at->ai_family, at->ai_addr, at->ai_addrlen);
    // A name may have addresses of a family that this machine does not use.
    if (absl::IsNotFound(added)) continue;
    failed.Update(added);
  }
  if (!failed.ok()) return cannot(failed.message());
  if (listener->sockets_.empty()) return cannot("it is not an address of this host");
  listener->spare_ = open_spare();
  listener->wake_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!listener->wake_.is_open()) return cannot(std::strerror(errno));
  return listener;
}

// NotFound for an address that this host does not have.
Status Listener::add_socket(int family, const void* address, unsigned length) {
  FileDescriptor socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_open()) return absl::NotFoundError(std::strerror(errno));
  sockaddr_storage bound = {};
  std::memcpy(&bound, address, length);
  // All addresses of the name get the port that the first one got.
  if (port_ != 0) reinterpret_cast<sockaddr_in&>(bound).sin_port = htons(port_);
  const int one = 1;
  // A restart may bind although connections of the predecessor are being closed.
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  socklen_t bound_length = length;
  auto* const generic = reinterpret_cast<sockaddr*>(&bound);
  if (bind(socket.get(), generic, length) != 0 || ::listen(socket.get(), kBacklog) != 0 ||
      getsockname(socket.get(), generic, &bound_length) != 0) {
    const bool is_absent = errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT;
    return is_absent ? absl::NotFoundError(std::strerror(errno))
                     : absl::UnavailableError(std::strerror(errno));
  }
  port_ = port_of(bound);
  sockets_.push_back(std::move(socket));
  return absl::OkStatus();
}

Status Listener::start(Handler handler) {
  handler_ = std::move(handler);
  TESSERA_ASSIGN_OR_RETURN(thread_,
                           start_thread("the connections to the coordinator", [this] { serve(); }));
  return absl::OkStatus();
}

void Listener::stop() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof one);
  thread_.join();
  sockets_.clear();
  std::lock_guard<std::mutex> lock(mutex_);  // against proven()
  unproven_.clear();
}

void Listener::proven(absl::string_view peer) {
  // Without the scheme, and without the escapes of a URI.
  const std::string name = absl::StrReplaceAll(peer.substr(peer.find(':') + 1),
                                               {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
  {
    std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(unproven_, [&](const Unproven& one) { return one.peer == name; });
  }
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof one);
}

void Listener::serve() {
  while (true) {
    std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}};
    absl::Time next;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return;
      const absl::Time now = steady_now();
      sweep(now);
      next = next_deadline(now);
      // Ends of connections are always reported.
      for (const Unproven& one : unproven_) polled.push_back({one.fd.get(), 0, 0});
      if (has_room(now)) {
        for (const FileDescriptor& socket : sockets_) polled.push_back({socket.get(), POLLIN, 0});
      }
    }
    if (poll(polled.data(), polled.size(), poll_timeout_ms(next - steady_now())) <= 0) continue;
    uint64_t count;
    (void)!read(wake_.get(), &count, sizeof count);
    for (const FileDescriptor& socket : sockets_) {
      const bool has_caller = std::any_of(polled.begin(), polled.end(), [&](const pollfd& one) {
        return one.fd == socket.get() && (one.revents & POLLIN) != 0;
      });
      if (has_caller) accept_from(socket.get());
    }
  }
}

void Listener::sweep(absl::Time now) {
  std::erase_if(unproven_, [&](const Unproven& one) {
    pollfd state = {one.fd.get(), 0, 0};
    if (poll(&state, 1, 0) == 1) return true;
    if (one.accepted + options_.unproven_timeout > now) return false;
    shutdown(one.fd.get(), SHUT_RDWR);
    return true;
  });
}

bool Listener::has_room(absl::Time now) const {
  return !is_full() || unproven_.front().accepted + options_.crowded_timeout <= now;
}

void Listener::make_room() {
  while (is_full()) {
    shutdown(unproven_.front().fd.get(), SHUT_RDWR);
    unproven_.erase(unproven_.begin());
  }
}

absl::Time Listener::next_deadline(absl::Time now) const {
  if (unproven_.empty()) return absl::InfiniteFuture();
  const absl::Time oldest = unproven_.front().accepted;
  const bool is_waiting = !has_room(now);
  return oldest + (is_waiting ? std::min(options_.crowded_timeout, options_.unproven_timeout)
                              : options_.unproven_timeout);
}

void Listener::accept_from(int socket) {
  sockaddr_storage address = {};
  socklen_t length = sizeof address;
  FileDescriptor caller(accept4(socket, reinterpret_cast<sockaddr*>(&address), &length,
                                SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!caller.is_open()) {
    const int error = errno;
    if (error == EMFILE || error == ENFILE) {
      // Turned away: left in the queue it would be reported again at once.
      spare_.close();
      FileDescriptor(accept4(socket, nullptr, nullptr, SOCK_CLOEXEC));
      spare_ = open_spare();
      if (!spare_.is_open()) poll(nullptr, 0, kRetryMs);  // another thread was quicker
    } else if (error != EAGAIN && error != ECONNABORTED) {
      // ENOBUFS and ENOMEM leave the caller in the queue too.
      poll(nullptr, 0, kRetryMs);
    }
    return;
  }
  const int one = 1;
  setsockopt(caller.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  FileDescriptor duplicate(fcntl(caller.get(), F_DUPFD_CLOEXEC, 0));
  if (!duplicate.is_open()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    make_room();
    unproven_.push_back({name_of(address), std::move(duplicate), steady_now()});
  }
  handler_(caller.release());
}

}  // namespace tessera
