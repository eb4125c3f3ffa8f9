// SPDX-License-Identifier: Apache-2.0
#include "servers/server.h"

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/format.h"
#include "base/text.h"
#include "base/thread.h"
#include "base/wait_reports.h"
#include "dtensor/client.h"
#include "job/coordinator/coordinator_channel.h"
#include "job/coordinator/coordinator_server.h"
#include "job/coordinator/grpc_log.h"
#include "job/coordinator/listener.h"
#include "job/environment/address.h"
#include "mesh/mesh.h"
#include "servers/heartbeats.h"
#include "servers/outcome.h"
#include "servers/parameter_servers.h"
#include "servers/parameter_store.h"
#include "servers/task_service.h"
#include "servers/task_token.h"
#include "servers/tensor_message.h"
#include "servers/wire.h"
#include "servers/worker_runner.h"
#include "tessera/servers/parameter_server.pb.h"

namespace tessera::distribute {
namespace {

using internal::ParameterServers;
using internal::ParameterStore;
using internal::set_outcome;
using internal::TaskService;
using internal::TaskToken;
using internal::TensorBytes;
using internal::WorkerRunner;

// A job of one client, whatever launcher started the process.
StatusOr<Mesh> mesh_of_this_worker() {
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect({.client_id = 0, .num_clients = 1}));
  const auto num_devices = static_cast<int64_t>(client.devices().size());
  return create_mesh(client, {{"device", num_devices}});
}

grpc::ByteBuffer shard_response(const Status& status, const TensorBytes& data = {}) {
  rpc::Outcome outcome;
  set_outcome(&outcome, status);
  return internal::write_message(outcome, data);
}

}  // namespace

class Server::Impl {
 public:
  Impl(std::string task_type, int task, const ServerOptions& options,
       absl::Duration wait_report_unit)
      : task_type_(std::move(task_type)),
        task_(task),
        reports_({.subject = absl::StrCat(task_type_, " ", task_),
                  .sink = options.on_wait,
                  .unit = wait_report_unit}) {}
  ~Impl() {
    (void)stop(absl::Seconds(5));
    if (listener_ != nullptr) listener_->stop();
    // Allows a moment for the answer to the chief's goodbye; other calls are cut off.
    if (server_ != nullptr) server_->Shutdown(to_chrono_wall(steady_now() + absl::Seconds(1)));
    if (watch_.joinable()) watch_.join();
  }

  Status listen(const std::string& address, FunctionRegistry functions) {
    TESSERA_RETURN_IF_ERROR(prepare_grpc());
    if (is_worker()) {
      TESSERA_ASSIGN_OR_RETURN(Mesh mesh, mesh_of_this_worker());
      TESSERA_ASSIGN_OR_RETURN(runner_,
                               WorkerRunner::start(task_, std::move(mesh), std::move(functions)));
    }
    TESSERA_ASSIGN_OR_RETURN(listener_, Listener::listen(address, {.name = "the server"}));
    address_ = join_address(parse_address(address, 0)->host, listener_->port());
    TESSERA_ASSIGN_OR_RETURN(token_, internal::make_token(address_));
    add_methods();
    grpc::ServerBuilder builder;
    using External = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        External::FROM_FD, grpc::InsecureServerCredentials());
    builder.RegisterCallbackGenericService(service_.get());
    builder.SetMaxReceiveMessageSize(-1);  // no limit, as the callers have shown the token
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return no_grpc_server("the server", address_);
    TESSERA_ASSIGN_OR_RETURN(watch_,
                             start_thread("the heartbeats of a server", [this] { watch(); }));
    TESSERA_RETURN_IF_ERROR(reports_.start());
    return listener_->start([this](int fd) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
      connection.fd = fd;
      acceptor_->HandleNewConnection(&connection);
    });
  }

  const std::string& address() const { return address_; }

  Status join() {
    const ReportedWait wait(&reports_, "Server::join", [this] { return missing_chief(); });
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return is_over_; });
    return end_;
  }

  Status stop(absl::Duration grace) {
    end(absl::OkStatus());
    return runner_ == nullptr ? absl::OkStatus() : runner_->stop(steady_now() + grace);
  }

 private:
  bool is_worker() const { return task_type_ == "worker"; }
  std::string name() const { return absl::StrCat(task_type_, " ", task_, " (", address_, ")"); }

  // Nothing if a chief has connected.
  std::optional<WaitReports::Missing> missing_chief() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (chief_.has_value() || is_over_) return std::nullopt;
    return WaitReports::Missing{
        absl::StrCat("no chief has connected to ", address_,
                     "; see whether the chief was started, and with the same cluster"),
        {}};
  }

  template <class Request, class Response, class Serve>
  void add(const std::string& method, TaskService::Size size, Serve serve) {
    service_->add<Request, Response>(method, size, std::move(serve));
  }
  template <class Request>
  void add_outcome(const std::string& method, Status (Impl::*serve)(const Request&)) {
    add<Request, rpc::Outcome>(method, TaskService::Size::kSmall,
                               [this, serve](const Request& request, auto answer) {
                                 rpc::Outcome outcome;
                                 set_outcome(&outcome, (this->*serve)(request));
                                 answer(outcome);
                               });
  }
  void add_shards(const std::string& method, TaskService::Size size,
                  Status (Impl::*serve)(const grpc::ByteBuffer&, TensorBytes*)) {
    service_->add_raw(method, size, [this, serve](const grpc::ByteBuffer& request, auto answer) {
      TensorBytes data;
      const Status status = (this->*serve)(request, &data);
      answer(shard_response(status, data));
    });
  }
  // A session's call that the runner answers, now or later.
  template <class Request, class Response>
  void add_by_runner(const std::string& method, TaskService::Size size,
                     void (WorkerRunner::*call)(const Request&,
                                                std::function<void(const Response&)>)) {
    add<Request, Response>(method, size, [this, call](const Request& request, auto answer) {
      Status known = check_caller(request.caller());
      if (runner_ == nullptr) known = absl::UnimplementedError("a ps runs no functions");
      if (known.ok()) return ((*runner_).*call)(request, std::move(answer));
      Response refused;
      set_outcome(refused.mutable_outcome(), known);
      refused.set_was_given_up(true);
      answer(refused);
    });
  }

  void add_methods() {
    using Size = TaskService::Size;
    service_ = std::make_unique<TaskService>(
        token_metadata(token_.text), [this](const std::string& peer) { listener_->proven(peer); });
    add<rpc::HelloRequest, rpc::HelloResponse>(
        "Hello", Size::kSmall,
        [this](const rpc::HelloRequest& request, auto answer) { answer(greeting(request)); });
    add_outcome("Beat", &Impl::beat);
    service_->add_open<rpc::BeatRequest>(
        "Attend", [this](const rpc::BeatRequest& request) { return attend(request); },
        [this] { attend_less(); });
    add_outcome("Bye", &Impl::bye);
    add_outcome("Update", &Impl::update);
    add_by_runner("Run", Size::kLarge, &WorkerRunner::run);
    add_by_runner("MakeDataset", Size::kSmall, &WorkerRunner::make_dataset);
    add_shards("Create", Size::kLarge, &Impl::create);
    add_shards("Read", Size::kSmall, &Impl::read);
    add_shards("Stage", Size::kLarge, &Impl::stage);
  }

  rpc::HelloResponse greeting(const rpc::HelloRequest& request) {
    rpc::HelloResponse response;
    set_outcome(response.mutable_outcome(), hello(request));
    if (runner_ == nullptr) return response;
    for (std::string& name : runner_->functions().names()) response.add_functions(std::move(name));
    for (std::string& name : runner_->functions().dataset_names()) {
      response.add_datasets(std::move(name));
    }
    return response;
  }
  Status beat(const rpc::BeatRequest& request) { return check_caller(request.caller()); }
  grpc::Status attend(const rpc::BeatRequest& request) {
    const Status known = check_caller(request.caller());
    if (!known.ok()) {
      return {grpc::StatusCode::FAILED_PRECONDITION, std::string(known.message())};
    }
    std::lock_guard<std::mutex> lock(mutex_);
    ++num_attending_;
    was_attended_ = true;
    return grpc::Status::OK;
  }
  void attend_less() {
    std::lock_guard<std::mutex> lock(mutex_);
    --num_attending_;
  }
  Status bye(const rpc::ByeRequest& request) {
    TESSERA_RETURN_IF_ERROR(check_chief(request.caller().chief()));
    end(internal::status_of(request.reason()));
    return absl::OkStatus();
  }
  Status update(const rpc::UpdateRequest& request) {
    TESSERA_RETURN_IF_ERROR(check_caller(request.caller()));
    return store_.update(internal::update_of(request));
  }

  Status hello(const rpc::HelloRequest& request) {
    std::lock_guard<std::mutex> hello_lock(hello_mutex_);
    TESSERA_RETURN_IF_ERROR(greet(request));
    if (runner_ != nullptr) {
      std::vector<ParameterServers::Address> servers;
      for (const rpc::ParameterServer& ps : request.ps()) {
        servers.push_back({ps.address(), ps.token()});
      }
      TESSERA_RETURN_IF_ERROR(
          runner_->begin_session(request.caller().chief(), request.caller().session(), servers));
    }
    std::lock_guard<std::mutex> lock(mutex_);
    session_ = request.caller().session();
    return absl::OkStatus();
  }
  // Accepts or refuses a session of this chief. Its heartbeats count from then on.
  Status greet(const rpc::HelloRequest& request) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (request.task_type() != task_type_ || request.task() != task_) {
      return absl::FailedPreconditionError(absl::StrCat(request.task_type(), " ", request.task(),
                                                        " of the chief's cluster is ", name(),
                                                        "; give all tasks the same cluster"));
    }
    if (request.heartbeat_interval_us() <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(name(), ": the chief gives an interval of heartbeats of ",
                       request.heartbeat_interval_us(), " us; ", internal::kSameBuild));
    }
    if (is_over_) return absl::UnavailableError(absl::StrCat(name(), " has ended"));
    if (chief_.has_value() && *chief_ != request.caller().chief()) {
      return absl::FailedPreconditionError(
          absl::StrCat(name(), " belongs to the ClusterCoordinator of the chief on ", chief_name_,
                       "; a cluster has one at a time"));
    }
    if (request.caller().session() <= last_session_) {
      return absl::CancelledError("the chief has begun another session");
    }
    chief_ = request.caller().chief();
    chief_name_ = request.chief_name();
    last_session_ = request.caller().session();
    session_.reset();
    interval_ = absl::Microseconds(request.heartbeat_interval_us());
    is_alive_ = true;
    was_attended_ = false;
    changed_.notify_all();
    return absl::OkStatus();
  }

  // Each call of the chief is a sign of life.
  Status check_chief(uint64_t chief) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_over_) return absl::FailedPreconditionError(absl::StrCat(name(), " has ended"));
    if (chief_ == chief) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(name(), " belongs to another ClusterCoordinator, or to none yet"));
  }
  Status check_caller(const rpc::Caller& caller) {
    TESSERA_RETURN_IF_ERROR(check_chief(caller.chief()));
    std::lock_guard<std::mutex> lock(mutex_);
    is_alive_ = true;
    if (session_ == caller.session()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("session ", caller.session(), " of ", name(), " is over"));
  }

  Status create(const grpc::ByteBuffer& request, TensorBytes*) {
    rpc::CreateRequest::Head head;
    TensorBytes data;
    TESSERA_RETURN_IF_ERROR(internal::read_message(request, &head, &data));
    TESSERA_RETURN_IF_ERROR(check_chief(head.chief()));
    StatusOr<HostArray> value = internal::array_of(head, data);
    TESSERA_RETURN_IF_ERROR(
        with_context(value.status(), absl::StrCat("variable ", in_quotes(head.name()))));
    return store_.create(head.variable(), head.shard(), head.name(), *std::move(value));
  }
  Status read(const grpc::ByteBuffer& request, TensorBytes* data) {
    rpc::ReadRequest::Head head;
    TESSERA_RETURN_IF_ERROR(internal::read_message(request, &head, data));
    TESSERA_RETURN_IF_ERROR(check_chief(head.chief()));
    TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<const std::string> value,
                             store_.read(head.variable(), head.shard()));
    *data = internal::bytes_of(value->data(), static_cast<int64_t>(value->size()), value);
    return absl::OkStatus();
  }
  Status stage(const grpc::ByteBuffer& request, TensorBytes*) {
    rpc::StageRequest::Head head;
    TensorBytes data;
    TESSERA_RETURN_IF_ERROR(internal::read_message(request, &head, &data));
    TESSERA_RETURN_IF_ERROR(check_chief(head.chief()));
    std::string bytes = store_.spare_memory(head.variable(), head.shard());
    data.append_to(&bytes);
    return store_.stage({.worker = head.worker(), .session = head.session(), .run = head.run()},
                        head.index(),
                        {.kind = head.is_add() ? PushKind::kAdd : PushKind::kAssign,
                         .variable = head.variable(),
                         .shard = head.shard(),
                         .bytes = std::move(bytes)});
  }

  void end(const Status& why) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_over_) return;
    is_over_ = true;
    end_ = why;
    changed_.notify_all();
  }

  // Counts ticks without a sign of life of the chief, and ticks without its connection
  // (heartbeats.h).
  void watch() {
    int64_t num_silent = 0;
    int num_broken = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    while (!is_over_) {
      if (!chief_.has_value()) {
        changed_.wait(lock);
        continue;
      }
      changed_.wait_until(lock, to_chrono_steady(steady_now() + tick_of(interval_)),
                          [this] { return is_over_; });
      const bool is_alive = std::exchange(is_alive_, false);
      num_silent = is_alive ? 0 : num_silent + 1;
      num_broken = is_alive || num_attending_ > 0 || !was_attended_ ? 0 : num_broken + 1;
      if (is_over_) break;
      if (num_broken >= kMostBrokenTicks) {
        lose_chief("its connection broke off, and it made no other");
      } else if (num_silent >= most_silent_ticks(interval_)) {
        lose_chief(absl::StrCat("it missed more than ", kMissedHeartbeats, " heartbeats of ",
                                format_duration(interval_)));
      }
    }
  }
  // Requires the lock.
  void lose_chief(absl::string_view why) {
    is_over_ = true;
    end_ = absl::UnavailableError(
        absl::StrCat(name(), ": the chief on ", chief_name_, " is lost: ", why));
    changed_.notify_all();
  }

  const std::string task_type_;
  const int task_;
  std::string address_;
  TaskToken token_;
  ParameterStore store_;                  // used by a ps
  std::shared_ptr<WorkerRunner> runner_;  // used by a worker
  std::mutex hello_mutex_;                // one session begins at a time; taken before mutex_
  std::mutex mutex_;                      // guards the members below
  std::condition_variable changed_;
  std::optional<uint64_t> chief_;
  std::string chief_name_;
  uint64_t last_session_ = 0;
  std::optional<uint64_t> session_;  // unset while a session begins
  absl::Duration interval_;          // set with chief_
  bool is_alive_ = false;            // the chief has called in this tick
  bool was_attended_ = false;        // the chief has called Attend in this session
  int num_attending_ = 0;            // open calls of Attend
  bool is_over_ = false;
  Status end_;

  std::unique_ptr<Listener> listener_;
  std::unique_ptr<TaskService> service_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
  Thread watch_;
  WaitReports reports_;  // the last member: its thread uses the others
};

StatusOr<Server> Server::start(const cluster::Cluster& cluster, FunctionRegistry functions,
                               const ServerOptions& options) {
  return start(cluster, std::move(functions), options, WaitReports::Options().unit);
}

StatusOr<Server> Server::start(const cluster::Cluster& cluster, FunctionRegistry functions,
                               const ServerOptions& options, absl::Duration wait_report_unit) {
  if (cluster.task_type != "worker" && cluster.task_type != "ps") {
    return absl::InvalidArgumentError(
        absl::StrCat("a Server is a worker or a ps, and this task is ",
                     in_quotes(cluster.task_type), "; a chief makes a ClusterCoordinator"));
  }
  const int task = cluster.task_id.value_or(-1);
  TESSERA_ASSIGN_OR_RETURN(const std::string address,
                           cluster.spec.task_address(cluster.task_type, task));
  if (!parse_address(address, 0).has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("the address of ", cluster.task_type, " ", task,
                                                   " is ", in_quotes(address),
                                                   "; it must be HOST:PORT"));
  }
  TESSERA_RETURN_IF_ERROR(internal::check_token(cluster.spec));
  auto impl = std::make_unique<Impl>(cluster.task_type, task, options, wait_report_unit);
  TESSERA_RETURN_IF_ERROR(with_context(impl->listen(address, std::move(functions)),
                                       absl::StrCat(cluster.task_type, " ", task)));
  return Server(std::move(impl));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::Server(Server&& other) noexcept = default;
Server& Server::operator=(Server&& other) noexcept = default;
Server::~Server() = default;
const std::string& Server::address() const {
  static const std::string* const kNone = new std::string();
  return impl_ == nullptr ? *kNone : impl_->address();
}
Status Server::join() {
  if (impl_ == nullptr) return absl::FailedPreconditionError("the Server was moved from");
  return impl_->join();
}
Status Server::stop(absl::Duration grace) {
  if (impl_ == nullptr) return absl::FailedPreconditionError("the Server was moved from");
  return impl_->stop(grace);
}

}  // namespace tessera::distribute
