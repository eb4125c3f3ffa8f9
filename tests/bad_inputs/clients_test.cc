// SPDX-License-Identifier: Apache-2.0
//
// The table of bad inputs, part 6: create_mesh, a client that has shut down, calls that a local
// function may not make, two clients of one process, and spawn. Each row is one input, the code and
// the whole message that it must give.
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tessera/tessera.h"
#include "tests/support/bad_inputs.h"
#include "tests/support/forked.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

// A client of four devices, and the values that most rows need.
struct Bench {
  Client client;
  Mesh mesh;  // {x=4}
  StatusOr<Layout> rows;
  StatusOr<Layout> line;
  std::vector<float> values = std::vector<float>(48, 1.0f);

  static StatusOr<Bench> create(int num_devices = 4) {
    TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect({.num_local_devices = num_devices}));
    TESSERA_ASSIGN_OR_RETURN(Mesh mesh, create_mesh(client, {{"x", num_devices}}));
    return Bench{client, mesh, Layout::parse(mesh, "[x, -]"), Layout::parse(mesh, "[x]")};
  }
  // The result of a local function on the four devices.
  DTensor run(LocalFn fn) const { return local_map(line, {8}, DType::kFloat32, {}, std::move(fn)); }
};
using Row = BadInput<Bench>;

const Row kMeshRows[] = {
    {"five_of_4_devices", kInvalid,
     "mesh {x=5} has 5 devices, 4 ids were given; give one id per device",
     [](Bench& b) {
       return create_mesh(b.client, {{"x", 5}}).status();
     }},
    {"three_of_4_devices", kInvalid,
     "mesh {x=3} has 3 devices, 4 ids were given; give one id per device",
     [](Bench& b) {
       return create_mesh(b.client, {{"x", 3}}).status();
     }},
    {"id_4_of_4", kInvalid, "a mesh names device 4; the job has 4 devices, 0 to 3",
     [](Bench& b) {
       return create_mesh(b.client, {{"x", 2}}, {3, 4}).status();
     }},
    {"id_minus_one", kInvalid, "mesh {x=2} names device -1 at position 0; device ids are 0 or more",
     [](Bench& b) {
       return create_mesh(b.client, {{"x", 2}}, {-1, 0}).status();
     }},
    {"smallest_id", kInvalid,
     "mesh {x=1} names device -2147483648 at position 0; device ids are 0 or more",
     [](Bench& b) {
       return create_mesh(b.client, {{"x", 1}}, {std::numeric_limits<int>::min()}).status();
     }},
    {"id_twice", kInvalid,
     "mesh {x=2} names device 1 twice, at positions 0 and 1; a device has one place in a mesh",
     [](Bench& b) {
       return create_mesh(b.client, {{"x", 2}}, {1, 1}).status();
     }},
    {"no_axes", kInvalid, "mesh {} has no axis; a mesh needs an axis, as in {x=4}",
     [](Bench& b) { return create_mesh(b.client, {}).status(); }},
    {"no_ids", kInvalid, "mesh {x=1} has 1 device, 0 ids were given; give one id per device",
     [](Bench& b) {
       return create_mesh(b.client, {{"x", 1}}, {}).status();
     }},
    {"product_past_64_bits", kInvalid,
     "mesh {x=1099511627776, y=1099511627776} has more than 2147483647 devices; use smaller sizes",
     [](Bench& b) {
       return create_mesh(b.client, {{"x", int64_t{1} << 40}, {"y", int64_t{1} << 40}}).status();
     }},
};

const Row kMemoryRows[] = {
    {"tensor_of_128_tib", kExhausted,
     "a block of 35184372088832 bytes, beside the ... bytes that the client holds: the system has "
     "... bytes of memory left, and 35184372088832 are needed; use smaller tensors, or more hosts",
     [](Bench& b) { return zeros<float>({int64_t{1} << 45}, b.line).await(); }},
    {"tensor_of_512_gib", kExhausted,
     "a block of 137438953472 bytes, beside the ... bytes that the client holds: the system has "
     "... "
     "bytes of memory left, and 137438953472 are needed; use smaller tensors, or more hosts",
     [](Bench& b) { return zeros<float>({int64_t{1} << 37}, b.line).await(); }},
    {"relayout_of_a_tensor_without_memory", kExhausted,
     "a block of 35184372088832 bytes, beside the ... bytes that the client holds: the system has "
     "... bytes of memory left, and 35184372088832 are needed; use smaller tensors, or more hosts",
     [](Bench& b) {
       return relayout(zeros<float>({int64_t{1} << 45}, b.line), Layout::parse(b.mesh, "[-]"))
           .await();
     }},
};

constexpr char kHasShutDown[] = "client 0 has shut down; connect a new client first";

// After the client's shutdown.
const Row kShutDownRows[] = {
    {"create_mesh", kFailed, kHasShutDown,
     [](Bench& b) {
       return create_mesh(b.client, {{"x", 4}}).status();
     }},
    {"zeros", kFailed, kHasShutDown, [](Bench& b) { return zeros<float>({8}, b.line).await(); }},
    {"from_host", kFailed, kHasShutDown,
     [](Bench& b) {
       return from_host<float>(b.values, {8, 6}, b.rows).await();
     }},
    {"local_map", kFailed, kHasShutDown,
     [](Bench& b) { return b.run([](LocalContext&) {}).await(); }},
    {"barrier", kFailed, kHasShutDown, [](Bench& b) { return b.mesh.barrier("late"); }},
    {"sync_devices", kFailed, kHasShutDown, [](Bench& b) { return b.client.sync_devices(); }},
    {"group", kFailed, kHasShutDown,
     [](Bench& b) {
       return b.client.group({0, 1}, 0).status();
     }},
    {"group_of_a_mesh", kFailed, kHasShutDown,
     [](Bench& b) { return b.client.group(b.mesh, std::vector<std::string>{"x"}, 0).status(); }},
    {"allocate", kFailed, kHasShutDown,
     [](Bench& b) { return b.client.allocate<float>(0, 8).status(); }},
};

// In a local function of each device. The message names the first device.
const Row kInsideRows[] = {
    {"barrier", kFailed,
     "local_map on device 0: barrier: called inside local_map on device 0, which it would wait "
     "for; "
     "call it outside of the function",
     [](Bench& b) {
       return b.run([mesh = b.mesh](LocalContext&) { return mesh.barrier("inside"); }).await();
     }},
    {"barrier_with_a_timeout", kFailed,
     "local_map on device 0: barrier: called inside local_map on device 0, which it would wait "
     "for; "
     "call it outside of the function",
     [](Bench& b) {
       return b
           .run([mesh = b.mesh](LocalContext&) { return mesh.barrier("inside", absl::Minutes(1)); })
           .await();
     }},
    {"sync_devices", kFailed,
     "local_map on device 0: sync_devices: called inside local_map on device 0, which it would "
     "wait "
     "for; call it outside of the function",
     [](Bench& b) {
       return b.run([client = b.client](LocalContext&) mutable { return client.sync_devices(); })
           .await();
     }},
    {"shutdown", kFailed,
     "local_map on device 0: shutdown: called inside local_map on device 0, which it would wait "
     "for; call it outside of the function",
     [](Bench& b) {
       return b
           .run([client = b.client](LocalContext&) mutable {
             return client.shutdown(absl::Minutes(1));
           })
           .await();
     }},
    {"await", kFailed,
     "local_map on device 0: await: called inside local_map on device 0, which it would wait for; "
     "call it outside of the function",
     [](Bench& b) {
       return b
           .run([rows = b.rows](LocalContext&) {
             return relayout(iota<float>({64, 64}, rows), Layout::parse(rows->mesh(), "[-, x]"))
                 .await();
           })
           .await();
     }},
    {"an_exception", absl::StatusCode::kUnknown,
     "local_map on device 0: the function raised an exception: from the function",
     [](Bench& b) {
       return b
           .run([](LocalContext&) {
             std::rethrow_exception(
                 std::make_exception_ptr(std::runtime_error("from the function")));
           })
           .await();
     }},
    {"an_empty_function", kInvalid, "local_map: the function is empty; give one that can be called",
     [](Bench& b) { return b.run(std::function<Status(LocalContext&)>()).await(); }},
};

// Two clients, each a job of one, in one process.
const Row kTwoClientsRows[] = {
    {"relayout_to_the_other", kInvalid,
     "relayout to [x] on {x=3}, a mesh of another client than the tensor's; use meshes of one "
     "client",
     [](Bench& b) {
       TESSERA_ASSIGN_OR_RETURN(const Bench other, Bench::create(3));
       return relayout(iota<float>({6}, b.line), other.line).await();
     }},
    {"local_map_over_the_other", kInvalid,
     "local_map: input 0 is on {x=4}, a mesh of another client than the output's {x=3}; use "
     "meshes of one client",
     [](Bench& b) {
       TESSERA_ASSIGN_OR_RETURN(const Bench other, Bench::create(3));
       return local_map(other.line, {6}, DType::kFloat32, {iota<float>({6}, b.line)},
                        [](LocalContext&) {})
           .await();
     }},
    {"group_over_a_mesh_of_the_other", kInvalid,
     "device 4 does not exist; the job has devices 0 to 3",
     [](Bench& b) {
       TESSERA_ASSIGN_OR_RETURN(const Bench other, Bench::create(5));
       return b.client.group(other.mesh, std::vector<std::string>{"x"}, 0).status();
     }},
};

class BadInputTest : public ::testing::TestWithParam<Row> {};

TEST_P(BadInputTest, IsRefused) {
  TESSERA_ASSERT_OK_AND_ASSIGN(Bench bench, Bench::create());
  EXPECT_THAT(expect_refused(GetParam(), GetParam().call(bench)), IsOk());
  bench.client.sync_devices().IgnoreError();
  EXPECT_THAT(
      relayout(iota<float>({8, 6}, bench.rows), Layout::parse(bench.mesh, "[-, x]")).await(),
      IsOk());
}
INSTANTIATE_TEST_SUITE_P(CreateMesh, BadInputTest, ::testing::ValuesIn(kMeshRows),
                         bad_input_name<Bench>);
INSTANTIATE_TEST_SUITE_P(Memory, BadInputTest, ::testing::ValuesIn(kMemoryRows),
                         bad_input_name<Bench>);
INSTANTIATE_TEST_SUITE_P(InLocalMap, BadInputTest, ::testing::ValuesIn(kInsideRows),
                         bad_input_name<Bench>);
INSTANTIATE_TEST_SUITE_P(TwoClients, BadInputTest, ::testing::ValuesIn(kTwoClientsRows),
                         bad_input_name<Bench>);

class AfterShutdownTest : public ::testing::TestWithParam<Row> {};

TEST_P(AfterShutdownTest, IsRefused) {
  TESSERA_ASSERT_OK_AND_ASSIGN(Bench bench, Bench::create());
  ASSERT_THAT(bench.client.shutdown(), IsOk());
  EXPECT_THAT(expect_refused(GetParam(), GetParam().call(bench)), IsOk());
}
INSTANTIATE_TEST_SUITE_P(Rows, AfterShutdownTest, ::testing::ValuesIn(kShutDownRows),
                         bad_input_name<Bench>);

// Objects made before the shutdown: values can be read, and nothing new is started.
TEST(AfterShutdownTest, OldTensorsAndGroups) {
  TESSERA_ASSERT_OK_AND_ASSIGN(Bench bench, Bench::create());
  const DTensor tensor = iota<float>({8}, bench.line);
  TESSERA_ASSERT_OK_AND_ASSIGN(const Group group, bench.client.group({0, 1}, 0));
  ASSERT_THAT(tensor.await(), IsOk());
  ASSERT_THAT(bench.client.shutdown(), IsOk());
  EXPECT_THAT(bench.client.shutdown(), IsOk());
  TESSERA_ASSERT_OK_AND_ASSIGN(const ShardView<float> shard, tensor.shard<float>(1));
  EXPECT_THAT(shard.data, ::testing::ElementsAre(2, 3));
  EXPECT_THAT(tensor.to_host<float>(), StatusIs(kFailed, kHasShutDown));
  EXPECT_THAT(relayout(tensor, Layout::parse(bench.mesh, "[-]")).await(),
              StatusIs(kFailed, kHasShutDown));
  EXPECT_THAT(relayout(tensor, bench.line).await(), StatusIs(kFailed, kHasShutDown));
  std::vector<float> out(48);
  EXPECT_THAT(
      group.all_reduce<float>(bench.values, absl::MakeSpan(out), ReduceOp::kSum).await(),
      StatusIs(absl::StatusCode::kCancelled,
               "all_reduce sum f32 of 48 elements on devices 0, 1: the client is shutting down"));
}

constexpr char kForked[] =
    "client 0 is of the process that forked this one (pid ...); a forked child cannot use it: fork "
    "before Client::connect, or start the child by exec";

// In a child that was forked after connect.
const Row kForkedRows[] = {
    {"relayout", kFailed, kForked,
     [](Bench& b) {
       return relayout(zeros<float>({8}, b.line), Layout::parse(b.mesh, "[-]")).await();
     }},
    {"barrier", kFailed, kForked, [](Bench& b) { return b.mesh.barrier("child"); }},
    {"local_map", kFailed, kForked, [](Bench& b) { return b.run([](LocalContext&) {}).await(); }},
    {"create_mesh", kFailed, kForked,
     [](Bench& b) {
       return create_mesh(b.client, {{"x", 4}}).status();
     }},
    {"sync_devices", kFailed, kForked, [](Bench& b) { return b.client.sync_devices(); }},
    {"shutdown", kFailed, kForked, [](Bench& b) { return b.client.shutdown(); }},
};

class InAForkedChildTest : public ::testing::TestWithParam<Row> {};

TEST_P(InAForkedChildTest, IsRefused) {
  TESSERA_ASSERT_OK_AND_ASSIGN(Bench bench, Bench::create());
  EXPECT_THAT(run_isolated(absl::Minutes(1),
                           [&] { return expect_refused(GetParam(), GetParam().call(bench)); }),
              IsOk());
  EXPECT_THAT(bench.mesh.barrier("parent"), IsOk());
}
INSTANTIATE_TEST_SUITE_P(Rows, InAForkedChildTest, ::testing::ValuesIn(kForkedRows),
                         bad_input_name<Bench>);

// spawn forks: a process of its own for each row, in which nothing of gRPC runs yet.
struct NoBench {};
using SpawnRow = BadInput<NoBench>;
const SpawnRow kSpawnRows[] = {
    {"no_clients", kInvalid, "spawn of 0 clients; give 1 or more",
     [](NoBench&) { return spawn(0, [](const Client&) { return absl::OkStatus(); }); }},
    {"minus_three_clients", kInvalid, "spawn of -3 clients; give 1 or more",
     [](NoBench&) { return spawn(-3, [](const Client&) { return absl::OkStatus(); }); }},
    {"a_client_exits", absl::StatusCode::kUnavailable,
     "client 1 (pid ...) exited with code 5 before its function returned",
     [](NoBench&) {
       return spawn(2, [](const Client& client) -> Status {
         if (client.client_id() == 1) std::_Exit(5);
         TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
         return mesh.barrier("after");
       });
     }},
    {"a_client_throws", absl::StatusCode::kUnknown,
     "client 1 (pid ...): the function raised an exception: thrown in spawn",
     [](NoBench&) {
       return spawn(2, [](const Client& client) -> Status {
         if (client.client_id() == 1) {
           std::rethrow_exception(std::make_exception_ptr(std::runtime_error("thrown in spawn")));
         }
         TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
         return mesh.barrier("after");
       });
     }},
    {"a_client_spawns", kFailed,
     "client ... (pid ...): spawn forks, and gRPC already runs in this process; call it before "
     "Client::connect, or start the clients with tessera_run",
     [](NoBench&) {
       return spawn(2, [](const Client&) {
         return spawn(2, [](const Client&) { return absl::OkStatus(); });
       });
     }},
    {"an_error_without_text", absl::StatusCode::kUnknown, "client 0 (pid ...)",
     [](NoBench&) {
       return spawn(2, [](const Client& client) {
         return client.client_id() == 0 ? absl::UnknownError("") : absl::OkStatus();
       });
     }},
};

class BadSpawnTest : public ::testing::TestWithParam<SpawnRow> {};

TEST_P(BadSpawnTest, IsRefused) {
  EXPECT_THAT(run_isolated(absl::Minutes(1),
                           [] {
                             NoBench none;
                             return expect_refused(GetParam(), GetParam().call(none));
                           }),
              IsOk());
}
INSTANTIATE_TEST_SUITE_P(Rows, BadSpawnTest, ::testing::ValuesIn(kSpawnRows),
                         bad_input_name<NoBench>);

}  // namespace
}  // namespace tessera::testing
