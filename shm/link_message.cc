// SPDX-License-Identifier: Apache-2.0
#include "shm/link_message.h"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tessera::shm {

Status link_error(absl::string_view what, int error) {
  switch (error) {
    case EMFILE: {
      rlimit limit = {};
      getrlimit(RLIMIT_NOFILE, &limit);
      return absl::ResourceExhaustedError(
          absl::StrCat(what, ": this process is out of file descriptors, of which it may have ",
                       limit.rlim_cur, " (ulimit -n); raise the limit, or start fewer clients"));
    }
    case ENFILE:
      return absl::ResourceExhaustedError(
          absl::StrCat(what, ": this machine is out of file descriptors (fs.file-max)"));
    case ENOMEM:
    case ENOBUFS:
    case ENOSPC:
      return absl::ResourceExhaustedError(absl::StrCat(what, ": ", std::strerror(error)));
    default:
      return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(error)));
  }
}

SendResult send_message(int socket, const LinkMessage& message, int fd) {
  iovec data = {const_cast<LinkMessage*>(&message), sizeof message};
  alignas(cmsghdr) char ancillary[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (fd >= 0) {
    header.msg_control = ancillary;
    header.msg_controllen = sizeof ancillary;
    cmsghdr* part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(part), &fd, sizeof fd);
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return SendResult::kSent;
  switch (errno) {
    case EAGAIN:
      return SendResult::kFull;
    case ETOOMANYREFS:
    case ENOBUFS:
    case ENOMEM:
      return SendResult::kTooManyInTransit;
    default:
      return SendResult::kOver;
  }
}

std::optional<ReceivedMessage> receive_message(int socket) {
  ReceivedMessage result;
  iovec data = {&result.message, sizeof result.message};
  alignas(cmsghdr) char ancillary[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = ancillary;
  header.msg_controllen = sizeof ancillary;
  ssize_t received;
  do {
    received = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  const cmsghdr* part = received > 0 ? CMSG_FIRSTHDR(&header) : nullptr;
  if (part != nullptr && part->cmsg_type == SCM_RIGHTS) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(part), sizeof fd);
    result.fd = FileDescriptor(fd);
  }
  if (received != sizeof result.message) return std::nullopt;
  // The message was received all the same; its descriptor is gone.
  if (!result.fd.is_open() && (header.msg_flags & MSG_CTRUNC) != 0) {
    result.fd_error = link_error("cannot take memory that another client shares", EMFILE);
  }
  return result;
}

std::optional<uid_t> other_user(int socket) {
  ucred peer = {};
  socklen_t length = sizeof peer;
  const bool is_known = getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0;
  if (is_known && peer.uid == geteuid()) return std::nullopt;
  return peer.uid;
}

bool watch_descriptor(int epoll, int operation, int fd, uint32_t events) {
  epoll_event event = {.events = events, .data = {.fd = fd}};
  return epoll_ctl(epoll, operation, fd, &event) == 0;
}

}  // namespace tessera::shm
