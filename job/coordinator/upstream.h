// SPDX-License-Identifier: Apache-2.0
//
// Upstream: in a relay (coordinator_server.h), the one stream to the coordinator that carries the
// calls of all clients of a host and the answers.
//
// Invariants:
//   1. The stream opens with a session, and waits for a coordinator that does not run yet. Only the
//      coordinator answers a session: a silent coordinator is silent to the clients.
//   2. When the stream breaks off, each call under way fails, and then `broke` is called. Earlier
//      messages are not sent again: the coordinator has ended every session of the stream. The next
//      session opens a new stream.
//   3. Losses are reported before the answers that arrived with them.
//   4. A message has at most kMostBatchedBytes plus one call, which the coordinator takes
//      (coordinator_server.cc).
//
// Thread-safe. The functions of the handler are called from threads of this object, without locks.
#ifndef TESSERA_JOB_COORDINATOR_UPSTREAM_H_
#define TESSERA_JOB_COORDINATOR_UPSTREAM_H_

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/status.h"
#include "base/thread.h"
#include "tessera/job/coordinator/coordinator.grpc.pb.h"

namespace tessera {

class Upstream {
 public:
  // A message ends with the call that reaches this.
  static constexpr size_t kMostBatchedBytes = 1 << 20;

  struct Handler {
    std::function<void(uint64_t session)> answered;
    std::function<void(const rpc::HostEvent& event)> lost;
    std::function<void()> closing;
    std::function<void(const grpc::Status& why)> broke;
  };
  // The serialized response, where the status is OK.
  using Done = std::function<void(const grpc::Status& status, const std::string& response)>;

  // `token` as token_metadata() has it.
  static StatusOr<std::unique_ptr<Upstream>> create(const std::string& address,
                                                    const std::string& token, int num_clients,
                                                    Handler handler);
  ~Upstream() { stop(); }
  Upstream(const Upstream&) = delete;
  Upstream& operator=(const Upstream&) = delete;

  // A session begins, sends a heartbeat, ends. The coordinator answers the first two.
  void open(uint64_t session);
  void beat(uint64_t session);
  void close(uint64_t session);
  void call(rpc::HostCall::Method method, std::string request, Done done);
  // Breaks the stream off. Later calls fail at once. Idempotent.
  void stop();

 private:
  Upstream(std::string token, Handler handler)
      : token_(std::move(token)), handler_(std::move(handler)) {}
  void run();
  // From the beginning of a stream to its end.
  grpc::Status run_stream();
  void write_requests(grpc::ClientReaderWriter<rpc::HostRequest, rpc::HostEvent>* stream);
  void take_next(rpc::HostRequest* request);
  void note_event(const rpc::HostEvent& event);
  void fail_calls(const grpc::Status& why);
  template <class Change>
  void change(const Change& change);

  const std::string token_;
  const Handler handler_;
  std::unique_ptr<rpc::CoordinatorService::Stub> stub_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  rpc::HostRequest next_;  // to be sent, with the calls in unsent_
  std::deque<rpc::HostCall> unsent_;
  bool has_next_ = false;
  bool is_reading_ = false;
  bool stopping_ = false;
  std::unique_ptr<grpc::ClientContext> context_;  // of the stream
  std::map<uint64_t, Done> calls_;                // under way
  uint64_t last_call_ = 0;
  Thread thread_;
};

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_UPSTREAM_H_
