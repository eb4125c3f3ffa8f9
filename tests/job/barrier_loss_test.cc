// SPDX-License-Identifier: Apache-2.0
//
// The barrier when clients are lost, which needs real processes: the rows of "Loss" of barriers
// with known answers. All survivors are told the same, code and text.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/clients.h"
#include "tests/support/expect_error.h"
#include "tests/support/forked.h"
#include "tests/support/gate.h"
#include "tests/support/matchers.h"
#include "tests/support/verdicts.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;

StatusOr<Mesh> line(const Client& client, int n) { return create_mesh(client, {{"x", n}}); }

// Loss needs real processes.
class BarrierLossTest : public ::testing::Test {
 protected:
  // The body of a survivor, from the loss of client 2 on.
  Status survive(Client& client, const Mesh& mesh) {
    // By the loss, not by the deadline, which is beyond the test's deadline.
    TESSERA_RETURN_IF_ERROR(
        expect_error(verdicts_.add(client.client_id(), mesh.barrier("b", absl::Hours(1))),
                     StatusCode::kUnavailable, {"barrier \"b\"", "client 2 ", "lost"}));
    // Row already_dead: at once.
    TESSERA_RETURN_IF_ERROR(expect_error(mesh.barrier("c", absl::Hours(1)),
                                         StatusCode::kUnavailable, {"barrier \"c\"", "client 2 "}));
    // Row mesh_of_the_survivors, in the same processes.
    TESSERA_ASSIGN_OR_RETURN(const Mesh rest, create_mesh(client, {{"x", 2}}, {0, 1}));
    TESSERA_RETURN_IF_ERROR(rest.barrier("rest", absl::Seconds(20)));
    const DTensor x = iota<float>({6}, Layout::parse(rest, "[x]"));
    TESSERA_RETURN_IF_ERROR(x.to_host<float>().status());
    return client.shutdown(absl::Seconds(20));
  }

  void expect_two_survivors(const std::vector<Status>& statuses) {
    ASSERT_EQ(statuses.size(), 3u);
    EXPECT_THAT(statuses[0], IsOk());
    EXPECT_THAT(statuses[1], IsOk());
    EXPECT_THAT(verdicts_.same({0, 1}), IsOk());
  }

  Verdicts verdicts_;
};

TEST_F(BarrierLossTest, KilledBeforeArriving) {
  expect_two_survivors(run_processes({.num_clients = 3}, [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, line(client, 3));
    if (client.client_id() == 2) kill(getpid(), SIGKILL);
    return survive(client, mesh);
  }));
}

TEST_F(BarrierLossTest, ExitsBeforeArriving) {
  expect_two_survivors(run_processes({.num_clients = 3}, [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, line(client, 3));
    // Without shutdown, and without any destructor of the client.
    if (client.client_id() == 2) _exit(0);
    return survive(client, mesh);
  }));
}

TEST_F(BarrierLossTest, KilledWhileOthersWait) {
  Gate waiting;
  expect_two_survivors(run_processes({.num_clients = 3}, [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, line(client, 3));
    if (client.client_id() == 2) {
      TESSERA_RETURN_IF_ERROR(waiting.wait());
      TESSERA_RETURN_IF_ERROR(waiting.wait());
      kill(getpid(), SIGKILL);
    }
    waiting.open();
    return survive(client, mesh);
  }));
}

TEST_F(BarrierLossTest, StoppedIsLostAfterThreeHeartbeats) {
  JobSpec spec = {.num_clients = 3};
  auto* const stopped = static_cast<std::atomic<pid_t>*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const std::vector<Status> statuses = run_processes(spec, [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, line(client, 3));
    if (client.client_id() == 2) {
      *stopped = getpid();
      kill(getpid(), SIGSTOP);
      return absl::InternalError("this client is never resumed");
    }
    const Status status = survive(client, mesh);
    if (client.client_id() == 0) kill(*stopped, SIGKILL);
    return status;
  });
  expect_two_survivors(statuses);
  munmap(stopped, 4096);
}

TEST_F(BarrierLossTest, CoordinatorLost) {
  Gate meshes_made;  // create_mesh needs the coordinator
  // Clients 1 and 2. Without its coordinator a survivor that ends is lost to the other one, which
  // may name it instead of client 0.
  Gate was_told[2];
  const std::vector<Status> statuses =
      run_processes({.num_clients = 3}, [&](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, line(client, 3));
        if (client.client_id() == 0) {
          TESSERA_RETURN_IF_ERROR(meshes_made.wait());
          TESSERA_RETURN_IF_ERROR(meshes_made.wait());
          kill(getpid(), SIGKILL);
        }
        meshes_made.open();
        const Status told = expect_error(mesh.barrier("b", absl::Seconds(60)),
                                         StatusCode::kUnavailable, {"client 0 ", "lost"});
        was_told[client.client_id() - 1].open();
        TESSERA_RETURN_IF_ERROR(was_told[2 - client.client_id()].wait());
        return told;
      });
  EXPECT_THAT(statuses[1], IsOk());
  EXPECT_THAT(statuses[2], IsOk());
}

// Row stale_outsider.
TEST_F(BarrierLossTest, AnOutsidersLossDoesNotMatter) {
  const std::vector<Status> statuses =
      run_processes({.num_clients = 3}, [](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}, {0, 1}));
        if (client.client_id() == 2) kill(getpid(), SIGKILL);
        return mesh.barrier("b", absl::Seconds(60));
      });
  EXPECT_THAT(statuses[0], IsOk());
  EXPECT_THAT(statuses[1], IsOk());
}

TEST_F(BarrierLossTest, SpawnReportsTheVictim) {
  EXPECT_THAT(run_clients({.setting = Setting::kProcesses, .num_clients = 3},
                          [](Client& client) -> Status {
                            TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, line(client, 3));
                            if (client.client_id() == 2) kill(getpid(), SIGKILL);
                            return mesh.barrier("b", absl::Seconds(60));
                          }),
              StatusIs(StatusCode::kUnavailable, ::testing::HasSubstr("client 2")));
}

}  // namespace
}  // namespace tessera::testing
