// SPDX-License-Identifier: Apache-2.0
//
// Clients that are killed at any moment of random collectives: the others are told of it, go on
// without them, and nothing is left behind. A part of //tests/collectives:stress_test.
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <iostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "collectives/testing/conformance.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/collectives/stress.h"
#include "tests/support/clients.h"
#include "tests/support/leaks.h"
#include "tests/support/matchers.h"
#include "tests/support/members.h"
#include "tests/support/shared.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

using conformance::Member;
using conformance::RandomProgram;

constexpr int kKillClients = 6;  // of which two are left in the end

struct Kills {
  std::atomic<int64_t> killed_at_ns;  // CLOCK_MONOTONIC, of the victim of this stage
  std::atomic<int64_t> slowest_loss_ns;
};

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

// The kernel kills this process at that time, whatever it is doing.
void kill_at(int64_t time_ns) {
  sigevent event = {};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer;
  timer_create(CLOCK_MONOTONIC, &event, &timer);
  const itimerspec at = {{}, {time_ns / 1'000'000'000, time_ns % 1'000'000'000}};
  timer_settime(timer, TIMER_ABSTIME, &at, nullptr);
}

// Client 0 holds the coordinator, so it stays.
std::vector<int> victims_of(uint64_t seed) {
  std::vector<int> order;
  for (int client = 1; client < kKillClients; ++client) order.push_back(client);
  for (size_t k = order.size() - 1; k > 0; --k)
    std::swap(order[k], order[scramble(seed + k) % (k + 1)]);
  order.resize(kKillClients - 2);
  return order;
}

// OK where the error says that `victim` is lost.
Status expect_lost(const Status& error, int victim, Kills& kills) {
  const int64_t took_ns = now_ns() - kills.killed_at_ns;
  int64_t most = kills.slowest_loss_ns;
  while (took_ns > most && !kills.slowest_loss_ns.compare_exchange_weak(most, took_ns)) {
  }
  return expect_error(error, absl::StatusCode::kUnavailable,
                      {absl::StrCat("client ", victim, " "), "lost"});
}

// Relayouts on the mesh, several under way at once, until one fails. The source of each goes at
// once, and other tensors take its memory: whatever is OK must have the right values all the same.
Status move_tensors(const Mesh& mesh, const std::function<Status(const Status&)>& on_error) {
  TESSERA_ASSIGN_OR_RETURN(const Layout rows, Layout::parse(mesh, "[x, -]"));
  TESSERA_ASSIGN_OR_RETURN(const Layout columns, Layout::parse(mesh, "[-, x]"));
  const Shape shape = {60, 200};
  std::deque<DTensor> under_way;
  std::deque<DTensor> others;
  bool lost = false;
  while (!lost || !under_way.empty()) {
    if (!lost) {
      under_way.push_back(relayout(iota<int32_t>(shape, rows), columns));
      others.push_back(full<int32_t>(shape, -1, rows));
    }
    if (!lost && under_way.size() < 6) continue;
    const Status status = under_way.front().await();
    lost |= !status.ok();
    TESSERA_RETURN_IF_ERROR(status.ok() ? expect_iota<int32_t>(under_way.front())
                                        : on_error(status));
    under_way.pop_front();
    others.pop_front();
  }
  return absl::OkStatus();
}

// Random collectives, or relayouts, of the clients in `alive`, of which `victim` is killed on the
// way; then the others make a mesh without it and go on. The values of all that is OK are compared.
Status kill_stage(Client& client, const std::vector<int>& alive, int victim, uint64_t seed,
                  Kills& kills) {
  RandomProgram program;
  program.seed = seed;
  program.num_ops = 40;
  program.most_under_way = 24;  // more than the records of a group hold
  program.largest_size = scramble(seed) % 3 == 0 ? 100'000 : 4000;
  // No client is killed before all have met.
  TESSERA_ASSIGN_OR_RETURN(const Group group, client.group(alive));
  const auto num_alive = static_cast<int64_t>(alive.size());
  TESSERA_ASSIGN_OR_RETURN(const Mesh all, create_mesh(client, {{"x", num_alive}}, alive));
  TESSERA_RETURN_IF_ERROR(group.barrier().await());
  if (client.client_id() == victim) {
    // Within the program, for most; it takes some milliseconds.
    kills.killed_at_ns = now_ns() + static_cast<int64_t>(scramble(seed + 1) % 20'000'000);
    kill_at(kills.killed_at_ns);
  }
  bool known = false;
  program.on_error = [&](const Status& error) {
    if (std::exchange(known, true)) {
      return expect_error(error, absl::StatusCode::kUnavailable,
                          {absl::StrCat("client ", victim, " "), "lost"});
    }
    return expect_lost(error, victim, kills);
  };
  const bool moves_tensors = scramble(seed + 2) % 2 == 0;
  TESSERA_RETURN_IF_ERROR(moves_tensors ? move_tensors(all, program.on_error)
                                        : run_members(client, alive, [&](const Member& m) {
                                            return run_random_program(m, program);
                                          }));
  if (client.client_id() == victim) {
    while (true) pause();
  }
  // Together with the victim nothing works, and it is known why.
  Status status;
  while (status.ok()) status = group.barrier().await();
  TESSERA_RETURN_IF_ERROR(program.on_error(status));
  client.sync_devices().IgnoreError();

  std::vector<int> survivors = alive;
  std::erase(survivors, victim);
  const auto n = static_cast<int64_t>(survivors.size());
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", n}}, survivors));
  TESSERA_RETURN_IF_ERROR(mesh.barrier("survivors", absl::Seconds(60)));
  const DTensor x = iota<float>({100, 30}, Layout::parse(mesh, "[x, -]"));
  TESSERA_RETURN_IF_ERROR(expect_iota<float>(relayout(x, Layout::parse(mesh, "[-, x]"))));
  program.on_error = nullptr;
  program.first_op = program.num_ops;
  program.num_ops = 10;
  TESSERA_RETURN_IF_ERROR(run_members(
      client, survivors, [&](const Member& m) { return run_random_program(m, program); }));
  // No client begins the next stage before all have ended this one.
  return mesh.barrier("stage", absl::Seconds(60));
}

Status kill_one_after_another(Client& client, uint64_t seed, Kills& kills) {
  std::vector<int> alive = all_devices(client);
  const Holdings before = current_holdings();
  for (const int victim : victims_of(seed)) {
    TESSERA_RETURN_IF_ERROR(with_context(
        kill_stage(client, alive, victim, scramble(seed + static_cast<uint64_t>(victim)), kills),
        absl::StrCat("client ", victim, " killed, seed ", seed)));
    std::erase(alive, victim);
  }
  const Holdings after = current_holdings();
  TESSERA_REQUIRE(after.sockets_and_events <= before.sockets_and_events, after.sockets_and_events,
                  " after ", before.sockets_and_events);
  return client.shutdown(absl::Seconds(30));
}

TEST(KillTest, SurvivorsHearOfItAndGoOnAndNothingIsLeft) {
  const std::set<std::string> descriptors = entries_of("/proc/self/fd");
  const std::set<std::string> shm = tessera_entries_of("/dev/shm");
  // A folder for temporary files of their own: all programs use /tmp.
  const std::string tmp = absl::StrCat(::testing::TempDir(), "/killed");
  mkdir(tmp.c_str(), 0700);
  setenv("TMPDIR", tmp.c_str(), 1);
  Shared<Kills> kills;
  const int64_t kills_per_job = kKillClients - 2;
  for (int64_t job = 0; job * kills_per_job < arguments.kills; ++job) {
    const uint64_t seed = scramble(arguments.seed + static_cast<uint64_t>(job));
    const std::vector<Status> statuses =
        run_processes({.num_clients = kKillClients},
                      [&](Client& client) { return kill_one_after_another(client, seed, *kills); });
    const std::vector<int> victims = victims_of(seed);
    for (int client = 0; client < kKillClients; ++client) {
      const bool is_victim = std::find(victims.begin(), victims.end(), client) != victims.end();
      EXPECT_EQ(statuses[client].code(),
                is_victim ? absl::StatusCode::kAborted : absl::StatusCode::kOk)
          << "job " << job << ", client " << client << ": " << statuses[client];
    }
    ASSERT_FALSE(HasFailure()) << "repeat: --seed=" << arguments.seed + job << " --kills=1";
    EXPECT_EQ(entries_of("/proc/self/fd"), descriptors);
    EXPECT_EQ(tessera_entries_of("/dev/shm"), shm);
    EXPECT_THAT(entries_of(tmp), ::testing::UnorderedElementsAre(".", ".."));
    // No child of this process is left, running or dead.
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  }
  unsetenv("TMPDIR");
  const double slowest_ms = static_cast<double>(kills->slowest_loss_ns) / 1e6;
  std::cout << "slowest from SIGKILL to the error of a survivor: " << slowest_ms << " ms\n";
  if (arguments.slowest_loss_ms > 0) {
    EXPECT_LE(slowest_ms, arguments.slowest_loss_ms);
  }
}

}  // namespace
}  // namespace tessera::testing
