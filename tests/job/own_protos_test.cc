// SPDX-License-Identifier: Apache-2.0
//
// A program with a .proto file of its own that has the path of Tessera's. protobuf has one database
// of files per process and ends the process, before main, where two files have one name.
#include <google/protobuf/descriptor.h>
#include <job/coordinator/coordinator.pb.h>

#include "absl/time/time.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/clients.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

const google::protobuf::FileDescriptor* find_file(const char* name) {
  return google::protobuf::DescriptorPool::generated_pool()->FindFileByName(name);
}

TEST(OwnProtosTest, ClientsConnectBesideAFileOfTheSameName) {
  EXPECT_THAT(
      run_clients({.setting = Setting::kProcesses, .num_clients = 2},
                  [](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
                    return mesh.barrier("end", absl::Seconds(20));
                  }),
      IsOk());
  program::Coordinator own;
  own.set_name("own");
  EXPECT_EQ(own.GetDescriptor()->file()->name(), "job/coordinator/coordinator.proto");
  ASSERT_NE(find_file("job/coordinator/coordinator.proto"), nullptr);
  EXPECT_EQ(find_file("job/coordinator/coordinator.proto")->package(), "program");
}

TEST(OwnProtosTest, TesseraRegistersNoFile) {
  for (const char* name :
       {"tessera/job/coordinator/coordinator.proto", "tessera/servers/parameter_server.proto",
        "servers/parameter_server.proto"}) {
    EXPECT_EQ(find_file(name), nullptr) << name;
  }
}

}  // namespace
}  // namespace tessera::testing
