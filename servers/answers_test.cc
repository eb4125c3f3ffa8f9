// SPDX-License-Identifier: Apache-2.0
//
// A ClusterCoordinator gets answers that no task of this build sends, or loses a connection in the
// middle of a refusal. The chief continues, and its error names the task.
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/dtype.h"
#include "base/host_array.h"
#include "base/shape.h"
#include "base/status.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "job/cluster/cluster.h"
#include "servers/cluster_coordinator.h"
#include "servers/task_links.h"
#include "servers/testing/fake_task.h"
#include "tessera/servers/parameter_server.pb.h"
#include "tests/support/matchers.h"

namespace tessera::distribute {
namespace {

using ::tessera::testing::IsOk;
using ::tessera::testing::StatusIs;
using ::testing::AllOf;
using testing::fake_cluster;
using testing::FakeTask;
using ::testing::HasSubstr;

constexpr auto kInternal = absl::StatusCode::kInternal;

// Bytes that are not a message.
std::string rubbish() {
  std::string bytes(200, '\0');
  std::iota(bytes.begin(), bytes.end(), '\0');
  return bytes;
}

rpc::RunResponse good_answer() {
  rpc::RunResponse response;
  response.mutable_outcome()->set_code(0);
  response.add_num_pushes(0);
  return response;
}
std::string changed(const std::function<void(rpc::RunResponse&)>& change) {
  rpc::RunResponse response = good_answer();
  change(response);
  return response.SerializeAsString();
}
std::string with_result(int dtype, const Shape& shape, int num_bytes) {
  return changed([&](rpc::RunResponse& response) {
    rpc::Array& result = *response.add_results();
    result.set_dtype(dtype);
    result.mutable_shape()->Assign(shape.begin(), shape.end());
    result.set_data(std::string(num_bytes, 'x'));
  });
}

struct AnswerCase {
  std::string name;
  std::string bytes;
  std::string text;
};

// Each answer once made the chief abort, was taken as OK, or was used as an index.
std::vector<AnswerCase> answers_of_a_worker() {
  constexpr int kF32 = static_cast<int>(DType::kFloat32);
  return {
      {"no_bytes", "", "an answer without an outcome"},
      {"rubbish", rubbish(), "an answer that cannot be read"},
      {"results_alone",
       [] {
         rpc::RunResponse response = good_answer();
         response.clear_outcome();
         return response.SerializeAsString();
       }(),
       "an answer without an outcome"},
      {"unknown_code", changed([](auto& r) { r.mutable_outcome()->set_code(99); }),
       "an answer with the code 99"},
      {"negative_code", changed([](auto& r) { r.mutable_outcome()->set_code(-1); }),
       "an answer with the code -1"},
      {"no_pushes", changed([](auto& r) { r.clear_num_pushes(); }),
       "the numbers of pushes on 0 parameter servers, and not on 1"},
      {"pushes_on_more_servers", changed([](auto& r) { r.add_num_pushes(127); }),
       "the numbers of pushes on 2 parameter servers, and not on 1"},
      {"negative_pushes", changed([](auto& r) { r.set_num_pushes(0, -5); }), "-5 pushes"},
      {"unknown_dataset", changed([](auto& r) { r.add_positions()->set_dataset(99); }),
       "a position in data set 99, and 0 were made"},
      {"negative_dataset", changed([](auto& r) { r.add_positions()->set_dataset(-1); }),
       "a position in data set -1"},
      {"unknown_dtype", with_result(9, {2}, 8), "result 0 of function \"f\" cannot be read: 9 is"},
      {"dtype_of_9_bits", with_result(256 + kF32, {2}, 8), "263 is not the number of an element"},
      {"negative_dtype", with_result(-249, {2}, 8), "-249 is not the number of an element type"},
      {"negative_size", with_result(kF32, {-2}, 8), "has size -2 in dim 0"},
      {"too_few_bytes", with_result(kF32, {3}, 8), "needs 12 bytes, and has 8"},
      {"sizes_that_wrap", with_result(kF32, {int64_t{1} << 32, int64_t{1} << 32}, 0),
       "has more elements than a 64-bit integer counts"},
  };
}

TEST(AnswersTest, AWrongAnswerOfAWorkerFailsItsRunAlone) {
  FakeTask worker;
  FakeTask ps;
  TESSERA_ASSERT_OK_AND_ASSIGN(ClusterCoordinator coordinator,
                               ClusterCoordinator::create(fake_cluster(worker, ps)));
  for (const AnswerCase& c : answers_of_a_worker()) {
    SCOPED_TRACE(c.name);
    worker.answer("Run", c.bytes);
    const auto is_wrong = StatusIs(kInternal, AllOf(HasSubstr("worker 0"), HasSubstr(c.text)));
    EXPECT_THAT(coordinator.schedule("f").fetch(), is_wrong);
    EXPECT_THAT(coordinator.join(), is_wrong);
    worker.answer("Run", good_answer());
    EXPECT_THAT(coordinator.schedule("f").await(), IsOk());
  }
}

TEST(AnswersTest, AWrongAnswerOfADatasetNamesItsWorker) {
  FakeTask worker;
  FakeTask ps;
  TESSERA_ASSERT_OK_AND_ASSIGN(ClusterCoordinator coordinator,
                               ClusterCoordinator::create(fake_cluster(worker, ps)));
  rpc::MakeDatasetResponse spec;
  spec.mutable_outcome()->set_code(0);
  spec.add_spec()->set_dtype(99);
  rpc::MakeDatasetResponse size = spec;
  size.mutable_spec(0)->set_dtype(0);
  size.mutable_spec(0)->add_shape(-7);
  for (const auto& [bytes, text] :
       {std::pair(std::string(), "an answer without an outcome"),
        std::pair(spec.SerializeAsString(), "99 is not the number of an element type"),
        std::pair(size.SerializeAsString(), "a spec has size -7")}) {
    worker.answer("MakeDataset", bytes);
    EXPECT_THAT(coordinator.create_per_worker_dataset("d"),
                StatusIs(kInternal, AllOf(HasSubstr("worker 0 (127.0.0.1:"), HasSubstr(text))));
  }
}

TEST(AnswersTest, AGreetingWithoutAnOutcomeReachesNoTask) {
  FakeTask worker;
  FakeTask ps;
  worker.answer("Hello", "");
  EXPECT_THAT(ClusterCoordinator::create(fake_cluster(worker, ps), {},
                                         {.worker_wait = absl::Milliseconds(600)}),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("worker 0 (127.0.0.1:"),
                             HasSubstr("an answer without an outcome"))));
}

// Another process serves the task's address, as after a start with another token.
TEST(AnswersTest, ATaskWithAnotherTokenWasStartedAgain) {
  FakeTask worker;
  FakeTask ps;
  const cluster::Cluster chief = fake_cluster(worker, ps);
  setenv("TESSERA_TOKEN", "another token", 1);
  EXPECT_THAT(
      ClusterCoordinator::create(chief, {}, {.worker_wait = absl::Milliseconds(600)}),
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               AllOf(HasSubstr("ps 0 (127.0.0.1:"),
                     HasSubstr("another process answers at its address: it was started "
                               "again, or its TESSERA_TOKEN is not that of this process"))));
}

// The variables of a parameter server that refuses an update are lost, for every call.
TEST(AnswersTest, AParameterServerThatRefusesAnUpdateIsLost) {
  rpc::Outcome broke;
  broke.set_code(static_cast<int>(kInternal));
  broke.set_message("it broke");
  for (const auto& [bytes, text] : {std::pair(broke.SerializeAsString(), "it broke"),
                                    std::pair(std::string(), "an answer without an outcome"),
                                    std::pair(rubbish(), "an answer that cannot be read")}) {
    SCOPED_TRACE(text);
    FakeTask worker;
    FakeTask ps;
    TESSERA_ASSERT_OK_AND_ASSIGN(ClusterCoordinator coordinator,
                                 ClusterCoordinator::create(fake_cluster(worker, ps)));
    ASSERT_THAT(coordinator.variable("v", HostArray::scalar(0.0f)), IsOk());
    ps.answer("Update", bytes);
    worker.answer("Run", changed([](auto& r) { r.set_num_pushes(0, 1); }));
    const auto is_lost = StatusIs(
        kInternal, AllOf(HasSubstr("ps 0 (127.0.0.1:"), HasSubstr(" refuses update 1: "),
                         HasSubstr(text), HasSubstr("; with it are lost the variables \"v\"")));
    const RemoteValue waits = coordinator.schedule("f");
    EXPECT_THAT(waits.await(absl::Seconds(20)), is_lost);
    EXPECT_THAT(coordinator.join(absl::Seconds(20)), is_lost);
    EXPECT_THAT(coordinator.variable("w", HostArray::scalar(0.0f)), is_lost);
    EXPECT_THAT(coordinator.create_per_worker_dataset("d"), is_lost);
    EXPECT_THAT(coordinator.schedule("f").await(absl::Seconds(20)), is_lost);
  }
}

// A task that is lost just before it is dismissed has no connection for a goodbye.
TEST(AnswersTest, ATaskThatIsLostMayBeDismissed) {
  FakeTask worker;
  FakeTask ps;
  rpc::Outcome over;
  over.set_code(static_cast<int>(absl::StatusCode::kFailedPrecondition));
  over.set_message("the session is over");
  worker.answer("Beat", over);
  std::mutex mutex;
  std::condition_variable changed;
  bool is_lost = false;
  bool is_dismissed = false;
  uint64_t last_session = 0;
  std::unique_ptr<internal::TaskLinks> links;
  using Task = internal::TaskLinks::Task;
  StatusOr<std::unique_ptr<internal::TaskLinks>> started = internal::TaskLinks::start(
      fake_cluster(worker, ps).spec, 1, absl::Milliseconds(100),
      {.new_session =
           [&](const Task&) {
             std::lock_guard<std::mutex> lock(mutex);
             return ++last_session;
           },
       .up =
           [&](const Task& task, uint64_t, const rpc::HelloResponse&) {
             if (!task.is_worker()) return;
             std::unique_lock<std::mutex> lock(mutex);
             changed.wait(lock, [&] { return is_lost && links != nullptr; });
             lock.unlock();
             links->dismiss(task, absl::FailedPreconditionError("another registry"));
             lock.lock();
             is_dismissed = true;
             changed.notify_all();
           },
       .lost =
           [&](const Task&, const Status&) {
             std::lock_guard<std::mutex> lock(mutex);
             is_lost = true;
             changed.notify_all();
           },
       .refused = [](const Task&, const Status&) {},
       .tick = [] {}});
  ASSERT_THAT(started.status(), IsOk());
  {
    std::unique_lock<std::mutex> lock(mutex);
    links = *std::move(started);
    changed.notify_all();
    changed.wait(lock, [&] { return is_dismissed; });
  }
  links->stop(absl::OkStatus());
}

}  // namespace
}  // namespace tessera::distribute
