// SPDX-License-Identifier: Apache-2.0
//
// Replicas::kShared: the values equal the values of replicas with memory of their own; all replicas
// use the memory of one copy; it is freed after its last reader, and it outlives the client that
// made it.
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "device/cpu/arena.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "dtensor/runtime.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "relayout/testing/small_relayouts.h"
#include "tests/support/clients.h"
#include "tests/support/gate.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

constexpr auto kWait = absl::Seconds(30);

class SharedReplicasTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, SharedReplicasTest, ::testing::ValuesIn(kJobForms), job_form_name);

// Every 29th pair of layouts, there and on to a third layout: a member that has only borrowed its
// memory must be able to publish it.
TEST_P(SharedReplicasTest, Values) {
  const auto check = [](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2, y=2, z=2}"));
    const Shape shape = {5, 6};
    const std::vector<Layout> layouts = every_layout(mesh, 2, {ReduceOp::kSum});
    for (size_t i = 0; i < layouts.size() * layouts.size(); i += 29) {
      const Layout& from = layouts[i / layouts.size()];
      const Layout& to = layouts[i % layouts.size()];
      const Layout& next = layouts[i * 7 % layouts.size()];
      if (to.is_partial() || next.is_partial()) continue;
      const DTensor moved = relayout(iota<int32_t>(shape, from), to, Replicas::kShared);
      TESSERA_RETURN_IF_ERROR(expect_iota<int32_t>(moved));
      TESSERA_RETURN_IF_ERROR(expect_iota<int32_t>(relayout(moved, next)));
      TESSERA_RETURN_IF_ERROR(expect_iota<int32_t>(relayout(moved, next, Replicas::kShared)));
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(run(check), IsOk());
}

// So small that members could publish them in their entries, and of fewer elements than devices:
// some want nothing, or share with no other, and do not know which others share.
TEST_P(SharedReplicasTest, SmallOnesThatNotAllShare) {
  const auto check = [](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2, y=2, z=2}"));
    const std::vector<Layout> layouts = every_layout(mesh, 2, {});
    for (const Shape& shape : {Shape{1, 2}, Shape{3, 1}, Shape{1, 1}}) {
      // Another tensor in memory beside this one.
      const DTensor other = full<int32_t>({64}, 7, Layout::replicated(mesh, 1));
      for (size_t i = 0; i < layouts.size() * layouts.size(); i += 13) {
        const Layout& from = layouts[i / layouts.size()];
        const Layout& to = layouts[i % layouts.size()];
        TESSERA_RETURN_IF_ERROR(with_context(
            expect_iota<int32_t>(relayout(iota<int32_t>(shape, from), to, Replicas::kShared)),
            absl::StrCat(from.to_string(), " to ", to.to_string())));
      }
    }
    TESSERA_ASSIGN_OR_RETURN(const Mesh one, create_mesh(client, {{"x", 1}}, {0}));
    TESSERA_ASSIGN_OR_RETURN(const Mesh two, create_mesh(client, {{"y", 2}}, {5, 7}));
    const DTensor x = iota<int32_t>({16}, Layout::replicated(one, 1));
    return expect_iota<int32_t>(relayout(x, Layout::replicated(two, 1), Replicas::kShared));
  };
  EXPECT_THAT(run(check), IsOk());
}

TEST_P(SharedReplicasTest, Scalar) {
  const auto check = [](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
    TESSERA_ASSIGN_OR_RETURN(const Layout partial, Layout::parse(mesh, "[] sum{x}"));
    const DTensor sum =
        relayout(full<double>({}, 3, partial), Layout::replicated(mesh, 0), Replicas::kShared);
    return expect_shards<double>(sum, [](int64_t) { return 3.0; });
  };
  EXPECT_THAT(run(check), IsOk());
}

// The sum over the clients of what each says.
StatusOr<int64_t> sum_of_clients(Client& client, int64_t own) {
  std::vector<int> first_devices;
  for (const Device& device : client.devices()) {
    if (device.ordinal == 0) first_devices.push_back(device.id);
  }
  TESSERA_ASSIGN_OR_RETURN(const Group group, client.group(first_devices));
  int64_t sum = 0;
  TESSERA_RETURN_IF_ERROR(
      group.all_reduce<int64_t>({&own, 1}, {&sum, 1}, ReduceOp::kSum).wait(kWait));
  return sum;
}

struct Move {
  const char* from;
  const char* to;
};

TEST_P(SharedReplicasTest, OneCopyForAllDevices) {
  static constexpr Move kMoves[] = {
      {"[(x,y), -]", "[-, -]"},       // all-gather
      {"[-, -] sum{x,y}", "[-, -]"},  // all-reduce
      {"[x, -]", "[y, -]"},           // the replicas of each half are on two devices each
  };
  const auto check = [](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2, y=4}"));
    ArenaPool& pool = *internal::runtime_of(client)->devices().host_memory();
    const Shape shape = {256, 1024};
    const auto check_move = [&](const Move& move) -> Status {
      TESSERA_ASSIGN_OR_RETURN(const Layout to, Layout::parse(mesh, move.to));
      DTensor tensor = iota<float>(shape, Layout::parse(mesh, move.from));
      TESSERA_RETURN_IF_ERROR(tensor.await());
      const DTensor shared = relayout(std::move(tensor), to, Replicas::kShared);
      TESSERA_RETURN_IF_ERROR(shared.await());
      tensor = shared;
      TESSERA_RETURN_IF_ERROR(client.sync_devices());
      // The clients together hold each distinct box once, and some bytes of bookkeeping.
      TESSERA_ASSIGN_OR_RETURN(const int64_t together,
                               sum_of_clients(client, static_cast<int64_t>(pool.live_bytes())));
      const int64_t once = num_elements(shape) * int64_t{sizeof(float)};
      TESSERA_REQUIRE(together >= once && together < once * 3 / 2, together, " bytes for ",
                      move.from, " -> ", move.to, ", not ", once);
      TESSERA_RETURN_IF_ERROR(expect_iota<float>(shared));
      return absl::OkStatus();
    };
    for (const Move& move : kMoves) {
      TESSERA_RETURN_IF_ERROR(check_move(move));
      // All have released it, so that the next one reuses its memory.
      TESSERA_RETURN_IF_ERROR(client.sync_devices());
      TESSERA_RETURN_IF_ERROR(mesh.barrier("released", kWait));
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(run(check), IsOk());
}

TEST_P(SharedReplicasTest, MemoryComesBack) {
  const auto check = [](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
    TESSERA_ASSIGN_OR_RETURN(const Layout whole, Layout::replicated(mesh, 1));
    const DTensor tensor = iota<float>({1 << 18}, Layout::parse(mesh, "[x]"));
    const ArenaPool& pool = *internal::runtime_of(client)->devices().host_memory();
    uint64_t reserved = 0;
    for (int round = 0; round < 40; ++round) {
      TESSERA_RETURN_IF_ERROR(relayout(tensor, whole, Replicas::kShared).await());
      TESSERA_RETURN_IF_ERROR(client.sync_devices());
      TESSERA_RETURN_IF_ERROR(mesh.barrier("released", kWait));
      if (round == 1) reserved = pool.reserved_bytes();
    }
    TESSERA_REQUIRE(pool.reserved_bytes() == reserved);
    return absl::OkStatus();
  };
  EXPECT_THAT(run(check), IsOk());
}

// Whatever its size, and whichever thread moves it.
TEST_P(SharedReplicasTest, DevicesOfAClientReadOneCopy) {
  const auto check = [](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
    for (const int64_t rows : {8, 1 << 16}) {
      for (const char* const from : {"[x]", "[-] sum{x}"}) {
        const DTensor shared = relayout(iota<float>({rows}, Layout::parse(mesh, from)),
                                        Layout::replicated(mesh, 1), Replicas::kShared);
        TESSERA_RETURN_IF_ERROR(expect_iota<float>(shared));
        TESSERA_ASSIGN_OR_RETURN(const ShardView<float> first, shared.shard<float>(0));
        for (int i = 1; i < shared.num_local_shards(); ++i) {
          TESSERA_ASSIGN_OR_RETURN(const ShardView<float> other, shared.shard<float>(i));
          TESSERA_REQUIRE(other.data.data() == first.data.data(), rows, " of ", from);
        }
      }
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(run(check), IsOk());
}

TEST_P(SharedReplicasTest, ClientsThatDoNotAllShareAreTold) {
  if (GetParam().num_clients == 1) GTEST_SKIP() << "one program cannot disagree with itself";
  const auto check = [](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
    const Replicas replicas = client.client_id() == 1 ? Replicas::kOwn : Replicas::kShared;
    const DTensor tensor = iota<float>({16}, Layout::parse(mesh, "[x]"));
    const Status status = relayout(tensor, Layout::replicated(mesh, 1), replicas).await();
    TESSERA_RETURN_IF_ERROR(
        expect_error(status, absl::StatusCode::kInvalidArgument, {"layouts", "shared replicas"}));
    client.sync_devices().IgnoreError();
    return expect_iota<float>(relayout(tensor, Layout::replicated(mesh, 1), Replicas::kShared));
  };
  EXPECT_THAT(run(check), IsOk());
}

// Client 1 makes the memory of all, and is killed; client 2 holds it, and is killed. Client 0 has
// the coordinator.
TEST(SharedReplicasLossTest, TheCopyOutlivesAnyClient) {
  for (const int victim : {1, 2}) {
    Gate done;
    const auto body = [&](Client& client) -> Status {
      TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=3} on 1,2,3"));
      const auto share = [](const Mesh& over) {
        return relayout(iota<float>({1 << 18}, Layout::parse(over, "[x]")),
                        Layout::replicated(over, 1), Replicas::kShared);
      };
      if (client.client_id() == 0) {
        TESSERA_RETURN_IF_ERROR(done.wait());
        return done.wait();
      }
      const DTensor shared = share(mesh);
      TESSERA_RETURN_IF_ERROR(shared.await());
      TESSERA_RETURN_IF_ERROR(mesh.barrier("all hold it", kWait));
      if (client.client_id() == victim) kill(getpid(), SIGKILL);
      TESSERA_REQUIRE(!mesh.barrier("it is gone", kWait).ok());
      TESSERA_RETURN_IF_ERROR(expect_iota<float>(shared));
      TESSERA_ASSIGN_OR_RETURN(const Mesh left,
                               create_mesh(client, {{"x", 2}}, {victim == 1 ? 2 : 1, 3}));
      for (int round = 0; round < 5; ++round) {
        TESSERA_RETURN_IF_ERROR(expect_iota<float>(share(left)));
      }
      TESSERA_RETURN_IF_ERROR(expect_iota<float>(shared));
      TESSERA_RETURN_IF_ERROR(left.barrier("end", kWait));
      done.open();
      return absl::OkStatus();
    };
    const std::vector<Status> statuses = run_processes({.num_clients = 4}, body);
    for (int c = 0; c < 4; ++c) {
      if (c == victim) continue;
      EXPECT_THAT(statuses[c], IsOk()) << "client " << c << ", victim " << victim;
    }
  }
}

}  // namespace
}  // namespace tessera::testing
