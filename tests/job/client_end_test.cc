// SPDX-License-Identifier: Apache-2.0
//
// The end of a client, and places where it cannot be used: calls from its devices' own threads, its
// last handle on such a thread, shutdown while operations wait, forked children.
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
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
#include "tests/support/forked.h"
#include "tests/support/gate.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitizers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;

// Runs `body` in a forked child that ends as a program does, with its static objects; OK where its
// exit code is 0. kWithoutLeakCheck: for a process with threads. Objects to which only these
// threads refer are in the child's memory too, and would be reported as leaks; under sanitizers its
// static objects stay.
enum class End { kAsPrograms, kWithoutLeakCheck };
Status run_as_program(const std::function<Status()>& body, End end = End::kAsPrograms) {
  const pid_t pid = fork();
  if (pid == 0) {
    const Status status = body();
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
    if (kSanitized && end == End::kWithoutLeakCheck) _exit(status.ok() ? 0 : 1);
    std::exit(status.ok() ? 0 : 1);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  TESSERA_REQUIRE(WIFEXITED(status), "signal ", WTERMSIG(status));
  TESSERA_REQUIRE(WEXITSTATUS(status) == 0, "exit code ", WEXITSTATUS(status));
  return absl::OkStatus();
}

// Calls from a function that a device runs.

class DeviceThreadTest : public JobFormTest {
 protected:
  // Makes the call on one device of each client, as the function of a local_map.
  static Status expect_refused(
      const std::string& name,
      const std::function<Status(Client& client, const Mesh& mesh, const DTensor& tensor)>& call) {
    return run([&](Client& client) -> Status {
      TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
      const StatusOr<Layout> rows = Layout::parse(mesh, "[x]");
      const DTensor tensor = ones<float>({8}, rows);
      const int device = client.local_devices()[0].id;
      const DTensor mapped = local_map(rows, {8}, DType::kFloat32, {}, [&](LocalContext& local) {
        return local.device_id() == device ? call(client, mesh, tensor) : absl::OkStatus();
      });
      TESSERA_RETURN_IF_ERROR(expect_error(
          mapped.await(), StatusCode::kFailedPrecondition,
          {absl::StrCat("local_map on device ", device, ": ", name, ": called inside local_map on ",
                        "device ", device, ", which it would wait for; call it outside")}));
      client.sync_devices().IgnoreError();
      // The client is as it was.
      TESSERA_RETURN_IF_ERROR(mesh.barrier("after"));
      return expect_shards<float>(relayout(tensor, Layout::parse(mesh, "[-]")),
                                  [](int64_t) { return 1.0f; });
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Forms, DeviceThreadTest, ::testing::ValuesIn(kJobForms), job_form_name);
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceThreadTest, ::testing::ValuesIn(cuda_forms()), job_form_name);

TEST_P(DeviceThreadTest, Await) {
  EXPECT_THAT(
      expect_refused("await", [](Client&, const Mesh&, const DTensor& x) { return x.await(); }),
      IsOk());
}

TEST_P(DeviceThreadTest, AwaitOfItsOwnRelayout) {
  // Tensors and a mesh of the client's own: the other clients take no part.
  EXPECT_THAT(expect_refused(
                  "await",
                  [](Client& client, const Mesh&, const DTensor&) -> Status {
                    const int id = client.local_devices()[0].id;
                    TESSERA_ASSIGN_OR_RETURN(const Mesh own, create_mesh(client, {{"y", 1}}, {id}));
                    const DTensor x = iota<float>({4}, Layout::parse(own, "[y]"));
                    return relayout(x, Layout::parse(own, "[-] sum{y}")).await();
                  }),
              IsOk());
}

TEST_P(DeviceThreadTest, Shard) {
  EXPECT_THAT(expect_refused("shard", [](Client&, const Mesh&,
                                         const DTensor& x) { return x.shard<float>(0).status(); }),
              IsOk());
}

TEST_P(DeviceThreadTest, ToHost) {
  EXPECT_THAT(
      expect_refused("to_host", [](Client&, const Mesh&,
                                   const DTensor& x) { return x.to_host<float>().status(); }),
      IsOk());
}

TEST_P(DeviceThreadTest, Barrier) {
  EXPECT_THAT(expect_refused("barrier", [](Client&, const Mesh& mesh,
                                           const DTensor&) { return mesh.barrier("inside"); }),
              IsOk());
}

TEST_P(DeviceThreadTest, SyncDevices) {
  EXPECT_THAT(expect_refused("sync_devices", [](Client& client, const Mesh&,
                                                const DTensor&) { return client.sync_devices(); }),
              IsOk());
}

TEST_P(DeviceThreadTest, Shutdown) {
  EXPECT_THAT(expect_refused("shutdown", [](Client& client, const Mesh&,
                                            const DTensor&) { return client.shutdown(); }),
              IsOk());
}

class DeviceThreadWorkTest : public DeviceThreadTest {};
INSTANTIATE_TEST_SUITE_P(Forms, DeviceThreadWorkTest, ::testing::ValuesIn(kJobForms),
                         job_form_name);

TEST_P(DeviceThreadWorkTest, WorkWait) {
  EXPECT_THAT(expect_refused("Work::wait",
                             [](Client& client, const Mesh&, const DTensor&) -> Status {
                               const int id = client.local_devices()[0].id;
                               TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({id}));
                               static const std::vector<float> in(4, 1);
                               static std::vector<float> out(4);
                               const Work work =
                                   group.all_reduce<float>(in, absl::MakeSpan(out), ReduceOp::kSum);
                               const Status waited = work.wait(absl::Seconds(60));
                               const Status awaited = work.await();
                               TESSERA_REQUIRE(waited == awaited, awaited.ToString());
                               return awaited;
                             }),
              IsOk());
}

// A function may wait for another client's devices, here the devices of a client in the same
// process.
TEST(DeviceThreadOfOneClientTest, MayWaitForAnother) {
  EXPECT_THAT(
      run_isolated(
          absl::Seconds(60),
          []() -> Status {
            TESSERA_ASSIGN_OR_RETURN(const Client a, Client::connect({.num_local_devices = 2}));
            TESSERA_ASSIGN_OR_RETURN(const Client b, Client::connect({.num_local_devices = 2}));
            TESSERA_ASSIGN_OR_RETURN(const Mesh of_a, create_mesh(a, {{"x", 2}}));
            TESSERA_ASSIGN_OR_RETURN(const Mesh of_b, create_mesh(b, {{"x", 2}}));
            const DTensor theirs = ones<float>({8}, Layout::parse(of_b, "[x]"));
            return local_map(Layout::parse(of_a, "[x]"), {8}, DType::kFloat32, {},
                             [&](LocalContext& local) {
                               return local.device_id() == 0
                                          ? relayout(theirs, Layout::parse(of_b, "[-]")).await()
                                          : of_b.barrier();
                             })
                .await();
          }),
      IsOk());
}

// The last handle of a client.

struct Handle {
  const char* name;
  // The handle that the function holds alone once it has begun.
  std::function<std::shared_ptr<void>(const Client& client, const Mesh& mesh)> hold;
};
std::ostream& operator<<(std::ostream& out, const Handle& handle) { return out << handle.name; }

template <class T>
std::shared_ptr<void> held(T value) {
  return std::make_shared<T>(std::move(value));
}

class LastHandleTest : public ::testing::TestWithParam<Handle> {};
INSTANTIATE_TEST_SUITE_P(
    All, LastHandleTest,
    ::testing::Values(
        Handle{"client", [](const Client& client, const Mesh&) { return held(client); }},
        Handle{"mesh", [](const Client&, const Mesh& mesh) { return held(mesh); }},
        Handle{"tensor",
               [](const Client&, const Mesh& mesh) {
                 return held(ones<float>({8}, Layout::parse(mesh, "[x]")));
               }},
        Handle{"group",
               [](const Client& client, const Mesh&) {
                 return held(client.group({0, 1}, 0));
               }},
        Handle{"work",
               [](const Client& client, const Mesh&) {
                 static const std::vector<float> in(4, 1);
                 static std::vector<float> out(4);
                 const StatusOr<Group> group = client.group({0});
                 return held(std::pair(
                     group->all_reduce<float>(in, absl::MakeSpan(out), ReduceOp::kSum), client));
               }}),
    ::testing::PrintToStringParamName());

// The handle that a function holds: the destructor opens a gate once the handle has gone.
struct LastOne {
  explicit LastOne(Gate& gate) : has_gone(gate) {}
  ~LastOne() {
    handle = nullptr;
    has_gone.open();
  }
  LastOne(const LastOne&) = delete;
  LastOne& operator=(const LastOne&) = delete;

  Gate& has_gone;
  std::shared_ptr<void> handle;
};

TEST_P(LastHandleTest, GoesOnADevicesThread) {
  EXPECT_THAT(run_as_program([]() -> Status {
                static Gate all_others_gone;
                static Gate has_gone;
                {
                  TESSERA_ASSIGN_OR_RETURN(const Client client,
                                           Client::connect({.num_local_devices = 2}));
                  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
                  const auto last = std::make_shared<LastOne>(has_gone);
                  last->handle = GetParam().hold(client, mesh);
                  local_map(Layout::parse(mesh, "[x]"), {8}, DType::kFloat32, {},
                            [last](LocalContext& local) -> Status {
                              if (local.device_id() == 1) return absl::OkStatus();
                              return all_others_gone.wait();
                            });
                }
                all_others_gone.open();
                // The program may end while the client does.
                return has_gone.wait();
              }),
              IsOk());
}

// The job is left as where the handle goes on a thread of the user's.
TEST(LastHandleOfSeveralTest, TheOthersHearOfIt) {
  // Threads, not processes: the end of a process would tell the others anyway.
  const auto run_job = []() -> Status {
    Gate all_others_gone;
    const auto body = [&](Client& client) -> Status {
      if (client.client_id() == 0) {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
        return expect_error(mesh.barrier("never"), StatusCode::kUnavailable, {"client 1 "});
      }
      {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
        TESSERA_ASSIGN_OR_RETURN(const Mesh own, create_mesh(client, {{"y", 1}}, {1}));
        local_map(Layout::parse(own, "[-]"), {8}, DType::kFloat32, {},
                  [&, last = std::move(client)](LocalContext&) { return all_others_gone.wait(); });
      }
      all_others_gone.open();
      return absl::OkStatus();
    };
    for (const Status& ended : run_threads({.num_clients = 2}, body)) {
      TESSERA_RETURN_IF_ERROR(ended);
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(run_isolated(absl::Seconds(90), run_job), IsOk());
}

// Shutdown.

// Clients 0 and 1 wait for client 2, which does not come, until client 0 shuts down.
TEST(ShutdownTest, CancelsABarrierThatWaits) {
  Gate waits;
  Gate all_told;
  // Called for the first device of client 0 as its barrier begins, which shutdown() then lets
  // begin.
  internal::ClientHooks hooks;
  hooks.barrier_term = [&](int device) {
    if (device == 0) waits.open();
    return 1;
  };
  const JobSpec job = {.setting = Setting::kProcesses, .num_clients = 3, .hooks = hooks};
  const std::vector<Status> ended = run_processes(job, [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 3}}));
    if (client.client_id() == 2) {
      for (int i = 0; i < 2; ++i) TESSERA_RETURN_IF_ERROR(all_told.wait());
      return absl::OkStatus();
    }
    std::thread other;
    Status shutdown;
    if (client.client_id() == 0) {
      other = std::thread([&] {
        shutdown = waits.wait();
        if (shutdown.ok()) shutdown = client.shutdown(absl::Milliseconds(100));
      });
    }
    const Status barrier = mesh.barrier("never");
    if (other.joinable()) other.join();
    all_told.open();
    if (client.client_id() == 0) {
      TESSERA_RETURN_IF_ERROR(expect_error(shutdown, StatusCode::kDeadlineExceeded,
                                           {"work was still pending after 100 ms"}));
    }
    return expect_error(barrier, StatusCode::kCancelled, {"client 0 is shutting down"});
  });
  EXPECT_THAT(ended, ::testing::Each(IsOk()));
}

// Row asked_during_shutdown of tests/facts/dtensor.md: client 0 asks while client 1 is inside
// shutdown(), where it waits for its own work, or for client 0 to leave.
TEST(ShutdownTest, AskedDuringShutdown) {
  for (const bool is_busy : {false, true}) {
    SCOPED_TRACE(is_busy ? "busy" : "idle");
    Gate begun;
    Gate inside;
    Gate answered;
    const std::vector<Status> ended =
        run_processes({.num_clients = 2}, [&](Client& client) -> Status {
          TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
          TESSERA_RETURN_IF_ERROR(mesh.barrier("first"));
          if (client.client_id() == 0) {
            TESSERA_RETURN_IF_ERROR(inside.wait());
            const Status asked = mesh.barrier("ask", absl::Milliseconds(200));
            answered.open();
            TESSERA_RETURN_IF_ERROR(
                expect_error(asked, StatusCode::kDeadlineExceeded,
                             {"1 of 2 clients arrived", "missing client 1 (",
                              is_busy ? "still in local_map for" : "still in shutdown for "}));
            return client.shutdown();
          }
          const StatusOr<Layout> rows = Layout::parse(mesh, "[x]");
          std::optional<DTensor> slow;
          if (is_busy) {
            slow = local_map(rows, {2}, DType::kFloat32, {}, [&](LocalContext&) {
              begun.open();
              return answered.wait();
            });
            TESSERA_RETURN_IF_ERROR(begun.wait());
          }
          Status left;
          std::thread leaving([&] { left = client.shutdown(absl::Seconds(60)); });
          // Refused from its first step on. No tensor is made: the device would be last seen at a
          // tensor made just before.
          while (!absl::IsFailedPrecondition(client.allocate<float>(0, 1).status())) sched_yield();
          inside.open();
          leaving.join();
          return left;
        });
    EXPECT_THAT(ended, ::testing::Each(IsOk()));
  }
}

// Forked children.

// The errors in a child of a process with a client. It ends as a program does, with its handles.
Status use_in_child(Client client, Mesh mesh, DTensor tensor, Group group) {
  const auto refused = [](const Status& status) {
    return expect_error(status, StatusCode::kFailedPrecondition,
                        {"client ", " is of the process that forked this one (pid ",
                         "fork before Client::connect"});
  };
  const StatusOr<Layout> rows = Layout::parse(mesh, "[x]");
  TESSERA_RETURN_IF_ERROR(refused(mesh.barrier("forked")));
  TESSERA_RETURN_IF_ERROR(refused(client.sync_devices()));
  TESSERA_RETURN_IF_ERROR(refused(create_mesh(client, {{"x", 4}}).status()));
  TESSERA_RETURN_IF_ERROR(refused(client.group({0, 1, 2, 3}, 0).status()));
  TESSERA_RETURN_IF_ERROR(refused(tensor.await()));
  TESSERA_RETURN_IF_ERROR(refused(tensor.shard<float>(0).status()));
  TESSERA_RETURN_IF_ERROR(refused(tensor.to_host<float>().status()));
  TESSERA_RETURN_IF_ERROR(refused(ones<float>({8}, rows).await()));
  TESSERA_RETURN_IF_ERROR(refused(relayout(tensor, Layout::parse(mesh, "[-]")).await()));
  TESSERA_RETURN_IF_ERROR(
      refused(local_map(rows, {8}, DType::kFloat32, {}, [](LocalContext&) {}).await()));
  const std::vector<float> in(4);
  std::vector<float> out(4);
  TESSERA_RETURN_IF_ERROR(refused(group.barrier().await()));
  TESSERA_RETURN_IF_ERROR(refused(
      group.all_reduce<float>(in, absl::MakeSpan(out), ReduceOp::kSum).wait(absl::Seconds(60))));
  TESSERA_RETURN_IF_ERROR(refused(group.send<float>(in, 1 - group.position()).await()));
  TESSERA_RETURN_IF_ERROR(
      refused(group.recv<float>(absl::MakeSpan(out), 1 - group.position()).await()));
  return refused(client.shutdown());
}

TEST(ForkTest, TheChildIsRefusedAndTheParentUnharmed) {
  constexpr int kRounds = 3;
  const JobSpec job = {.setting = Setting::kProcesses, .num_clients = 2, .devices_per_client = 2};
  EXPECT_THAT(
      run_clients(
          job,
          [](Client& client) -> Status {
            TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 4}}));
            TESSERA_ASSIGN_OR_RETURN(
                const Group group,
                client.group({client.client_id(), 2 + client.client_id()}, client.client_id()));
            const DTensor rows = iota<float>({1024}, Layout::parse(mesh, "[x]"));
            for (int i = 0; i < kRounds; ++i) {
              // Memory of its own, and memory that clients share.
              const DTensor whole = relayout(rows, Layout::parse(mesh, "[-]"));
              const DTensor shared = relayout(rows, Layout::parse(mesh, "[-]"), Replicas::kShared);
              TESSERA_RETURN_IF_ERROR(whole.await());
              TESSERA_RETURN_IF_ERROR(shared.await());
              TESSERA_RETURN_IF_ERROR(run_as_program(
                  [&]() -> Status {
                    const DTensor copy = shared;
                    return use_in_child(client, mesh, whole, group);
                  },
                  End::kWithoutLeakCheck));
              // No barrier of a child was counted: this one needs all.
              TESSERA_RETURN_IF_ERROR(mesh.barrier("forked"));
              TESSERA_RETURN_IF_ERROR(expect_iota<float>(whole));
              TESSERA_RETURN_IF_ERROR(expect_iota<float>(shared));
            }
            return absl::OkStatus();
          }),
      IsOk());
}

}  // namespace
}  // namespace tessera::testing
