// SPDX-License-Identifier: Apache-2.0
#include "job/environment/port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera {

StatusOr<ReservedPort> ReservedPort::create() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) != 0 ||
      setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
      bind(fd, generic, length) != 0 || getsockname(fd, generic, &length) != 0) {
    const Status error = absl::ResourceExhaustedError(
        absl::StrCat("cannot reserve a port of 127.0.0.1: ", std::strerror(errno)));
    if (fd >= 0) close(fd);
    return error;
  }
  return ReservedPort(fd, ntohs(address.sin_port));
}

ReservedPort::ReservedPort(ReservedPort&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)), port_(other.port_) {}

ReservedPort& ReservedPort::operator=(ReservedPort&& other) noexcept {
  std::swap(socket_, other.socket_);
  std::swap(port_, other.port_);
  return *this;
}

ReservedPort::~ReservedPort() {
  if (socket_ >= 0) close(socket_);
}

}  // namespace tessera
