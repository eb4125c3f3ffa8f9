// SPDX-License-Identifier: Apache-2.0
//
// From a cluster to a client: the rows of that section of tests/facts/cluster.md, and jobs whose
// clients connect by the result of a resolver.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "compute/cuda/fake/fake_math.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/fake/fake_cuda.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "dtensor/runtime.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/cluster/cluster.h"
#include "job/environment/port.h"
#include "tests/support/forked.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

using cluster::Cluster;

StatusOr<Cluster> of_tf_config(const char* text) {
  return cluster::tf_config([text](const char*) { return text; });
}

struct OptionsCase {
  const char* name;
  const char* tf_config;
  const char* coordinator;
  int client_id;
  int num_clients;
};

const OptionsCase kOptionsCases[] = {
    {"options_of_worker",
     R"({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}})", "a:1", 1,
     2},
    {"options_of_one",
     R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}})", "", 0, 1},
    {"options_of_evaluator",
     R"({"cluster": {"worker": ["a:1", "b:2"], "evaluator": ["e:1"]},
         "task": {"type": "evaluator", "index": 0}})",
     "", 0, 1},
};

class ClusterOptionsTest : public ::testing::TestWithParam<OptionsCase> {};
INSTANTIATE_TEST_SUITE_P(Facts, ClusterOptionsTest, ::testing::ValuesIn(kOptionsCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(ClusterOptionsTest, SayWhichClientThisIs) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Cluster cluster, of_tf_config(GetParam().tf_config));
  TESSERA_ASSERT_OK_AND_ASSIGN(const ClientOptions options, cluster::client_options(cluster));
  EXPECT_EQ(options.coordinator, GetParam().coordinator);
  EXPECT_EQ(options.client_id, GetParam().client_id);
  EXPECT_EQ(options.num_clients, GetParam().num_clients);
  EXPECT_EQ(options.num_local_devices, 0);
  EXPECT_EQ(options.token, "");
}

TEST(ClusterOptionsTest, OfOneInATorchrunHaveNoCoordinator) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const ClientOptions options,
      cluster::client_options({.num_clients = 1, .coordinator = "h:1", .source = "torchrun"}));
  EXPECT_EQ(options.coordinator, "");
}

TEST(ClusterOptionsTest, options_of_ps) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Cluster cluster,
                               of_tf_config(R"({"cluster": {"worker": ["a:1"], "ps": ["p:1"]},
                                              "task": {"type": "ps", "index": 0}})"));
  EXPECT_THAT(cluster::client_options(cluster),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "ps 0 of TF_CONFIG is a Server, not a client of collectives; connect from "
                       "chief and workers"));
}

// Worker `index` of a job on this host; the first address is the coordinator's.
StatusOr<ClientOptions> options_of_worker(int port, int num_workers, int index) {
  std::vector<std::string> addresses = {absl::StrCat("127.0.0.1:", port)};
  for (int i = 1; i < num_workers; ++i) addresses.push_back(absl::StrCat("127.0.0.2:", i));
  TESSERA_ASSIGN_OR_RETURN(cluster::ClusterSpec spec,
                           cluster::ClusterSpec::create({{"worker", addresses}}));
  TESSERA_ASSIGN_OR_RETURN(const Cluster cluster,
                           cluster::simple(std::move(spec), "worker", index));
  TESSERA_ASSIGN_OR_RETURN(ClientOptions options, cluster::client_options(cluster));
  options.token = "secret";
  return options;
}

TEST(ClusterClientsTest, WorkersOfAClusterConnect) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const ReservedPort port, ReservedPort::create());
  for (const Status& status : run_forked(3, absl::Seconds(60), [&](int child) -> Status {
         TESSERA_ASSIGN_OR_RETURN(const ClientOptions options,
                                  options_of_worker(port.port(), 3, child));
         TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect(options));
         TESSERA_REQUIRE(client.client_id() == child);
         TESSERA_REQUIRE(client.num_clients() == 3);
         TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 3}}));
         TESSERA_RETURN_IF_ERROR(mesh.barrier("all", absl::Seconds(50)));
         return client.shutdown();
       })) {
    EXPECT_THAT(status, IsOk());
  }
}

// Row options_keep_devices: with one device per client, local rank k takes GPU k of the host.
TEST(ClusterClientsTest, options_keep_devices) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const ReservedPort port, ReservedPort::create());
  for (const Status& status : run_forked(4, absl::Seconds(60), [&](int child) -> Status {
         TESSERA_ASSIGN_OR_RETURN(ClientOptions options, options_of_worker(port.port(), 4, child));
         options.device_type = DeviceType::kCuda;
         options.num_local_devices = 1;
         const auto api = cuda::FakeCuda::create({.num_gpus = 4});
         TESSERA_ASSIGN_OR_RETURN(Client client,
                                  internal::connect(options, {.cuda = cuda::fake_libraries(api)}));
         const auto& gpu =
             dynamic_cast<cuda::CudaDevice&>(internal::runtime_of(client)->device(/*ordinal=*/0));
         TESSERA_REQUIRE(client.local_rank() == child);
         TESSERA_REQUIRE(gpu.gpu() == child, gpu.gpu());
         return client.shutdown();
       })) {
    EXPECT_THAT(status, IsOk());
  }
}

}  // namespace
}  // namespace tessera::testing
