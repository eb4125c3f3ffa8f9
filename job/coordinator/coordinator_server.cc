// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator/coordinator_server.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <random>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/thread.h"
#include "job/coordinator/coordinator.grpc.pb.h"
#include "job/coordinator/coordinator.h"
#include "job/coordinator/coordinator_channel.h"
#include "job/coordinator/coordinator_state.h"
#include "job/coordinator/device_wait_messages.h"
#include "job/coordinator/grpc_log.h"
#include "job/coordinator/id_ranges.h"
#include "job/coordinator/listener.h"
#include "job/coordinator/member_list.h"
#include "job/coordinator/service_streams.h"
#include "job/coordinator/upstream.h"
#include "job/environment/address.h"
#include "job/environment/build.h"
#include "job/environment/file_descriptor.h"
#include "job/environment/host.h"

namespace tessera {
namespace {

// Whether this process has ever started gRPC: forking is unsafe from then on.
std::atomic<bool> grpc_started{false};

// The threads that gRPC 1.51 starts in a client or a service before it has answered a call: two
// executors, two timers, their manager, a poller, and a pool of a thread for each core.
int num_grpc_threads() {
  return 6 + static_cast<int>(std::clamp(sysconf(_SC_NPROCESSORS_CONF), 2L, 32L));
}

// Limits of messages.
constexpr int kMostCallBytes = 4 << 20;
constexpr int kMostHostRequestBytes = kMostCallBytes + 2 * Upstream::kMostBatchedBytes;

absl::Time deadline_of(int64_t timeout_us) { return steady_now() + absl::Microseconds(timeout_us); }

void fill(rpc::Outcome* outcome, const Status& status) {
  outcome->set_code(static_cast<int>(status.code()));
  outcome->set_message(std::string(status.message()));
}

MemberInfo member_of(const rpc::Member& member) {
  MemberInfo info;
  info.client_id = member.client_id();
  info.host = member.host();
  info.host_id = member.host_id();
  info.pid = member.pid();
  info.incarnation = member.incarnation();
  info.num_local_devices = member.num_local_devices();
  info.device_type = member.device_type();
  info.arithmetic = member.arithmetic();
  info.build = member.build();
  return info;
}

class ServerImpl : public CoordinatorServer,
                   public rpc::CoordinatorService::CallbackService,
                   public StreamOwner {
 public:
  explicit ServerImpl(const CoordinatorServerOptions& options)
      : token_(token_metadata(options.token)),
        state_({.num_clients = options.num_clients,
                .address = options.address,
                .job = options.job,
                .heartbeat_interval = options.heartbeat_interval,
                .host_id = describe_this_process().host_id,
                .build = build_text()}) {
    state_.set_loss_listener(
        [this](const std::vector<CoordinatorState::Loss>& losses) { tell(losses); });
  }
  ~ServerImpl() override { end(false); }

  Status listen(const CoordinatorServerOptions& options) {
    TESSERA_ASSIGN_OR_RETURN(
        listener_,
        Listener::listen(options.address, {.max_unproven = options.max_unproven_connections,
                                           .unproven_timeout = options.unproven_timeout}));
    grpc::ServerBuilder builder;
    using External = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        External::FROM_FD, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    builder.SetMaxReceiveMessageSize(kMostCallBytes);
    // A relay's message may have calls of several clients.
    if (options.upstream.empty()) builder.SetMaxReceiveMessageSize(kMostHostRequestBytes);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      return no_grpc_server("the coordinator", join_address(parse_address(options.address, 0)->host,
                                                            listener_->port()));
    }
    if (options.upstream.empty()) {
      TESSERA_ASSIGN_OR_RETURN(
          timer_, start_thread("the timer of the coordinator", [this] { run_timer(); }));
    } else {
      TESSERA_ASSIGN_OR_RETURN(
          upstream_, Upstream::create(options.upstream, token_, options.num_clients,
                                      {[this](uint64_t session) { notify(session); },
                                       [this](const rpc::HostEvent& event) { tell(event); },
                                       [this] { close_streams(true, false); },
                                       [this](const grpc::Status& why) { break_off(why); }}));
    }
    return listener_->start([this](int fd) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
      connection.fd = fd;
      acceptor_->HandleNewConnection(&connection);
    });
  }

  int port() const override { return listener_->port(); }
  void stop() override { end(true); }

  // Changes the state, wakes the timer if something is due earlier now, and answers those
  // concerned.
  template <class Change>
  void change(Change&& change) {
    std::vector<std::function<void()>> callbacks;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      change();
      callbacks = state_.take_callbacks();
      for (std::function<void()>& ready : std::exchange(answers_, {})) {
        callbacks.push_back(std::move(ready));
      }
      if (stopping_ || state_.next_event() < timer_wakes_) timer_changed_.notify_one();
      if (callbacks.empty()) return;
      ++num_answering_;
    }
    for (const std::function<void()>& callback : callbacks) callback();
    std::lock_guard<std::mutex> lock(mutex_);
    if (--num_answering_ == 0) answered_.notify_all();
  }

  bool heartbeat(uint64_t session) override {
    if (upstream_ != nullptr) {
      upstream_->beat(session);
      return false;
    }
    change([&] { state_.heartbeat(session); });
    return true;
  }
  void sessions_broke(const std::set<uint64_t>& sessions) override {
    if (upstream_ != nullptr) {
      for (const uint64_t session : sessions) upstream_->close(session);
      return;
    }
    change([&] {
      for (const uint64_t session : sessions) {
        state_.disconnected(session);
        registered_.erase(session);
      }
    });
  }
  void stream_done(uint64_t number) override {
    std::lock_guard<std::mutex> lock(streams_mutex_);
    streams_.erase(number);
    hosts_.erase(number);
  }
  size_t add_losses(size_t num_told, Losses* losses) override {
    std::lock_guard<std::mutex> lock(losses_mutex_);
    for (size_t i = num_told; i < losses_.size(); ++i) *losses->Add() = losses_[i];
    return losses_.size();
  }

  void serve_host(uint64_t stream, const rpc::HostRequest& request) override {
    change([&] {
      for (const uint64_t session : request.opened()) registered_[session] = false;
      for (const uint64_t session : request.alive()) state_.heartbeat(session);
    });
    for (const rpc::HostCall& call : request.calls()) {
      switch (call.method()) {
        case rpc::HostCall::REGISTER:
          serve_call<rpc::RegisterRequest, rpc::RegisterResponse>(stream, call);
          break;
        case rpc::HostCall::PUT:
          serve_call<rpc::PutRequest, rpc::Outcome>(stream, call);
          break;
        case rpc::HostCall::GET:
          serve_call<rpc::GetRequest, rpc::GetResponse>(stream, call);
          break;
        case rpc::HostCall::PROPOSE:
          serve_call<rpc::ProposeRequest, rpc::GetResponse>(stream, call);
          break;
        case rpc::HostCall::CHECK_IN:
          serve_call<rpc::CheckInRequest, rpc::Outcome>(stream, call);
          break;
        case rpc::HostCall::LEAVE:
          serve_call<rpc::LeaveRequest, rpc::Outcome>(stream, call);
          break;
        case rpc::HostCall::AWAITED:
          serve_call<rpc::AwaitedRequest, rpc::AwaitedAnswer>(stream, call);
          break;
        case rpc::HostCall::WAITS:
          serve_call<rpc::WaitsRequest, rpc::WaitsAnswer>(stream, call);
          break;
        default:
          break;  // of another Tessera, whose clients are refused
      }
    }
    sessions_broke({request.closed().begin(), request.closed().end()});
  }

  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context,
                                     const rpc::RegisterRequest* request,
                                     rpc::RegisterResponse* response) override {
    return serve(context, rpc::HostCall::REGISTER, request, response);
  }
  grpc::ServerUnaryReactor* Put(grpc::CallbackServerContext* context,
                                const rpc::PutRequest* request, rpc::Outcome* response) override {
    return serve(context, rpc::HostCall::PUT, request, response);
  }
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context,
                                const rpc::GetRequest* request,
                                rpc::GetResponse* response) override {
    return serve(context, rpc::HostCall::GET, request, response);
  }
  grpc::ServerUnaryReactor* Propose(grpc::CallbackServerContext* context,
                                    const rpc::ProposeRequest* request,
                                    rpc::GetResponse* response) override {
    return serve(context, rpc::HostCall::PROPOSE, request, response);
  }
  grpc::ServerUnaryReactor* CheckIn(grpc::CallbackServerContext* context,
                                    const rpc::CheckInRequest* request,
                                    rpc::Outcome* response) override {
    return serve(context, rpc::HostCall::CHECK_IN, request, response);
  }
  grpc::ServerUnaryReactor* Leave(grpc::CallbackServerContext* context,
                                  const rpc::LeaveRequest* request,
                                  rpc::Outcome* response) override {
    return serve(context, rpc::HostCall::LEAVE, request, response);
  }

  grpc::ServerUnaryReactor* Awaited(grpc::CallbackServerContext* context,
                                    const rpc::AwaitedRequest* request,
                                    rpc::AwaitedAnswer* response) override {
    return serve(context, rpc::HostCall::AWAITED, request, response);
  }
  grpc::ServerUnaryReactor* Waits(grpc::CallbackServerContext* context,
                                  const rpc::WaitsRequest* request,
                                  rpc::WaitsAnswer* response) override {
    return serve(context, rpc::HostCall::WAITS, request, response);
  }

  grpc::ServerBidiReactor<rpc::Heartbeat, rpc::Event>* Session(
      grpc::CallbackServerContext* context) override {
    const uint64_t number = random_number();
    auto* const session = new ClientSession(this, number);
    if (!begin(context, number, session)) return session;
    if (upstream_ != nullptr) {
      upstream_->open(number);
    } else {
      change([&] { registered_[number] = false; });
      session->notify();
    }
    return session;
  }

  grpc::ServerBidiReactor<rpc::HostRequest, rpc::HostEvent>* Host(
      grpc::CallbackServerContext* context) override {
    const uint64_t number = random_number();
    auto* const host = new HostStream(this, number);
    if (upstream_ != nullptr) {
      host->break_off({grpc::StatusCode::UNIMPLEMENTED, "a relay serves no relay"});
    } else if (begin(context, number, host)) {
      std::lock_guard<std::mutex> lock(streams_mutex_);
      hosts_[number] = host;
    }
    return host;
  }

 private:
  static grpc::Status bad_token() {
    return {grpc::StatusCode::UNAUTHENTICATED, "the job token is wrong"};
  }
  bool token_matches(grpc::CallbackServerContext* context) const {
    return carries_token(*context, token_);
  }
  bool admit(grpc::CallbackServerContext* context, grpc::ServerUnaryReactor* reactor) const {
    if (token_matches(context)) return true;
    reactor->Finish(bad_token());
    return false;
  }
  static std::function<void(const Status&)> outcome_in(rpc::Outcome* response) {
    return [response](const Status& status) { fill(response, status); };
  }
  static std::function<void(const StatusOr<std::string>&)> value_in(rpc::GetResponse* response) {
    return [response](const StatusOr<std::string>& value) {
      fill(response->mutable_outcome(), value.status());
      if (value.ok()) response->set_value(*value);
    };
  }
  void finish(grpc::ServerUnaryReactor* reactor) const {
    reactor->Finish(aborting_ ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "the service has ended")
                              : grpc::Status::OK);
  }

  // Starts a stream; false: it is refused. Nothing happens on it before gRPC has got it.
  template <class Stream>
  bool begin(grpc::CallbackServerContext* context, uint64_t number, Stream* stream) {
    if (!token_matches(context)) {
      stream->break_off(bad_token());
      return false;
    }
    listener_->proven(context->peer());
    bool is_over;
    {
      std::lock_guard<std::mutex> lock(streams_mutex_);
      streams_[number] = stream;
      is_over = streams_closed_;
    }
    stream->start();
    if (is_over) stream->close(true);
    return true;
  }

  // One call of a client: here, or by the service that this relay passes it on to.
  template <class Request, class Response>
  grpc::ServerUnaryReactor* serve(grpc::CallbackServerContext* context,
                                  rpc::HostCall::Method method, const Request* request,
                                  Response* response) {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    if (!admit(context, reactor)) return reactor;
    if (upstream_ == nullptr) {
      handle(*request, response, [this, reactor, response] {
        add_members(response);
        finish(reactor);
      });
      return reactor;
    }
    upstream_->call(
        method, request->SerializeAsString(),
        [this, reactor, response](const grpc::Status& status, const std::string& bytes) {
          if (status.ok() && response->ParseFromString(bytes)) add_members(response);
          reactor->Finish(status);
        });
    return reactor;
  }

  // One call that came over the stream of a relay.
  template <class Request, class Response>
  void serve_call(uint64_t stream, const rpc::HostCall& call) {
    Request request;
    request.ParseFromString(call.request());
    const auto response = std::make_shared<Response>();
    handle(request, response.get(), [this, stream, response, number = call.number()] {
      const auto list = members();
      std::lock_guard<std::mutex> lock(streams_mutex_);
      const auto host = hosts_.find(stream);
      if (host == hosts_.end()) return;
      add_members_once(list, host->second, response.get());
      host->second->answer(number, response->SerializeAsString());
    });
  }

  void handle(const rpc::RegisterRequest& request, rpc::RegisterResponse* response,
              const std::function<void()>& finish) {
    CoordinatorState::Registration registration;
    registration.member = member_of(request.member());
    registration.num_clients = request.num_clients();
    registration.job = request.job();
    registration.connect_timeout = absl::Microseconds(request.connect_timeout_us());
    registration.heartbeat_interval = absl::Microseconds(request.heartbeat_interval_us());
    const auto done = [this, response, finish](const Status& status) {
      fill(response->mutable_outcome(), status);
      if (status.ok()) {
        std::lock_guard<std::mutex> lock(mutex_);
        response->set_heartbeat_interval_us(
            absl::ToInt64Microseconds(state_.registrations().heartbeat_interval()));
      }
      finish();
    };
    bool is_known = false;
    change([&] {
      const auto session = registered_.find(request.session());
      is_known = session != registered_.end() && !std::exchange(session->second, true);
      if (!is_known) return;
      state_.register_client(request.session(), registration, steady_now(),
                             deadline_of(request.timeout_us()), done);
    });
    if (!is_known) {
      done(absl::FailedPreconditionError(
          "a client registers once, while its session is open; connect again"));
    }
  }
  void handle(const rpc::PutRequest& request, rpc::Outcome* response,
              const std::function<void()>& finish) {
    run(request.session(), outcome_in(response), finish, [&](int, const auto& done) {
      answers_.push_back([done, status = state_.key_values().put(request.key(), request.value())] {
        done(status);
      });
    });
  }
  void handle(const rpc::GetRequest& request, rpc::GetResponse* response,
              const std::function<void()>& finish) {
    run(request.session(), value_in(response), finish, [&](int client, const auto& done) {
      const absl::Time deadline = deadline_of(request.timeout_us());
      if (request.is_proposal()) {
        state_.key_values().get_proposal(client, request.key(), request.number(), request.setter(),
                                         deadline, done);
      } else {
        state_.key_values().get(client, request.key(), request.setter(), deadline, done);
      }
    });
  }
  void handle(const rpc::ProposeRequest& request, rpc::GetResponse* response,
              const std::function<void()>& finish) {
    run(request.session(), value_in(response), finish, [&](int, const auto& done) {
      answers_.push_back(
          [done, value = state_.key_values().propose(request.series(), request.number(),
                                                     request.value())] { done(value); });
    });
  }
  void handle(const rpc::CheckInRequest& request, rpc::Outcome* response,
              const std::function<void()>& finish) {
    CheckIns::Call call = {0, request.name(), request.value(),
                           IdRanges::of_numbers(request.participants())};
    run(request.session(), outcome_in(response), finish, [&](int client, const auto& done) {
      call.client = client;
      call.deadline = deadline_of(request.timeout_us());
      state_.check_ins().check_in(std::move(call), steady_now(), done);
    });
  }
  void handle(const rpc::LeaveRequest& request, rpc::Outcome* response,
              const std::function<void()>& finish) {
    run(request.session(), outcome_in(response), finish, [&](int client, const auto& done) {
      state_.leave(client, steady_now(), deadline_of(request.timeout_us()), done);
    });
  }

  void handle(const rpc::AwaitedRequest& request, rpc::AwaitedAnswer* response,
              const std::function<void()>& finish) {
    std::vector<AwaitedCall> calls;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      calls = state_.awaited(request.session());
    }
    for (const AwaitedCall& call : calls) {
      rpc::AwaitedAnswer::Call& answer = *response->add_calls();
      answer.set_kind(call.kind);
      answer.set_text(call.text);
      answer.set_num_clients(call.num_clients);
      const std::vector<int32_t> missing = IdRanges::of(call.missing).to_numbers();
      answer.mutable_missing()->Assign(missing.begin(), missing.end());
      const std::vector<int32_t> silent = IdRanges::of(call.silent).to_numbers();
      answer.mutable_silent()->Assign(silent.begin(), silent.end());
    }
    finish();
  }

  void handle(const rpc::WaitsRequest& request, rpc::WaitsAnswer* response,
              const std::function<void()>& finish) {
    const auto step_in = [response](const StatusOr<CircleStep>& step) {
      fill(response->mutable_outcome(), step.status());
      if (!step.ok()) return;
      response->set_kind(step->kind);
      response->set_circle(step->number);
      response->set_at(step->at);
      write_waits(step->waits, response->mutable_waits());
      write_waits(step->named, response->mutable_named());
    };
    run(request.session(), step_in, finish, [&](int client, const auto& done) {
      state_.report_waits(client,
                          {.waits = read_waits(request.waits()),
                           .circle = request.circle(),
                           .at = request.at(),
                           .is_done = request.is_done()},
                          steady_now(), deadline_of(request.timeout_us()), done);
    });
  }

  // One call of a client: `body(client, done)` under the lock, where done writes the answer with
  // `fill_in`, then or later, and `finish` sends it; a stranger and a lost client are refused.
  template <class FillIn, class Body>
  void run(uint64_t session, const FillIn& fill_in, const std::function<void()>& finish,
           const Body& body) {
    const auto done = [fill_in, finish](const auto& result) {
      fill_in(result);
      finish();
    };
    change([&] {
      const StatusOr<int> client = state_.client_of(session);
      if (client.ok()) {
        body(*client, done);
      } else {
        answers_.push_back([done, refused = client.status()] { done(refused); });
      }
    });
  }

  // The list of the members, serialized; in a relay what the service has sent.
  std::shared_ptr<const std::string> members() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (upstream_ == nullptr && job_of_members_ != state_.registrations().num_jobs()) {
      members_ =
          std::make_shared<const std::string>(encode_members(state_.registrations().members()));
      job_of_members_ = state_.registrations().num_jobs();
    }
    return members_;
  }
  // Without the lock: there is a copy of a long list for each client.
  void add_members(rpc::RegisterResponse* response) {
    if (response->outcome().code() != 0) return;
    if (response->members().empty()) {
      const auto list = members();
      if (list != nullptr) response->set_members(*list);
    } else {
      std::lock_guard<std::mutex> lock(mutex_);
      members_ = std::make_shared<const std::string>(response->members());
    }
  }
  template <class Response>
  void add_members(Response*) {}
  // On the stream of a relay, which passes the list on to all its clients.
  static void add_members_once(const std::shared_ptr<const std::string>& list, HostStream* host,
                               rpc::RegisterResponse* response) {
    if (response->outcome().code() == 0 && host->takes(list)) response->set_members(*list);
  }
  template <class Response>
  static void add_members_once(const std::shared_ptr<const std::string>&, HostStream*, Response*) {}

  uint64_t random_number() {
    std::lock_guard<std::mutex> lock(streams_mutex_);
    return uint64_t{random_()} << 32 | random_();
  }

  void tell(const std::vector<CoordinatorState::Loss>& losses) {
    {
      std::lock_guard<std::mutex> lock(losses_mutex_);
      for (const auto& [clients, reason] : losses) {
        rpc::Loss& loss = losses_.emplace_back();
        const std::vector<int32_t> numbers = clients.to_numbers();
        loss.mutable_clients()->Assign(numbers.begin(), numbers.end());
        loss.set_reason(std::string(reason.message()));
      }
    }
    notify_all();
  }
  // In a relay, what the service tells.
  void tell(const rpc::HostEvent& event) {
    {
      std::lock_guard<std::mutex> lock(losses_mutex_);
      losses_.insert(losses_.end(), event.losses().begin(), event.losses().end());
    }
    notify_all();
  }
  void notify_all() {
    std::lock_guard<std::mutex> lock(streams_mutex_);
    for (const auto& [number, stream] : streams_) stream->notify();
  }
  void notify(uint64_t session) {
    std::lock_guard<std::mutex> lock(streams_mutex_);
    const auto stream = streams_.find(session);
    if (stream != streams_.end()) stream->second->notify();
  }
  // `for_good`: later ones are closed too.
  void close_streams(bool in_order, bool for_good) {
    std::lock_guard<std::mutex> lock(streams_mutex_);
    if (for_good) streams_closed_ = true;
    for (const auto& [number, stream] : streams_) stream->close(in_order);
  }
  // In a relay whose stream to the service has ended: another one begins with what that tells.
  void break_off(const grpc::Status& why) {
    {
      std::lock_guard<std::mutex> lock(losses_mutex_);
      losses_.clear();
    }
    std::lock_guard<std::mutex> lock(streams_mutex_);
    if (streams_closed_) return;  // in its own way
    for (const auto& [number, stream] : streams_) stream->break_off(why);
  }

  void end(bool in_order) {
    if (server_ == nullptr) return;
    aborting_ = !in_order;
    listener_->stop();
    change([&] {
      state_.stop();
      stopping_ = true;
    });
    if (timer_.joinable()) timer_.join();
    {
      // A relay gets answers and the news of the end by one stream: the answers of other threads
      // come first.
      std::unique_lock<std::mutex> lock(mutex_);
      answered_.wait(lock, [this] { return num_answering_ == 0; });
    }
    close_streams(in_order, true);
    if (upstream_ != nullptr) upstream_->stop();
    // Answers under way and sessions that are closing get a moment; the rest is cut off.
    server_->Shutdown(to_chrono_wall(steady_now() + absl::Seconds(1)));
    server_ = nullptr;
  }

  void run_timer() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stopping_) {
      state_.advance(steady_now());
      const std::vector<std::function<void()>> callbacks = state_.take_callbacks();
      if (!callbacks.empty()) {
        lock.unlock();
        for (const std::function<void()>& callback : callbacks) callback();
        lock.lock();
        continue;
      }
      timer_wakes_ = state_.next_event();
      if (timer_wakes_ == absl::InfiniteFuture()) {
        timer_changed_.wait(lock);
      } else {
        timer_changed_.wait_until(lock, to_chrono_steady(timer_wakes_));
      }
      // Changes need not wake a thread that is about to look.
      timer_wakes_ = absl::InfinitePast();
    }
  }

  const std::string token_;
  std::atomic<bool> aborting_{false};
  std::mutex mutex_;  // guards what follows
  std::condition_variable timer_changed_;
  CoordinatorState state_;
  std::vector<std::function<void()>> answers_;  // that need not wait; given without the lock
  absl::Time timer_wakes_ = absl::InfinitePast();
  bool stopping_ = false;
  int num_answering_ = 0;  // threads other than the timer that run callbacks
  std::condition_variable answered_;
  std::unordered_map<uint64_t, bool> registered_;  // by open session, whether it has registered

  std::mutex streams_mutex_;  // guards what follows; taken after mutex_, never before
  std::unordered_map<uint64_t, NewsStream*> streams_;  // by number, that of a session its own
  std::unordered_map<uint64_t, HostStream*> hosts_;    // those of relays
  bool streams_closed_ = false;
  std::random_device random_;

  std::mutex losses_mutex_;  // guards losses_; taken after all others
  std::vector<rpc::Loss> losses_;
  std::shared_ptr<const std::string> members_;  // a serialized MemberList; guarded by mutex_
  int job_of_members_ = 0;                      // the num_jobs() of it

  std::unique_ptr<Listener> listener_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
  Thread timer_;
  std::unique_ptr<Upstream> upstream_;  // of a relay
};

}  // namespace

Status prepare_grpc() {
  if (!grpc_started) {
    TESSERA_RETURN_IF_ERROR(check_threads("gRPC", num_grpc_threads()));
    grpc_started = true;
  }
  quiet_grpc_log();
  return absl::OkStatus();
}

bool coordinator_service_was_used() { return grpc_started; }

StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::start(
    const CoordinatorServerOptions& options) {
  TESSERA_RETURN_IF_ERROR(prepare_grpc());
  raise_descriptor_limit();
  auto server = std::make_unique<ServerImpl>(options);
  const Status listening = server->listen(options);
  if (listening.ok()) return server;
  // gRPC may lack a thread too, for which its end would wait for ever.
  if (absl::IsResourceExhausted(listening)) (void)server.release();
  return listening;
}

}  // namespace tessera
