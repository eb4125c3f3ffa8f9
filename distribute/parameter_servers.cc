// SPDX-License-Identifier: Apache-2.0
#include "distribute/parameter_servers.h"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/shape.h"
#include "distribute/wire.h"

namespace tessera::distribute::internal {
namespace {

// Of one call, which may carry kMostMessageBytes.
constexpr absl::Duration kCallTimeout = absl::Minutes(2);
constexpr absl::Duration kRetryPause = absl::Milliseconds(50);

const rpc::Outcome& outcome_of(const rpc::Outcome& response) { return response; }
const rpc::Outcome& outcome_of(const rpc::ReadResponse& response) { return response.outcome(); }

// Counts calls that are under way.
class Countdown {
 public:
  explicit Countdown(size_t count) : count_(count) {}
  void count_down() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (--count_ == 0) is_zero_.notify_all();
  }
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    is_zero_.wait(lock, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable is_zero_;
  size_t count_;
};

}  // namespace

StatusOr<std::unique_ptr<ParameterServers>> ParameterServers::connect(
    uint64_t chief, const std::vector<Address>& servers) {
  std::unique_ptr<ParameterServers> result(new ParameterServers(chief));
  for (const Address& server : servers) {
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<TaskClient> client,
                             TaskClient::create(server.address, server.token));
    result->clients_.push_back(std::move(client));
  }
  return result;
}

template <class Request, class Response>
StatusOr<std::vector<Response>> ParameterServers::call_all(
    TaskClient::Method<Request, Response> method, absl::Span<const int> servers,
    std::vector<Request> requests) {
  const absl::Time patience_ends = steady_now() + kPatience;
  std::vector<Response> responses(requests.size());
  std::vector<grpc::Status> statuses(requests.size());
  std::vector<size_t> open;
  for (size_t i = 0; i < requests.size(); ++i) open.push_back(i);
  while (!open.empty()) {
    Countdown countdown(open.size());
    for (const size_t i : open) {
      clients_[servers[i]]->call<Request, Response>(
          method, requests[i], steady_now() + kCallTimeout,
          [&, i](const grpc::Status& status, Response& response) {
            statuses[i] = status;
            responses[i] = std::move(response);
            countdown.count_down();
          });
    }
    countdown.wait();
    std::vector<size_t> failed;
    for (const size_t i : open) {
      const TaskClient& client = *clients_[servers[i]];
      if (statuses[i].ok()) {
        TESSERA_RETURN_IF_ERROR(
            with_context(status_of(outcome_of(responses[i])),
                         absl::StrCat("ps ", servers[i], " (", client.address(), ")")));
        continue;
      }
      if (client.is_closed()) {
        return absl::CancelledError("the session with the parameter servers has ended");
      }
      if (!is_transient(statuses[i]) || steady_now() >= patience_ends) {
        return absl::UnavailableError(absl::StrCat("ps ", servers[i], " (", client.address(),
                                                   ") does not answer: ", text_of(statuses[i])));
      }
      failed.push_back(i);
    }
    open = std::move(failed);
    if (!open.empty()) absl::SleepFor(kRetryPause);  // sleep: a server that refuses is tried again
  }
  return responses;
}

Status ParameterServers::create(const VariablePlace& place, const HostArray& initial) {
  std::vector<rpc::CreateRequest> requests;
  const auto* data = reinterpret_cast<const char*>(initial.bytes.data());
  for (size_t shard = 0; shard < place.ps.size(); ++shard) {
    rpc::CreateRequest& request = requests.emplace_back();
    request.set_chief(chief_);
    request.set_name(place.name);
    request.set_variable(place.number);
    request.set_shard(static_cast<int>(shard));
    rpc::Array* const value = request.mutable_value();
    value->set_dtype(static_cast<int>(place.dtype));
    value->mutable_shape()->Assign(place.shape.begin(), place.shape.end());
    if (!place.shape.empty()) value->set_shape(0, place.rows[shard]);
    const int64_t size = place.shard_bytes(static_cast<int>(shard));
    value->set_data(data, size);
    data += size;
  }
  return call_all<rpc::CreateRequest, rpc::Outcome>(&TaskClient::Stub::PrepareAsyncCreate, place.ps,
                                                    std::move(requests))
      .status();
}

StatusOr<HostArray> ParameterServers::read(const VariablePlace& place) {
  if (place.chief != chief_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "variable \"", place.name, "\" is of another coordinator; pass the one of this"));
  }
  std::vector<rpc::ReadRequest> requests;
  for (size_t shard = 0; shard < place.ps.size(); ++shard) {
    rpc::ReadRequest& request = requests.emplace_back();
    request.set_chief(chief_);
    request.set_variable(place.number);
    request.set_shard(static_cast<int>(shard));
  }
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<rpc::ReadResponse> responses,
      (call_all<rpc::ReadRequest, rpc::ReadResponse>(&TaskClient::Stub::PrepareAsyncRead, place.ps,
                                                     std::move(requests))));
  HostArray array = {.dtype = place.dtype, .shape = place.shape, .bytes = {}};
  for (const rpc::ReadResponse& response : responses) {
    const auto* const data = reinterpret_cast<const std::byte*>(response.data().data());
    array.bytes.insert(array.bytes.end(), data, data + response.data().size());
  }
  TESSERA_RETURN_IF_ERROR(array.validate());
  return array;
}

StatusOr<std::vector<int>> ParameterServers::stage(const RunKey& run,
                                                   absl::Span<const PendingPush> pushes) {
  std::vector<int> num_pushes(clients_.size(), 0);
  std::vector<int> servers;
  std::vector<rpc::StageRequest> requests;
  for (const PendingPush& push : pushes) {
    const VariablePlace& place = VariableAccess::place(push.variable);
    if (place.chief != chief_) {
      return absl::InvalidArgumentError(absl::StrCat(
          "variable \"", place.name, "\" is of another coordinator; pass the one of this"));
    }
    const auto* data = reinterpret_cast<const char*>(push.value.bytes.data());
    for (size_t shard = 0; shard < place.ps.size(); ++shard) {
      const int64_t size = place.shard_bytes(static_cast<int>(shard));
      rpc::StageRequest& request = requests.emplace_back();
      request.set_chief(chief_);
      request.set_worker(run.worker);
      request.set_session(run.session);
      request.set_run(run.run);
      request.set_index(num_pushes[place.ps[shard]]++);
      request.set_is_add(push.kind == PushKind::kAdd);
      request.set_variable(place.number);
      request.set_shard(static_cast<int>(shard));
      request.set_data(data, size);
      servers.push_back(place.ps[shard]);
      data += size;
    }
  }
  TESSERA_RETURN_IF_ERROR((call_all<rpc::StageRequest, rpc::Outcome>(
      &TaskClient::Stub::PrepareAsyncStage, servers, std::move(requests))));
  return num_pushes;
}

void ParameterServers::close() {
  for (const std::unique_ptr<TaskClient>& client : clients_) client->close();
}

}  // namespace tessera::distribute::internal
