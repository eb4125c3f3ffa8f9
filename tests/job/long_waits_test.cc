// SPDX-License-Identifier: Apache-2.0
//
// Long waits: every call that waits for another client reports that, once, with the missing client
// and its activity. A row is one call that client 1 makes only when client 0 has reported its wait;
// so the test itself waits for the report.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/host_array.h"
#include "base/wait_report.h"
#include "distribute/dataset.h"
#include "distribute/strategy.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "dtensor/dtensor.h"
#include "dtensor/local_map.h"
#include "dtensor/relayout.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "input/dataset.h"
#include "input/loader.h"
#include "input/source.h"
#include "job/environment/host.h"
#include "job/environment/port.h"
#include "tests/support/bad_inputs.h"
#include "tests/support/clients.h"
#include "tests/support/forked.h"
#include "tests/support/gate.h"
#include "tests/support/matchers.h"
#include "tests/support/shared.h"

namespace tessera::testing {
namespace {

// Reports are due after this time instead of 10 s, and then every 30 times as much.
constexpr absl::Duration kUnit = absl::Milliseconds(50);

// The reports of one process. The first report that matches `expected`, in which "..." stands for
// any text, opens a gate.
class Reports {
 public:
  Reports(std::string expected, Gate& gate) : expected_(std::move(expected)), gate_(gate) {}

  void add(const WaitReport& report) {
    std::lock_guard<std::mutex> lock(mutex_);
    reports_.push_back(report);
    if (!found_ && is_message(report.text, expected_)) {
      found_ = true;
      operation_ = report.operation;
      gate_.open();
    }
  }
  std::vector<WaitReport> all() {
    std::lock_guard<std::mutex> lock(mutex_);
    return reports_;
  }
  // The operation of the expected report.
  std::string operation() {
    std::lock_guard<std::mutex> lock(mutex_);
    return operation_;
  }
  // OK where the expected one is there.
  Status check() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (found_) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("no report is \"", expected_, "\"; there are: ",
                     absl::StrJoin(reports_, " | ", [](std::string* out, const WaitReport& report) {
                       absl::StrAppend(out, report.text);
                     })));
  }

 private:
  const std::string expected_;
  Gate& gate_;
  std::mutex mutex_;  // guards the members below
  std::vector<WaitReport> reports_;
  std::string operation_;
  bool found_ = false;
};

struct Bench {
  Client& client;
  Mesh mesh;
};

struct Row {
  const char* name;
  int devices_per_client;
  const char* expected;
  std::function<Status(Bench& bench)> call;

  friend std::ostream& operator<<(std::ostream& out, const Row& row) { return out << row.name; }
};

Status relayout_rows_to_columns(Bench& bench) {
  const DTensor rows = iota<float>({6, 6}, Layout::parse(bench.mesh, "[x, -]"));
  return relayout(rows, Layout::parse(bench.mesh, "[-, x]")).await();
}

Status all_reduce_one(Bench& bench) {
  TESSERA_ASSIGN_OR_RETURN(const Group group, bench.client.group({0, 1}));
  std::vector<float> in = {1};
  std::vector<float> out = {0};
  return group.all_reduce(in, out, ReduceOp::kSum).await();
}

// Client 1 sends, or receives.
Status pass_one(Bench& bench, bool is_sender) {
  TESSERA_ASSIGN_OR_RETURN(const Group group, bench.client.group({0, 1}));
  const int other = 1 - bench.client.client_id();
  std::vector<float> value = {1};
  if (is_sender) return group.send(value, other).await();
  return group.recv(value, other).await();
}

Status read_a_batch(Bench& bench) {
  const auto same = [](input::Element e) -> StatusOr<input::Element> { return e; };
  TESSERA_ASSIGN_OR_RETURN(const Layout layout, Layout::batch_sharded(bench.mesh, "x", 1));
  TESSERA_ASSIGN_OR_RETURN(
      const input::Loader loader,
      input::distribute(bench.client, input::Dataset::range(8).map(same).batch(4), {layout}));
  TESSERA_ASSIGN_OR_RETURN(input::Iterator iterator, loader.iterate());
  return iterator.next().status();
}

const Row kRows[] = {
    {"barrier", 1,
     "client 0 has waited for ... in barrier \"go\" on {x=2}: 1 of 2 clients arrived; missing "
     "client 1 (..., pid ...), in user code for ... since create_mesh {x=2} of devices [0, 1]",
     [](Bench& b) { return b.mesh.barrier("go"); }},
    {"barrier_with_a_deadline", 1,
     "client 0 has waited for ... in barrier \"go\" on {x=2}: 1 of 2 clients arrived; missing "
     "client 1 (..., pid ...), in user code for ...",
     [](Bench& b) { return b.mesh.barrier("go", absl::Seconds(60)); }},
    {"relayout", 1,
     "client 0 has waited for ... in relayout #1 [x, -] -> [-, x] on {x=2}, f32 [6, 6]: ...: 1 of "
     "2 "
     "clients arrived; missing client 1 (..., pid ...), in user code for ...",
     relayout_rows_to_columns},
    {"relayout_of_several_devices", 4,
     "client 0 has waited for ... in relayout #1 [x, -] -> [-, x] on {x=8}, f32 [6, 6]: ...: 1 of "
     "2 "
     "clients arrived; missing client 1 (..., pid ...), in user code for ...",
     relayout_rows_to_columns},
    {"sync_devices", 1,
     "client 0 has waited for ... in relayout #1 [x, -] -> [-, x] on {x=2}, f32 [6, 6]: ...: 1 of "
     "2 "
     "clients arrived; missing client 1 (..., pid ...), in user code for ...",
     [](Bench& b) {
       const DTensor rows = iota<float>({6, 6}, Layout::parse(b.mesh, "[x, -]"));
       const DTensor columns = relayout(rows, Layout::parse(b.mesh, "[-, x]"));
       return b.client.sync_devices();
     }},
    {"to_host", 1,
     "client 0 has waited for ... in ...: 1 of 2 clients arrived; missing "
     "client 1 (..., pid ...), in user code for ...",
     [](Bench& b) {
       return iota<float>({6, 6}, Layout::parse(b.mesh, "[x, -]")).to_host<float>().status();
     }},
    {"all_reduce", 1,
     "client 0 has waited for ... in all_reduce sum f32 of 1 elements on devices 0, 1: 1 of 2 "
     "clients arrived; missing client 1 (..., pid ...), in user code for ...",
     all_reduce_one},
    {"recv", 1,
     "client 0 has waited for ... in send/recv f32 of 1 elements on devices 1, 0: missing client 1 "
     "(..., pid ...), in user code for ... since create_mesh {x=2} of devices [0, 1]",
     [](Bench& b) { return pass_one(b, b.client.client_id() == 1); }},
    {"send", 1,
     "client 0 has waited for ... in send/recv f32 of 1 elements on devices 0, 1: missing client 1 "
     "(..., pid ...), in user code for ... since create_mesh {x=2} of devices [0, 1]",
     [](Bench& b) { return pass_one(b, b.client.client_id() == 0); }},
    {"data_set", 1,
     "client 0 has waited for ... in relayout #... on {client=2}, i64 ...: 1 of 2 clients arrived; "
     "missing client 1 (..., pid ...), in user code for ...",
     read_a_batch},
    {"create_mesh", 1,
     "client 0 has waited for ... in create_mesh {y=2} of devices [0, 1]: 1 of 2 clients arrived; "
     "missing client 1 (..., pid ...), in user code for ... since create_mesh {x=2} of devices [0, "
     "1]",
     [](Bench& b) {
       return create_mesh(b.client, {{"y", 2}}).status();
     }},
    {"shutdown", 1,
     "client 0 has waited for ... in shutdown: 1 of 2 clients arrived; missing client 1 (..., pid "
     "...), in user code for ... since create_mesh {x=2} of devices [0, 1]",
     [](Bench& b) { return b.client.shutdown(); }},
};

class LongWaitsTest : public ::testing::TestWithParam<Row> {};
INSTANTIATE_TEST_SUITE_P(Rows, LongWaitsTest, ::testing::ValuesIn(kRows),
                         [](const auto& info) { return std::string(info.param.name); });

// Two clients make the call, client 1 when client 0 has reported its wait.
std::vector<Status> run_row(const Row& row, int num_hosts) {
  Gate gate;
  Reports reports(row.expected, gate);
  const JobSpec job = {
      .num_clients = 2,
      .devices_per_client = row.devices_per_client,
      .options = {.on_wait = [&](const WaitReport& report) { reports.add(report); }},
      .hooks = {.host_ids = num_hosts == 1 ? std::vector<std::string>() : on_hosts(2, num_hosts),
                .wait_report_unit = kUnit}};
  return run_processes(job, [&](Client& client) -> Status {
    const int64_t num_devices = 2 * row.devices_per_client;
    TESSERA_ASSIGN_OR_RETURN(Mesh mesh, create_mesh(client, {{"x", num_devices}}));
    Bench bench = {client, mesh};
    if (client.client_id() == 1) TESSERA_RETURN_IF_ERROR(gate.wait());
    TESSERA_RETURN_IF_ERROR(row.call(bench));
    TESSERA_RETURN_IF_ERROR(client.shutdown());
    if (client.client_id() == 1) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(reports.check());
    // One report before the second one is due, however many devices wait.
    int num_first = 0;
    for (const WaitReport& report : reports.all()) {
      if (report.operation != reports.operation()) continue;
      // No client is missing between the last arrival and the answer, on a busy machine.
      if (report.missing.empty()) continue;
      // A device of client 0 that has not begun by then, on a busy machine, is named beside it.
      TESSERA_REQUIRE(report.missing.back() == 1, report.text);
      if (report.waited < 3 * kUnit) ++num_first;
    }
    TESSERA_REQUIRE(num_first <= 1, num_first);
    return absl::OkStatus();
  });
}

TEST_P(LongWaitsTest, TheMissingClientIsNamed) {
  EXPECT_THAT(run_row(GetParam(), /*num_hosts=*/1), ::testing::Each(IsOk()));
}

// Client 1 is on another host, and is asked there for its activity.
TEST_P(LongWaitsTest, TheMissingClientOfAnotherHostIsNamed) {
  EXPECT_THAT(run_row(GetParam(), /*num_hosts=*/2), ::testing::Each(IsOk()));
}

// A client waits for another waiting client: the client at the end of the chain is named too.
TEST(LongWaitChainsTest, TheClientThatHoldsUpAllOthersIsNamedByAll) {
  constexpr int kClients = 3;
  Gate gate;
  // Device 0 waits for 1, which waits for 2.
  Reports reports(
      "client 0 has waited for ... in barrier... on devices 0, 1: 1 of 2 clients arrived; missing "
      "client 1 (..., pid ...), waiting in barrier... on devices 1, 2 for ...; in turn for client "
      "2 (..., pid ...), in user code for ... since connect",
      gate);
  const JobSpec job = {
      .num_clients = kClients,
      .options = {.on_wait = [&](const WaitReport& report) { reports.add(report); }},
      .hooks = {.wait_report_unit = kUnit}};
  const auto body = [&](Client& client) -> Status {
    const int self = client.client_id();
    if (self == 2) TESSERA_RETURN_IF_ERROR(gate.wait());
    if (self >= 1) {
      TESSERA_ASSIGN_OR_RETURN(const Group last, client.group({1, 2}));
      TESSERA_RETURN_IF_ERROR(last.barrier().await());
    }
    if (self <= 1) {
      TESSERA_ASSIGN_OR_RETURN(const Group first, client.group({0, 1}));
      TESSERA_RETURN_IF_ERROR(first.barrier().await());
    }
    if (self != 0) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(reports.check());
    for (const WaitReport& report : reports.all()) {
      if (report.missing == std::vector<int>{1, 2}) return absl::OkStatus();
    }
    return absl::InternalError("no report lists both clients");
  };
  EXPECT_THAT(run_processes(job, body), ::testing::Each(IsOk()));
}

TEST(LongWaitStatesTest, AStoppedClientIsSaidToBeStopped) {
  Gate gate;
  Gate known;
  Shared<std::atomic<int>> pid;
  Reports reports("...missing client 1 (..., pid ...), stopped, in user code for ...", gate);
  const JobSpec job = {
      .num_clients = 2,
      // A client that is stopped for longer is lost.
      .options = {.heartbeat_interval = absl::Seconds(20),
                  .on_wait = [&](const WaitReport& report) { reports.add(report); }},
      .hooks = {.wait_report_unit = kUnit}};
  const auto body = [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
    if (client.client_id() == 1) {
      *pid = getpid();
      known.open();
      raise(SIGSTOP);
      return mesh.barrier("go");
    }
    TESSERA_RETURN_IF_ERROR(known.wait());
    std::thread resumes([&] {
      gate.wait().IgnoreError();
      kill(*pid, SIGCONT);
    });
    const Status met = mesh.barrier("go");
    resumes.join();
    TESSERA_RETURN_IF_ERROR(met);
    return reports.check();
  };
  EXPECT_THAT(run_processes(job, body), ::testing::Each(IsOk()));
}

TEST(LongWaitStatesTest, AFunctionOnTheMissingDeviceIsNamed) {
  Gate gate;
  Reports reports("...missing client 1 (..., pid ...), in local_map for ...", gate);
  const JobSpec job = {
      .num_clients = 2,
      .options = {.on_wait = [&](const WaitReport& report) { reports.add(report); }},
      .hooks = {.wait_report_unit = kUnit}};
  const auto body = [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
    const bool is_late = client.client_id() == 1;
    const DTensor rows =
        local_map(Layout::parse(mesh, "[x]"), {2}, DType::kFloat32, {}, [&](LocalContext&) {
          if (is_late) gate.wait().IgnoreError();
        });
    TESSERA_RETURN_IF_ERROR(mesh.barrier("go"));
    return is_late ? absl::OkStatus() : reports.check();
  };
  EXPECT_THAT(run_processes(job, body), ::testing::Each(IsOk()));
}

// ---- Data sets.

struct StuckCase {
  const char* name;
  const char* call;  // of the data set, in which client 1 is stuck
  int64_t element;   // that it is stuck at
  std::function<Status(Client& client, const input::Dataset& batches)> body;

  friend std::ostream& operator<<(std::ostream& out, const StuckCase& row) {
    return out << row.name;
  }
};

Status load_a_batch(Client& client, const input::Dataset& batches, int prefetch) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
  TESSERA_ASSIGN_OR_RETURN(const Layout layout, Layout::batch_sharded(mesh, "x", 1));
  TESSERA_ASSIGN_OR_RETURN(const input::Loader loader,
                           input::distribute(client, batches, {layout}, {.prefetch = prefetch}));
  TESSERA_ASSIGN_OR_RETURN(input::Iterator iterator, loader.iterate());
  return iterator.next().status();
}
Status take_a_batch(Client& client, const input::Dataset& batches,
                    const distribute::InputOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const distribute::Strategy strategy,
                           distribute::multi_worker_mirrored_strategy(client));
  TESSERA_ASSIGN_OR_RETURN(const distribute::DistributedDataset dataset,
                           strategy.distribute_dataset(batches, options));
  TESSERA_ASSIGN_OR_RETURN(distribute::DistributedIterator iterator, dataset.iterate());
  return iterator.next().status();
}

const StuckCase kStuckCases[] = {
    {"read_by_the_caller", "next() of step 0 of a data set", 3,
     [](Client& client, const input::Dataset& batches) {
       return load_a_batch(client, batches, /*prefetch=*/0);
     }},
    {"read_ahead", "next() of step 0 of a data set", 3,
     [](Client& client, const input::Dataset& batches) {
       return load_a_batch(client, batches, /*prefetch=*/1);
     }},
    {"pipeline", "next() of step 0 of a data set", 1,
     [](Client& client, const input::Dataset& batches) {
       return take_a_batch(client, batches, {.auto_shard = distribute::AutoShardPolicy::kOff});
     }},
    {"spec", "distribute_dataset", 0,
     [](Client& client, const input::Dataset& batches) {
       return take_a_batch(client, batches, {});
     }},
};

class StuckFunctionsTest : public ::testing::TestWithParam<StuckCase> {};
INSTANTIATE_TEST_SUITE_P(Rows, StuckFunctionsTest, ::testing::ValuesIn(kStuckCases),
                         [](const auto& info) { return std::string(info.param.name); });

// A function of client 1 returns when both clients have reported their waits.
TEST_P(StuckFunctionsTest, BothClientsNameTheFunction) {
  const StuckCase& row = GetParam();
  Gate gate;
  Reports of_others(absl::StrCat("client 0 has waited for ... in ...missing client 1 (..., pid "
                                 "...), waiting in ",
                                 row.call, " for ..."),
                    gate);
  Reports own(absl::StrCat("client 1 has waited for ... in ", row.call, ": map is at element ",
                           row.element),
              gate);
  const JobSpec job = {.num_clients = 2,
                       .options = {.on_wait =
                                       [&](const WaitReport& report) {
                                         of_others.add(report);
                                         own.add(report);
                                       }},
                       .hooks = {.wait_report_unit = kUnit}};
  const auto body = [&](Client& client) -> Status {
    const bool is_stuck = client.client_id() == 1;
    const auto wait = [&](input::Element element) -> StatusOr<input::Element> {
      const bool is_last = element[0].view<int64_t>()[0] == row.element;
      for (int i = 0; is_stuck && is_last && i < 2; ++i) TESSERA_RETURN_IF_ERROR(gate.wait());
      return element;
    };
    TESSERA_RETURN_IF_ERROR(row.body(client, input::Dataset::range(4).map(wait).batch(4)));
    return is_stuck ? own.check() : of_others.check();
  };
  EXPECT_THAT(run_processes(job, body), ::testing::Each(IsOk()));
}

// ---- connect.

class ConnectWaitsTest : public ::testing::Test {
 protected:
  // Client `first` connects; the other one when the first has reported `expected`.
  std::vector<Status> run(int first, const char* expected) {
    const StatusOr<ReservedPort> port = ReservedPort::create();
    if (!port.ok()) return {port.status()};
    Gate gate;
    Reports reports(expected, gate);
    ClientOptions options = {.coordinator = absl::StrCat("127.0.0.1:", port->port()),
                             .num_clients = 2,
                             .token = random_token(),
                             .on_wait = [&](const WaitReport& report) { reports.add(report); }};
    return run_forked(2, absl::Seconds(100), [&](int id) -> Status {
      options.client_id = id;
      if (id != first) TESSERA_RETURN_IF_ERROR(gate.wait());
      TESSERA_ASSIGN_OR_RETURN(Client client,
                               internal::connect(options, {.wait_report_unit = kUnit}));
      TESSERA_RETURN_IF_ERROR(client.shutdown());
      return id == first ? reports.check() : absl::OkStatus();
    });
  }
};

TEST_F(ConnectWaitsTest, AClientThatIsNotThereIsNamed) {
  EXPECT_THAT(run(0,
                  "client 0 has waited for ... in connect: 1 of 2 clients connected; missing "
                  "client 1; see whether they were started, and with the address 127.0.0.1:..."),
              ::testing::Each(IsOk()));
}

TEST_F(ConnectWaitsTest, ACoordinatorThatIsNotThereIsNamed) {
  EXPECT_THAT(run(1,
                  "client 1 has waited for ... in connect: the coordinator at 127.0.0.1:... "
                  "(client 0) does not answer; see whether client 0 was started"),
              ::testing::Each(IsOk()));
}

// ---- The end.

TEST(LongWaitEndsTest, ShutdownInAReportIsRefused) {
  Gate gate;
  std::atomic<Client*> own = nullptr;
  std::mutex mutex;
  Status refused;  // guarded by mutex
  const auto on_wait = [&](const WaitReport&) {
    std::lock_guard<std::mutex> lock(mutex);
    if (own == nullptr || !refused.ok()) return;
    refused = own.load()->shutdown();
    gate.open();
  };
  const JobSpec job = {
      .num_clients = 2, .options = {.on_wait = on_wait}, .hooks = {.wait_report_unit = kUnit}};
  const auto body = [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
    if (client.client_id() == 1) {
      TESSERA_RETURN_IF_ERROR(gate.wait());
      return mesh.barrier("go");
    }
    own = &client;
    TESSERA_RETURN_IF_ERROR(mesh.barrier("go"));
    std::lock_guard<std::mutex> lock(mutex);
    TESSERA_REQUIRE(absl::IsFailedPrecondition(refused), refused.ToString());
    TESSERA_REQUIRE(refused.message() ==
                    "shutdown is called in on_wait, and would wait for that call; call it in "
                    "another thread");
    return absl::OkStatus();
  };
  EXPECT_THAT(run_processes(job, body), ::testing::Each(IsOk()));
}

}  // namespace
}  // namespace tessera::testing
