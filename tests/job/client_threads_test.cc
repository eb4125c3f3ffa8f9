// SPDX-License-Identifier: Apache-2.0
//
// Several threads of one client: what they start reaches every device in one order, so that each
// gets the values of its own operations (client.h, "Threads").
//
// Values are compared, for operations of equal signature that are exchanged end with OK.
#include <sched.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/reduce_op.h"
#include "base/status.h"
#include "collectives/group.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "dtensor/dtensor.h"
#include "dtensor/local_map.h"
#include "dtensor/relayout.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "tests/support/clients.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitizers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

constexpr int kRounds = kSanitized ? 20 : 300;

// Runs `body` in so many threads at once; the first failure, naming the thread.
Status in_threads(int num_threads, const std::function<Status(int thread)>& body) {
  std::vector<Status> statuses(num_threads);
  std::vector<std::thread> threads;
  for (int k = 0; k < num_threads; ++k) {
    threads.emplace_back([&, k] { statuses[k] = body(k); });
  }
  for (std::thread& thread : threads) thread.join();
  Status first;
  for (int k = 0; k < num_threads; ++k) {
    first.Update(with_context(statuses[k], absl::StrCat("thread ", k)));
  }
  return first;
}

Status expect_all(const DTensor& tensor, float value) {
  for (int s = 0; s < tensor.num_local_shards(); ++s) {
    TESSERA_ASSIGN_OR_RETURN(const ShardView<float> shard, tensor.shard<float>(s));
    for (const float held : shard.data) {
      TESSERA_REQUIRE(held == value, "shard ", s, " holds ", held, ", not ", value);
    }
  }
  return absl::OkStatus();
}

// Several operations of equal signature under way at a time.
Status relayout_own_values(const Mesh& mesh, int thread, int64_t size, int rounds = kRounds) {
  TESSERA_ASSIGN_OR_RETURN(const Layout rows, Layout::parse(mesh, "[x, -]"));
  TESSERA_ASSIGN_OR_RETURN(const Layout columns, Layout::parse(mesh, "[-, x]"));
  const auto value = static_cast<float>(thread);
  const DTensor tensor = full<float>({size, size}, value, rows);
  for (int i = 0; i < rounds; ++i) {
    std::vector<DTensor> pending;
    for (int j = 0; j < 5; ++j) pending.push_back(relayout(tensor, columns));
    for (const DTensor& one : pending) TESSERA_RETURN_IF_ERROR(expect_all(one, value));
  }
  return absl::OkStatus();
}

// All kinds of operations, in an order of the thread's own.
Status mix_operations(const Mesh& mesh, int thread) {
  TESSERA_ASSIGN_OR_RETURN(const Layout rows, Layout::parse(mesh, "[x]"));
  TESSERA_ASSIGN_OR_RETURN(const Layout terms, Layout::parse(mesh, "[-] sum{x}"));
  TESSERA_ASSIGN_OR_RETURN(const Layout whole, Layout::parse(mesh, "[-]"));
  const auto value = static_cast<float>(thread + 1);
  const auto devices = static_cast<float>(mesh.size());
  const DTensor tensor = full<float>({64}, value, rows);
  for (int i = 0; i < kRounds; ++i) {
    switch ((thread + i) % 4) {
      case 0: {
        TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> host, tensor.to_host<float>());
        for (const float held : host.data) TESSERA_REQUIRE(held == value, "to_host: ", held);
        break;
      }
      case 1:
        TESSERA_RETURN_IF_ERROR(mesh.barrier("step"));
        break;
      case 2: {
        const DTensor own = local_map(terms, {8}, DType::kFloat32, {}, [value](LocalContext& c) {
          for (float& x : c.output<float>().data) x = value;
        });
        TESSERA_RETURN_IF_ERROR(expect_all(relayout(own, whole), value * devices));
        break;
      }
      case 3:
        TESSERA_RETURN_IF_ERROR(expect_all(relayout(tensor, whole), value));
        break;
    }
  }
  return absl::OkStatus();
}

struct Threads {
  int num_devices;
  int num_threads;
};
std::ostream& operator<<(std::ostream& out, const Threads& threads) {
  return out << threads.num_devices << "_devices_" << threads.num_threads << "_threads";
}

class ClientThreadsTest : public ::testing::TestWithParam<Threads> {
 protected:
  static Status run(const std::function<Status(Client& client, const Mesh& mesh)>& body,
                    const internal::ClientHooks& hooks = {}) {
    const int num_devices = GetParam().num_devices;
    return run_clients(
        {.devices_per_client = num_devices, .hooks = hooks}, [&](Client& client) -> Status {
          TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", num_devices}}));
          return body(client, mesh);
        });
  }
};
INSTANTIATE_TEST_SUITE_P(All, ClientThreadsTest,
                         ::testing::Values(Threads{2, 2}, Threads{4, 4}, Threads{8, 4},
                                           Threads{8, 8}),
                         ::testing::PrintToStringParamName());

TEST_P(ClientThreadsTest, RelayoutsKeepTheirOwnValues) {
  EXPECT_THAT(run([](Client&, const Mesh& mesh) {
                return in_threads(GetParam().num_threads, [&](int thread) {
                  return relayout_own_values(mesh, thread, 64);
                });
              }),
              IsOk());
}

// Tensors of more bytes than a caller moves by itself.
TEST_P(ClientThreadsTest, LargeRelayoutsKeepTheirOwnValues) {
  EXPECT_THAT(run([](Client&, const Mesh& mesh) {
                return in_threads(GetParam().num_threads, [&](int thread) {
                  return relayout_own_values(mesh, thread, 128);
                });
              }),
              IsOk());
}

TEST_P(ClientThreadsTest, OperationsMix) {
  EXPECT_THAT(run([](Client&, const Mesh& mesh) {
                return in_threads(GetParam().num_threads,
                                  [&](int thread) { return mix_operations(mesh, thread); });
              }),
              IsOk());
}

TEST_P(ClientThreadsTest, EachThreadMakesItsMeshes) {
  EXPECT_THAT(run([](Client& client, const Mesh&) {
                return in_threads(GetParam().num_threads, [&](int thread) -> Status {
                  for (int i = 0; i < 5; ++i) {
                    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh,
                                             create_mesh(client, {{"x", GetParam().num_devices}}));
                    TESSERA_RETURN_IF_ERROR(mesh.barrier("made"));
                    TESSERA_RETURN_IF_ERROR(relayout_own_values(mesh, thread, 16, 10));
                  }
                  return absl::OkStatus();
                });
              }),
              IsOk());
}

// Names that differ tell barriers apart. The fault point is between one device and the next: it
// gives other threads the core there.
TEST_P(ClientThreadsTest, BarriersOfDifferentNames) {
  internal::ClientHooks hooks;
  hooks.barrier_term = [](int) {
    sched_yield();
    return 1;
  };
  EXPECT_THAT(run(
                  [](Client&, const Mesh& mesh) {
                    return in_threads(GetParam().num_threads, [&](int thread) -> Status {
                      const std::string name = absl::StrCat("of thread ", thread);
                      for (int i = 0; i < kRounds; ++i) {
                        TESSERA_RETURN_IF_ERROR(mesh.barrier(name));
                      }
                      return absl::OkStatus();
                    });
                  },
                  hooks),
              IsOk());
}

// A thread for each device is how collectives of a group are driven within one client.
TEST_P(ClientThreadsTest, AThreadForEachDeviceOfAGroup) {
  EXPECT_THAT(run([](Client& client, const Mesh& mesh) {
                const int num_devices = GetParam().num_devices;
                return in_threads(num_devices, [&](int device) -> Status {
                  const std::vector<std::string> axes = {"x"};
                  TESSERA_ASSIGN_OR_RETURN(const Group group, client.group(mesh, axes, device));
                  for (int i = 0; i < kRounds; ++i) {
                    const std::vector<int> in(8, i * device);
                    std::vector<int> out(8);
                    TESSERA_RETURN_IF_ERROR(
                        group.all_reduce<int>(in, absl::MakeSpan(out), ReduceOp::kMax).await());
                    for (const int held : out) TESSERA_REQUIRE(held == i * (num_devices - 1));
                  }
                  return absl::OkStatus();
                });
              }),
              IsOk());
}

class ThreadsOfClientsTest : public ::testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(All, ThreadsOfClientsTest,
                         ::testing::Values(Setting::kThreads, Setting::kProcesses),
                         ::testing::PrintToStringParamName());

// Threads whose operations have no device in common need no order between each other.
TEST_P(ThreadsOfClientsTest, MeshesWithoutCommonDevices) {
  constexpr int kClients = 2;
  constexpr int kDevices = 4;
  EXPECT_THAT(
      run_clients(
          {.setting = GetParam(), .num_clients = kClients, .devices_per_client = kDevices},
          [](Client& client) -> Status {
            // Thread k: two devices of each client. Made in one order on all clients.
            std::vector<Mesh> meshes;
            for (int k = 0; k < kDevices / 2; ++k) {
              std::vector<int> ids;
              for (int c = 0; c < kClients; ++c) {
                ids.insert(ids.end(), {c * kDevices + 2 * k, c * kDevices + 2 * k + 1});
              }
              TESSERA_ASSIGN_OR_RETURN(Mesh mesh, create_mesh(client, {{"x", 2 * kClients}}, ids));
              meshes.push_back(std::move(mesh));
            }
            TESSERA_RETURN_IF_ERROR(in_threads(kDevices / 2, [&](int thread) -> Status {
              TESSERA_RETURN_IF_ERROR(relayout_own_values(meshes[thread], thread, 64));
              return mix_operations(meshes[thread], thread);
            }));
            return absl::OkStatus();
          }),
      IsOk());
}

}  // namespace
}  // namespace tessera::testing
