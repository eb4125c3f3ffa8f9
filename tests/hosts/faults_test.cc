// SPDX-License-Identifier: Apache-2.0
//
// Faults at random, by a seed: a client of four is killed, stopped, ends, leaves, comes late or
// makes another call, or the cable of its host is out, while all make random calls. A short form is
// in CI; tools/soak faults runs 300 on one host and 300 on two.
//
// Invariants after each fault:
//   1. every call of every survivor returns, a call with a deadline at most a second after it;
//   2. a result that is OK has the right values;
//   3. where all devices of the mesh meet in a call, the survivors that fail in it get one Status;
//      in relayouts of several groups they get one code;
//   4. the survivors make a mesh and go on.
//
// $TESSERA_FAULTS: the number of faults of each test. $TESSERA_FAULTS_LATE_MS: how late a call may
// return, 1000 unless given, far more in CI, where other tests use the cores.
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/hosts/hosts.h"
#include "tests/support/clients.h"
#include "tests/support/gate.h"
#include "tests/support/matchers.h"
#include "tests/support/seed.h"
#include "tests/support/shared.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

constexpr int kClients = 4;
constexpr int kCalls = 8;
constexpr absl::Duration kHeartbeat = absl::Milliseconds(250);

// Losses come first, then mistakes, then faults of the network.
enum class Fault { kKilled, kStopped, kExits, kLeaves, kLate, kOtherCall, kLinkDown, kFlap };
constexpr const char* kFaultNames[] = {"killed", "stopped",    "exits",     "leaves",
                                       "late",   "other call", "link down", "flap"};

enum class Call { kBarrier, kAllReduce, kMove, kReduce, kReduceAndGather, kGather, kToHost, kMesh };
constexpr int kNumCalls = 8;
constexpr const char* kCallNames[] = {"barrier",           "all_reduce", "rows to columns",
                                      "partial to whole",  "two steps",  "three steps",
                                      "to_host of a part", "create_mesh"};

// Whether all devices meet at once, so that all get one Status.
bool is_of_all(Call call) {
  return call != Call::kReduceAndGather && call != Call::kGather && call != Call::kToHost;
}

// The i-th number of a seed.
uint64_t draw(uint64_t seed, uint64_t i) {
  uint64_t x = seed * 0x9e3779b97f4a7c15 + i * 0xd1b54a32d192ed03 + 1;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

struct Trial {
  uint64_t seed = 0;
  Fault fault = Fault::kKilled;
  int victim = 0;
  int at = 0;               // the call in which the fault happens
  absl::Duration delay;     // from the beginning of that call
  absl::Duration deadline;  // of every call
  std::array<Call, kCalls> calls = {};

  bool is_loss() const { return fault <= Fault::kLeaves; }
  bool is_of_network() const { return fault >= Fault::kLinkDown; }
  std::string to_string() const {
    return absl::StrCat("TESSERA_TEST_SEED=", seed, " TESSERA_FAULTS=1: client ", victim, " ",
                        kFaultNames[static_cast<int>(fault)], " in call ", at, " (",
                        kCallNames[static_cast<int>(calls[at])], ") after ",
                        absl::FormatDuration(delay), ", deadline ", absl::FormatDuration(deadline));
  }
};

Trial make_trial(uint64_t seed, bool two_hosts) {
  Trial trial;
  trial.seed = seed;
  trial.fault = static_cast<Fault>(draw(seed, 0) % (two_hosts ? 8 : 6));
  // On one host client 0 has the coordinator.
  trial.victim = two_hosts ? static_cast<int>(draw(seed, 1) % kClients)
                           : 1 + static_cast<int>(draw(seed, 1) % (kClients - 1));
  if (trial.is_of_network()) trial.victim = 2;  // its host has clients 2 and 3
  trial.at = 1 + static_cast<int>(draw(seed, 2) % (kCalls - 2));
  trial.delay = absl::Microseconds(draw(seed, 3) % 3000);
  if (trial.fault == Fault::kLate) trial.delay = absl::Milliseconds(draw(seed, 3) % 3000);
  trial.deadline = draw(seed, 4) % 2 == 0 ? absl::InfiniteDuration()
                                          : absl::Milliseconds(1000 + draw(seed, 5) % 1000);
  // Without one nothing ends a call that one client does not make, or the wait of the others for
  // it.
  if (trial.fault == Fault::kOtherCall || trial.is_of_network()) {
    trial.deadline = absl::Milliseconds(1000 + draw(seed, 5) % 1000);
  }
  for (int i = 0; i < kCalls; ++i) {
    trial.calls[i] = static_cast<Call>(draw(seed, 10 + static_cast<uint64_t>(i)) % kNumCalls);
  }
  // The plans of several groups differ with the shape: later calls would be other calls, too.
  if (trial.fault == Fault::kOtherCall && !is_of_all(trial.calls[trial.at])) {
    trial.calls[trial.at] = Call::kMove;
  }
  return trial;
}

// The results that the clients found.
struct Found {
  struct Result {
    int code;
    int64_t took_us;
    char text[1500];
  };
  Result of[kClients][kCalls];

  void add(int client, int call, const Status& status, absl::Duration took) {
    Result& result = of[client][call];
    result.code = static_cast<int>(status.code()) + 1;  // 0: the call was not made
    result.took_us = absl::ToInt64Microseconds(took);
    const std::string text(status.message());
    std::memcpy(result.text, text.data(), std::min(text.size(), sizeof result.text - 1));
  }
};

// The kernel sends this process a signal then, wherever it is.
void signal_after(absl::Duration delay, int signal) {
  sigevent event = {};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = signal;
  timer_t timer;
  timer_create(CLOCK_MONOTONIC, &event, &timer);
  const itimerspec at = {{}, absl::ToTimespec(std::max(delay, absl::Microseconds(1)))};
  timer_settime(timer, 0, &at, nullptr);
}

class Program {
 public:
  Program(const Trial& trial, Found& found, Gate& started)
      : trial_(trial), found_(found), started_(started) {}

  Status run(Client& client) const {
    const int self = client.client_id();
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}, {"y", 2}}));
    TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1, 2, 3}));
    TESSERA_RETURN_IF_ERROR(mesh.barrier("start", absl::Seconds(60)));
    for (int i = 0; i < kCalls; ++i) {
      const bool is_here = i == trial_.at && self == trial_.victim;
      if (is_here) {
        started_.open();
        if (trial_.fault == Fault::kLeaves) return client.shutdown(absl::Seconds(1));
        begin_fault();
      }
      const absl::Time before = steady_now();
      const Status status =
          call(client, mesh, group, i, is_here && trial_.fault == Fault::kOtherCall);
      found_.add(self, i, status, steady_now() - before);
      if (absl::IsInternal(status)) return status;  // wrong values, among others
    }
    if (trial_.is_loss() && self == trial_.victim) {
      while (true) pause();  // the signal is on its way
    }
    return trial_.is_of_network() ? absl::OkStatus() : go_on(client);
  }

 private:
  void begin_fault() const {
    switch (trial_.fault) {
      case Fault::kKilled:
        return signal_after(trial_.delay, SIGKILL);
      case Fault::kStopped:
        signal_after(trial_.delay, SIGSTOP);
        // Long after the others have ended.
        return signal_after(absl::Seconds(6), SIGKILL);
      case Fault::kExits:
        _exit(0);
      case Fault::kLate:
        // sleep: the fault is a client that comes later than the others.
        return absl::SleepFor(trial_.delay);
      default:
        return;
    }
  }

  Status call(Client& client, const Mesh& mesh, const Group& group, int i, bool otherwise) const {
    const Shape shape = {10, otherwise ? 7 : 6};  // of one plan
    const auto move = [&](const char* from, const char* to) -> Status {
      const DTensor x =
          relayout(iota<float>(shape, Layout::parse(mesh, from)), Layout::parse(mesh, to));
      TESSERA_RETURN_IF_ERROR(x.await());
      return expect_iota<float>(x);
    };
    switch (trial_.calls[static_cast<size_t>(i)]) {
      case Call::kBarrier:
        return mesh.barrier(absl::StrCat("b", i, otherwise ? " otherwise" : ""), trial_.deadline);
      case Call::kAllReduce:
        return all_reduce(client, group, otherwise ? 65 : 64);
      case Call::kMove:
        return move("[(x, y), -]", "[-, (x, y)]");
      case Call::kReduce:
        return move("[-, -] sum{x, y}", "[-, -]");
      case Call::kReduceAndGather:
        return move("[x, -] sum{y}", "[-, -]");
      case Call::kGather:
        return move("[x, y]", "[-, -]");
      case Call::kToHost: {
        const DTensor x = iota<float>(shape, Layout::parse(mesh, "[-, y] sum{x}"));
        TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> all, x.to_host<float>());
        TESSERA_REQUIRE(all.data.back() == static_cast<float>(all.data.size() - 1));
        return absl::OkStatus();
      }
      case Call::kMesh: {
        MeshOptions options;
        if (trial_.deadline != absl::InfiniteDuration()) options.timeout = trial_.deadline;
        // Uses another mesh in each call. An equal mesh again would be a retry, which a late client
        // joins (job/coordinator/check_ins.h).
        const std::string axis = absl::StrCat(otherwise ? "v" : "z", i);
        return create_mesh(client, {{axis, kClients}}, {0, 1, 2, 3}, options).status();
      }
    }
    return absl::InternalError("no such call");
  }

  Status all_reduce(Client& client, const Group& group, int count) const {
    const std::vector<float> in(static_cast<size_t>(count),
                                static_cast<float>(client.client_id() + 1));
    std::vector<float> out(in.size());
    TESSERA_RETURN_IF_ERROR(
        group.all_reduce<float>(in, absl::MakeSpan(out), ReduceOp::kSum).wait(trial_.deadline));
    for (const float sum : out) TESSERA_REQUIRE(sum == 10, "the sum is ", sum);
    return absl::OkStatus();
  }

  // A mesh of the clients that are left.
  Status go_on(Client& client) const {
    std::vector<int> left = {0, 1, 2, 3};
    if (trial_.is_loss()) std::erase(left, trial_.victim);
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh,
                             create_mesh(client, {{"x", static_cast<int64_t>(left.size())}}, left,
                                         {.timeout = absl::Seconds(30)}));
    TESSERA_RETURN_IF_ERROR(mesh.barrier("those left", absl::Seconds(30)));
    const DTensor x = iota<float>({7, 5}, Layout::parse(mesh, "[x, -]"));
    TESSERA_RETURN_IF_ERROR(expect_iota<float>(relayout(x, Layout::parse(mesh, "[-, x]"))));
    return client.shutdown(absl::Seconds(30));
  }

  const Trial& trial_;
  Found& found_;
  Gate& started_;
};

// The errors in the results of the clients, a line each; empty if there are none.
class Judge {
 public:
  Judge(const Trial& trial, const Found& found, absl::Duration most_late)
      : trial_(trial), found_(found), most_late_(most_late) {}

  std::string problems() {
    for (int i = 0; i < kCalls; ++i) check_call(i);
    return problems_;
  }

 private:
  // A call without a deadline ends when the loss is known, or when the late client has come.
  absl::Duration longest() const {
    if (trial_.deadline != absl::InfiniteDuration()) return trial_.deadline + most_late_;
    if (trial_.fault == Fault::kStopped) return 4 * kHeartbeat + absl::Seconds(1) + most_late_;
    if (trial_.fault == Fault::kLate) return trial_.delay + most_late_;
    return absl::Seconds(2) + most_late_;
  }

  void check_call(int i) {
    std::map<std::string, std::vector<int>> texts;
    std::set<int> codes;
    for (int client = 0; client < kClients; ++client) {
      const Found::Result& result = found_.of[client][i];
      const bool is_lost = trial_.is_loss() && client == trial_.victim;
      if (is_lost || result.code == 0) continue;
      const absl::Duration took = absl::Microseconds(result.took_us);
      if (took > longest())
        say(i, client, absl::StrCat("returned after ", absl::FormatDuration(took)));
      const auto code = static_cast<absl::StatusCode>(result.code - 1);
      if (code == absl::StatusCode::kOk) continue;
      codes.insert(result.code);
      texts[result.text].push_back(client);
      if (!is_right(code, i)) say(i, client, Status(code, result.text).ToString());
      // A group of a later step may miss a client that waits for the late one in an earlier step.
      const bool is_in_turn =
          code == absl::StatusCode::kDeadlineExceeded && !is_of_all(trial_.calls[i]);
      const std::string name = absl::StrCat("client ", trial_.victim, " ");
      if (!trial_.is_of_network() && !is_in_turn && !absl::StrContains(result.text, name)) {
        say(i, client, absl::StrCat("does not name client ", trial_.victim, ": ", result.text));
      }
    }
    if (trial_.is_of_network()) return;
    if (codes.size() > 1 || (texts.size() > 1 && is_of_all(trial_.calls[i]))) {
      for (const auto& [text, clients] : texts)
        say(i, clients[0], absl::StrCat("one of several texts: ", text));
    }
  }

  bool is_right(absl::StatusCode code, int i) const {
    const bool has_deadline = trial_.deadline != absl::InfiniteDuration();
    switch (trial_.fault) {
      case Fault::kKilled:
      case Fault::kExits:
        return i >= trial_.at && code == absl::StatusCode::kUnavailable;
      case Fault::kLeaves:  // it waits for the others in shutdown()
      case Fault::kStopped:
        return i >= trial_.at && (code == absl::StatusCode::kUnavailable ||
                                  (has_deadline && code == absl::StatusCode::kDeadlineExceeded));
      case Fault::kLate:
        return i >= trial_.at && has_deadline && code == absl::StatusCode::kDeadlineExceeded;
      case Fault::kOtherCall:
        return i == trial_.at && code == absl::StatusCode::kInvalidArgument;
      default:
        return code == absl::StatusCode::kUnavailable ||
               code == absl::StatusCode::kDeadlineExceeded;
    }
  }

  void say(int i, int client, const std::string& what) {
    absl::StrAppend(&problems_, "  call ", i, " (", kCallNames[static_cast<int>(trial_.calls[i])],
                    "), client ", client, ": ", what, "\n");
  }

  const Trial& trial_;
  const Found& found_;
  const absl::Duration most_late_;
  std::string problems_;
};

int64_t setting(const char* name, int64_t otherwise) {
  int64_t value = otherwise;
  const char* text = std::getenv(name);
  if (text != nullptr) {
    EXPECT_TRUE(absl::SimpleAtoi(text, &value)) << name << "=" << text;
  }
  return value;
}

class FaultsTest : public ::testing::Test {
 protected:
  // `job(trial, found, started)`: the statuses of the four clients.
  template <class Job>
  void run_trials(bool two_hosts, int64_t in_ci, const Job& job) {
    const int64_t num_trials = setting("TESSERA_FAULTS", in_ci);
    const auto most_late = absl::Milliseconds(setting("TESSERA_FAULTS_LATE_MS", 20'000));
    const uint64_t first = test_seed(1);
    std::map<std::string, int> counts;
    for (int64_t n = 0; n < num_trials; ++n) {
      const Trial trial = make_trial(first + static_cast<uint64_t>(n), two_hosts);
      Shared<Found> found;
      Gate started;
      const std::vector<Status> statuses = job(trial, *found, started);
      std::string problems = Judge(trial, *found, most_late).problems();
      for (int client = 0; client < kClients; ++client) {
        if (trial.is_loss() && client == trial.victim) continue;
        if (statuses[static_cast<size_t>(client)].ok()) continue;
        absl::StrAppend(&problems, "  client ", client, " ended with ",
                        statuses[static_cast<size_t>(client)].ToString(), "\n");
      }
      EXPECT_EQ(problems, "") << trial.to_string();
      ++counts[kFaultNames[static_cast<int>(trial.fault)]];
    }
    for (const auto& [name, count] : counts) std::cout << count << " " << name << "\n";
  }
};

TEST_F(FaultsTest, OnOneHost) {
  run_trials(false, 6, [](const Trial& trial, Found& found, Gate& started) {
    JobSpec spec = {.setting = Setting::kProcesses, .num_clients = kClients};
    spec.options.collective_timeout = trial.deadline;
    spec.options.heartbeat_interval = kHeartbeat;
    const Program program(trial, found, started);
    return run_processes(spec, [&](Client& client) { return program.run(client); });
  });
}

TEST_F(FaultsTest, OnTwoHosts) {
  TESSERA_MAKE_HOSTS(hosts, 2);
  run_trials(true, 4, [&](const Trial& trial, Found& found, Gate& started) {
    HostsJob job = {.clients_per_host = {2, 2}};
    job.options.collective_timeout = trial.deadline;
    job.options.heartbeat_interval = kHeartbeat;
    job.outside = [&]() -> Status {
      if (!trial.is_of_network()) return absl::OkStatus();
      TESSERA_RETURN_IF_ERROR(started.wait());
      const bool is_cable = trial.fault == Fault::kLinkDown;
      TESSERA_RETURN_IF_ERROR(is_cable ? hosts.set_link(1, false) : hosts.set_switch(1, false));
      // sleep: how long nothing passes is a part of the fault.
      absl::SleepFor(is_cable ? absl::Seconds(4) : 100 * trial.delay);
      return is_cable ? hosts.set_link(1, true) : hosts.set_switch(1, true);
    };
    const Program program(trial, found, started);
    return run_on_hosts(hosts, job, [&](Client& client) { return program.run(client); });
  });
}

}  // namespace
}  // namespace tessera::testing
