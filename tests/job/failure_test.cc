// SPDX-License-Identifier: Apache-2.0
//
// Jobs that go wrong without a loss: meshes, asynchrony and failure, launching (the rows of
// tests/facts/dtensor.md), and bad input to the layer of DTensor and Client. A row's name is the
// test's.

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/local_map.h"
#include "dtensor/relayout.h"
#include "dtensor/spawn.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/environment/port.h"
#include "tests/support/clients.h"
#include "tests/support/forked.h"
#include "tests/support/gate.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::HasSubstr;

class SettingTest : public ::testing::TestWithParam<Setting> {
 protected:
  static Status run(int num_clients, int devices_per_client, const ClientBody& body) {
    return run_clients({.setting = GetParam(),
                        .num_clients = num_clients,
                        .devices_per_client = devices_per_client},
                       body);
  }
};

class MeshTest : public SettingTest {};
class AsynchronyTest : public SettingTest {};
class BadInputTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Settings, MeshTest,
                         ::testing::Values(Setting::kThreads, Setting::kProcesses),
                         ::testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Settings, AsynchronyTest,
                         ::testing::Values(Setting::kThreads, Setting::kProcesses),
                         ::testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Forms, BadInputTest, ::testing::ValuesIn(kJobForms), job_form_name);

// Mesh.

TEST_P(MeshTest, ProductIsNotTheDevices) {
  EXPECT_THAT(run(2, 3,
                  [](Client& client) -> Status {
                    return expect_error(create_mesh(client, {{"x", 2}, {"y", 2}}).status(),
                                        StatusCode::kInvalidArgument, {"4", "6"});
                  }),
              IsOk());
}

TEST_P(MeshTest, UnknownId) {
  EXPECT_THAT(run(2, 2,
                  [](Client& client) -> Status {
                    return expect_error(create_mesh(client, {{"x", 2}}, {3, 4}).status(),
                                        StatusCode::kInvalidArgument,
                                        {"device 4", "4 devices", "0 to 3"});
                  }),
              IsOk());
}

TEST_P(MeshTest, NegativeId) {
  EXPECT_THAT(run(1, 2,
                  [](Client& client) -> Status {
                    return expect_error(create_mesh(client, {{"x", 2}}, {-1, 0}).status(),
                                        StatusCode::kInvalidArgument, {"-1"});
                  }),
              IsOk());
}

TEST_P(MeshTest, TwoClients) {
  EXPECT_THAT(run(2, 2,
                  [](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 4}}));
                    TESSERA_REQUIRE(mesh.size() == 4);
                    TESSERA_REQUIRE(client.devices().size() == 4);
                    TESSERA_REQUIRE(client.local_devices().size() == 2);
                    for (int i = 0; i < 2; ++i) {
                      const Device& device = client.local_devices()[i];
                      TESSERA_REQUIRE(device.id == 2 * client.client_id() + i);
                      TESSERA_REQUIRE(device.ordinal == i);
                    }
                    return absl::OkStatus();
                  }),
              IsOk());
}

TEST_P(MeshTest, NamesDisagree) {
  EXPECT_THAT(run(2, 2,
                  [](Client& client) -> Status {
                    const char* name = client.client_id() == 0 ? "x" : "y";
                    return expect_error(create_mesh(client, {{name, 4}}).status(),
                                        StatusCode::kInvalidArgument,
                                        {"create_mesh", "{x=4}", "{y=4}", "client 0", "client 1"});
                  }),
              IsOk());
}

TEST_P(MeshTest, SizesDisagree) {
  EXPECT_THAT(run(2, 4,
                  [](Client& client) -> Status {
                    const int rows = client.client_id() == 0 ? 4 : 2;
                    TESSERA_RETURN_IF_ERROR(
                        expect_error(create_mesh(client, {{"x", rows}, {"y", 8 / rows}}).status(),
                                     StatusCode::kInvalidArgument, {"{x=4, y=2}", "{x=2, y=4}"}));
                    // Nothing is broken by it.
                    return create_mesh(client, {{"x", 8}}).status();
                  }),
              IsOk());
}

TEST_P(MeshTest, OutsideTheMesh) {
  EXPECT_THAT(run(3, 1,
                  [](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2} on 0,1"));
                    const DTensor x = iota<float>({4}, Layout::parse(mesh, "[x]"));
                    const DTensor y = relayout(x, Layout::parse(mesh, "[-]"));
                    if (client.client_id() != 2) return expect_iota<float>(y);
                    TESSERA_REQUIRE(x.num_local_shards() == 0 && y.num_local_shards() == 0);
                    TESSERA_RETURN_IF_ERROR(y.await());
                    TESSERA_RETURN_IF_ERROR(expect_error(x.shard<float>(0).status(),
                                                         StatusCode::kInvalidArgument,
                                                         {"client 2 holds no shard", "{x=2}"}));
                    return expect_error(x.to_host<float>().status(),
                                        StatusCode::kFailedPrecondition,
                                        {"client 2 owns no device of {x=2}"});
                  }),
              IsOk());
}

TEST_P(MeshTest, ShutdownAndAgain) {
  EXPECT_THAT(
      run_isolated(absl::Seconds(100),
                   [&]() -> Status {
                     TESSERA_ASSIGN_OR_RETURN(const ReservedPort port, ReservedPort::create());
                     ClientOptions again = {.coordinator = absl::StrCat("127.0.0.1:", port.port()),
                                            .num_clients = 2,
                                            .num_local_devices = 2,
                                            .token = "again"};
                     return run(2, 1, [again](Client& client) -> Status {
                       const int id = client.client_id();
                       TESSERA_RETURN_IF_ERROR(client.shutdown());
                       TESSERA_RETURN_IF_ERROR(client.shutdown());
                       ClientOptions mine = again;
                       mine.client_id = id;
                       TESSERA_ASSIGN_OR_RETURN(Client next, Client::connect(mine));
                       TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(next, {{"x", 4}}));
                       const DTensor x = iota<float>({7}, Layout::parse(mesh, "[x]"));
                       TESSERA_RETURN_IF_ERROR(
                           expect_iota<float>(relayout(x, Layout::parse(mesh, "[-]"))));
                       return next.shutdown();
                     });
                   }),
      IsOk());
}

// Asynchrony and failure.

// One op on each local device that ends when the gate lets it through.
DTensor gated(const Mesh& mesh, Gate& gate, std::atomic<int>& ended) {
  return local_map(Layout::parse(mesh, "[x]"), {mesh.size()}, DType::kInt32, {},
                   [&](LocalContext& local) -> Status {
                     local.output<int32_t>().data[0] = 1;
                     TESSERA_RETURN_IF_ERROR(gate.wait());
                     ++ended;
                     return absl::OkStatus();
                   });
}

TEST_P(AsynchronyTest, SyncWaits) {
  Gate gate;
  EXPECT_THAT(run(1, 2,
                  [&](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
                    std::atomic<int> ended = 0;
                    const DTensor x = gated(mesh, gate, ended);
                    // The launch has returned, and nothing can have ended.
                    TESSERA_REQUIRE(ended == 0);
                    gate.open(2);
                    TESSERA_RETURN_IF_ERROR(client.sync_devices());
                    TESSERA_REQUIRE(ended == 2, ended.load());
                    return x.status();
                  }),
              IsOk());
}

// The caller runs small relayouts itself, unless other work is queued before them.
TEST_P(AsynchronyTest, SmallRelayoutsKeepTheirTurn) {
  Gate gate;
  EXPECT_THAT(run(1, 2,
                  [&](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
                    const StatusOr<Layout> shards = Layout::parse(mesh, "[x]");
                    const StatusOr<Layout> whole = Layout::parse(mesh, "[-]");
                    const DTensor before = relayout(iota<int32_t>({4}, shards), whole);
                    std::atomic<int> ended = 0;
                    const DTensor slow = gated(mesh, gate, ended);
                    const DTensor of_slow = relayout(slow, whole);
                    const DTensor behind = relayout(before, shards);
                    TESSERA_REQUIRE(ended == 0);
                    // Is there already: what follows does not hold it up.
                    TESSERA_RETURN_IF_ERROR(expect_iota<int32_t>(before));
                    gate.open(2);
                    TESSERA_RETURN_IF_ERROR(of_slow.await());
                    TESSERA_REQUIRE(ended == 2, ended.load());
                    TESSERA_RETURN_IF_ERROR(expect_iota<int32_t>(behind));
                    return expect_iota<int32_t>(relayout(behind, whole));
                  }),
              IsOk());
}

TEST_P(AsynchronyTest, SyncWhenIdle) {
  EXPECT_THAT(run(2, 1, [](Client& client) -> Status { return client.sync_devices(); }), IsOk());
}

TEST_P(AsynchronyTest, SyncReturnsTheError) {
  EXPECT_THAT(run(2, 2,
                  [](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 4}}));
                    const DTensor x =
                        local_map(Layout::parse(mesh, "[x]"), {4}, DType::kInt32, {},
                                  [](LocalContext&) { return absl::DataLossError("torn page"); });
                    TESSERA_RETURN_IF_ERROR(expect_error(
                        client.sync_devices(), StatusCode::kDataLoss,
                        {absl::StrCat("device ", client.local_devices()[0].id), "torn page"}));
                    TESSERA_RETURN_IF_ERROR(client.sync_devices());
                    return expect_error(x.await(), StatusCode::kDataLoss, {"torn page"});
                  }),
              IsOk());
}

TEST_P(AsynchronyTest, SyncIsLocal) {
  Gate gate;
  EXPECT_THAT(run(2, 1,
                  [&](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
                    std::atomic<int> ended = 0;
                    if (client.client_id() == 0) {
                      // Would wait for a minute, and fail, if it waited for client 1.
                      TESSERA_RETURN_IF_ERROR(client.sync_devices());
                      gate.open();
                    } else {
                      gated(mesh, gate, ended);
                      TESSERA_RETURN_IF_ERROR(client.sync_devices());
                      TESSERA_REQUIRE(ended == 1);
                    }
                    return mesh.barrier("end", absl::Seconds(20));
                  }),
              IsOk());
}

TEST_P(AsynchronyTest, SwappedOrder) {
  EXPECT_THAT(run(2, 1,
                  [](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1}));
                    const std::vector<float> in(8, 1.0f);
                    std::vector<float> reduced(8), sent(8);
                    const auto reduce = [&] {
                      return group.all_reduce<float>(in, absl::MakeSpan(reduced), ReduceOp::kSum);
                    };
                    const auto broadcast = [&] {
                      return group.broadcast<float>(in, absl::MakeSpan(sent), 0);
                    };
                    const bool first = client.client_id() == 0;
                    const Work a = first ? reduce() : broadcast();
                    const Work b = first ? broadcast() : reduce();
                    const std::vector<std::string> texts = {"all_reduce", "broadcast", "client 0 ",
                                                            "client 1 "};
                    for (const Work& work : {a, b}) {
                      TESSERA_RETURN_IF_ERROR(expect_error(work.wait(absl::Seconds(20)),
                                                           StatusCode::kInvalidArgument, texts));
                    }
                    client.sync_devices().IgnoreError();
                    // The group works again once all call the same.
                    TESSERA_RETURN_IF_ERROR(reduce().wait(absl::Seconds(20)));
                    TESSERA_REQUIRE(reduced == std::vector<float>(8, 2.0f));
                    return absl::OkStatus();
                  }),
              IsOk());
}

TEST_P(AsynchronyTest, SwappedRelayouts) {
  EXPECT_THAT(run(2, 2,
                  [](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 4}}));
                    const DTensor x = iota<float>({4, 8}, Layout::parse(mesh, "[x, -]"));
                    const DTensor terms = ones<float>({4, 8}, Layout::parse(mesh, "[-, -] sum{x}"));
                    const auto gather = [&] { return relayout(x, Layout::parse(mesh, "[-, -]")); };
                    const auto reduce = [&] {
                      return relayout(terms, Layout::parse(mesh, "[-, -]"));
                    };
                    const bool first = client.client_id() == 0;
                    const DTensor a = first ? gather() : reduce();
                    const DTensor b = first ? reduce() : gather();
                    TESSERA_RETURN_IF_ERROR(expect_error(a.await(), StatusCode::kInvalidArgument));
                    TESSERA_RETURN_IF_ERROR(expect_error(b.await(), StatusCode::kInvalidArgument));
                    client.sync_devices().IgnoreError();
                    return expect_iota<float>(gather());
                  }),
              IsOk());
}

// Bad input.

TEST_P(BadInputTest, LocalMapFailsOnOneDevice) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
        const DTensor x = local_map(
            Layout::parse(mesh, "[x]"), {8}, DType::kInt32, {}, [](LocalContext& local) -> Status {
              local.output<int32_t>().data[0] = local.device_id();
              return local.device_id() == 5 ? absl::OutOfRangeError("row 17 is missing")
                                            : absl::OkStatus();
            });
        const std::vector<std::string> texts = {"local_map on device 5", "row 17 is missing"};
        bool owner = false;
        for (const Device& device : client.local_devices()) owner |= device.id == 5;
        TESSERA_REQUIRE(x.await().ok() == !owner);
        const DTensor y = relayout(x, Layout::parse(mesh, "[-]"));
        TESSERA_RETURN_IF_ERROR(expect_error(y.await(), StatusCode::kOutOfRange, texts));
        TESSERA_RETURN_IF_ERROR(
            expect_error(x.to_host<int32_t>().status(), StatusCode::kOutOfRange, texts));
        // Through ops that follow, by their first error.
        const DTensor z =
            local_map(Layout::parse(mesh, "[-]"), {8}, DType::kInt32, {y}, [](LocalContext&) {});
        TESSERA_RETURN_IF_ERROR(expect_error(z.await(), StatusCode::kOutOfRange, texts));
        client.sync_devices().IgnoreError();
        return mesh.barrier("usable", absl::Seconds(20));
      }),
      IsOk());
}

TEST_P(BadInputTest, ShapesDisagree) {
  if (GetParam().num_clients == 1) GTEST_SKIP() << "needs two clients";
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
        const int64_t n = client.client_id() == 3 ? 24 : 16;
        const std::vector<std::string> texts = {"16", "24", "client 3 "};
        // A gather, and a reduction.
        const DTensor x = iota<float>({n}, Layout::parse(mesh, "[x]"));
        TESSERA_RETURN_IF_ERROR(expect_error(relayout(x, Layout::parse(mesh, "[-]")).await(),
                                             StatusCode::kInvalidArgument, texts));
        const DTensor y = ones<float>({n}, Layout::parse(mesh, "[-] sum{x}"));
        TESSERA_RETURN_IF_ERROR(expect_error(relayout(y, Layout::parse(mesh, "[-]")).await(),
                                             StatusCode::kInvalidArgument, texts));
        TESSERA_RETURN_IF_ERROR(
            expect_error(x.to_host<float>().status(), StatusCode::kInvalidArgument, texts));
        client.sync_devices().IgnoreError();
        return mesh.barrier("usable", absl::Seconds(20));
      }),
      IsOk());
}

TEST_P(BadInputTest, FromShardsOfShapesThatDisagree) {
  if (GetParam().num_clients == 1) GTEST_SKIP() << "needs two clients";
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
        const int64_t columns = client.client_id() == 1 ? 5 : 3;
        const std::vector<HostTensor<float>> shards(
            2, {{1, columns}, std::vector<float>(columns, 1.0f)});
        const DTensor x = from_shards<float>({8, columns}, Layout::parse(mesh, "[x, -]"), shards);
        TESSERA_RETURN_IF_ERROR(x.await());
        return expect_error(relayout(x, Layout::parse(mesh, "[-, -]")).await(),
                            StatusCode::kInvalidArgument, {"3", "5", "client 1 "});
      }),
      IsOk());
}

TEST_P(BadInputTest, UseAfterShutdown) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
        const StatusOr<Layout> rows = Layout::parse(mesh, "[x]");
        const StatusOr<Layout> whole = Layout::parse(mesh, "[-]");
        const DTensor x = iota<float>({8}, rows);
        TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1, 2, 3, 4, 5, 6, 7}, 0));
        TESSERA_RETURN_IF_ERROR(x.await());
        TESSERA_RETURN_IF_ERROR(client.shutdown());
        const auto refused = [](const Status& status) {
          return expect_error(status, StatusCode::kFailedPrecondition,
                              {"has shut down; connect a new client first"});
        };
        TESSERA_RETURN_IF_ERROR(refused(relayout(x, whole).await()));
        TESSERA_RETURN_IF_ERROR(refused(x.to_host<float>().status()));
        TESSERA_RETURN_IF_ERROR(refused(zeros<float>({8}, rows).await()));
        TESSERA_RETURN_IF_ERROR(
            refused(local_map(rows, {8}, DType::kFloat32, {x}, [](LocalContext&) {}).await()));
        TESSERA_RETURN_IF_ERROR(refused(mesh.barrier("b", absl::Seconds(20))));
        TESSERA_RETURN_IF_ERROR(refused(client.sync_devices()));
        TESSERA_RETURN_IF_ERROR(refused(create_mesh(client, {{"x", 8}}).status()));
        TESSERA_RETURN_IF_ERROR(refused(client.group({0}, 0).status()));
        const std::vector<float> in(4);
        std::vector<float> out(4);
        const Status late = group.all_reduce<float>(in, absl::MakeSpan(out), ReduceOp::kSum)
                                .wait(absl::Seconds(20));
        TESSERA_REQUIRE(absl::IsFailedPrecondition(late) || absl::IsCancelled(late),
                        late.ToString());
        // The elements that this client holds stay readable.
        return expect_iota<float>(x);
      }),
      IsOk());
}

TEST(BackendTest, NamesAndValues) {
  for (const Backend backend : {Backend::kAuto, Backend::kHost, Backend::kUcx, Backend::kMpi,
                                Backend::kGloo, Backend::kNccl}) {
    EXPECT_THAT(parse_backend(backend_name(backend)), IsOkAndHolds(backend));
  }
  EXPECT_THAT(parse_backend("udp"),
              StatusIs(StatusCode::kInvalidArgument,
                       "backend \"udp\" is unknown; use \"auto\", \"host\", \"ucx\", \"mpi\", "
                       "\"gloo\" or \"nccl\""));
}

// Refused on every client, whether it hosts the service or not, before anything is waited for.
TEST(ConnectTest, OptionsOutOfTheirRange) {
  struct Row {
    const char* name;
    ClientOptions options;
    StatusCode code;
    const char* text;
  };
  const auto invalid = StatusCode::kInvalidArgument;
  const auto at = [](std::string address, int id) {
    return ClientOptions{
        .coordinator = std::move(address), .client_id = id, .num_clients = 2, .token = "secret"};
  };
  const Row rows[] = {
      {"mpi",
       {.backend = Backend::kMpi},
       invalid,
       "backend \"mpi\" needs a communicator; connect with the options of "
       "tessera::mpi::adopt(MPI_COMM_WORLD), from tessera/mpi.h"},
      {"nccl_of_cpus", {.backend = Backend::kNccl}, invalid, "use DeviceType::kCuda with it"},
      {"no_backend", {.backend = static_cast<Backend>(77)}, invalid, "backend is 77, which is not"},
      {"devices", {.num_local_devices = -3}, invalid, "num_local_devices is -3; give 1 or more"},
      {"many_devices",
       {.num_local_devices = 65'537},
       invalid,
       "num_local_devices is 65537; it must be from 1 to 65536"},
      {"connect_timeout",
       {.connect_timeout = absl::Seconds(-1)},
       invalid,
       "connect_timeout is -1s; give 0 or more"},
      {"collective_timeout",
       {.collective_timeout = -absl::InfiniteDuration()},
       invalid,
       "collective_timeout is -inf; give 0 or more"},
      {"no_heartbeats",
       {.heartbeat_interval = absl::ZeroDuration()},
       invalid,
       "heartbeat_interval is 0; give 1 ms to 1 h, the same on all clients"},
      {"negative_heartbeats",
       {.heartbeat_interval = absl::Seconds(-1)},
       invalid,
       "heartbeat_interval is -1s"},
      {"endless_heartbeats",
       {.heartbeat_interval = absl::InfiniteDuration()},
       invalid,
       "heartbeat_interval is inf"},
      {"address_of_0", at("nonsense", 0), invalid,
       "the coordinator's address is \"nonsense\"; it must be HOST:PORT, as in host-a:4000"},
      {"address_of_1", at("nonsense", 1), invalid, "the coordinator's address is \"nonsense\""},
      {"port_of_0", at(":99999", 0), invalid, "the coordinator's address is \":99999\""},
      {"port_of_1", at(":99999", 1), invalid, "the coordinator's address is \":99999\""},
  };
  for (const Row& row : rows) {
    EXPECT_THAT(Client::connect(row.options).status(), StatusIs(row.code, HasSubstr(row.text)))
        << row.name;
  }
}

TEST(ConnectTest, TimesOfTheEnvironment) {
  setenv("TESSERA_HEARTBEAT_INTERVAL", "soon", 1);
  const Status wrong = Client::connect({.num_clients = 1}).status();
  unsetenv("TESSERA_HEARTBEAT_INTERVAL");
  EXPECT_THAT(wrong, StatusIs(StatusCode::kInvalidArgument,
                              HasSubstr("TESSERA_HEARTBEAT_INTERVAL is \"soon\"; it must be")));
}

TEST(ConnectTest, LocalRanks) {
  const JobSpec job = {.setting = Setting::kProcesses, .num_clients = 3};
  EXPECT_THAT(run_clients(job,
                          [](Client& client) -> Status {
                            // All on this host.
                            TESSERA_REQUIRE(client.local_rank() == client.client_id());
                            return absl::OkStatus();
                          }),
              IsOk());
}

// Launching.

TEST(SpawnTest, SpawnError) {
  const Status status = run_isolated(absl::Seconds(60), [] {
    return spawn(4, [](const Client& client) -> Status {
      if (client.client_id() == 2) return absl::DataLossError("no such shard");
      TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 4}}));
      return mesh.barrier("b", absl::Seconds(60));
    });
  });
  EXPECT_THAT(status, StatusIs(StatusCode::kDataLoss,
                               AllOf(HasSubstr("client 2 "), HasSubstr("no such shard"))));
}

TEST(SpawnTest, SpawnOk) {
  const Status status = run_isolated(absl::Seconds(60), [] {
    return spawn(8, [](const Client& client) -> Status {
      TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1, 2, 3, 4, 5, 6, 7}));
      const int32_t in = client.client_id();
      int32_t out = 0;
      TESSERA_RETURN_IF_ERROR(group
                                  .all_reduce<int32_t>(absl::MakeConstSpan(&in, 1),
                                                       absl::MakeSpan(&out, 1), ReduceOp::kSum)
                                  .wait(absl::Seconds(20)));
      TESSERA_REQUIRE(out == 28, out);
      return absl::OkStatus();
    });
  });
  EXPECT_THAT(status, IsOk());
}

// The spawned clients read the times that the program does not give.
TEST(SpawnTest, TimesOfTheEnvironment) {
  const Status status = run_isolated(absl::Seconds(60), [] {
    setenv("TESSERA_COLLECTIVE_TIMEOUT", "210ms", 1);
    setenv("TESSERA_HEARTBEAT_INTERVAL", "300ms", 1);
    return spawn(2, [](const Client& client) -> Status {
      TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
      if (client.client_id() == 0) {
        const Status late = mesh.barrier("b");
        TESSERA_REQUIRE(absl::StrContains(late.message(), "arrived in 210 ms"), late.ToString());
      }
      TESSERA_RETURN_IF_ERROR(create_mesh(client, {{"y", 2}}).status());
      if (client.client_id() == 1) raise(SIGSTOP);
      Status lost;
      while (!absl::IsUnavailable(lost)) lost = mesh.barrier("c");
      return absl::DataLossError(lost.message());
    });
  });
  EXPECT_THAT(status, StatusIs(StatusCode::kDataLoss, HasSubstr("heartbeats of 300 ms")));
}

TEST(SpawnTest, NoClients) {
  EXPECT_THAT(spawn(0, [](const Client&) { return absl::OkStatus(); }),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("spawn of 0 clients")));
}

}  // namespace
}  // namespace tessera::testing
