// SPDX-License-Identifier: Apache-2.0
//
// Jobs under every launcher, as a user starts them: ours, a coordinator of its own, mpirun,
// torchrun (tests/facts/dtensor.md, "Launching"; tests/facts/cluster.md). No variable of ours is
// set where a launcher starts all clients on one host.
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/environment/port.h"
#include "job/testing/launcher_run.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::IsOk;
using ::testing::Not;

constexpr char kClient[] = "tests/launching/launched_client";
constexpr char kExample[] = "examples/02_multi_client";

std::unique_ptr<LauncherRun> start(const std::vector<std::string>& command,
                                   const std::vector<std::string>& environment) {
  return std::unique_ptr<LauncherRun>(new LauncherRun(LauncherRun::program(command, environment)));
}

// Variables of a launcher around this test are none of its jobs'.
class LaunchersTest : public ::testing::Test {
 protected:
  LaunchersTest() {
    for (char** entry = environ; *entry != nullptr;) {
      const std::string name = std::string(*entry).substr(0, std::string(*entry).find('='));
      const bool is_of_a_launcher = absl::StartsWith(name, "TESSERA_") || name == "RANK";
      if (is_of_a_launcher) {
        unsetenv(name.c_str());
      } else {
        ++entry;
      }
    }
    std::string folder = absl::StrCat(::testing::TempDir(), "/runtime_XXXXXX");
    runtime_ = mkdtemp(folder.data());
    setenv("XDG_RUNTIME_DIR", runtime_.c_str(), 1);
    EXPECT_THAT(port_.status(), IsOk());
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_->port()); }

  // Client `id` of `count` by hand, with the variables of torchrun.
  std::unique_ptr<LauncherRun> torch_client(int id, int count, const std::string& mode) const {
    return start({kClient, mode},
                 {"MASTER_ADDR=localhost", absl::StrCat("MASTER_PORT=", port_->port()),
                  absl::StrCat("RANK=", id), absl::StrCat("WORLD_SIZE=", count)});
  }

  std::string runtime_;
  StatusOr<ReservedPort> port_ = ReservedPort::create();
};

TEST_F(LaunchersTest, LossOfClient0IsSurvivedUnderTesseraRun) {
  LauncherRun run({"--clients", "4", "--settle", "100s", kClient, "survive"});
  EXPECT_EQ(run.wait(), 128 + SIGKILL) << run.error();
  for (const char* line : {"survived 1 of 4", "survived 2 of 4", "survived 3 of 4"}) {
    EXPECT_THAT(run.output(), HasSubstr(line)) << run.error();
  }
  EXPECT_THAT(run.error(), HasSubstr("1 of 4 clients failed; the first was client 0"));
}

// Two nodes of one host. The clients of node 1 have a relay, as in a job of more than 1,000
// clients.
TEST_F(LaunchersTest, LossOfClient0IsSurvivedThroughARelay) {
  const auto start_node = [&](const char* node) {
    return start(
        {"job/tessera_run", "--clients", "2", "--nodes", "2", "--node-id", node, "--coordinator",
         address(), "--relay-above", "1", "--settle", "100s", kClient, "survive"},
        {"TESSERA_TOKEN=secret"});
  };
  const auto first = start_node("0");
  const auto second = start_node("1");
  EXPECT_EQ(first->wait(), 128 + SIGKILL) << first->error();
  EXPECT_EQ(second->wait(), 0) << second->error();
  EXPECT_THAT(first->output(), HasSubstr("survived 1 of 4")) << first->error();
  for (const char* line : {"survived 2 of 4", "survived 3 of 4"}) {
    EXPECT_THAT(second->output(), HasSubstr(line)) << second->error();
  }
}

TEST_F(LaunchersTest, LossOfClient0IsSurvivedWithACoordinatorOfItsOwn) {
  for (const bool has_token : {false, true}) {
    SCOPED_TRACE(has_token);
    const StatusOr<ReservedPort> port = ReservedPort::create();
    ASSERT_THAT(port.status(), IsOk());
    std::vector<std::string> command = {"job/tessera_coordinator", "--clients", "3", "--port",
                                        absl::StrCat(port->port())};
    const std::string path = absl::StrCat(runtime_, "/token");
    std::ofstream(path) << "secret\n";
    if (has_token) command.insert(command.end(), {"--token-file", path});
    LauncherRun coordinator = LauncherRun::program(command);
    coordinator.await_lines("tessera_coordinator: a job of 3 clients at ", 1);
    const std::string address = absl::StrCat("127.0.0.1:", port->port());
    std::vector<std::unique_ptr<LauncherRun>> clients;
    for (int id = 0; id < 3; ++id) {
      clients.push_back(start({kClient, "survive"},
                              {absl::StrCat("TESSERA_COORDINATOR=", address),
                               absl::StrCat("TESSERA_HOSTED_COORDINATOR=", address),
                               absl::StrCat("TESSERA_CLIENT_ID=", id), "TESSERA_NUM_CLIENTS=3",
                               absl::StrCat("TESSERA_TOKEN=", has_token ? "secret" : "")}));
    }
    EXPECT_EQ(clients[0]->wait(), 128 + SIGKILL) << clients[0]->error();
    for (const int id : {1, 2}) {
      EXPECT_EQ(clients[id]->wait(), 0) << clients[id]->error();
      EXPECT_THAT(clients[id]->output(), HasSubstr(absl::StrCat("survived ", id, " of 3")));
    }
    coordinator.send(SIGTERM);
    EXPECT_EQ(coordinator.wait(), 0);
    EXPECT_EQ(coordinator.error(), "");
    EXPECT_THAT(coordinator.output(), Not(HasSubstr("secret")));
  }
}

// nohup. A job that connects after the signal shows that the coordinator still runs.
TEST_F(LaunchersTest, CoordinatorIgnoresAHangupThatItsParentIgnored) {
  port_ = ReservedPort::create();
  ASSERT_THAT(port_.status(), IsOk());
  LauncherRun coordinator = LauncherRun::program(
      {"sh", "-c",
       absl::StrCat("trap '' HUP; exec job/tessera_coordinator --clients 2 --port ",
                    port_->port())});
  coordinator.await_lines("tessera_coordinator: a job of 2 clients at ", 1);
  coordinator.send(SIGHUP);
  std::vector<std::unique_ptr<LauncherRun>> clients;
  for (int id = 0; id < 2; ++id) {
    clients.push_back(start({kClient, "meet"},
                            {absl::StrCat("TESSERA_COORDINATOR=", address()),
                             absl::StrCat("TESSERA_HOSTED_COORDINATOR=", address()),
                             absl::StrCat("TESSERA_CLIENT_ID=", id), "TESSERA_NUM_CLIENTS=2"}));
  }
  for (const auto& client : clients) EXPECT_EQ(client->wait(), 0) << client->error();
  coordinator.send(SIGTERM);
  EXPECT_EQ(coordinator.wait(), 0);
}

struct BadCoordinator {
  std::vector<std::string> flags;
  int exit_code;
  const char* text;
};

TEST_F(LaunchersTest, CoordinatorRefusesBadFlags) {
  const BadCoordinator rows[] = {
      {{"--clients", "2"}, 2, "--port is 0; it should be from 1 to 65535"},
      {{"--clients", "2", "--port", "70000"}, 2, "--port is 70000; it should be from 1 to 65535"},
      {{"--port", "4000"}, 2, "--clients is 0; it should be at least 1"},
      {{"--port", "4000", "--clients", "2", "job"}, 2, "\"job\" is not a flag"},
      {{"--ports", "4000"}, 2, "there is no flag \"--ports\"; see tessera_coordinator --help"},
      {{"--port", "x"}, 2, "--port is \"x\"; it should be a whole number"},
      {{"--port", "4000", "--clients", "2", "--token-file", "/no/such"},
       2,
       "--token-file is \"/no/such\"; it should be a file that can be read"},
      {{"--port", "4000", "--clients", "2", "--host", "192.0.2.1"},
       1,
       "cannot listen on 192.0.2.1"},
  };
  for (const BadCoordinator& row : rows) {
    std::vector<std::string> command = {"job/tessera_coordinator"};
    command.insert(command.end(), row.flags.begin(), row.flags.end());
    LauncherRun run = LauncherRun::program(command);
    EXPECT_EQ(run.wait(), row.exit_code) << row.text;
    EXPECT_THAT(run.error(), AllOf(HasSubstr("tessera_coordinator: "), HasSubstr(row.text)));
  }
}

TEST_F(LaunchersTest, HelpOfTheCoordinatorListsEveryFlag) {
  LauncherRun run = LauncherRun::program({"job/tessera_coordinator", "--help"});
  EXPECT_EQ(run.wait(), 0);
  for (const char* text : {"--port P", "--clients N", "--host ADDRESS", "--token-file FILE"}) {
    EXPECT_THAT(run.output(), HasSubstr(text));
  }
}

TEST_F(LaunchersTest, VersionOfTheCoordinatorIsPrinted) {
  LauncherRun run = LauncherRun::program({"job/tessera_coordinator", "--version"});
  EXPECT_EQ(run.wait(), 0);
  EXPECT_THAT(run.output(), HasSubstr("tessera_coordinator (Tessera) "));
}

// R5, A3. With a token that is the same, as from one script with a fixed port.
TEST_F(LaunchersTest, SecondJobAtOneAddressIsRefused) {
  port_ = absl::CancelledError("free");  // a port that was free a moment ago, and is not held
  StatusOr<ReservedPort> port = ReservedPort::create();
  ASSERT_THAT(port.status(), IsOk());
  const std::string address = absl::StrCat("127.0.0.1:", port->port());
  port = absl::CancelledError("free");
  LauncherRun first({"--clients", "3", "--coordinator", address, "sh", "-c",
                     absl::StrCat("sleep 1000 | ", kClient, " wait")},
                    {"TESSERA_TOKEN=secret"});
  first.await_lines("connected", 3);
  LauncherRun second({"--clients", "3", "--coordinator", address, kClient, "meet"},
                     {"TESSERA_TOKEN=secret"});
  EXPECT_EQ(second.wait(), 1);
  EXPECT_THAT(second.error(),
              HasSubstr(absl::StrCat("tessera_run: the coordinator cannot listen on ", address)));
  EXPECT_EQ(second.output(), "");
  first.send(SIGTERM);
  EXPECT_EQ(first.wait(), 128 + SIGTERM);
  EXPECT_THAT(first.error(), Not(HasSubstr("failed")));
}

TEST_F(LaunchersTest, RestartedClientsMakeANewJob) {
  LauncherRun run({"--clients", "3", "--max-restarts", "1", "sh", "-c",
                   absl::StrCat("if [ $TESSERA_RESTART = 0 ]; then exec ", kClient,
                                " survive; fi; exec ", kClient, " meet")});
  EXPECT_EQ(run.wait(), 0) << run.error();
  for (const char* line : {"met 0 of 3", "met 1 of 3", "met 2 of 3"}) {
    EXPECT_THAT(run.output(), HasSubstr(line));
  }
}

// Row torchrun_environment.
TEST_F(LaunchersTest, VariablesOfTorchrunAreEnoughOnOneHost) {
  std::vector<std::unique_ptr<LauncherRun>> clients;
  for (const int id : {2, 0, 1}) clients.push_back(torch_client(id, 3, "meet"));
  for (const std::unique_ptr<LauncherRun>& client : clients) {
    EXPECT_EQ(client->wait(), 0);
    EXPECT_EQ(client->error(), "");
    EXPECT_THAT(client->output(), HasSubstr(" of 3"));
  }
  LauncherRun without_rank = LauncherRun::program(
      {kClient, "meet"}, {"MASTER_ADDR=localhost", "MASTER_PORT=1", "WORLD_SIZE=2"});
  EXPECT_EQ(without_rank.wait(), 1);
  EXPECT_THAT(without_rank.error(), HasSubstr("RANK is not set"));
}

// Every client that is killed as it connects leaves its file; the next job works all the same.
TEST_F(LaunchersTest, TokenOfAKilledJobIsNoTrouble) {
  for (int round = 0; round < 2; ++round) {
    const std::unique_ptr<LauncherRun> alone = torch_client(0, 2, "meet");
    const std::string folder = absl::StrCat(runtime_, "/tessera");
    struct stat info = {};
    // Its folder appears with its file; there is no other event of a client that waits for others.
    for (int i = 0; i < 60000 && (stat(folder.c_str(), &info) != 0 || info.st_nlink < 2); ++i) {
      poll(nullptr, 0, 1);
    }
    alone->send(SIGKILL);
    EXPECT_EQ(alone->wait(), 128 + SIGKILL);
  }
  const std::unique_ptr<LauncherRun> first = torch_client(0, 2, "meet");
  const std::unique_ptr<LauncherRun> second = torch_client(1, 2, "meet");
  EXPECT_EQ(first->wait(), 0) << first->error();
  EXPECT_EQ(second->wait(), 0) << second->error();
}

bool is_installed(const std::string& command) {
  return std::system(absl::StrCat(command, " > /dev/null 2>&1").c_str()) == 0;
}

TEST_F(LaunchersTest, ExampleRunsUnderMpirun) {
  if (!is_installed("mpirun --version")) GTEST_SKIP() << "mpirun (openmpi-bin) is not installed";
  LauncherRun run =
      LauncherRun::program({"mpirun", "-n", "4", kExample},
                           {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                            "OMPI_MCA_rmaps_base_oversubscribe=1", "TMPDIR=/tmp"});
  EXPECT_EQ(run.wait(), 0) << run.output() << run.error();
  for (int id = 0; id < 4; ++id) {
    EXPECT_THAT(run.output(), HasSubstr(absl::StrCat("client ", id, " of 4 has 1 of 4 devices")));
  }
}

TEST_F(LaunchersTest, ExampleRunsUnderTorchrun) {
  if (!is_installed("python3 -c 'import torch'")) GTEST_SKIP() << "PyTorch is not installed";
  LauncherRun run = LauncherRun::program({"python3", "-m", "torch.distributed.run", "--no-python",
                                          "--nproc-per-node=4", "--master-addr=127.0.0.1",
                                          absl::StrCat("--master-port=", port_->port()), kExample});
  port_ = absl::CancelledError("free");
  EXPECT_EQ(run.wait(), 0) << run.output() << run.error();
  for (int id = 0; id < 4; ++id) {
    EXPECT_THAT(run.output(), HasSubstr(absl::StrCat("client ", id, " of 4 has 1 of 4 devices")));
  }
}

}  // namespace
}  // namespace tessera
