// SPDX-License-Identifier: Apache-2.0
//
// Variables on parameter servers in a checkpoint. The chief saves and restores them: it reads whole
// values by a function of the workers, and is a job of one client. A row's name is the test's, from
// tests/facts/parameter_servers.md.
#include <string>
#include <vector>

#include "base/host_array.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "servers/cluster_coordinator.h"
#include "servers/partitioner.h"
#include "servers/remote_variable.h"
#include "servers/testing/test_cluster.h"
#include "tests/support/folder.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

using distribute::RemoteVariable;
using distribute::testing::RunningCluster;

StatusOr<Client> connect_alone() { return Client::connect({.client_id = 0, .num_clients = 1}); }

StatusOr<Layout> whole(const Client& client, int rank) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"chief", 1}}));
  return Layout::replicated(mesh, rank);
}

TEST(ServersTest, CheckpointOtherCount) {
  const Folder folder;
  const std::string path = folder / "a";
  std::vector<float> values = {0, 1, 2, 3, 4, 5, 6};
  {
    RunningCluster running(1, 2, distribute::fixed_shards(3));
    ASSERT_TRUE(running.ok());
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const RemoteVariable v,
        running.coordinator->variable("seven", HostArray::of<float>(values, {7, 1})));
    EXPECT_EQ(v.num_shards(), 3);
    running.coordinator->schedule("add", {HostArray::scalar(10.0f), v});
    ASSERT_THAT(running.coordinator->join(), IsOk());
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<HostArray> read,
                                 running.coordinator->schedule("pull", {v}).fetch());
    TESSERA_ASSERT_OK_AND_ASSIGN(Client chief, connect_alone());
    const DTensor value = from_host<float>(read[0].view<float>(), read[0].shape, whole(chief, 2));
    EXPECT_THAT(checkpoint::save(chief, path, {{v.name(), value}}), IsOk());
    EXPECT_THAT(chief.shutdown(), IsOk());
  }
  RunningCluster running(1, 3, distribute::fixed_shards(5));
  ASSERT_TRUE(running.ok());
  TESSERA_ASSERT_OK_AND_ASSIGN(Client chief, connect_alone());
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<DTensor> saved,
                               checkpoint::restore(chief, path, {{"seven", whole(chief, 2)}}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const HostTensor<float> value, saved[0].to_host<float>());
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const RemoteVariable v,
      running.coordinator->variable("seven", HostArray::of<float>(value.data, value.shape)));
  EXPECT_EQ(v.num_shards(), 5);
  for (float& each : values) each += 10;
  EXPECT_THAT(distribute::testing::value_of(*running.coordinator, v), IsOkAndHolds(values));
  EXPECT_THAT(chief.shutdown(), IsOk());
}

}  // namespace
}  // namespace tessera::testing
