// SPDX-License-Identifier: Apache-2.0
//
// A reserved port: no other program gets it, it refuses connections, and a service can open it.
#include "job/environment/port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "job/environment/file_descriptor.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

sockaddr_in loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

// A socket that listens at `port`; with `option` set on it unless that is 0. Empty: it could not.
FileDescriptor listen_at(int port, int option) {
  FileDescriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int one = 1;
  if (option != 0) setsockopt(fd.get(), SOL_SOCKET, option, &one, sizeof one);
  const sockaddr_in address = loopback(port);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(fd.get(), 1) != 0) {
    return FileDescriptor();
  }
  return fd;
}

// 0, or the errno of connecting to the port.
int connect_to(int port) {
  FileDescriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(port);
  return connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0
             ? 0
             : errno;
}

TEST(ReservedPortTest, PortsAreDistinct) {
  std::vector<ReservedPort> held;
  std::set<int> ports;
  for (int i = 0; i < 20; ++i) {
    TESSERA_ASSERT_OK_AND_ASSIGN(ReservedPort port, ReservedPort::create());
    EXPECT_TRUE(ports.insert(port.port()).second) << port.port();
    held.push_back(std::move(port));
  }
}

TEST(ReservedPortTest, OnlyAServiceThatSharesCanOpenIt) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const ReservedPort port, ReservedPort::create());
  EXPECT_EQ(connect_to(port.port()), ECONNREFUSED);
  EXPECT_LT(listen_at(port.port(), 0).get(), 0);
  for (const int option : {SO_REUSEPORT, SO_REUSEADDR}) {
    const FileDescriptor service = listen_at(port.port(), option);
    EXPECT_GE(service.get(), 0) << option;
    EXPECT_EQ(connect_to(port.port()), 0) << option;
  }
}

TEST(ReservedPortTest, MovesKeepThePort) {
  TESSERA_ASSERT_OK_AND_ASSIGN(ReservedPort first, ReservedPort::create());
  TESSERA_ASSERT_OK_AND_ASSIGN(ReservedPort second, ReservedPort::create());
  const int number = first.port();
  ReservedPort moved = std::move(first);
  EXPECT_EQ(moved.port(), number);
  second = std::move(moved);
  EXPECT_EQ(second.port(), number);
  EXPECT_LT(listen_at(number, 0).get(), 0);
}

TEST(ReservedPortTest, TheEndOfTheObjectFreesIt) {
  int number = 0;
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(const ReservedPort port, ReservedPort::create());
    number = port.port();
  }
  // Not reserved again: that would be a race with other programs that ask for a port.
  EXPECT_EQ(connect_to(number), ECONNREFUSED);
}

}  // namespace
}  // namespace tessera
