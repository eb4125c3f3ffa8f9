// SPDX-License-Identifier: Apache-2.0
//
// Servers against callers that are no task of their cluster.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/host_array.h"
#include "base/status.h"
#include "distribute/coordinator.h"
#include "distribute/remote_variable.h"
#include "distribute/testing/test_cluster.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/coordinator_channel.h"
#include "tests/support/matchers.h"

namespace tessera::distribute {
namespace {

using ::tessera::testing::IsOk;
using testing::RunningCluster;
using testing::scalar;

constexpr int64_t kMiB = 1 << 20;

// Calls of `size` bytes without a token, each by a connection of its own, all at a time.
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

// Without the check before the reception the peak of each server grew by more than 1 GiB.
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
  // The job goes on, and its own calls may be large: an argument, and a variable in one shard.
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

}  // namespace
}  // namespace tessera::distribute
