// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator_server.h"

#include <grpcpp/grpcpp.h>

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

#include "absl/strings/escaping.h"
#include "base/clock.h"
#include "base/thread.h"
#include "job/build.h"
#include "job/client_ranges.h"
#include "job/coordinator.grpc.pb.h"
#include "job/coordinator.h"
#include "job/coordinator_state.h"
#include "job/file_descriptor.h"
#include "job/grpc_log.h"
#include "job/host.h"
#include "job/listener.h"
#include "job/member_list.h"

namespace tessera {
namespace {

// Whether this process has ever started gRPC: forking is unsafe from then on.
std::atomic<bool> grpc_started{false};

absl::Time deadline_of(int64_t timeout_us) { return steady_now() + absl::Microseconds(timeout_us); }

void fill(rpc::Outcome* outcome, const Status& status) {
  outcome->set_code(static_cast<int>(status.code()));
  outcome->set_message(std::string(status.message()));
}

// Takes a time that depends on the lengths alone.
bool equal_in_constant_time(grpc::string_ref a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference |= static_cast<unsigned char>(a.data()[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
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
  info.build = member.build();
  return info;
}

class ServerImpl;

// One client's open stream: reads heartbeats, writes events. What is to be said is computed when
// the stream is ready to write, so that a client that does not read costs nothing. Deletes itself
// when it is done.
class ClientSession : public grpc::ServerBidiReactor<rpc::Heartbeat, rpc::Event> {
 public:
  ClientSession(ServerImpl* server, uint64_t number) : server_(server), number_(number) {}

  void start();
  // There is something to say: a heartbeat to answer, or a loss.
  void notify();
  // Tells the client the news that it has not been told, and that the service ends in order, where
  // it does; then the stream ends.
  void close(bool in_order);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

 private:
  void write_if_idle();           // needs mutex_
  void finish_if_told();          // needs mutex_
  void finish(grpc::Status why);  // needs mutex_

  ServerImpl* const server_;
  const uint64_t number_;
  rpc::Heartbeat heartbeat_;
  std::mutex mutex_;  // guards what follows
  rpc::Event event_;  // being written
  size_t num_losses_told_ = 0;
  bool is_first_ = true;
  bool has_news_ = false;
  bool is_writing_ = false;
  bool is_closing_ = false;
  bool is_ending_ = false;
  bool is_finished_ = false;
};

class ServerImpl : public CoordinatorServer, public rpc::CoordinatorService::CallbackService {
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
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return absl::InternalError("gRPC does not start the coordinator");
    TESSERA_ASSIGN_OR_RETURN(timer_,
                             start_thread("the timer of the coordinator", [this] { run_timer(); }));
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
    }
    for (const std::function<void()>& callback : callbacks) callback();
  }

  void heartbeat(uint64_t session) {
    change([&] { state_.heartbeat(session); });
  }
  void session_broke(uint64_t session) {
    change([&] {
      state_.disconnected(session);
      registered_.erase(session);
    });
  }
  void session_done(ClientSession* session) {
    std::lock_guard<std::mutex> lock(sessions_mutex_);
    sessions_.erase(session);
  }
  // Adds the losses from the num_told-th on; how many there are.
  size_t add_losses(size_t num_told, rpc::Event* event) {
    std::lock_guard<std::mutex> lock(losses_mutex_);
    for (size_t i = num_told; i < losses_.size(); ++i) *event->add_losses() = losses_[i];
    return losses_.size();
  }

  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context,
                                     const rpc::RegisterRequest* request,
                                     rpc::RegisterResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    if (!admit(context, reactor)) return reactor;
    CoordinatorState::Registration registration;
    registration.member = member_of(request->member());
    registration.num_clients = request->num_clients();
    registration.job = request->job();
    registration.connect_timeout = absl::Microseconds(request->connect_timeout_us());
    registration.heartbeat_interval = absl::Microseconds(request->heartbeat_interval_us());
    const auto done = [this, reactor, response](const Status& status) {
      fill(response->mutable_outcome(), status);
      if (status.ok()) fill_job(response);
      finish(reactor);
    };
    bool is_known = false;
    change([&] {
      const auto session = registered_.find(request->session());
      is_known = session != registered_.end() && !std::exchange(session->second, true);
      if (!is_known) return;
      state_.register_client(request->session(), registration, steady_now(),
                             deadline_of(request->timeout_us()), done);
    });
    if (!is_known) {
      done(absl::FailedPreconditionError(
          "a client registers once, while its session is open; connect again"));
    }
    return reactor;
  }

  grpc::ServerUnaryReactor* Put(grpc::CallbackServerContext* context,
                                const rpc::PutRequest* request, rpc::Outcome* response) override {
    return serve(
        context, request->session(), outcome_in(response), [=, this](int, const auto& done) {
          answers_.push_back(
              [done, status = state_.put(request->key(), request->value())] { done(status); });
        });
  }

  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context,
                                const rpc::GetRequest* request,
                                rpc::GetResponse* response) override {
    const auto fill_in = [response](const StatusOr<std::string>& value) {
      fill(response->mutable_outcome(), value.status());
      if (value.ok()) response->set_value(*value);
    };
    return serve(context, request->session(), fill_in, [=, this](int client, const auto& done) {
      state_.get(client, request->key(), request->setter(), deadline_of(request->timeout_us()),
                 done);
    });
  }

  grpc::ServerUnaryReactor* CheckIn(grpc::CallbackServerContext* context,
                                    const rpc::CheckInRequest* request,
                                    rpc::Outcome* response) override {
    const ClientRanges participants = ClientRanges::of_numbers(request->participants());
    return serve(context, request->session(), outcome_in(response),
                 [=, this](int client, const auto& done) {
                   state_.check_in(client, request->name(), request->value(), participants,
                                   steady_now(), deadline_of(request->timeout_us()), done);
                 });
  }

  grpc::ServerUnaryReactor* Leave(grpc::CallbackServerContext* context,
                                  const rpc::LeaveRequest* request,
                                  rpc::Outcome* response) override {
    return serve(context, request->session(), outcome_in(response),
                 [=, this](int client, const auto& done) {
                   state_.leave(client, steady_now(), deadline_of(request->timeout_us()), done);
                 });
  }

  grpc::ServerBidiReactor<rpc::Heartbeat, rpc::Event>* Session(
      grpc::CallbackServerContext* context) override {
    const uint64_t number = random_number();
    auto* session = new ClientSession(this, number);
    if (!token_matches(context)) {
      session->Finish(bad_token());
      return session;
    }
    listener_->proven(context->peer());
    change([&] { registered_[number] = false; });
    bool is_over;
    {
      std::lock_guard<std::mutex> lock(sessions_mutex_);
      sessions_.insert(session);
      is_over = sessions_closed_;
    }
    session->start();
    if (is_over) session->close(true);
    return session;
  }

 private:
  static grpc::Status bad_token() {
    return {grpc::StatusCode::UNAUTHENTICATED, "the job token is wrong"};
  }
  bool token_matches(grpc::CallbackServerContext* context) const {
    const auto it = context->client_metadata().find(kTokenMetadata);
    return it != context->client_metadata().end() && equal_in_constant_time(it->second, token_);
  }
  bool admit(grpc::CallbackServerContext* context, grpc::ServerUnaryReactor* reactor) const {
    if (token_matches(context)) return true;
    reactor->Finish(bad_token());
    return false;
  }
  static std::function<void(const Status&)> outcome_in(rpc::Outcome* response) {
    return [response](const Status& status) { fill(response, status); };
  }
  void finish(grpc::ServerUnaryReactor* reactor) const {
    reactor->Finish(aborting_ ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "the service has ended")
                              : grpc::Status::OK);
  }

  // One call of a client: `body(client, done)` under the lock, where done writes the answer with
  // `fill_in`, then or later; a stranger and a lost client are refused.
  template <class FillIn, class Body>
  grpc::ServerUnaryReactor* serve(grpc::CallbackServerContext* context, uint64_t session,
                                  const FillIn& fill_in, const Body& body) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    if (!admit(context, reactor)) return reactor;
    const auto done = [this, reactor, fill_in](const auto& result) {
      fill_in(result);
      finish(reactor);
    };
    change([&] {
      const StatusOr<int> client = state_.client_of(session);
      if (client.ok()) {
        body(*client, done);
      } else {
        answers_.push_back([done, refused = client.status()] { done(refused); });
      }
    });
    return reactor;
  }

  void fill_job(rpc::RegisterResponse* response) {
    std::shared_ptr<const std::string> members;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (job_of_members_ != state_.num_jobs()) {
        members_ = std::make_shared<const std::string>(encode_members(state_.members()));
        job_of_members_ = state_.num_jobs();
      }
      members = members_;
      response->set_heartbeat_interval_us(absl::ToInt64Microseconds(state_.heartbeat_interval()));
    }
    // Without the lock: there is a copy of a long list for each client.
    response->set_members(*members);
  }

  uint64_t random_number() {
    std::lock_guard<std::mutex> lock(sessions_mutex_);
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
    std::lock_guard<std::mutex> lock(sessions_mutex_);
    for (ClientSession* const session : sessions_) session->notify();
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
      std::lock_guard<std::mutex> lock(sessions_mutex_);
      sessions_closed_ = true;
      for (ClientSession* const session : sessions_) session->close(in_order);
    }
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
  std::unordered_map<uint64_t, bool> registered_;  // by open session, whether it has registered

  std::mutex sessions_mutex_;  // guards what follows; taken after mutex_, never before
  std::set<ClientSession*> sessions_;
  bool sessions_closed_ = false;
  std::random_device random_;

  std::mutex losses_mutex_;  // guards losses_; taken after all others
  std::vector<rpc::Loss> losses_;
  std::shared_ptr<const std::string> members_;  // a serialized MemberList; guarded by mutex_
  int job_of_members_ = 0;                      // the num_jobs() of it

  std::unique_ptr<Listener> listener_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
  Thread timer_;
};

void ClientSession::start() {
  StartRead(&heartbeat_);
  notify();
}

void ClientSession::notify() {
  std::lock_guard<std::mutex> lock(mutex_);
  has_news_ = true;
  write_if_idle();
}

void ClientSession::close(bool in_order) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (in_order) {
    is_closing_ = has_news_ = true;
    write_if_idle();
  } else {
    is_ending_ = true;
    finish_if_told();
  }
}

void ClientSession::finish_if_told() {
  if (!is_ending_ || is_writing_ || has_news_) return;
  finish({grpc::StatusCode::UNAVAILABLE, "the service has ended"});
}

void ClientSession::write_if_idle() {
  if (is_finished_ || is_writing_ || !has_news_) return;
  has_news_ = false;
  is_writing_ = true;
  event_.Clear();
  if (std::exchange(is_first_, false)) event_.set_session(number_);
  num_losses_told_ = server_->add_losses(num_losses_told_, &event_);
  event_.set_closing(is_closing_);
  StartWrite(&event_);
}

void ClientSession::finish(grpc::Status why) {
  if (!std::exchange(is_finished_, true)) Finish(std::move(why));
}

void ClientSession::OnReadDone(bool ok) {
  if (ok) {
    server_->heartbeat(number_);
    notify();
    StartRead(&heartbeat_);
    return;
  }
  server_->session_broke(number_);
  std::lock_guard<std::mutex> lock(mutex_);
  finish(grpc::Status::OK);
}

void ClientSession::OnWriteDone(bool ok) {
  std::lock_guard<std::mutex> lock(mutex_);
  is_writing_ = false;
  if (event_.closing()) finish(grpc::Status::OK);
  if (ok) write_if_idle();
  finish_if_told();
}

void ClientSession::OnDone() {
  server_->session_done(this);
  delete this;
}

}  // namespace

void prepare_grpc() {
  grpc_started = true;
  quiet_grpc_log();
}

bool coordinator_service_was_used() { return grpc_started; }

std::string token_metadata(const std::string& token) { return absl::BytesToHexString(token); }

StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::start(
    const CoordinatorServerOptions& options) {
  prepare_grpc();
  raise_descriptor_limit();
  auto server = std::make_unique<ServerImpl>(options);
  TESSERA_RETURN_IF_ERROR(server->listen(options));
  return server;
}

}  // namespace tessera
