// SPDX-License-Identifier: Apache-2.0
//
// Long waits of a chief and of a server. Every call that waits for tasks reports it; the report
// names the missing tasks and the activities of the others. A test waits for the report, then ends
// the wait.
#include <signal.h>

#include <cstdlib>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/wait_report.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "job/cluster/cluster.h"
#include "servers/cluster_coordinator.h"
#include "servers/server.h"
#include "servers/testing/fake_task.h"
#include "servers/testing/test_cluster.h"
#include "tessera/servers/parameter_server.pb.h"
#include "tests/support/bad_inputs.h"
#include "tests/support/gate.h"
#include "tests/support/matchers.h"

namespace tessera::distribute {

// kUnit replaces 10 s: the first report is due after it, later reports every 30 times as much.
struct internal::ReportTimes {
  static constexpr absl::Duration kUnit = absl::Milliseconds(50);

  static StatusOr<ClusterCoordinator> create(const cluster::Cluster& cluster,
                                             const CoordinatorOptions& options) {
    return ClusterCoordinator::create(cluster, {}, options, kUnit);
  }
  static StatusOr<Server> start(const cluster::Cluster& cluster, const ServerOptions& options) {
    return Server::start(cluster, {}, options, kUnit);
  }
};

namespace {

using internal::ReportTimes;
using ::tessera::testing::Gate;
using ::tessera::testing::is_message;
using ::tessera::testing::IsOk;
using ::tessera::testing::StatusIs;
using testing::fake_cluster;
using testing::FakeTask;
using testing::scalar;
using testing::TestCluster;

// The reports of a chief or a server.
class Reports {
 public:
  std::function<void(const WaitReport& report)> sink() {
    return [this](const WaitReport& report) {
      const std::lock_guard<std::mutex> lock(mutex_);
      texts_.push_back(report.text);
      EXPECT_THAT(report.missing, ::testing::IsEmpty());
      if (expected_.empty() || !is_message(report.text, expected_)) return;
      expected_.clear();
      gate_.open();
    };
  }
  // Makes a call that waits, and calls `end_wait` when a report matches `text`, in which "..." is
  // any text. Another thread makes the call, because tasks end with the thread that starts them.
  void expect(const std::string& text, std::function<void()> call,
              const std::function<void()>& end_wait) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      texts_.clear();
      expected_ = text;
    }
    std::thread caller(std::move(call));
    if (!gate_.wait().ok()) {
      const std::lock_guard<std::mutex> lock(mutex_);
      ADD_FAILURE() << "no report is \"" << text
                    << "\"; there are: " << absl::StrJoin(texts_, " | ");
    }
    end_wait();
    caller.join();
  }

 private:
  Gate gate_;
  std::mutex mutex_;  // guards the members below
  std::string expected_;
  std::vector<std::string> texts_;
};

// A chief, a worker and a ps. A silent task is not lost for a minute.
class LongWaitsTest : public ::testing::Test {
 protected:
  Status start_chief(CoordinatorOptions options = {}) {
    options.on_wait = reports_.sink();
    options.heartbeat_interval = absl::Seconds(20);
    TESSERA_ASSIGN_OR_RETURN(chief_, ReportTimes::create(cluster_.chief(), options));
    return absl::OkStatus();
  }
  Status start_all(const CoordinatorOptions& options = {}) {
    cluster_.start_all();
    return start_chief(options);
  }
  void start_worker() { cluster_.start("worker", 0); }
  // "worker 0 (127.0.0.1:4000)".
  std::string name_of(const std::string& job) const {
    return absl::StrCat(job, " 0 (", cluster_.address(job, 0), ")");
  }
  void expect(const std::string& name, const std::string& what, std::function<void()> call,
              const std::function<void()>& end_wait) {
    reports_.expect(absl::StrCat("the chief has waited for ... in ", name, ": ", what),
                    std::move(call), end_wait);
  }

  TestCluster cluster_{1, 1};
  Reports reports_;
  std::optional<ClusterCoordinator> chief_;
};

TEST_F(LongWaitsTest, CreateNamesTheTaskThatWasNotStarted) {
  cluster_.start("ps", 0);
  expect(
      "ClusterCoordinator::create",
      absl::StrCat("1 of 2 tasks are connected; missing ", name_of("worker"), ": ..."),
      [this] { EXPECT_THAT(start_chief(), IsOk()); }, [this] { start_worker(); });
}

TEST_F(LongWaitsTest, JoinAndValuesNameTheWorkerThatIsAway) {
  ASSERT_THAT(start_all(), IsOk());
  const std::string what =
      absl::StrCat("1 closure is not over; missing ", name_of("worker"), ": ...");
  for (const bool is_join : {true, false}) {
    cluster_.kill("worker", 0);
    const RemoteValue value = chief_->schedule("where");
    expect(
        is_join ? "ClusterCoordinator::join" : "RemoteValue::await of function \"where\"", what,
        [&] { EXPECT_THAT(is_join ? chief_->join() : value.await(), IsOk()); },
        [this] { start_worker(); });
  }
}

TEST_F(LongWaitsTest, JoinNamesTheFunctionThatRuns) {
  ASSERT_THAT(start_all({.max_attempts = 1}), IsOk());
  chief_->schedule("wait", {scalar(1e6)});
  chief_->schedule("where");
  expect(
      "ClusterCoordinator::join",
      absl::StrCat("2 closures are not over; ", name_of("worker"),
                   " has been running function \"wait\" for ..."),
      [this] { EXPECT_THAT(chief_->join(), StatusIs(absl::StatusCode::kAborted)); },
      [this] { cluster_.kill("worker", 0); });
}

TEST_F(LongWaitsTest, ScheduleOnAFullQueue) {
  ASSERT_THAT(start_all({.queue_limit = 1}), IsOk());
  cluster_.kill("worker", 0);
  expect(
      "ClusterCoordinator::schedule",
      absl::StrCat("... not over; missing ", name_of("worker"), ": ..."),
      [this] {
        // The worker has one closure, and its loss may be unknown yet; the queue has another.
        for (int i = 0; i < 3; ++i) chief_->schedule("where");
      },
      [this] { start_worker(); });
  EXPECT_THAT(chief_->join(), IsOk());
}

TEST_F(LongWaitsTest, ADataSetThatAWorkerHasNotMade) {
  ASSERT_THAT(start_all(), IsOk());
  cluster_.signal("worker", 0, SIGSTOP);
  expect(
      "ClusterCoordinator::create_per_worker_dataset of \"pairs\"",
      absl::StrCat("2 of 2 tasks are connected; ", name_of("worker"), " has not answered for ...; ",
                   name_of("worker"), " has been making data set \"pairs\" for ..."),
      [this] { EXPECT_THAT(chief_->create_per_worker_dataset("pairs"), IsOk()); },
      [this] { cluster_.signal("worker", 0, SIGCONT); });
}

TEST_F(LongWaitsTest, AVariableOfAParameterServerThatIsStopped) {
  ASSERT_THAT(start_all(), IsOk());
  cluster_.signal("ps", 0, SIGSTOP);
  expect(
      "ClusterCoordinator::variable of \"v\"",
      absl::StrCat("2 of 2 tasks are connected; ", name_of("ps"), " has not answered for ..."),
      [this] { EXPECT_THAT(chief_->variable("v", scalar(0)), IsOk()); },
      [this] { cluster_.signal("ps", 0, SIGCONT); });
}

TEST_F(LongWaitsTest, AFunctionThatWaitsForAParameterServer) {
  ASSERT_THAT(start_all(), IsOk());
  TESSERA_ASSERT_OK_AND_ASSIGN(const RemoteVariable v, chief_->variable("v", scalar(0)));
  cluster_.signal("ps", 0, SIGSTOP);
  chief_->schedule("add", {scalar(1), v});
  expect(
      "ClusterCoordinator::join",
      absl::StrCat("1 closure is not over; ", name_of("ps"), " has not answered for ...; ",
                   name_of("worker"), " has been running function \"add\" for ..."),
      [this] { EXPECT_THAT(chief_->join(), IsOk()); },
      [this] { cluster_.signal("ps", 0, SIGCONT); });
}

TEST(CommitWaitsTest, PushesThatAParameterServerHasNotApplied) {
  FakeTask worker;
  FakeTask ps;
  rpc::RunResponse response;
  response.mutable_outcome()->set_code(0);
  response.add_num_pushes(1);
  worker.answer("Run", response);
  // The answer says that the session is over, so the update is sent again.
  rpc::Outcome outcome;
  outcome.set_code(static_cast<int>(absl::StatusCode::kFailedPrecondition));
  ps.answer("Update", outcome);
  Reports reports;
  TESSERA_ASSERT_OK_AND_ASSIGN(
      ClusterCoordinator chief,
      ReportTimes::create(fake_cluster(worker, ps), {.on_wait = reports.sink()}));
  chief.schedule("f");
  reports.expect(
      absl::StrCat("the chief has waited for ... in ClusterCoordinator::join: 1 closure is not "
                   "over; worker 0 (",
                   worker.address(),
                   ") has been waiting for the parameter servers after running function \"f\" for "
                   "..."),
      [&] { EXPECT_THAT(chief.join(), IsOk()); },
      [&] {
        outcome.set_code(0);
        ps.answer("Update", outcome);
      });
  unsetenv("TESSERA_TOKEN");
}

TEST(ServerWaitsTest, AServerSaysThatNoChiefHasConnected) {
  TestCluster cluster(1, 1);
  for (const char* const job : {"ps", "worker"}) {
    Reports reports;
    StatusOr<Server> server = ReportTimes::start(cluster.as(job, 0), {.on_wait = reports.sink()});
    ASSERT_THAT(server.status(), IsOk());
    reports.expect(
        absl::StrCat(job, " 0 has waited for ... in Server::join: no chief has connected to ",
                     cluster.address(job, 0),
                     "; see whether the chief was started, and with the same cluster"),
        [&] { EXPECT_THAT(server->join(), IsOk()); }, [&] { EXPECT_THAT(server->stop(), IsOk()); });
  }
}

}  // namespace
}  // namespace tessera::distribute
