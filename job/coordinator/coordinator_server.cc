// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator/coordinator_server.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <type_traits>

#include "base/clock.h"
#include "base/thread.h"
#include "job/coordinator/coordinator_channel.h"
#include "job/coordinator/coordinator_state.h"
#include "job/coordinator/grpc_log.h"
#include "job/coordinator/listener.h"
#include "job/coordinator/open_streams.h"
#include "job/coordinator/served_job.h"
#include "job/coordinator/service_streams.h"
#include "job/coordinator/upstream.h"
#include "job/environment/address.h"
#include "job/environment/build.h"
#include "job/environment/file_descriptor.h"
#include "job/environment/host.h"
#include "tessera/job/coordinator/coordinator.grpc.pb.h"

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

class ServerImpl : public CoordinatorServer,
                   public rpc::CoordinatorService::CallbackService,
                   public StreamOwner {
 public:
  explicit ServerImpl(const CoordinatorServerOptions& options)
      : token_(token_metadata(options.token)) {
    if (!options.upstream.empty()) return;
    job_ = std::make_unique<ServedJob>(
        CoordinatorState::Options{.num_clients = options.num_clients,
                                  .address = options.address,
                                  .job = options.job,
                                  .heartbeat_interval = options.heartbeat_interval,
                                  .host_id = describe_this_process().host_id,
                                  .build = build_text()},
        [this](const OpenStreams::Losses& losses) { streams_.tell(losses); });
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
    if (job_ != nullptr) builder.SetMaxReceiveMessageSize(kMostHostRequestBytes);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      return no_grpc_server("the coordinator", join_address(parse_address(options.address, 0)->host,
                                                            listener_->port()));
    }
    if (job_ != nullptr) {
      TESSERA_RETURN_IF_ERROR(job_->start_timer());
    } else {
      TESSERA_ASSIGN_OR_RETURN(
          upstream_,
          Upstream::create(options.upstream, token_, options.num_clients,
                           {[this](uint64_t session) {
                              streams_.with<NewsStream>(
                                  session, [](NewsStream& stream) { stream.notify(); });
                            },
                            [this](const rpc::HostEvent& event) { streams_.tell(event.losses()); },
                            [this] { streams_.close(true, false); },
                            [this](const grpc::Status& why) { streams_.break_off(why); }}));
    }
    return listener_->start([this](int fd) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
      connection.fd = fd;
      acceptor_->HandleNewConnection(&connection);
    });
  }

  int port() const override { return listener_->port(); }
  void stop() override { end(true); }

  bool heartbeat(uint64_t session) override {
    if (upstream_ != nullptr) {
      upstream_->beat(session);
      return false;
    }
    job_->note_alive({}, {&session, 1});
    return true;
  }
  void sessions_broke(const std::set<uint64_t>& sessions) override {
    if (upstream_ != nullptr) {
      for (const uint64_t session : sessions) upstream_->close(session);
      return;
    }
    job_->sessions_broke(sessions);
  }

  void serve_host(uint64_t stream, const rpc::HostRequest& request) override {
    job_->note_alive(request.opened(), request.alive());
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
    const uint64_t number = streams_.random_number();
    auto* const session = new ClientSession(this, &streams_, number);
    if (!begin(context, number, session)) return session;
    if (upstream_ != nullptr) {
      upstream_->open(number);
    } else {
      job_->note_alive({&number, 1}, {});
      session->notify();
    }
    return session;
  }

  grpc::ServerBidiReactor<rpc::HostRequest, rpc::HostEvent>* Host(
      grpc::CallbackServerContext* context) override {
    const uint64_t number = streams_.random_number();
    auto* const host = new HostStream(this, &streams_, number);
    if (upstream_ != nullptr) {
      host->break_off({grpc::StatusCode::UNIMPLEMENTED, "a relay serves no relay"});
    } else {
      begin(context, number, host);
    }
    return host;
  }

 private:
  static grpc::Status bad_token() {
    return {grpc::StatusCode::UNAUTHENTICATED, "the job token is wrong"};
  }
  // Starts a stream; false: it is refused. Nothing happens on it before gRPC has got it.
  template <class Stream>
  bool begin(grpc::CallbackServerContext* context, uint64_t number, Stream* stream) {
    if (!carries_token(*context, token_)) {
      stream->break_off(bad_token());
      return false;
    }
    listener_->proven(context->peer());
    const bool is_open = streams_.add(number, stream);
    stream->start();
    if (!is_open) stream->close(true);
    return true;
  }

  // One call of a client: here, or by the service that this relay passes it on to.
  template <class Request, class Response>
  grpc::ServerUnaryReactor* serve(grpc::CallbackServerContext* context,
                                  rpc::HostCall::Method method, const Request* request,
                                  Response* response) {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    if (!carries_token(*context, token_)) {
      reactor->Finish(bad_token());
      return reactor;
    }
    if (job_ != nullptr) {
      job_->handle(*request, response, [this, reactor, response] {
        add_members(response);
        reactor->Finish(aborting_
                            ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "the service has ended")
                            : grpc::Status::OK);
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
    job_->handle(request, response.get(), [this, stream, response, number = call.number()] {
      const auto list = job_->members();
      streams_.with<HostStream>(stream, [&](HostStream& host) {
        // The relay passes the list on to all its clients.
        if constexpr (std::is_same_v<Response, rpc::RegisterResponse>) {
          if (response->outcome().code() == 0 && host.takes(list)) response->set_members(*list);
        }
        host.answer(number, response->SerializeAsString());
      });
    });
  }

  // Adds the list of the members to the response of a registration; in a relay the list from the
  // service. Runs without a lock, because a long list is copied for each client.
  template <class Response>
  void add_members(Response* response) {
    if constexpr (std::is_same_v<Response, rpc::RegisterResponse>) {
      if (response->outcome().code() != 0) return;
      std::shared_ptr<const std::string> list;
      if (job_ != nullptr) {
        list = job_->members();
      } else {
        std::lock_guard<std::mutex> lock(relayed_mutex_);
        if (!response->members().empty()) {
          relayed_members_ = std::make_shared<const std::string>(response->members());
          return;
        }
        list = relayed_members_;
      }
      if (list != nullptr) response->set_members(*list);
    }
  }

  void end(bool in_order) {
    if (server_ == nullptr) return;
    aborting_ = !in_order;
    listener_->stop();
    // A relay gets answers and the news of the end by one stream: the answers of other threads come
    // first.
    if (job_ != nullptr) job_->stop();
    streams_.close(in_order, true);
    if (upstream_ != nullptr) upstream_->stop();
    // Answers under way and sessions that are closing get a moment; the rest is cut off.
    server_->Shutdown(to_chrono_wall(steady_now() + absl::Seconds(1)));
    server_ = nullptr;
  }

  const std::string token_;
  std::atomic<bool> aborting_{false};
  OpenStreams streams_;
  std::unique_ptr<ServedJob> job_;                      // not in a relay
  std::mutex relayed_mutex_;                            // guards relayed_members_
  std::shared_ptr<const std::string> relayed_members_;  // in a relay, the last from the service

  std::unique_ptr<Listener> listener_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
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
