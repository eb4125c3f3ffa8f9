// SPDX-License-Identifier: Apache-2.0
#include "servers/task_client.h"

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "job/coordinator/coordinator_channel.h"
#include "servers/outcome.h"

namespace tessera::distribute::internal {

TaskClient::TaskClient(std::string address, const std::string& token,
                       const std::shared_ptr<grpc::Channel>& channel)
    : address_(std::move(address)),
      token_(token_metadata(token)),
      stub_(rpc::TaskService::NewStub(channel)),
      generic_stub_(channel) {}

StatusOr<std::unique_ptr<TaskClient>> TaskClient::create(std::string address,
                                                         const std::string& token) {
  const std::shared_ptr<grpc::Channel> channel = create_coordinator_channel(address, 1);
  std::unique_ptr<TaskClient> client(new TaskClient(std::move(address), token, channel));
  TESSERA_ASSIGN_OR_RETURN(
      client->thread_,
      start_thread("the calls of a connection", [started = client.get()] { started->serve(); }));
  return client;
}

void TaskClient::serve() {
  void* tag = nullptr;
  bool is_ok = false;
  while (queue_.Next(&tag, &is_ok)) {
    const std::unique_ptr<Call> call(static_cast<Call*>(tag));
    // gRPC leaves the status OK if the bytes of the answer are not a valid message.
    if (!is_ok && call->status.ok()) {
      call->status = {grpc::StatusCode::INTERNAL,
                      absl::StrCat("an answer that cannot be read; ", kSameBuild)};
    }
    call->finish();
    remove(&call->context);
  }
}

void TaskClient::set_up(grpc::ClientContext* context, absl::Time deadline,
                        Unconnected unconnected) const {
  context->AddMetadata(kTokenMetadata, token_);
  context->set_wait_for_ready(unconnected == Unconnected::kWait);
  if (deadline != absl::InfiniteFuture()) context->set_deadline(to_chrono_wall(deadline));
}

bool TaskClient::add(grpc::ClientContext* context) {
  std::lock_guard<std::mutex> lock(mutex_);
  return !is_closed_ && calls_.insert(context).second;
}

void TaskClient::remove(grpc::ClientContext* context) {
  std::lock_guard<std::mutex> lock(mutex_);
  calls_.erase(context);
  if (calls_.empty()) all_done_.notify_all();
}

void TaskClient::close() {
  std::lock_guard<std::mutex> close_lock(close_mutex_);
  {
    std::unique_lock<std::mutex> lock(mutex_);
    is_closed_ = true;
    for (grpc::ClientContext* const call : calls_) call->TryCancel();
    all_done_.wait(lock, [this] { return calls_.empty(); });
  }
  if (!thread_.joinable()) return;
  queue_.Shutdown();
  thread_.join();
}

bool TaskClient::is_closed() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return is_closed_;
}

bool is_transient(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::UNKNOWN:
    // Another process serves the address: the task was started again, which the chief will notice.
    case grpc::StatusCode::UNAUTHENTICATED:
      return true;
    default:
      return false;
  }
}

std::string text_of(const grpc::Status& status) {
  if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED) {
    return "another process answers at its address: it was started again, or its TESSERA_TOKEN is "
           "not that of this process";
  }
  // gRPC and Abseil use the same codes.
  return Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message())
      .ToString();
}

}  // namespace tessera::distribute::internal
