// SPDX-License-Identifier: Apache-2.0
#include "servers/task_service.h"

#include <mutex>

#include "absl/strings/str_cat.h"
#include "base/format.h"
#include "job/coordinator/coordinator_channel.h"
#include "tessera/servers/parameter_server.grpc.pb.h"

namespace tessera::distribute::internal {

// One call: refused, or received and answered. For its caller it is a unary call.
class TaskService::Call : public grpc::ServerGenericBidiReactor {
 public:
  void receive(const Method* method) {
    method_ = method;
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish({grpc::StatusCode::CANCELLED, "the call ended before its request came"});
    // A local variable, as an answer may end this call at once on another thread.
    grpc::ByteBuffer request;
    request.Swap(&request_);
    const size_t size = request.Length();
    if (method_->size == Size::kSmall && size > kMostSmallBytes) {
      return Finish({grpc::StatusCode::RESOURCE_EXHAUSTED,
                     absl::StrCat("a request of ", method_->name, " has ", format_bytes(size),
                                  "; the most is ", format_bytes(kMostSmallBytes))});
    }
    const grpc::Status read = method_->serve(request, [this](const grpc::ByteBuffer& response) {
      response_ = response;
      StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
    });
    if (!read.ok()) return Finish(read);
    if (method_->end != nullptr) stay_open();
  }
  void OnCancel() override {
    std::lock_guard<std::mutex> lock(mutex_);
    is_cancelled_ = true;
    if (is_open_) Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override {
    if (is_open_) method_->end();
    delete this;
  }

 private:
  void stay_open() {
    std::lock_guard<std::mutex> lock(mutex_);
    is_open_ = true;
    if (is_cancelled_) Finish(grpc::Status::CANCELLED);
  }

  const Method* method_ = nullptr;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer response_;
  std::mutex mutex_;  // guards the members below
  bool is_open_ = false;
  bool is_cancelled_ = false;
};

void TaskService::add_method(const std::string& name, Size size, Serve serve,
                             std::function<void()> end) {
  methods_[absl::StrCat("/", rpc::TaskService::service_full_name(), "/", name)] = {
      .name = name, .size = size, .serve = std::move(serve), .end = std::move(end)};
}

grpc::ServerGenericBidiReactor* TaskService::CreateReactor(
    grpc::GenericCallbackServerContext* context) {
  auto* const call = new Call();
  if (!carries_token(*context, token_metadata_)) {
    call->Finish({grpc::StatusCode::UNAUTHENTICATED, "the job token is wrong"});
    return call;
  }
  proven_(context->peer());
  const auto method = methods_.find(context->method());
  if (method == methods_.end()) {
    call->Finish({grpc::StatusCode::UNIMPLEMENTED, "this server has no such method"});
  } else {
    call->receive(&method->second);
  }
  return call;
}

}  // namespace tessera::distribute::internal
