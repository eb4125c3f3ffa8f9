// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator/connect_coordinator.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/format.h"
#include "base/text.h"
#include "base/thread.h"
#include "job/coordinator/coordinator.grpc.pb.h"
#include "job/coordinator/coordinator_channel.h"
#include "job/coordinator/coordinator_server.h"
#include "job/coordinator/device_wait_messages.h"
#include "job/coordinator/id_ranges.h"
#include "job/coordinator/local_coordinator.h"
#include "job/coordinator/member_list.h"
#include "job/environment/address.h"
#include "job/environment/build.h"
#include "job/environment/interface.h"

namespace tessera {
namespace {

// The service answers a call at its deadline. The client waits for that answer this much longer.
constexpr absl::Duration kAnswerGrace = absl::Milliseconds(500);
// Before a session that was not answered is opened again.
constexpr absl::Duration kReopenPause = absl::Milliseconds(100);
constexpr size_t kMostTokenBytes = 1024;

int64_t timeout_us(absl::Duration timeout) {
  constexpr absl::Duration kLongest = absl::Hours(24 * 365);
  return absl::ToInt64Microseconds(std::clamp(timeout, absl::ZeroDuration(), kLongest));
}
int64_t timeout_us(absl::Time deadline) { return timeout_us(deadline - steady_now()); }

Status status_of(const rpc::Outcome& outcome) {
  return Status(static_cast<absl::StatusCode>(outcome.code()), outcome.message());
}

// A connection to the service over gRPC. In client 0 it owns the service, if client 0 hosts it.
//
// From connect() on one thread reads the session, one writes heartbeats, and one tells the callback
// of losses, which may wait for other clients: that must not keep this client from counting the
// answers of the service. When the service has ended, `verdict_` says why. Calls in progress are
// then cancelled, and return the verdict.
class GrpcCoordinator : public Coordinator {
 public:
  explicit GrpcCoordinator(const CoordinatorOptions& options) : options_(options) {}
  ~GrpcCoordinator() override {
    // Without leave() the session breaks off: the others learn that this client is lost, and that
    // the service is, if this client hosts it.
    close_session();
    stop_telling();
    if (lacks_threads_) {
      // gRPC may lack one too, for which its end would wait for ever.
      (void)session_.release();
      (void)session_context_.release();
      (void)stub_.release();
      (void)server_.release();
      return;
    }
    // The job never began: stop() first answers the registrations of the others.
    if (server_ != nullptr && members_.empty()) server_->stop();
    server_ = nullptr;
  }

  Status connect() {
    const Status connected = start();
    lacks_threads_ = absl::IsResourceExhausted(connected);
    return connected;
  }

  Status start() {
    TESSERA_RETURN_IF_ERROR(prepare_grpc());
    const absl::Time deadline =
        std::min(options_.deadline, steady_now() + options_.connect_timeout);
    TESSERA_ASSIGN_OR_RETURN(
        teller_, start_thread("the losses of other clients", [this] { tell_losses(); }));
    if (options_.self.client_id == 0 && options_.service_host == ServiceHost::kClient0) {
      TESSERA_ASSIGN_OR_RETURN(
          server_, CoordinatorServer::start({.address = options_.address,
                                             .token = options_.token,
                                             .num_clients = options_.num_clients,
                                             .job = options_.job,
                                             .heartbeat_interval = options_.heartbeat_interval}));
    }
    stub_ = rpc::CoordinatorService::NewStub(create_coordinator_channel(
        options_.relay.empty() ? options_.address : options_.relay, options_.num_clients));
    const ReportedWait wait(
        options_.reports, "connect", [this] { return missing_at_start(); }, options_.begin);
    TESSERA_RETURN_IF_ERROR(open_session(deadline));
    const Status joined = join(deadline);
    return joined.ok() ? joined : cause_of_failed_start(joined);
  }

  int client_id() const override { return options_.self.client_id; }
  absl::Span<const MemberInfo> members() const override { return members_; }
  std::string local_address() const override { return route_to(options_.address); }

  void set_lost_callback(LostCallback callback) override {
    // Held while callbacks run, so that none runs after this returns.
    std::lock_guard<std::recursive_mutex> calls(callback_mutex_);
    lost_callback_ = std::move(callback);
    if (!lost_callback_) return;
    std::map<int, Status> lost;
    {
      std::lock_guard<std::mutex> lock(lost_mutex_);
      untold_.clear();
      lost = lost_;
    }
    for (const auto& [client, reason] : lost) lost_callback_(client, reason);
  }

  Status put(absl::string_view key, absl::string_view value) override {
    rpc::PutRequest request;
    request.set_session(session_number_);
    request.set_key(std::string(key));
    request.set_value(std::string(value));
    rpc::Outcome response;
    TESSERA_RETURN_IF_ERROR(call(&rpc::CoordinatorService::Stub::Put, request, &response,
                                 steady_now() + options_.connect_timeout));
    return status_of(response);
  }
  StatusOr<std::string> get(absl::string_view key, int setter, absl::Time deadline) override {
    rpc::GetRequest request;
    request.set_key(std::string(key));
    return get(request, setter, deadline);
  }
  StatusOr<std::string> propose(absl::string_view series, uint32_t number, absl::string_view value,
                                absl::Time deadline) override {
    rpc::ProposeRequest request;
    request.set_session(session_number_);
    request.set_series(std::string(series));
    request.set_number(number);
    request.set_value(std::string(value));
    rpc::GetResponse response;
    // The service answers at once: there is no other deadline than this client's.
    TESSERA_RETURN_IF_ERROR(
        call(&rpc::CoordinatorService::Stub::Propose, request, &response, deadline - kAnswerGrace));
    TESSERA_RETURN_IF_ERROR(status_of(response.outcome()));
    return response.value();
  }
  StatusOr<std::string> get_proposal(absl::string_view series, uint32_t number, int setter,
                                     absl::Time deadline) override {
    rpc::GetRequest request;
    request.set_key(std::string(series));
    request.set_is_proposal(true);
    request.set_number(number);
    return get(request, setter, deadline);
  }
  Status check_in(absl::string_view name, absl::string_view value,
                  absl::Span<const int> participants, absl::Time deadline) override {
    rpc::CheckInRequest request;
    request.set_session(session_number_);
    request.set_name(std::string(name));
    request.set_value(std::string(value));
    const std::vector<int32_t> numbers = IdRanges::of(participants).to_numbers();
    request.mutable_participants()->Assign(numbers.begin(), numbers.end());
    request.set_timeout_us(timeout_us(deadline));
    rpc::Outcome response;
    TESSERA_RETURN_IF_ERROR(with_context(
        call(&rpc::CoordinatorService::Stub::CheckIn, request, &response, deadline), name));
    return status_of(response);
  }

  Status leave(absl::Time deadline) override {
    if (leaving_.exchange(true)) return absl::OkStatus();
    rpc::LeaveRequest request;
    request.set_session(session_number_);
    request.set_timeout_us(timeout_us(deadline));
    rpc::Outcome response;
    Status status = call(&rpc::CoordinatorService::Stub::Leave, request, &response, deadline);
    // The service ends after all clients have left, so there is none to wait for.
    if (absl::IsCancelled(status) && service_is_over()) status = absl::OkStatus();
    if (status.ok()) status = status_of(response);
    if (server_ != nullptr) server_->stop();
    close_session();
    return status;
  }

  std::vector<AwaitedCall> awaited(absl::Time deadline) override {
    rpc::AwaitedRequest request;
    request.set_session(session_number_);
    rpc::AwaitedAnswer response;
    if (!call(&rpc::CoordinatorService::Stub::Awaited, request, &response, deadline).ok())
      return {};
    const auto clients_in = [this](const auto& numbers) {
      std::vector<int> clients;
      IdRanges::of_numbers(numbers).for_each([&](int client) {
        if (client < options_.num_clients) clients.push_back(client);
      });
      return clients;
    };
    std::vector<AwaitedCall> calls;
    for (const rpc::AwaitedAnswer::Call& call : response.calls()) {
      calls.push_back({.kind = static_cast<AwaitedCall::Kind>(call.kind()),
                       .text = call.text(),
                       .num_clients = call.num_clients(),
                       .missing = clients_in(call.missing()),
                       .silent = clients_in(call.silent())});
    }
    return calls;
  }

  StatusOr<CircleStep> report_waits(const WaitsReport& report, absl::Time deadline) override {
    rpc::WaitsRequest request;
    request.set_session(session_number_);
    write_waits(report.waits, request.mutable_waits());
    request.set_circle(report.circle);
    request.set_at(report.at);
    request.set_is_done(report.is_done);
    request.set_timeout_us(timeout_us(deadline));
    rpc::WaitsAnswer response;
    TESSERA_RETURN_IF_ERROR(
        call(&rpc::CoordinatorService::Stub::Waits, request, &response, deadline));
    TESSERA_RETURN_IF_ERROR(status_of(response.outcome()));
    return CircleStep{.kind = static_cast<CircleStep::Kind>(response.kind()),
                      .number = response.circle(),
                      .at = response.at(),
                      .waits = read_waits(response.waits()),
                      .named = read_waits(response.named())};
  }

  Status cause_of_failed_start(const Status& status) override {
    if (!absl::IsUnavailable(status)) return status;
    std::unique_lock<std::mutex> lock(session_mutex_);
    session_changed_.wait_until(lock, to_chrono_steady(steady_now() + kAnswerGrace),
                                [&] { return !first_loss_.ok() || !verdict_.ok(); });
    return first_loss_.ok() ? status : first_loss_;
  }

 private:
  // A context that end_service() cancels, for the time of one call.
  class CallContext {
   public:
    CallContext(GrpcCoordinator& owner, absl::Time deadline) : owner_(owner) {
      owner.prepare(context_);
      if (deadline != absl::InfiniteFuture()) {
        context_.set_deadline(to_chrono_wall(deadline + kAnswerGrace));
      }
      std::lock_guard<std::mutex> lock(owner.session_mutex_);
      owner.calls_.insert(&context_);
      if (!owner.verdict_.ok()) context_.TryCancel();
    }
    ~CallContext() {
      {
        std::lock_guard<std::mutex> lock(owner_.session_mutex_);
        owner_.calls_.erase(&context_);
      }
      owner_.session_changed_.notify_all();
    }
    grpc::ClientContext* get() { return &context_; }

   private:
    GrpcCoordinator& owner_;
    grpc::ClientContext context_;
  };

  StatusOr<std::string> get(rpc::GetRequest& request, int setter, absl::Time deadline) {
    request.set_session(session_number_);
    request.set_setter(setter);
    request.set_timeout_us(timeout_us(deadline));
    rpc::GetResponse response;
    TESSERA_RETURN_IF_ERROR(
        call(&rpc::CoordinatorService::Stub::Get, request, &response, deadline));
    TESSERA_RETURN_IF_ERROR(status_of(response.outcome()));
    return response.value();
  }

  void prepare(grpc::ClientContext& context) const {
    context.AddMetadata(kTokenMetadata, token_metadata(options_.token));
  }

  template <class Method, class Request, class Response>
  Status call(Method method, const Request& request, Response* response, absl::Time deadline) {
    TESSERA_RETURN_IF_ERROR(verdict());
    grpc::Status status;
    {
      CallContext context(*this, deadline);
      status = (stub_.get()->*method)(context.get(), request, response);
    }
    return status.ok() ? absl::OkStatus() : failure_of(status);
  }

  // Why a call got no answer. If the service has ended, all calls of this client return one status.
  Status failure_of(const grpc::Status& status) {
    // A service or a relay that ends cancels the calls that it holds.
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE ||
        status.error_code() == grpc::StatusCode::CANCELLED) {
      // The session ends too; it says whether the service ended in order.
      std::unique_lock<std::mutex> lock(session_mutex_);
      session_changed_.wait_until(lock, to_chrono_steady(steady_now() + kAnswerGrace),
                                  [&] { return !verdict_.ok(); });
    }
    TESSERA_RETURN_IF_ERROR(verdict());
    return transport_error(status);
  }

  bool hosted_by_client0() const { return options_.service_host == ServiceHost::kClient0; }
  // "the coordinator at host-a:1234 (client 0)"; without the client if none hosts the service.
  std::string describe_service() const {
    return absl::StrCat("the coordinator at ", options_.address,
                        hosted_by_client0() ? " (client 0)" : "");
  }

  Status transport_error(const grpc::Status& status) const {
    switch (status.error_code()) {
      case grpc::StatusCode::UNAUTHENTICATED:
        return absl::UnauthenticatedError(absl::StrCat(
            "the coordinator at ", options_.address, " refuses client ", client_id(), ": ",
            status.error_message(), "; give all clients of the job the same TESSERA_TOKEN"));
      case grpc::StatusCode::DEADLINE_EXCEEDED:
        return absl::DeadlineExceededError(
            absl::StrCat(describe_service(), " did not answer by the deadline"));
      default:
        return absl::UnavailableError(
            absl::StrCat(describe_service(), " does not answer: ", status.error_message()));
    }
  }

  const char* why_silent() const {
    return hosted_by_client0() ? "client 0 was started"
                               : "the launcher or tessera_coordinator runs there";
  }
  Status did_not_answer() const {
    return absl::DeadlineExceededError(
        absl::StrCat("client ", client_id(), ": ",
                     not_in_time(absl::StrCat(describe_service(), " did not answer"),
                                 options_.connect_timeout, "within"),
                     "; see whether ", why_silent()));
  }

  // The reason why the start of this client waits, for reports of long waits.
  WaitReports::Missing missing_at_start() {
    constexpr absl::Duration kLimit = absl::Seconds(1);
    const bool is_answered = session_number_ != 0;
    const std::vector<AwaitedCall> calls =
        is_answered ? awaited(steady_now() + kLimit) : std::vector<AwaitedCall>();
    if (calls.empty()) {
      return {absl::StrCat(describe_service(), " does not answer; see whether ", why_silent()), {}};
    }
    const AwaitedCall& start = calls[0];
    if (start.kind != AwaitedCall::kRegister) return {};
    const int num_there = start.num_clients - static_cast<int>(start.missing.size());
    return {
        absl::StrCat(num_there, " of ", start.num_clients, " clients connected; missing ",
                     start.missing.size() == 1 ? "client " : "clients ",
                     IdRanges::of(start.missing).to_list(),
                     "; see whether they were started, and with the address ", options_.address),
        start.missing};
  }

  // Returns when the service has answered. From then on the service and this client notice each
  // other's loss. A session that breaks off before is opened again: a service that many clients
  // reach at once cuts off the connections that have not shown the token for long (listener.h).
  Status open_session(absl::Time deadline) {
    while (true) {
      TESSERA_RETURN_IF_ERROR(start_session());
      std::unique_lock<std::mutex> lock(session_mutex_);
      const auto answered = [this] {
        return session_number_ != 0 || !verdict_.ok() || is_cut_off_;
      };
      if (deadline == absl::InfiniteFuture()) {
        session_changed_.wait(lock, answered);
      } else if (!session_changed_.wait_until(lock, to_chrono_steady(deadline), answered)) {
        return did_not_answer();
      }
      if (!is_cut_off_) return verdict_;
      lock.unlock();
      reader_.join();
      heartbeats_.join();
      // Not at once: gRPC waits between attempts to connect, and none of these has failed.
      const absl::Time next = std::min(deadline, steady_now() + kReopenPause);
      lock.lock();
      session_changed_.wait_until(lock, to_chrono_steady(next), [this] { return over(); });
      if (next == deadline) return did_not_answer();
      is_cut_off_ = false;
    }
  }

  // Opens a session, and starts its threads. None of the one before runs.
  Status start_session() {
    session_ = nullptr;
    session_context_ = std::make_unique<grpc::ClientContext>();
    prepare(*session_context_);
    session_context_->set_wait_for_ready(true);
    // The call starts with the first heartbeat, on another thread: this one must not block while
    // the service does not run yet.
    session_context_->set_initial_metadata_corked(true);
    session_ = stub_->Session(session_context_.get());
    TESSERA_ASSIGN_OR_RETURN(
        reader_, start_thread("the events of the coordinator", [this] { read_events(); }));
    TESSERA_ASSIGN_OR_RETURN(
        heartbeats_, start_thread("the heartbeats of this client", [this] { send_heartbeats(); }));
    return absl::OkStatus();
  }

  // Registers, and waits for the others.
  Status join(absl::Time deadline) {
    rpc::RegisterRequest request;
    request.set_session(session_number_);
    rpc::Member* member = request.mutable_member();
    member->set_client_id(options_.self.client_id);
    member->set_host(options_.self.host);
    member->set_host_id(options_.self.host_id);
    member->set_pid(options_.self.pid);
    member->set_incarnation(options_.self.incarnation);
    member->set_num_local_devices(options_.self.num_local_devices);
    member->set_device_type(options_.self.device_type);
    member->set_arithmetic(options_.self.arithmetic);
    member->set_build(options_.self.build.empty() ? build_text() : options_.self.build);
    request.set_num_clients(options_.num_clients);
    request.set_timeout_us(timeout_us(deadline));
    request.set_connect_timeout_us(timeout_us(options_.connect_timeout));
    request.set_job(options_.job);
    request.set_heartbeat_interval_us(timeout_us(options_.heartbeat_interval));
    rpc::RegisterResponse response;
    const Status status =
        call(&rpc::CoordinatorService::Stub::Register, request, &response, deadline);
    if (absl::IsDeadlineExceeded(status)) return did_not_answer();
    TESSERA_RETURN_IF_ERROR(status);
    TESSERA_RETURN_IF_ERROR(status_of(response.outcome()));
    {
      std::lock_guard<std::mutex> lock(session_mutex_);
      interval_ = absl::Microseconds(response.heartbeat_interval_us());
    }
    session_changed_.notify_all();
    return read_members(response.members());
  }

  // A service that shuts down in order has answered every call before it says so, and the answers
  // may be behind that news: that of a check-in which the others have been told is agreed, or of a
  // job that cannot start.
  void await_answers() {
    std::unique_lock<std::mutex> lock(session_mutex_);
    session_changed_.wait_until(lock, to_chrono_steady(steady_now() + kAnswerGrace),
                                [&] { return calls_.empty() || over(); });
  }

  Status read_members(const std::string& bytes) {
    std::optional<std::vector<MemberInfo>> members = decode_members(bytes, options_.num_clients);
    if (!members.has_value()) {
      return absl::InternalError(absl::StrCat(describe_service(),
                                              " sent a list of the clients that cannot be read; ",
                                              kOneBuildAdvice));
    }
    std::lock_guard<std::mutex> lock(lost_mutex_);
    members_ = *std::move(members);
    return absl::OkStatus();
  }

  void read_events() {
    rpc::Event event;
    while (session_->Read(&event)) {
      note_event(event);
      if (event.closing()) break;
    }
    if (event.closing()) {
      const Status over = absl::CancelledError(
          absl::StrCat("the coordinator at ", options_.address, " has shut down in order"));
      await_answers();
      end_service(over);
      // If client 0 has shut down, the meshes of the others remain. If a launcher has, the job
      // ends.
      if (!hosted_by_client0() && !leaving_ && !closing()) report_lost(client_id(), over);
      session_->Finish();
      return;
    }
    const grpc::Status status = session_->Finish();
    if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED) {
      end_service(transport_error(status));
    } else if (status.error_code() == grpc::StatusCode::UNAVAILABLE && session_number_ == 0) {
      note_cut_off();
    } else if (!leaving_ && !closing()) {
      lose_coordinator(options_.relay.empty()
                           ? "its connections broke off"
                           : "its connections through the relay of this host broke off");
    }
  }

  void note_cut_off() {
    {
      std::lock_guard<std::mutex> lock(session_mutex_);
      is_cut_off_ = true;
    }
    session_changed_.notify_all();
  }

  void note_event(const rpc::Event& event) {
    {
      std::lock_guard<std::mutex> lock(session_mutex_);
      num_unanswered_ = 0;
      if (event.session() != 0) session_number_ = event.session();
    }
    session_changed_.notify_all();
    for (const rpc::Loss& loss : event.losses()) {
      const Status reason = absl::UnavailableError(loss.reason());
      IdRanges::of_numbers(loss.clients()).for_each([&](int client) {
        // A client that leaves without the others is told as they are.
        if (client != client_id() || !leaving_) report_lost(client, reason);
      });
    }
  }

  void send_heartbeats() {
    const rpc::Heartbeat heartbeat;
    if (!session_->Write(heartbeat)) return;
    std::unique_lock<std::mutex> lock(session_mutex_);
    // No heartbeat is counted as unanswered before the first answer: the service may not run yet.
    session_changed_.wait(lock, [this] { return session_number_ != 0 || is_cut_off_ || over(); });
    while (!is_cut_off_ && !over()) {
      const absl::Time next = steady_now() + interval_;
      const absl::Duration interval = interval_;
      session_changed_.wait_until(lock, to_chrono_steady(next),
                                  [&] { return over() || interval_ != interval; });
      if (over()) return;
      if (interval_ != interval) continue;
      // Heartbeats are counted, not timed: a client that was stopped sends another one before it
      // declares the service lost.
      const bool is_silent = num_unanswered_++ > kMissedHeartbeats;
      lock.unlock();
      if (is_silent) {
        lose_coordinator(absl::StrCat("it left more than ", kMissedHeartbeats, " heartbeats of ",
                                      format_duration(interval), " unanswered"));
        return;
      }
      const bool is_sent = session_->Write(heartbeat);
      lock.lock();
      if (!is_sent) return;
    }
  }

  // The service has ended, or this client is closing. Needs session_mutex_.
  bool over() const { return closing_ || !verdict_.ok(); }

  bool closing() {
    std::lock_guard<std::mutex> lock(session_mutex_);
    return closing_;
  }
  Status verdict() {
    std::lock_guard<std::mutex> lock(session_mutex_);
    return verdict_;
  }
  bool service_is_over() { return absl::IsCancelled(verdict()); }

  // Every call that waits for the service, and every later one, returns `verdict`. The first
  // verdict is kept.
  void end_service(const Status& verdict) {
    {
      std::lock_guard<std::mutex> lock(session_mutex_);
      if (!verdict_.ok()) return;
      verdict_ = verdict;
      for (grpc::ClientContext* const call : calls_) call->TryCancel();
    }
    session_changed_.notify_all();
    session_context_->TryCancel();
  }

  void lose_coordinator(absl::string_view how) {
    std::string name = absl::StrCat("the coordinator at ", options_.address);
    bool is_declared_lost;
    {
      std::lock_guard<std::mutex> lock(lost_mutex_);
      // If so, the coordinator has declared this client lost.
      is_declared_lost = lost_.count(client_id()) > 0;
      if (hosted_by_client0() && !members_.empty()) {
        name = absl::StrCat(members_[0].to_string(), ", which hosts the coordinator,");
      } else {
        name = describe_service();
      }
    }
    const Status lost = absl::UnavailableError(absl::StrCat(name, " is lost: ", how));
    end_service(lost);
    if (!is_declared_lost && !leaving_) {
      report_lost(hosted_by_client0() ? 0 : client_id(), lost);
    }
  }

  void report_lost(int client, const Status& reason) {
    {
      std::lock_guard<std::mutex> lock(session_mutex_);
      if (first_loss_.ok()) first_loss_ = reason;
    }
    session_changed_.notify_all();
    {
      std::lock_guard<std::mutex> lock(lost_mutex_);
      if (!lost_.try_emplace(client, reason).second) return;
      untold_.push_back(client);
    }
    lost_changed_.notify_all();
  }

  // Calls the callback for each loss, on a thread of its own.
  void tell_losses() {
    const auto has_work = [this] { return !untold_.empty() || is_telling_over_; };
    while (true) {
      {
        std::unique_lock<std::mutex> lock(lost_mutex_);
        lost_changed_.wait(lock, has_work);
      }
      std::lock_guard<std::recursive_mutex> calls(callback_mutex_);
      int client;
      Status reason;
      {
        std::lock_guard<std::mutex> lock(lost_mutex_);
        if (is_telling_over_) return;
        if (untold_.empty()) continue;  // set_lost_callback() has told them
        client = untold_.front();
        untold_.pop_front();
        reason = lost_.at(client);
      }
      if (lost_callback_) lost_callback_(client, reason);
    }
  }

  void stop_telling() {
    {
      std::lock_guard<std::mutex> lock(lost_mutex_);
      is_telling_over_ = true;
    }
    lost_changed_.notify_all();
    if (teller_.joinable()) teller_.join();
  }

  void close_session() {
    {
      std::lock_guard<std::mutex> lock(session_mutex_);
      closing_ = true;
      if (verdict_.ok()) {
        verdict_ = absl::CancelledError(absl::StrCat("client ", client_id(), " has left the job"));
      }
      // Calls of other threads may have no deadline.
      for (grpc::ClientContext* const call : calls_) call->TryCancel();
    }
    session_changed_.notify_all();
    if (session_context_ != nullptr) session_context_->TryCancel();
    if (reader_.joinable()) reader_.join();
    if (heartbeats_.joinable()) heartbeats_.join();
  }

  const CoordinatorOptions options_;
  std::vector<MemberInfo> members_;  // constant once connected
  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<rpc::CoordinatorService::Stub> stub_;

  std::unique_ptr<grpc::ClientContext> session_context_;  // outlives session_
  std::unique_ptr<grpc::ClientReaderWriter<rpc::Heartbeat, rpc::Event>> session_;
  Thread reader_;
  Thread heartbeats_;
  std::mutex session_mutex_;  // guards what follows
  std::condition_variable session_changed_;
  std::atomic<uint64_t> session_number_{0};  // constant once it is known
  absl::Duration interval_ = options_.heartbeat_interval;
  int num_unanswered_ = 0;  // heartbeats
  Status verdict_;          // why the service has ended; OK while it runs
  Status first_loss_;       // the first that the service reported
  std::set<grpc::ClientContext*> calls_;
  bool closing_ = false;
  bool is_cut_off_ = false;  // the session broke off before the first event

  // Guards lost_callback_, and is held while it runs: so by no thread of the session. Before
  // lost_mutex_ where both are.
  std::recursive_mutex callback_mutex_;
  LostCallback lost_callback_;

  std::mutex lost_mutex_;  // guards what follows, and the change of members_
  std::condition_variable lost_changed_;
  std::map<int, Status> lost_;
  std::deque<int> untold_;  // of these, in the order in which they were lost
  bool is_telling_over_ = false;
  Thread teller_;

  std::atomic<bool> leaving_{false};
  bool lacks_threads_ = false;  // connect() could not start one
};

}  // namespace

StatusOr<std::unique_ptr<Coordinator>> connect_coordinator(const CoordinatorOptions& options) {
  if (options.num_clients == 1) {
    auto local = std::make_unique<LocalCoordinator>(options.self);
    TESSERA_RETURN_IF_ERROR(local->registered());
    return local;
  }
  if (options.token.empty()) {
    return absl::InvalidArgumentError(
        "a job of several clients needs a token: set TESSERA_TOKEN to the same secret on all of "
        "them, or start them with tessera_run");
  }
  if (options.token.size() > kMostTokenBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the job token has ", options.token.size(),
                                                   " bytes; use at most ", kMostTokenBytes));
  }
  if (options.heartbeat_interval < absl::Milliseconds(1)) {
    return absl::InvalidArgumentError(absl::StrCat("heartbeat_interval is ",
                                                   format_duration(options.heartbeat_interval),
                                                   "; it must be 1 ms or longer"));
  }
  if (!parse_address(options.address).has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the coordinator's address is ", quoted(options.address),
                     "; it must be HOST:PORT, as in host-a:4000, the same on all clients"));
  }
  if (!options.relay.empty() && !parse_address(options.relay).has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("the relay's address is ", quoted(options.relay),
                                                   "; it must be HOST:PORT of this host"));
  }
  auto coordinator = std::make_unique<GrpcCoordinator>(options);
  TESSERA_RETURN_IF_ERROR(coordinator->connect());
  return coordinator;
}

}  // namespace tessera
