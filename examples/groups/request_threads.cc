// SPDX-License-Identifier: Apache-2.0
//
// A server with several request threads on several clients. Threads that called collectives by
// themselves would call them in another order on each client. So one thread of each client makes
// all collective calls, the dispatcher, and client 0 broadcasts which request is next.
//
//   bazel run //examples/groups:request_threads
//
// Output, in any order of the lines:
//   request 1: 28
//   request 2: 56
//   request 3: 84
//   client 1 ran 3 requests
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <future>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/tessera.h"

using namespace tessera;

struct Request {
  int32_t factor = 0;  // 0: the server ends
  std::promise<StatusOr<float>> reply = {};
};

// The requests of client 0, which any thread adds.
class Requests {
 public:
  std::future<StatusOr<float>> add(int32_t factor) {
    Request request = {factor};
    std::future<StatusOr<float>> reply = request.reply.get_future();
    std::lock_guard<std::mutex> lock(mutex_);
    if (error_.ok()) {
      requests_.push_back(std::move(request));
      added_.notify_one();
    } else {
      request.reply.set_value(error_);
    }
    return reply;
  }
  // Answers all requests, and later ones, with the error.
  void fail(const Status& error) {
    std::lock_guard<std::mutex> lock(mutex_);
    error_ = error;
    for (Request& each : requests_) each.reply.set_value(error);
    requests_.clear();
  }
  Request next() {
    std::unique_lock<std::mutex> lock(mutex_);
    added_.wait(lock, [this] { return !requests_.empty(); });
    Request request = std::move(requests_.front());
    requests_.pop_front();
    return request;
  }

 private:
  std::mutex mutex_;  // guards the members below
  std::condition_variable added_;
  std::deque<Request> requests_;
  Status error_;
};

// Collective: the sum of the weights times a factor.
StatusOr<float> answer(const DTensor& weights, int32_t factor) {
  return ops::sum(static_cast<float>(factor) * weights).item<float>();
}

// The dispatcher: the only thread of its client that makes collective calls. Returns the number of
// requests.
StatusOr<int> dispatch(const Client& client, Requests& requests) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
  TESSERA_ASSIGN_OR_RETURN(const Group group, client.group());
  const DTensor weights = iota<float>({8}, Layout::parse(mesh, "[x]"));
  for (int num_requests = 0;; ++num_requests) {
    Request request;
    if (client.client_id() == 0) request = requests.next();
    std::vector<int32_t> next = {request.factor};
    if (const Status told = group.broadcast(next, /*root=*/0).await(); !told.ok()) {
      request.reply.set_value(told);
      return told;
    }
    if (next[0] == 0) return num_requests;
    request.reply.set_value(answer(weights, next[0]));
  }
}

Status run(const Client& client) {
  Requests requests;
  if (client.client_id() != 0) {
    TESSERA_ASSIGN_OR_RETURN(const int num_requests, dispatch(client, requests));
    std::printf("client %d ran %d requests\n", client.client_id(), num_requests);
    return absl::OkStatus();
  }
  std::vector<std::thread> threads;
  for (int32_t k = 1; k <= 3; ++k) {
    threads.emplace_back([k, &requests] {
      const StatusOr<float> reply = requests.add(k).get();
      std::printf("request %d: %g\n", k, reply.value_or(-1));
    });
  }
  std::thread end([&] {
    for (std::thread& each : threads) each.join();
    requests.add(0);
  });
  const StatusOr<int> num_requests = dispatch(client, requests);
  if (!num_requests.ok()) requests.fail(num_requests.status());
  end.join();
  return num_requests.status();
}

int main() {
  const Status status = spawn(2, run);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
