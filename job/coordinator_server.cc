// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator_server.h"

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/thread.h"
#include "job/coordinator.grpc.pb.h"
#include "job/coordinator_state.h"
#include "job/grpc_log.h"

namespace tessera {
namespace {

absl::Time deadline_of(int64_t timeout_us) { return steady_now() + absl::Microseconds(timeout_us); }

void fill(rpc::Outcome* outcome, const Status& status) {
  outcome->set_code(static_cast<int>(status.code()));
  outcome->set_message(std::string(status.message()));
}

// Takes the same time wherever the two differ.
bool equal_in_constant_time(grpc::string_ref a, const std::string& b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < b.size(); ++i) {
    difference |= static_cast<unsigned>(b[i]) ^
                  static_cast<unsigned>(a.size() > 0 ? a.data()[i % a.size()] : ~b[i]);
  }
  return difference == 0;
}

rpc::Event loss_event(int client, const Status& reason) {
  rpc::Event event;
  event.set_has_loss(true);
  event.set_lost_client(client);
  event.set_reason(std::string(reason.message()));
  return event;
}

class ServerImpl;

// One client's open stream: reads heartbeats, writes events. Deletes itself when it is done.
class ClientSession : public grpc::ServerBidiReactor<rpc::Heartbeat, rpc::Event> {
 public:
  explicit ClientSession(ServerImpl* server) : server_(server) {}

  void start() { StartRead(&heartbeat_); }

  void send(const rpc::Event& event);
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

 private:
  ServerImpl* const server_;
  rpc::Heartbeat heartbeat_;
  int client_id_ = -1;
  std::mutex mutex_;  // guards what follows
  std::deque<rpc::Event> unsent_;
  bool writing_ = false;
  bool over_ = false;
};

class ServerImpl : public CoordinatorServer, public rpc::CoordinatorService::CallbackService {
 public:
  explicit ServerImpl(const CoordinatorServerOptions& options)
      : token_(options.token),
        state_(options.num_clients, options.address, options.heartbeat_interval) {
    state_.set_loss_listener([this](int client, const Status& reason) { tell(client, reason); });
  }
  ~ServerImpl() override { stop(); }

  Status listen(const std::string& address) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port == 0) {
      server_ = nullptr;
      return absl::UnavailableError(absl::StrCat("the coordinator cannot listen on ", address,
                                                 "; use a free port of this host"));
    }
    TESSERA_ASSIGN_OR_RETURN(timer_,
                             start_thread("the timer of the coordinator", [this] { run_timer(); }));
    return absl::OkStatus();
  }

  void stop() override {
    if (server_ == nullptr) return;
    change([&] {
      state_.stop();
      stopping_ = true;
    });
    if (timer_.joinable()) timer_.join();
    // Answers under way and sessions that are closing get a moment; the rest is cut off.
    server_->Shutdown(to_chrono_wall(steady_now() + absl::Seconds(1)));
    server_ = nullptr;
  }

  // Changes the state, wakes the timer for what has become due, and answers those concerned.
  template <class Change>
  void change(Change&& change) {
    std::vector<std::function<void()>> callbacks;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      change();
      callbacks = state_.take_callbacks();
      timer_changed_.notify_one();
    }
    for (const std::function<void()>& callback : callbacks) callback();
  }
  CoordinatorState& state() { return state_; }

  void session_started(ClientSession* session, int client_id) {
    {
      std::lock_guard<std::mutex> lock(sessions_mutex_);
      sessions_.insert(session);
    }
    std::map<int, Status> lost;
    change([&] {
      state_.session_started(client_id, steady_now());
      lost = state_.lost();
    });
    // Lost before this session could be told; what it is told twice, it ignores.
    for (const auto& [client, reason] : lost) session->send(loss_event(client, reason));
  }
  void session_over(ClientSession* session, int client_id) {
    if (client_id >= 0) change([&] { state_.session_ended(client_id); });
    std::lock_guard<std::mutex> lock(sessions_mutex_);
    sessions_.erase(session);
  }

  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context,
                                     const rpc::RegisterRequest* request,
                                     rpc::RegisterResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    if (!admit(context, reactor)) return reactor;
    MemberInfo info;
    info.client_id = request->member().client_id();
    info.host = request->member().host();
    info.boot_id = request->member().boot_id();
    info.pid = request->member().pid();
    info.incarnation = request->member().incarnation();
    info.num_local_devices = request->member().num_local_devices();
    info.device_type = request->member().device_type();
    change([&] {
      state_.register_client(info, request->num_clients(), steady_now(),
                             deadline_of(request->timeout_us()),
                             [this, reactor, response](const Status& status) {
                               fill(response->mutable_outcome(), status);
                               // Complete and constant once it is OK.
                               if (status.ok()) fill_members(response);
                               reactor->Finish(grpc::Status::OK);
                             });
    });
    return reactor;
  }

  grpc::ServerUnaryReactor* Put(grpc::CallbackServerContext* context,
                                const rpc::PutRequest* request, rpc::Outcome* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    if (!admit(context, reactor)) return reactor;
    change([&] {
      Status status = state_.check_alive(request->client_id());
      if (status.ok()) status = state_.put(request->key(), request->value());
      fill(response, status);
    });
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context,
                                const rpc::GetRequest* request,
                                rpc::GetResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    if (!admit(context, reactor)) return reactor;
    const auto found = [reactor, response](const StatusOr<std::string>& value) {
      fill(response->mutable_outcome(), value.status());
      if (value.ok()) response->set_value(*value);
      reactor->Finish(grpc::Status::OK);
    };
    Status refused;
    change([&] {
      refused = state_.check_alive(request->client_id());
      if (!refused.ok()) return;
      state_.get(request->key(), deadline_of(request->timeout_us()), found);
    });
    if (!refused.ok()) found(refused);
    return reactor;
  }

  grpc::ServerUnaryReactor* CheckIn(grpc::CallbackServerContext* context,
                                    const rpc::CheckInRequest* request,
                                    rpc::Outcome* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    if (!admit(context, reactor)) return reactor;
    const auto done = [reactor, response](const Status& status) {
      fill(response, status);
      reactor->Finish(grpc::Status::OK);
    };
    const std::vector<int> participants(request->participants().begin(),
                                        request->participants().end());
    Status refused;
    change([&] {
      refused = state_.check_alive(request->client_id());
      if (!refused.ok()) return;
      state_.check_in(request->client_id(), request->name(), request->value(), participants,
                      steady_now(), deadline_of(request->timeout_us()), done);
    });
    if (!refused.ok()) done(refused);
    return reactor;
  }

  grpc::ServerUnaryReactor* Leave(grpc::CallbackServerContext* context,
                                  const rpc::LeaveRequest* request,
                                  rpc::Outcome* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    if (!admit(context, reactor)) return reactor;
    change([&] {
      state_.leave(request->client_id(), steady_now(), deadline_of(request->timeout_us()),
                   [reactor, response](const Status& status) {
                     fill(response, status);
                     reactor->Finish(grpc::Status::OK);
                   });
    });
    return reactor;
  }

  grpc::ServerBidiReactor<rpc::Heartbeat, rpc::Event>* Session(
      grpc::CallbackServerContext* context) override {
    auto* session = new ClientSession(this);
    if (token_matches(context)) {
      session->start();
    } else {
      session->Finish(bad_token());
    }
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

  void fill_members(rpc::RegisterResponse* response) {
    for (const MemberInfo& info : state_.members()) {
      rpc::Member* member = response->add_members();
      member->set_client_id(info.client_id);
      member->set_host(info.host);
      member->set_boot_id(info.boot_id);
      member->set_pid(info.pid);
      member->set_incarnation(info.incarnation);
      member->set_num_local_devices(info.num_local_devices);
      member->set_device_type(info.device_type);
    }
  }

  void tell(int client, const Status& reason) {
    const rpc::Event event = loss_event(client, reason);
    std::lock_guard<std::mutex> lock(sessions_mutex_);
    for (ClientSession* session : sessions_) session->send(event);
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
      const absl::Time next = state_.next_event();
      if (next == absl::InfiniteFuture()) {
        timer_changed_.wait(lock);
      } else {
        timer_changed_.wait_until(lock, to_chrono_steady(next));
      }
    }
  }

  const std::string token_;
  std::mutex mutex_;  // guards state_ and stopping_
  std::condition_variable timer_changed_;
  CoordinatorState state_;
  bool stopping_ = false;
  std::mutex sessions_mutex_;  // guards sessions_; taken after mutex_, never before
  std::set<ClientSession*> sessions_;
  std::unique_ptr<grpc::Server> server_;
  Thread timer_;
};

void ClientSession::send(const rpc::Event& event) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (over_) return;
  unsent_.push_back(event);
  if (writing_) return;
  writing_ = true;
  StartWrite(&unsent_.front());
}

void ClientSession::OnReadDone(bool ok) {
  if (ok) {
    if (client_id_ < 0) {
      client_id_ = heartbeat_.client_id();
      server_->session_started(this, client_id_);
    }
    server_->change([&] { server_->state().heartbeat(client_id_, steady_now()); });
    send(rpc::Event());
    StartRead(&heartbeat_);
    return;
  }
  server_->session_over(this, client_id_);
  bool finish;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    over_ = true;
    finish = !writing_;
  }
  if (finish) Finish(grpc::Status::OK);
}

void ClientSession::OnWriteDone(bool ok) {
  bool finish = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    unsent_.pop_front();
    writing_ = ok && !unsent_.empty() && !over_;
    if (writing_) StartWrite(&unsent_.front());
    finish = over_ && !writing_;
  }
  if (finish) Finish(grpc::Status::OK);
}

void ClientSession::OnDone() { delete this; }

}  // namespace

StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::start(
    const CoordinatorServerOptions& options) {
  quiet_grpc_log();
  auto server = std::make_unique<ServerImpl>(options);
  TESSERA_RETURN_IF_ERROR(server->listen(options.address));
  return server;
}

}  // namespace tessera
