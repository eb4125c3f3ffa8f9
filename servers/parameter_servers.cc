// SPDX-License-Identifier: Apache-2.0
#include "servers/parameter_servers.h"

#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/shape.h"
#include "base/text.h"
#include "servers/handle_access.h"
#include "servers/outcome.h"

namespace tessera::distribute::internal {
namespace {

// The timeout of one call, which may carry kMostMessageBytes.
constexpr absl::Duration kCallTimeout = absl::Minutes(2);
constexpr absl::Duration kRetryPause = absl::Milliseconds(50);

Status read_response(const grpc::ByteBuffer& message, TensorBytes* data) {
  rpc::Outcome outcome;
  TESSERA_RETURN_IF_ERROR(read_message(message, &outcome, data));
  return status_of(outcome);
}

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

StatusOr<std::vector<TensorBytes>> ParameterServers::call_all(
    const std::string& method, absl::Span<const int> servers,
    const std::vector<grpc::ByteBuffer>& requests) {
  const absl::Time patience_ends = steady_now() + kPatience;
  std::vector<TensorBytes> results(requests.size());
  std::vector<grpc::ByteBuffer> responses(requests.size());
  std::vector<grpc::Status> statuses(requests.size());
  std::vector<size_t> open;
  for (size_t i = 0; i < requests.size(); ++i) open.push_back(i);
  while (!open.empty()) {
    Countdown countdown(open.size());
    for (const size_t i : open) {
      clients_[servers[i]]->call(method, requests[i], steady_now() + kCallTimeout,
                                 [&, i](const grpc::Status& status, grpc::ByteBuffer& response) {
                                   statuses[i] = status;
                                   responses[i].Swap(&response);
                                   countdown.count_down();
                                 });
    }
    countdown.wait();
    std::vector<size_t> failed;
    for (const size_t i : open) {
      const TaskClient& client = *clients_[servers[i]];
      if (statuses[i].ok()) {
        TESSERA_RETURN_IF_ERROR(
            with_context(read_response(responses[i], &results[i]),
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
    if (!open.empty()) absl::SleepFor(kRetryPause);  // sleep: pause before a retry
  }
  return results;
}

Status ParameterServers::create(const VariablePlace& place, const HostArray& initial) {
  std::vector<grpc::ByteBuffer> requests;
  const std::byte* data = initial.bytes.data();
  for (size_t shard = 0; shard < place.ps.size(); ++shard) {
    rpc::CreateRequest::Head head;
    head.set_chief(chief_);
    head.set_name(place.name);
    head.set_variable(place.number);
    head.set_shard(static_cast<int>(shard));
    head.set_dtype(static_cast<int>(place.dtype));
    head.mutable_shape()->Assign(place.shape.begin(), place.shape.end());
    if (!place.shape.empty()) head.set_shape(0, place.rows[shard]);
    const int64_t size = place.shard_bytes(static_cast<int>(shard));
    // A copy, as gRPC may hold the message for longer than this call takes.
    requests.push_back(write_message(head, TensorBytes({grpc::Slice(data, size)})));
    data += size;
  }
  return call_all("Create", place.ps, requests).status();
}

StatusOr<TensorBytes> ParameterServers::read(const VariablePlace& place) {
  if (place.chief != chief_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "variable ", in_quotes(place.name), " is of another coordinator; pass the one of this"));
  }
  std::vector<grpc::ByteBuffer> requests;
  for (size_t shard = 0; shard < place.ps.size(); ++shard) {
    rpc::ReadRequest::Head head;
    head.set_chief(chief_);
    head.set_variable(place.number);
    head.set_shard(static_cast<int>(shard));
    requests.push_back(write_message(head));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<TensorBytes> shards,
                           call_all("Read", place.ps, requests));
  TensorBytes whole;
  for (const TensorBytes& shard : shards) whole.append(shard);
  return whole;
}

StatusOr<std::vector<int>> ParameterServers::stage(const RunKey& run,
                                                   absl::Span<const PendingPush> pushes) {
  std::vector<int> num_pushes(clients_.size(), 0);
  std::vector<int> servers;
  std::vector<grpc::ByteBuffer> requests;
  for (const PendingPush& push : pushes) {
    const VariablePlace& place = VariableAccess::place(push.variable);
    if (place.chief != chief_) {
      return absl::InvalidArgumentError(absl::StrCat(
          "variable ", in_quotes(place.name), " is of another coordinator; pass the one of this"));
    }
    const std::byte* data = push.value.data;
    for (size_t shard = 0; shard < place.ps.size(); ++shard) {
      const int64_t size = place.shard_bytes(static_cast<int>(shard));
      rpc::StageRequest::Head head;
      head.set_chief(chief_);
      head.set_worker(run.worker);
      head.set_session(run.session);
      head.set_run(run.run);
      head.set_index(num_pushes[place.ps[shard]]++);
      head.set_is_add(push.kind == PushKind::kAdd);
      head.set_variable(place.number);
      head.set_shard(static_cast<int>(shard));
      requests.push_back(write_message(head, bytes_of(data, size, push.value.buffer)));
      servers.push_back(place.ps[shard]);
      data += size;
    }
  }
  TESSERA_RETURN_IF_ERROR(call_all("Stage", servers, requests).status());
  return num_pushes;
}

void ParameterServers::close() {
  for (const std::unique_ptr<TaskClient>& client : clients_) client->close();
}

}  // namespace tessera::distribute::internal
