// SPDX-License-Identifier: Apache-2.0
#include "servers/testing/fake_task.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "gtest/gtest.h"
#include "job/coordinator/coordinator_channel.h"
#include "tessera/servers/parameter_server.pb.h"

namespace tessera::distribute::testing {

FakeTask::FakeTask() : service_(token_metadata(kFakeToken), [](const std::string&) {}) {
  rpc::Outcome ok;
  ok.set_code(0);
  rpc::HelloResponse hello;
  *hello.mutable_outcome() = ok;
  hello.add_functions("f");
  hello.add_datasets("d");
  rpc::RunResponse run;
  *run.mutable_outcome() = ok;
  run.add_num_pushes(0);
  rpc::MakeDatasetResponse dataset;
  *dataset.mutable_outcome() = ok;
  rpc::ShardResponse shard;
  *shard.mutable_head() = ok;
  answer("Hello", hello);
  answer("Run", run);
  answer("MakeDataset", dataset);
  for (const char* const method : {"Beat", "Bye", "Update"}) answer(method, ok);
  for (const char* const method : {"Create", "Read", "Stage"}) answer(method, shard);
  for (const auto& [method, bytes] : answers_) {
    service_.add_raw(method, internal::TaskService::Size::kLarge,
                     [this, method = method](const grpc::ByteBuffer&, auto answer) {
                       grpc::Slice slice;
                       {
                         std::lock_guard<std::mutex> lock(mutex_);
                         ++num_calls_[method];
                         slice = grpc::Slice(answers_[method]);
                       }
                       answer(grpc::ByteBuffer(&slice, 1));
                     });
  }
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&service_);
  server_ = builder.BuildAndStart();
  EXPECT_NE(port, 0);
  address_ = absl::StrCat("127.0.0.1:", port);
}

FakeTask::~FakeTask() { server_->Shutdown(); }

void FakeTask::answer(const std::string& method, const std::string& bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  answers_[method] = bytes;
}

int FakeTask::num_calls(const std::string& method) {
  std::lock_guard<std::mutex> lock(mutex_);
  return num_calls_[method];
}

cluster::Cluster fake_cluster(const FakeTask& worker, const FakeTask& ps) {
  setenv("TESSERA_TOKEN", kFakeToken, 1);
  const StatusOr<cluster::ClusterSpec> spec = cluster::ClusterSpec::create(
      {{"chief", {"127.0.0.1:1"}}, {"worker", {worker.address()}}, {"ps", {ps.address()}}});
  EXPECT_TRUE(spec.ok()) << spec.status();
  StatusOr<cluster::Cluster> chief = cluster::simple(*spec, "chief", 0);
  EXPECT_TRUE(chief.ok()) << chief.status();
  return *std::move(chief);
}

}  // namespace tessera::distribute::testing
