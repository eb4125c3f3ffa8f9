// SPDX-License-Identifier: Apache-2.0
//
// TaskClient: a connection to one task, by the chief or by a worker.
//
//   StatusOr<std::unique_ptr<TaskClient>> ps = TaskClient::create("host-b:4000", token);
//   ps->call(&Stub::PrepareAsyncBeat, request, deadline, [](const grpc::Status&, rpc::Outcome&)
//   {...});
//
// Calls wait up to their deadlines for a task that does not run yet. After the task was started
// again, the client reconnects.
//
// Invariant: no callback runs after close(), which the destructor calls too.
//
// Thread-safe.
#ifndef TESSERA_SERVERS_TASK_CLIENT_H_
#define TESSERA_SERVERS_TASK_CLIENT_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "base/status.h"
#include "base/thread.h"
#include "tessera/servers/parameter_server.grpc.pb.h"
#include "tessera/servers/parameter_server.pb.h"

namespace tessera::distribute::internal {

// A task's address and the token that it requires.
struct TaskAddress {
  std::string address = {};
  std::string token = {};
};

class TaskClient {
 public:
  using Stub = rpc::TaskService::Stub;
  // Example: &Stub::PrepareAsyncBeat.
  template <class Request, class Response>
  using Method = std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> (Stub::*)(
      grpc::ClientContext*, const Request&, grpc::CompletionQueue*);

  static StatusOr<std::unique_ptr<TaskClient>> create(std::string address,
                                                      const std::string& token);
  ~TaskClient() { close(); }
  TaskClient(const TaskClient&) = delete;
  TaskClient& operator=(const TaskClient&) = delete;

  const std::string& address() const { return address_; }

  // The behaviour of a call if there is no connection.
  enum class Unconnected {
    kWait,  // until the deadline
    kFail,  // with the reason of the latest attempt
  };
  // `done` runs once, on the thread of this connection. After close() it runs on the calling
  // thread, with CANCELLED. The caller must not hold a lock that `done` acquires.
  template <class Request, class Response>
  void call(Method<Request, Response> method, const Request& request, absl::Time deadline,
            std::function<void(const grpc::Status&, Response&)> done,
            Unconnected unconnected = Unconnected::kWait) {
    start<Response>(deadline, unconnected, std::move(done), [&](grpc::ClientContext* context) {
      return (stub_.get()->*method)(context, request, &queue_);
    });
  }
  // For a method whose messages the caller serializes, such as "Read".
  void call(const std::string& method, const grpc::ByteBuffer& request, absl::Time deadline,
            std::function<void(const grpc::Status&, grpc::ByteBuffer&)> done) {
    start<grpc::ByteBuffer>(
        deadline, Unconnected::kWait, std::move(done), [&](grpc::ClientContext* context) {
          return generic_stub_.PrepareUnaryCall(context, kServicePath + method, request, &queue_);
        });
  }

  // Ends all calls under way, and waits until their callbacks have run. Must not be called by a
  // callback.
  void close();
  bool is_closed() const;

 private:
  static constexpr char kServicePath[] = "/tessera.distribute.rpc.TaskService/";

  struct Call {
    virtual ~Call() = default;
    virtual void finish() = 0;

    grpc::ClientContext context;
    grpc::Status status;
  };
  template <class Response>
  struct CallTo : Call {
    void finish() override { done(this->status, response); }

    Response response;
    std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> reader;
    std::function<void(const grpc::Status&, Response&)> done;
  };

  TaskClient(std::string address, const std::string& token,
             const std::shared_ptr<grpc::Channel>& channel);
  // Starts the call that prepare(context) makes.
  template <class Response, class Prepare>
  void start(absl::Time deadline, Unconnected unconnected,
             std::function<void(const grpc::Status&, Response&)> done, Prepare prepare) {
    auto call = std::make_unique<CallTo<Response>>();
    call->done = std::move(done);
    set_up(&call->context, deadline, unconnected);
    if (!add(&call->context)) {
      call->status = {grpc::StatusCode::CANCELLED, "the connection is closed"};
      call->finish();
      return;
    }
    call->reader = prepare(&call->context);
    call->reader->StartCall();
    CallTo<Response>* const tag = call.release();  // owned by the queue
    tag->reader->Finish(&tag->response, &tag->status, static_cast<Call*>(tag));
  }
  void set_up(grpc::ClientContext* context, absl::Time deadline, Unconnected unconnected) const;
  bool add(grpc::ClientContext* context);
  void remove(grpc::ClientContext* context);
  // Runs the callbacks of finished calls.
  void serve();

  const std::string address_;
  const std::string token_;  // sent as metadata
  std::unique_ptr<Stub> stub_;
  grpc::GenericStub generic_stub_;  // same channel as stub_
  // A completion queue avoids gRPC's own callback threads. gRPC 1.51 ends these when the last
  // channel of the process closes, and sometimes aborts when another channel opens meanwhile
  // (docs/gotchas.md).
  grpc::CompletionQueue queue_;
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable all_done_;
  std::set<grpc::ClientContext*> calls_;
  bool is_closed_ = false;

  std::mutex close_mutex_;  // held by close(); taken before mutex_
  Thread thread_;           // guarded by close_mutex_
};

// Whether a call that failed with this status may succeed when it is repeated.
bool is_transient(const grpc::Status& status);
// "UNAVAILABLE: connection refused", for messages.
std::string text_of(const grpc::Status& status);

}  // namespace tessera::distribute::internal

#endif  // TESSERA_SERVERS_TASK_CLIENT_H_
