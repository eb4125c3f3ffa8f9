// SPDX-License-Identifier: Apache-2.0
//
// gRPC writes nothing to standard error of its own accord: the Status says what went wrong.
#include "job/coordinator/grpc_log.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/coordinator/connect_coordinator.h"
#include "job/environment/file_descriptor.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

// Servers that cannot listen: the coordinator, and a plain server of gRPC, whose reason has several
// lines.
std::string log_of_a_port_in_use() {
  const FileDescriptor other(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  // gRPC shares ports by default, but not with a socket that does not.
  EXPECT_EQ(bind(other.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(listen(other.get(), 1), 0);
  EXPECT_EQ(getsockname(other.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  CoordinatorOptions options;
  options.address = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  options.token = "secret";
  options.num_clients = 2;
  ::testing::internal::CaptureStderr();
  EXPECT_THAT(connect_coordinator(options),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("cannot listen on")));
  grpc::ServerBuilder builder;
  builder.AddListeningPort(options.address, grpc::InsecureServerCredentials());
  EXPECT_EQ(builder.BuildAndStart(), nullptr);
  return ::testing::internal::GetCapturedStderr();
}

// One test: gRPC keeps the setting for the whole process.
TEST(GrpcLogTest, SaysNothingUnlessTheUserAsks) {
  setenv("GRPC_VERBOSITY", "ERROR", 1);
  EXPECT_THAT(log_of_a_port_in_use(), HasSubstr("server_builder.cc"));
  unsetenv("GRPC_VERBOSITY");
  EXPECT_EQ(log_of_a_port_in_use(), "");
}

TEST(GrpcLogTest, AServerThatDoesNotStartIsNamedWithItsAddressAndWhereTheReasonIs) {
  for (const char* const subject : {"the coordinator", "the server"}) {
    EXPECT_THAT(no_grpc_server(subject, "127.0.0.1:4000"),
                StatusIs(absl::StatusCode::kInternal,
                         absl::StrCat("gRPC does not start ", subject,
                                      " at 127.0.0.1:4000; see its log (GRPC_VERBOSITY=ERROR), and "
                                      "the limits of threads and memory (ulimit -u, -v)")));
  }
}

}  // namespace
}  // namespace tessera
