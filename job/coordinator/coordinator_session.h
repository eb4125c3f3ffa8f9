// SPDX-License-Identifier: Apache-2.0
//
// CoordinatorSession: a client's side of its session with the service, and the calls that end with
// it.
//
//   open() --> heartbeats and events --> the service is lost, has ended, or close(): a verdict
//
// One thread reads the session and one writes heartbeats.
//
// Invariants:
//   1. when the service has ended, the verdict says why, and stays. Calls in progress are then
//      cancelled; they and all later ones return the verdict;
//   2. losses are added to the LossTeller in the order in which the service tells them, before the
//      verdict on its end in order; the loss of the service itself after the verdict.
//
// Thread-safe after open().
#ifndef TESSERA_JOB_COORDINATOR_COORDINATOR_SESSION_H_
#define TESSERA_JOB_COORDINATOR_COORDINATOR_SESSION_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/thread.h"
#include "job/coordinator/connect_coordinator.h"
#include "job/coordinator/loss_teller.h"
#include "tessera/job/coordinator/coordinator.grpc.pb.h"

namespace tessera {

// The service answers a call at its deadline. The client waits for that answer this much longer.
inline constexpr absl::Duration kAnswerGrace = absl::Milliseconds(500);

// "the coordinator at host-a:1234 (client 0)"; without the client if none hosts the service.
std::string describe_service(const CoordinatorOptions& options);
// "the coordinator at host-a:1234 (client 0) did not answer ...": by the deadline of the start.
Status did_not_answer(const CoordinatorOptions& options);
// "client 0 was started": what a user should check where the service is silent.
const char* why_silent(const CoordinatorOptions& options);

class CoordinatorSession {
 public:
  // Both outlive the session.
  CoordinatorSession(const CoordinatorOptions& options, LossTeller& losses)
      : options_(options), losses_(losses) {}
  CoordinatorSession(const CoordinatorSession&) = delete;
  CoordinatorSession& operator=(const CoordinatorSession&) = delete;

  // Returns when the service has answered. From then on the service and this client notice each
  // other's loss. A session that breaks off before is opened again: a service that many clients
  // reach at once cuts off the connections that have not shown the token for long (listener.h).
  Status open(absl::Time deadline);
  // Whether the service has answered.
  bool is_answered() const { return number_ != 0; }
  // The client has joined the job: how often it sends heartbeats, and the service's name where that
  // is lost.
  void joined(absl::Duration heartbeat_interval, std::string service);
  // The client leaves: its own loss, and the service's, are not reported. False if it did before.
  bool begin_leaving() { return !leaving_.exchange(true); }
  // Ends the session; for the service this is a loss of this client, unless the client has left.
  void close();
  // Keeps the objects of gRPC for ever: gRPC may lack a thread, for which its end would wait.
  void abandon();

  // One call of the stub, of this session.
  template <class Method, class Request, class Response>
  Status call(Method method, Request& request, Response* response, absl::Time deadline) {
    TESSERA_RETURN_IF_ERROR(verdict());
    request.set_session(number_);
    grpc::Status status;
    {
      CallContext context(*this, deadline);
      status = (stub_.get()->*method)(context.get(), request, response);
    }
    return status.ok() ? absl::OkStatus() : failure_of(status);
  }

  // Why the service has ended; OK while it runs.
  Status verdict();
  // The first loss that is reported to this client within kAnswerGrace, unless the service ends
  // before.
  Status await_first_loss();

 private:
  // A context that end() cancels, for the time of one call.
  class CallContext {
   public:
    CallContext(CoordinatorSession& owner, absl::Time deadline);
    ~CallContext();
    grpc::ClientContext* get() { return &context_; }

   private:
    CoordinatorSession& owner_;
    grpc::ClientContext context_;
  };

  void prepare(grpc::ClientContext& context) const;
  Status start();
  Status failure_of(const grpc::Status& status);
  Status transport_error(const grpc::Status& status) const;
  void read_events();
  void note_event(const rpc::Event& event);
  void await_answers();
  void send_heartbeats();
  bool over() const;
  bool closing();
  void end(const Status& verdict);
  void lose_service(absl::string_view how);
  void report_lost(int client, const Status& reason);

  const CoordinatorOptions& options_;
  LossTeller& losses_;
  std::unique_ptr<rpc::CoordinatorService::Stub> stub_;
  std::unique_ptr<grpc::ClientContext> context_;  // outlives stream_
  std::unique_ptr<grpc::ClientReaderWriter<rpc::Heartbeat, rpc::Event>> stream_;
  Thread reader_;
  Thread heartbeats_;
  std::atomic<bool> leaving_{false};

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::atomic<uint64_t> number_{0};  // constant once it is known
  absl::Duration interval_ = options_.heartbeat_interval;
  std::string service_ = describe_service(options_);  // for the message of its loss
  int num_unanswered_ = 0;                            // heartbeats
  Status verdict_;
  Status first_loss_;  // the first that the service reported
  std::set<grpc::ClientContext*> calls_;
  bool closing_ = false;
  bool is_cut_off_ = false;  // the session broke off before the first event
};

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_COORDINATOR_SESSION_H_
