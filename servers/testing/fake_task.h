// SPDX-License-Identifier: Apache-2.0
//
// FakeTask: a worker or a parameter server in this process that answers each call with the bytes
// that a test chooses, so that the test sees how the chief handles them.
//
//   FakeTask worker, ps;
//   auto coordinator = ClusterCoordinator::create(fake_cluster(worker, ps));
//   worker.answer("Run", "no such message");
//
// By default it answers like a task with one function, "f", which pushes nothing.
#ifndef TESSERA_SERVERS_TESTING_FAKE_TASK_H_
#define TESSERA_SERVERS_TESTING_FAKE_TASK_H_

#include <google/protobuf/message_lite.h>
#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "job/cluster/cluster.h"
#include "servers/task_service.h"

namespace tessera::distribute::testing {

// The required value of $TESSERA_TOKEN.
inline constexpr char kFakeToken[] = "the token of a test";

class FakeTask {
 public:
  FakeTask();
  ~FakeTask();
  FakeTask(const FakeTask&) = delete;

  const std::string& address() const { return address_; }
  // Sets the answer to later calls.
  void answer(const std::string& method, const std::string& bytes);
  void answer(const std::string& method, const google::protobuf::MessageLite& message) {
    answer(method, message.SerializeAsString());
  }
  // The number of calls of the method.
  int num_calls(const std::string& method);

 private:
  internal::TaskService service_;
  std::mutex mutex_;  // guards the members below
  std::map<std::string, std::string> answers_;
  std::map<std::string, int> num_calls_;

  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

// The chief of a cluster of one worker and one ps. Sets $TESSERA_TOKEN.
cluster::Cluster fake_cluster(const FakeTask& worker, const FakeTask& ps);

}  // namespace tessera::distribute::testing

#endif  // TESSERA_SERVERS_TESTING_FAKE_TASK_H_
