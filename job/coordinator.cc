// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/format.h"
#include "base/thread.h"
#include "job/coordinator.grpc.pb.h"
#include "job/coordinator_server.h"
#include "job/coordinator_state.h"
#include "job/grpc_log.h"

namespace tessera {
namespace {

// Whether this process has ever started gRPC: forking is unsafe from then on.
std::atomic<bool> grpc_started{false};

// How long past the service's own deadline a call waits for its answer.
constexpr absl::Duration kAnswerGrace = absl::Seconds(5);
constexpr int kMissedHeartbeats = 3;

int64_t timeout_us(absl::Time deadline) {
  constexpr absl::Duration kLongest = absl::Hours(24 * 365);
  return absl::ToInt64Microseconds(
      std::clamp(deadline - steady_now(), absl::ZeroDuration(), kLongest));
}

Status status_of(const rpc::Outcome& outcome) {
  return Status(static_cast<absl::StatusCode>(outcome.code()), outcome.message());
}

// A job of one client: the service is a state in this process.
class LocalCoordinator : public Coordinator {
 public:
  explicit LocalCoordinator(const CoordinatorOptions& options)
      : members_{options.self}, state_(1, "this process", absl::InfiniteDuration()) {
    state_.register_client(options.self, 1, steady_now(), absl::InfiniteFuture(),
                           [](const Status&) {});
    state_.take_callbacks();
  }

  int client_id() const override { return 0; }
  absl::Span<const MemberInfo> members() const override { return members_; }
  void set_lost_callback(LostCallback) override {}

  Status put(absl::string_view key, absl::string_view value) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const Status status = state_.put(key, value);
    run_callbacks();
    return status;
  }
  StatusOr<std::string> get(absl::string_view key, absl::Time deadline) override {
    std::unique_lock<std::mutex> lock(mutex_);
    std::optional<StatusOr<std::string>> result;
    state_.get(key, deadline, [&](const StatusOr<std::string>& value) { result = value; });
    run_callbacks();
    while (!result.has_value()) {
      if (deadline == absl::InfiniteFuture()) {
        changed_.wait(lock);
      } else if (changed_.wait_until(lock, to_chrono_steady(deadline)) == std::cv_status::timeout) {
        state_.advance(std::max(deadline, steady_now()));
        run_callbacks();
      }
    }
    return *result;
  }
  Status check_in(absl::string_view name, absl::string_view value,
                  absl::Span<const int> participants, absl::Time deadline) override {
    std::lock_guard<std::mutex> lock(mutex_);
    Status result;
    state_.check_in(0, name, value, participants, steady_now(), deadline,
                    [&](const Status& status) { result = status; });
    run_callbacks();
    return result;
  }
  Status leave(absl::Time) override { return absl::OkStatus(); }

 private:
  void run_callbacks() {
    for (const std::function<void()>& callback : state_.take_callbacks()) callback();
    changed_.notify_all();
  }

  const std::vector<MemberInfo> members_;
  std::mutex mutex_;  // guards state_
  std::condition_variable changed_;
  CoordinatorState state_;
};

// A connection to the service over gRPC; client 0 owns the service where it hosts it.
class GrpcCoordinator : public Coordinator {
 public:
  explicit GrpcCoordinator(const CoordinatorOptions& options) : options_(options) {}
  ~GrpcCoordinator() override {
    close_session();
    if (server_ != nullptr) server_->stop();
  }

  Status connect() {
    grpc_started = true;
    quiet_grpc_log();
    if (options_.self.client_id == 0 && options_.service_host == ServiceHost::kClient0) {
      TESSERA_ASSIGN_OR_RETURN(
          server_, CoordinatorServer::start({.address = options_.address,
                                             .token = options_.token,
                                             .num_clients = options_.num_clients,
                                             .heartbeat_interval = options_.heartbeat_interval}));
    }
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    // Clients that are threads of one process must not share a connection.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    // Clients may be up before the service is: look again soon.
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 10);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
    stub_ = rpc::CoordinatorService::NewStub(
        grpc::CreateCustomChannel(options_.address, grpc::InsecureChannelCredentials(), arguments));
    TESSERA_RETURN_IF_ERROR(join());
    return open_session();
  }

  int client_id() const override { return options_.self.client_id; }
  absl::Span<const MemberInfo> members() const override { return members_; }

  void set_lost_callback(LostCallback callback) override {
    // Held while callbacks run, so that none runs after this returns.
    std::lock_guard<std::recursive_mutex> lock(lost_mutex_);
    lost_callback_ = std::move(callback);
    if (!lost_callback_) return;
    for (const auto& [client, reason] : lost_) lost_callback_(client, reason);
  }

  Status put(absl::string_view key, absl::string_view value) override {
    rpc::PutRequest request;
    request.set_client_id(client_id());
    request.set_key(std::string(key));
    request.set_value(std::string(value));
    rpc::Outcome response;
    TESSERA_RETURN_IF_ERROR(call(&rpc::CoordinatorService::Stub::Put, request, &response,
                                 steady_now() + options_.connect_timeout));
    return status_of(response);
  }
  StatusOr<std::string> get(absl::string_view key, absl::Time deadline) override {
    rpc::GetRequest request;
    request.set_client_id(client_id());
    request.set_key(std::string(key));
    request.set_timeout_us(timeout_us(deadline));
    rpc::GetResponse response;
    TESSERA_RETURN_IF_ERROR(
        call(&rpc::CoordinatorService::Stub::Get, request, &response, deadline));
    TESSERA_RETURN_IF_ERROR(status_of(response.outcome()));
    return response.value();
  }
  Status check_in(absl::string_view name, absl::string_view value,
                  absl::Span<const int> participants, absl::Time deadline) override {
    rpc::CheckInRequest request;
    request.set_client_id(client_id());
    request.set_name(std::string(name));
    request.set_value(std::string(value));
    for (const int participant : participants) request.add_participants(participant);
    request.set_timeout_us(timeout_us(deadline));
    rpc::Outcome response;
    TESSERA_RETURN_IF_ERROR(
        call(&rpc::CoordinatorService::Stub::CheckIn, request, &response, deadline));
    return status_of(response);
  }

  Status leave(absl::Time deadline) override {
    if (leaving_.exchange(true)) return absl::OkStatus();
    rpc::LeaveRequest request;
    request.set_client_id(client_id());
    request.set_timeout_us(timeout_us(deadline));
    rpc::Outcome response;
    Status status = call(&rpc::CoordinatorService::Stub::Leave, request, &response, deadline);
    if (status.ok()) status = status_of(response);
    close_session();
    if (server_ != nullptr) server_->stop();
    return status;
  }

 private:
  void prepare(grpc::ClientContext& context) const {
    context.AddMetadata(kTokenMetadata, options_.token);
  }

  template <class Method, class Request, class Response>
  Status call(Method method, const Request& request, Response* response, absl::Time deadline) {
    grpc::ClientContext context;
    prepare(context);
    context.set_wait_for_ready(false);
    if (deadline != absl::InfiniteFuture()) {
      context.set_deadline(to_chrono_wall(deadline + kAnswerGrace));
    }
    const grpc::Status status = (stub_.get()->*method)(&context, request, response);
    return status.ok() ? absl::OkStatus() : transport_error(status);
  }

  bool hosted_by_client0() const { return options_.service_host == ServiceHost::kClient0; }
  // "the coordinator at host-a:1234 (client 0)"; without the client where the service is elsewhere.
  std::string describe_service() const {
    return absl::StrCat("the coordinator at ", options_.address,
                        hosted_by_client0() ? " (client 0)" : "");
  }

  Status transport_error(const grpc::Status& status) const {
    if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED) {
      return absl::UnauthenticatedError(absl::StrCat(
          "the coordinator at ", options_.address, " refuses client ", client_id(), ": ",
          status.error_message(), "; give all clients of the job the same TESSERA_TOKEN"));
    }
    return absl::UnavailableError(
        absl::StrCat(describe_service(), " does not answer: ", status.error_message()));
  }

  // Registers, and waits for the others.
  Status join() {
    const absl::Time deadline = steady_now() + options_.connect_timeout;
    rpc::RegisterRequest request;
    rpc::Member* member = request.mutable_member();
    member->set_client_id(options_.self.client_id);
    member->set_host(options_.self.host);
    member->set_boot_id(options_.self.boot_id);
    member->set_pid(options_.self.pid);
    member->set_incarnation(options_.self.incarnation);
    member->set_num_local_devices(options_.self.num_local_devices);
    member->set_device_type(options_.self.device_type);
    request.set_num_clients(options_.num_clients);
    request.set_timeout_us(timeout_us(deadline));
    grpc::ClientContext context;
    prepare(context);
    context.set_wait_for_ready(true);
    // The service answers by the deadline; past it, it was never reached.
    context.set_deadline(to_chrono_wall(deadline + absl::Milliseconds(500)));
    rpc::RegisterResponse response;
    const grpc::Status status = stub_->Register(&context, request, &response);
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
      return absl::DeadlineExceededError(
          absl::StrCat("client ", client_id(), ": ", describe_service(), " did not answer within ",
                       format_duration(options_.connect_timeout), "; see whether ",
                       hosted_by_client0() ? "client 0 was started"
                                           : "the launcher or tessera_coordinator runs there"));
    }
    if (!status.ok()) return transport_error(status);
    TESSERA_RETURN_IF_ERROR(status_of(response.outcome()));
    for (const rpc::Member& other : response.members()) {
      members_.push_back({other.client_id(), other.host(), other.boot_id(), other.pid(),
                          other.incarnation(), other.num_local_devices(), other.device_type()});
    }
    return absl::OkStatus();
  }

  Status open_session() {
    prepare(session_context_);
    session_ = stub_->Session(&session_context_);
    rpc::Heartbeat first;
    first.set_client_id(client_id());
    rpc::Event answer;
    if (!session_->Write(first) || !session_->Read(&answer)) {
      session_context_.TryCancel();
      return transport_error(session_->Finish());
    }
    note_event(answer);
    TESSERA_ASSIGN_OR_RETURN(
        reader_, start_thread("the events of the coordinator", [this] { read_events(); }));
    TESSERA_ASSIGN_OR_RETURN(
        heartbeats_, start_thread("the heartbeats of this client", [this] { send_heartbeats(); }));
    return absl::OkStatus();
  }

  void read_events() {
    rpc::Event event;
    while (session_->Read(&event)) note_event(event);
    session_->Finish();
    if (!leaving_ && !closing()) lose_coordinator("its connections broke off");
  }

  void note_event(const rpc::Event& event) {
    {
      std::lock_guard<std::mutex> lock(session_mutex_);
      num_unanswered_ = 0;
    }
    if (event.has_loss()) {
      report_lost(event.lost_client(), absl::UnavailableError(event.reason()));
    }
  }

  void send_heartbeats() {
    rpc::Heartbeat heartbeat;
    heartbeat.set_client_id(client_id());
    std::unique_lock<std::mutex> lock(session_mutex_);
    while (!closing_) {
      const absl::Time next = steady_now() + options_.heartbeat_interval;
      session_changed_.wait_until(lock, to_chrono_steady(next));
      if (closing_) return;
      // Counted, not timed: a client that was stopped for a while asks before it judges.
      const bool silent = num_unanswered_++ > kMissedHeartbeats;
      lock.unlock();
      const bool sent = session_->Write(heartbeat);
      if (silent && !leaving_) lose_coordinator("it answered no heartbeats");
      lock.lock();
      if (!sent) return;
    }
  }

  bool closing() {
    std::lock_guard<std::mutex> lock(session_mutex_);
    return closing_;
  }

  void lose_coordinator(absl::string_view how) {
    {
      // It is the coordinator that gave up this client.
      std::lock_guard<std::recursive_mutex> lock(lost_mutex_);
      if (lost_.count(client_id()) > 0) return;
    }
    if (hosted_by_client0()) {
      report_lost(
          0, absl::UnavailableError(absl::StrCat(members_[0].to_string(),
                                                 ", which hosts the coordinator, is lost: ", how)));
    } else {
      report_lost(client_id(),
                  absl::UnavailableError(absl::StrCat(describe_service(), " is lost: ", how)));
    }
  }

  void report_lost(int client, const Status& reason) {
    std::lock_guard<std::recursive_mutex> lock(lost_mutex_);
    if (!lost_.try_emplace(client, reason).second) return;
    if (lost_callback_) lost_callback_(client, reason);
  }

  void close_session() {
    {
      std::lock_guard<std::mutex> lock(session_mutex_);
      closing_ = true;
    }
    session_changed_.notify_all();
    session_context_.TryCancel();
    if (reader_.joinable()) reader_.join();
    if (heartbeats_.joinable()) heartbeats_.join();
  }

  const CoordinatorOptions options_;
  std::vector<MemberInfo> members_;
  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<rpc::CoordinatorService::Stub> stub_;

  grpc::ClientContext session_context_;
  std::unique_ptr<grpc::ClientReaderWriter<rpc::Heartbeat, rpc::Event>> session_;
  Thread reader_;
  Thread heartbeats_;
  std::mutex session_mutex_;  // guards what follows
  std::condition_variable session_changed_;
  int num_unanswered_ = 0;  // heartbeats
  bool closing_ = false;

  std::recursive_mutex lost_mutex_;  // guards what follows
  LostCallback lost_callback_;
  std::map<int, Status> lost_;

  std::atomic<bool> leaving_{false};
};

}  // namespace

StatusOr<std::unique_ptr<Coordinator>> connect_coordinator(const CoordinatorOptions& options) {
  if (options.num_clients == 1) return std::make_unique<LocalCoordinator>(options);
  if (options.token.empty()) {
    return absl::InvalidArgumentError(
        "a job of several clients needs a token: set TESSERA_TOKEN to the same secret on all of "
        "them, or start them with tessera_run");
  }
  auto coordinator = std::make_unique<GrpcCoordinator>(options);
  TESSERA_RETURN_IF_ERROR(coordinator->connect());
  return coordinator;
}

bool coordinator_service_was_used() { return grpc_started; }

}  // namespace tessera
