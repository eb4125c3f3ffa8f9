// SPDX-License-Identifier: Apache-2.0
//
// Servers with callers that are not tasks of their cluster, or not of this build.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/host_array.h"
#include "base/status.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/coordinator/coordinator_channel.h"
#include "servers/cluster_coordinator.h"
#include "servers/remote_variable.h"
#include "servers/testing/test_cluster.h"
#include "tessera/servers/parameter_server.grpc.pb.h"
#include "tessera/servers/parameter_server.pb.h"
#include "tests/support/matchers.h"

namespace tessera::distribute {
namespace {

using ::tessera::testing::IsOk;
using ::testing::HasSubstr;
using testing::RunningCluster;
using testing::scalar;
using testing::TestCluster;

constexpr int64_t kMiB = 1 << 20;

// Sends calls of `size` bytes without a token, all at the same time, each on its own connection.
std::vector<grpc::Status> call_without_token(const std::string& address, const std::string& method,
                                             int64_t size, int num_calls) {
  struct Call {
    std::unique_ptr<grpc::GenericStub> stub;
    grpc::ClientContext context;
    grpc::ByteBuffer response;
    grpc::Status status;
    std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
  };
  const grpc::Slice slice(std::string(size, '\0'));
  const grpc::ByteBuffer request(&slice, 1);
  grpc::CompletionQueue queue;
  std::vector<Call> calls(num_calls);
  for (Call& call : calls) {
    call.stub = std::make_unique<grpc::GenericStub>(create_coordinator_channel(address, 1));
    call.reader = call.stub->PrepareUnaryCall(
        &call.context, "/tessera.distribute.rpc.TaskService/" + method, request, &queue);
    call.reader->StartCall();
    call.reader->Finish(&call.response, &call.status, &call);
  }
  std::vector<grpc::Status> result;
  for (int i = 0; i < num_calls; ++i) {
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    result.push_back(static_cast<Call*>(tag)->status);
  }
  return result;
}

// Without the check before the reception the peak memory of each server grew by more than 1 GiB.
TEST(ServerTest, LargeCallsWithoutATokenCostAServerLittle) {
  RunningCluster running(1, 1);
  ASSERT_TRUE(running.ok());
  for (const char* const job : {"worker", "ps"}) {
    const int64_t before = running.cluster.peak_memory(job, 0);
    for (const char* const method : {"Hello", "Stage"}) {
      SCOPED_TRACE(std::string(job) + " " + method);
      for (const grpc::Status& status :
           call_without_token(running.cluster.address(job, 0), method, 300 * kMiB, 2)) {
        EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << status.error_message();
      }
    }
    const int64_t grown = running.cluster.peak_memory(job, 0) - before;
    RecordProperty(std::string(job) + "_grown_kib", std::to_string(grown >> 10));
    EXPECT_LT(grown, 64 * kMiB) << job;
  }
  // The job continues, and its own calls may be large: an argument, and a variable in one shard.
  ClusterCoordinator& coordinator = *running.coordinator;
  const std::vector<float> large(17 * kMiB, 1);
  EXPECT_THAT(
      coordinator.schedule("wait", {scalar(0), HostArray::of<float>(large, {17 * kMiB})}).await(),
      IsOk());
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const RemoteVariable v,
      coordinator.variable("large", HostArray::of<float>(large, {17 * kMiB})));
  EXPECT_THAT(coordinator.schedule("push_late", {scalar(0), v}).await(), IsOk());
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<float> value, testing::value_of(coordinator, v));
  EXPECT_EQ(std::count(value.begin(), value.end(), 2.0f), 17 * kMiB);
}

// A chief that sends a server any requests.
class Caller {
 public:
  Caller(const std::string& address, const std::string& token)
      : stub_(rpc::TaskService::NewStub(create_coordinator_channel(address, 1))),
        token_(token_metadata(token)) {}

  template <class Request, class Response>
  Response call(grpc::Status (rpc::TaskService::Stub::*method)(grpc::ClientContext*, const Request&,
                                                               Response*),
                const Request& request) {
    grpc::ClientContext context;
    context.AddMetadata(kTokenMetadata, token_);
    context.set_wait_for_ready(true);
    Response response;
    const grpc::Status status = (stub_.get()->*method)(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  rpc::Outcome hello(const std::string& job, int64_t interval_us) {
    rpc::HelloRequest request;
    set_caller(&request);
    request.set_task_type(job);
    request.set_heartbeat_interval_us(interval_us);
    request.add_ps()->set_address("127.0.0.1:1");
    return call(&rpc::TaskService::Stub::Hello, request).outcome();
  }
  template <class Request>
  static void set_caller(Request* request) {
    request->mutable_caller()->set_chief(7);
    request->mutable_caller()->set_session(1);
  }

 private:
  std::unique_ptr<rpc::TaskService::Stub> stub_;
  const std::string token_;
};

void expect_refused(const rpc::Outcome& outcome, const std::string& text) {
  EXPECT_NE(outcome.code(), 0);
  EXPECT_THAT(outcome.message(), HasSubstr(text));
}

constexpr int64_t kHourUs = int64_t{3600} * 1'000'000;
constexpr int kF32 = static_cast<int>(DType::kFloat32);

rpc::Argument variable_argument(int dtype, const std::vector<int64_t>& shape,
                                const std::vector<int64_t>& rows, const std::vector<int>& ps) {
  rpc::Argument argument;
  rpc::Variable& variable = *argument.mutable_variable();
  variable.set_name("v");
  variable.set_dtype(dtype);
  variable.mutable_shape()->Assign(shape.begin(), shape.end());
  variable.mutable_rows()->Assign(rows.begin(), rows.end());
  variable.mutable_ps()->Assign(ps.begin(), ps.end());
  return argument;
}

// Numbers of a request are checked before they are used as indices.
TEST(ServerTest, AWorkerRefusesArgumentsThatNoChiefSends) {
  setenv("TESSERA_TOKEN", "token", 1);
  TestCluster cluster(1, 1);
  cluster.start("worker", 0);
  Caller chief(cluster.address("worker", 0), "token");
  for (const int64_t interval : {int64_t{0}, int64_t{-1}, INT64_MIN}) {
    expect_refused(chief.hello("worker", interval), "the chief gives an interval of heartbeats of");
  }
  ASSERT_EQ(chief.hello("worker", kHourUs).code(), 0);
  rpc::Argument dataset;
  dataset.mutable_dataset()->set_name("pairs");
  rpc::Argument array;
  array.mutable_array()->set_dtype(256 + kF32);
  const std::pair<rpc::Argument, const char*> cases[] = {
      {rpc::Argument(), "it is neither an array nor a data set nor a variable"},
      {dataset, "data set \"pairs\" is dealt to 0 workers"},
      {array, "263 is not the number of an element type"},
      {variable_argument(kF32, {2}, {2}, {1}), "a shard is on ps 1, and the cluster has 1"},
      {variable_argument(kF32, {2}, {2}, {-1}), "a shard is on ps -1, and the cluster has 1"},
      {variable_argument(kF32, {2}, {2}, {1 << 30}), "a shard is on ps 1073741824"},
      {variable_argument(kF32, {2}, {2}, {}), "do not make up shape [2]"},
      {variable_argument(kF32, {2}, {}, {0}), "do not make up shape [2]"},
      {variable_argument(kF32, {2}, {1}, {0}), "do not make up shape [2]"},
      {variable_argument(kF32, {2}, {3, -1}, {0, 0}), "do not make up shape [2]"},
      {variable_argument(kF32, {2}, {INT64_MAX, 2}, {0, 0}), "do not make up shape [2]"},
      {variable_argument(kF32, {-2}, {-2}, {0}), "has size -2 in dim 0"},
      {variable_argument(9, {2}, {2}, {0}), "9 is not the number of an element type"},
  };
  uint64_t run = 0;
  for (const auto& [argument, text] : cases) {
    SCOPED_TRACE(text);
    rpc::RunRequest request;
    Caller::set_caller(&request);
    request.set_run(++run);
    request.set_function("pull");
    *request.add_arguments() = argument;
    const rpc::Outcome outcome = chief.call(&rpc::TaskService::Stub::Run, request).outcome();
    EXPECT_EQ(outcome.code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
    expect_refused(outcome, "argument 0 of function \"pull\": ");
    expect_refused(outcome, text);
  }
  rpc::RunRequest none;
  Caller::set_caller(&none);
  EXPECT_TRUE(chief.call(&rpc::TaskService::Stub::Run, none).was_given_up());
  rpc::BeatRequest beat;
  Caller::set_caller(&beat);
  EXPECT_EQ(chief.call(&rpc::TaskService::Stub::Beat, beat).code(), 0);
}

TEST(ServerTest, AParameterServerRefusesShardsThatNoChiefSends) {
  setenv("TESSERA_TOKEN", "token", 1);
  TestCluster cluster(1, 1);
  cluster.start("ps", 0);
  Caller chief(cluster.address("ps", 0), "token");
  ASSERT_EQ(chief.hello("ps", kHourUs).code(), 0);
  const auto create = [&](int dtype, const std::vector<int64_t>& shape, int num_bytes) {
    rpc::CreateRequest request;
    request.mutable_head()->set_chief(7);
    request.mutable_head()->set_name("v");
    request.mutable_head()->set_dtype(dtype);
    request.mutable_head()->mutable_shape()->Assign(shape.begin(), shape.end());
    request.set_data(std::string(num_bytes, 'x'));
    return chief.call(&rpc::TaskService::Stub::Create, request).head();
  };
  expect_refused(create(256 + kF32, {2}, 8), "variable \"v\": 263 is not the number of an element");
  expect_refused(create(-1, {2}, 8), "-1 is not the number of an element type");
  expect_refused(create(kF32, {2}, 7), "needs 8 bytes, and has 7");
  expect_refused(create(kF32, {int64_t{1} << 62, 4}, 0), "more elements than a 64-bit integer");
  EXPECT_EQ(create(kF32, {2}, 8).code(), 0);
  rpc::StageRequest stage;
  stage.mutable_head()->set_chief(7);
  stage.mutable_head()->set_worker(-5);
  stage.set_data("1234567");
  expect_refused(chief.call(&rpc::TaskService::Stub::Stage, stage).head(),
                 "a push of 7 bytes to shard 0 of variable 0, which has 8 bytes");
  rpc::UpdateRequest update;
  Caller::set_caller(&update);
  update.set_number(9);
  expect_refused(chief.call(&rpc::TaskService::Stub::Update, update),
                 "update 9 of the chief follows 0");
  update.set_number(1);
  update.add_commits()->set_num_pushes(-1);
  expect_refused(chief.call(&rpc::TaskService::Stub::Update, update),
                 "the chief commits -1 pushes");
}

}  // namespace
}  // namespace tessera::distribute
