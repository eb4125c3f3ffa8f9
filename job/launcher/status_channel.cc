// SPDX-License-Identifier: Apache-2.0
//
// The two ends of the status channel: one message per datagram on a seqpacket socket.
#include "job/launcher/status_channel.h"

#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdlib>

#include "absl/strings/numbers.h"

namespace tessera {
namespace {

constexpr size_t kMaxMessageBytes = 4096;

// A seqpacket unix socket is rare enough that nothing else of the program is taken for the channel.
bool is_status_channel(int fd) {
  int type = 0;
  int domain = 0;
  socklen_t size = sizeof(int);
  return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET &&
         getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX;
}

}  // namespace

void report_fatal_status(const Status& status) {
  if (status.ok()) return;
  const char* text = std::getenv(kStatusFdVariable);
  int fd = -1;
  if (text == nullptr || !absl::SimpleAtoi(text, &fd) || fd < 0 || !is_status_channel(fd)) return;
  const std::string message = status.ToString().substr(0, kMaxMessageBytes);
  // A launcher that is gone or does not read is no reason for the client to stop or to die.
  (void)!send(fd, message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

std::string receive_fatal_status(int fd) {
  std::string message(kMaxMessageBytes, '\0');
  const ssize_t size = recv(fd, message.data(), message.size(), MSG_DONTWAIT);
  message.resize(size > 0 ? static_cast<size_t>(size) : 0);
  return message;
}

}  // namespace tessera
