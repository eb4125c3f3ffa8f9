// SPDX-License-Identifier: Apache-2.0
//
// TaskService behind a port: the calls that it receives, and how it refuses others.
#include "servers/task_service.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/coordinator/coordinator_channel.h"
#include "tessera/servers/parameter_server.grpc.pb.h"
#include "tessera/servers/parameter_server.pb.h"

namespace tessera::distribute::internal {
namespace {

using ::testing::HasSubstr;

constexpr char kToken[] = "the token";

// A server with three methods: Beat, which is small; Run, which is large; and Stage, which gets
// bytes and returns their number.
class TaskServiceTest : public ::testing::Test {
 protected:
  TaskServiceTest()
      : service_(token_metadata(kToken), [this](const std::string&) { ++num_proven_; }) {
    using Size = TaskService::Size;
    service_.add<rpc::BeatRequest, rpc::Outcome>(
        "Beat", Size::kSmall, [this](const rpc::BeatRequest& request, auto answer) {
          ++num_served_;
          rpc::Outcome outcome;
          outcome.set_message(std::to_string(request.caller().session()));
          answer(outcome);
        });
    service_.add<rpc::RunRequest, rpc::RunResponse>(
        "Run", Size::kLarge, [this](const rpc::RunRequest& request, auto answer) {
          ++num_served_;
          rpc::RunResponse response;
          response.mutable_outcome()->set_message(request.function());
          answer(response);
        });
    service_.add_raw("Stage", Size::kLarge, [this](const grpc::ByteBuffer& request, auto answer) {
      ++num_served_;
      const grpc::Slice size(std::to_string(request.Length()));
      answer(grpc::ByteBuffer(&size, 1));
    });
    service_.add_open<rpc::BeatRequest>(
        "Attend",
        [this](const rpc::BeatRequest& request) {
          if (request.caller().session() == 0) {
            return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "no session");
          }
          std::lock_guard<std::mutex> lock(mutex_);
          ++num_open_;
          changed_.notify_all();
          return grpc::Status::OK;
        },
        [this] {
          std::lock_guard<std::mutex> lock(mutex_);
          --num_open_;
          changed_.notify_all();
        });
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterCallbackGenericService(&service_);
    builder.SetMaxReceiveMessageSize(-1);
    server_ = builder.BuildAndStart();
    channel_ = create_coordinator_channel("127.0.0.1:" + std::to_string(port), 1);
  }
  ~TaskServiceTest() override {
    if (server_ != nullptr) server_->Shutdown();
  }

  static void set_token(grpc::ClientContext* context, const std::string& token) {
    context->AddMetadata(kTokenMetadata, token_metadata(token));
  }
  // A call with these bytes.
  grpc::Status call(const std::string& method, const std::string& bytes, const std::string& token,
                    std::string* answer = nullptr) {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    if (!token.empty()) set_token(&context, token);
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::CompletionQueue queue;
    const auto reader = stub.PrepareUnaryCall(
        &context, "/tessera.distribute.rpc.TaskService/" + method, request, &queue);
    grpc::ByteBuffer response;
    grpc::Status status;
    reader->StartCall();
    reader->Finish(&response, &status, this);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    std::vector<grpc::Slice> slices;
    if (answer != nullptr && response.Dump(&slices).ok() && slices.size() == 1) {
      answer->assign(slices[0].begin(), slices[0].end());
    }
    return status;
  }
  void expect_refused(const grpc::Status& status, grpc::StatusCode code, const std::string& text) {
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(text));
    EXPECT_EQ(num_served_, 0);
  }

  std::atomic<int> num_proven_{0};
  std::atomic<int> num_served_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  int num_open_ = 0;
  TaskService service_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(TaskServiceTest, CallsAreAnswered) {
  const auto stub = rpc::TaskService::NewStub(channel_);
  rpc::BeatRequest beat;
  beat.mutable_caller()->set_session(7);
  rpc::Outcome outcome;
  grpc::ClientContext beat_context;
  set_token(&beat_context, kToken);
  EXPECT_TRUE(stub->Beat(&beat_context, beat, &outcome).ok());
  EXPECT_EQ(outcome.message(), "7");
  rpc::RunRequest run;
  run.set_function(std::string(64 << 20, 'f'));
  rpc::RunResponse response;
  grpc::ClientContext run_context;
  set_token(&run_context, kToken);
  EXPECT_TRUE(stub->Run(&run_context, run, &response).ok());
  EXPECT_TRUE(response.outcome().message() == run.function());
  std::string size;
  EXPECT_TRUE(call("Stage", std::string(64 << 20, 's'), kToken, &size).ok());
  EXPECT_EQ(size, std::to_string(64 << 20));
  EXPECT_EQ(num_proven_, 3);
}

TEST_F(TaskServiceTest, WithoutTheTokenNothingIsReceived) {
  for (const char* const method : {"Beat", "Run", "Stage", "NoSuchMethod"}) {
    for (const char* const token : {"", "the tokem", "the token of another job"}) {
      SCOPED_TRACE(std::string(method) + " " + token);
      expect_refused(call(method, std::string(1 << 20, 'x'), token),
                     grpc::StatusCode::UNAUTHENTICATED, "the job token is wrong");
    }
  }
  EXPECT_EQ(num_proven_, 0);
}

// end() is called once, whether the caller cancels the call or begin() refused it.
TEST_F(TaskServiceTest, AnOpenCallEndsWithItsConnection) {
  const auto stub = rpc::TaskService::NewStub(channel_);
  rpc::BeatRequest beat;
  rpc::Outcome outcome;
  grpc::ClientContext refused;
  set_token(&refused, kToken);
  EXPECT_EQ(stub->Attend(&refused, beat, &outcome).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  beat.mutable_caller()->set_session(1);
  grpc::ClientContext open;
  set_token(&open, kToken);
  grpc::CompletionQueue queue;
  grpc::Status status;
  const auto reader = stub->AsyncAttend(&open, beat, &queue);
  reader->Finish(&outcome, &status, this);
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return num_open_ == 1; });
  open.TryCancel();
  changed_.wait(lock, [this] { return num_open_ == 0; });
  lock.unlock();
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(TaskServiceTest, SmallMethodsHaveALimit) {
  expect_refused(call("Beat", std::string(5 << 20, 'x'), kToken),
                 grpc::StatusCode::RESOURCE_EXHAUSTED,
                 "a request of Beat has 5 MiB; the most is 4 MiB");
}

TEST_F(TaskServiceTest, WhatIsNoRequestIsRefused) {
  expect_refused(call("Run", "\xff\xff\xff", kToken), grpc::StatusCode::INTERNAL, "");
  expect_refused(call("NoSuchMethod", "", kToken), grpc::StatusCode::UNIMPLEMENTED,
                 "this server has no such method");
}

}  // namespace
}  // namespace tessera::distribute::internal
