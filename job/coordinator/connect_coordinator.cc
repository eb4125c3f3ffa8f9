// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator/connect_coordinator.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/format.h"
#include "base/text.h"
#include "job/coordinator/coordinator_server.h"
#include "job/coordinator/coordinator_session.h"
#include "job/coordinator/device_wait_messages.h"
#include "job/coordinator/id_ranges.h"
#include "job/coordinator/local_coordinator.h"
#include "job/coordinator/loss_teller.h"
#include "job/coordinator/member_list.h"
#include "job/environment/address.h"
#include "job/environment/build.h"
#include "job/environment/interface.h"
#include "tessera/job/coordinator/coordinator.grpc.pb.h"

namespace tessera {
namespace {

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
class GrpcCoordinator : public Coordinator {
 public:
  explicit GrpcCoordinator(const CoordinatorOptions& options) : options_(options) {}
  ~GrpcCoordinator() override {
    // Without leave() the session breaks off: the others learn that this client is lost, and that
    // the service is, if this client hosts it.
    session_.close();
    losses_.stop();
    if (lacks_threads_) {
      session_.abandon();
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
    TESSERA_RETURN_IF_ERROR(losses_.start());
    if (options_.self.client_id == 0 && options_.service_host == ServiceHost::kClient0) {
      TESSERA_ASSIGN_OR_RETURN(
          server_, CoordinatorServer::start({.address = options_.address,
                                             .token = options_.token,
                                             .num_clients = options_.num_clients,
                                             .job = options_.job,
                                             .heartbeat_interval = options_.heartbeat_interval}));
    }
    const ReportedWait wait(
        options_.reports, "connect", [this] { return missing_at_start(); }, options_.begin);
    TESSERA_RETURN_IF_ERROR(session_.open(deadline));
    const Status joined = join(deadline);
    return joined.ok() ? joined : cause_of_failed_start(joined);
  }

  int client_id() const override { return options_.self.client_id; }
  absl::Span<const MemberInfo> members() const override { return members_; }
  std::string local_address() const override { return route_to(options_.address); }

  void set_lost_callback(LostCallback callback) override {
    losses_.set_callback(std::move(callback));
  }

  Status put(absl::string_view key, absl::string_view value) override {
    rpc::PutRequest request;
    request.set_key(std::string(key));
    request.set_value(std::string(value));
    rpc::Outcome response;
    TESSERA_RETURN_IF_ERROR(session_.call(&rpc::CoordinatorService::Stub::Put, request, &response,
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
    request.set_series(std::string(series));
    request.set_number(number);
    request.set_value(std::string(value));
    rpc::GetResponse response;
    // The service answers at once: there is no other deadline than this client's.
    TESSERA_RETURN_IF_ERROR(session_.call(&rpc::CoordinatorService::Stub::Propose, request,
                                          &response, deadline - kAnswerGrace));
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
    request.set_name(std::string(name));
    request.set_value(std::string(value));
    const std::vector<int32_t> numbers = IdRanges::of(participants).to_numbers();
    request.mutable_participants()->Assign(numbers.begin(), numbers.end());
    request.set_timeout_us(timeout_us(deadline));
    rpc::Outcome response;
    TESSERA_RETURN_IF_ERROR(with_context(
        session_.call(&rpc::CoordinatorService::Stub::CheckIn, request, &response, deadline),
        name));
    return status_of(response);
  }

  Status leave(absl::Time deadline) override {
    if (!session_.begin_leaving()) return absl::OkStatus();
    rpc::LeaveRequest request;
    request.set_timeout_us(timeout_us(deadline));
    rpc::Outcome response;
    Status status =
        session_.call(&rpc::CoordinatorService::Stub::Leave, request, &response, deadline);
    // The service ends after all clients have left, so there is none to wait for.
    if (absl::IsCancelled(status) && absl::IsCancelled(session_.verdict()))
      status = absl::OkStatus();
    if (status.ok()) status = status_of(response);
    if (server_ != nullptr) server_->stop();
    session_.close();
    return status;
  }

  std::vector<AwaitedCall> awaited(absl::Time deadline) override {
    rpc::AwaitedRequest request;
    rpc::AwaitedAnswer response;
    if (!session_.call(&rpc::CoordinatorService::Stub::Awaited, request, &response, deadline).ok())
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
    write_waits(report.waits, request.mutable_waits());
    request.set_circle(report.circle);
    request.set_at(report.at);
    request.set_is_done(report.is_done);
    request.set_timeout_us(timeout_us(deadline));
    rpc::WaitsAnswer response;
    TESSERA_RETURN_IF_ERROR(
        session_.call(&rpc::CoordinatorService::Stub::Waits, request, &response, deadline));
    TESSERA_RETURN_IF_ERROR(status_of(response.outcome()));
    return CircleStep{.kind = static_cast<CircleStep::Kind>(response.kind()),
                      .number = response.circle(),
                      .at = response.at(),
                      .waits = read_waits(response.waits()),
                      .named = read_waits(response.named())};
  }

  Status cause_of_failed_start(const Status& status) override {
    if (!absl::IsUnavailable(status)) return status;
    const Status loss = session_.await_first_loss();
    return loss.ok() ? status : loss;
  }

 private:
  StatusOr<std::string> get(rpc::GetRequest& request, int setter, absl::Time deadline) {
    request.set_setter(setter);
    request.set_timeout_us(timeout_us(deadline));
    rpc::GetResponse response;
    TESSERA_RETURN_IF_ERROR(
        session_.call(&rpc::CoordinatorService::Stub::Get, request, &response, deadline));
    TESSERA_RETURN_IF_ERROR(status_of(response.outcome()));
    return response.value();
  }

  // The reason why the start of this client waits, for reports of long waits.
  WaitReports::Missing missing_at_start() {
    constexpr absl::Duration kLimit = absl::Seconds(1);
    const std::vector<AwaitedCall> calls =
        session_.is_answered() ? awaited(steady_now() + kLimit) : std::vector<AwaitedCall>();
    if (calls.empty()) {
      return {absl::StrCat(describe_service(options_), " does not answer; see whether ",
                           why_silent(options_)),
              {}};
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

  // Registers, and waits for the others.
  Status join(absl::Time deadline) {
    rpc::RegisterRequest request;
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
        session_.call(&rpc::CoordinatorService::Stub::Register, request, &response, deadline);
    if (absl::IsDeadlineExceeded(status)) return did_not_answer(options_);
    TESSERA_RETURN_IF_ERROR(status);
    TESSERA_RETURN_IF_ERROR(status_of(response.outcome()));
    std::optional<std::vector<MemberInfo>> members =
        decode_members(response.members(), options_.num_clients);
    if (!members.has_value()) {
      return absl::InternalError(absl::StrCat(describe_service(options_),
                                              " sent a list of the clients that cannot be read; ",
                                              kOneBuildAdvice));
    }
    members_ = *std::move(members);
    session_.joined(absl::Microseconds(response.heartbeat_interval_us()),
                    options_.service_host == ServiceHost::kClient0
                        ? absl::StrCat(members_[0].to_string(), ", which hosts the coordinator,")
                        : describe_service(options_));
    return absl::OkStatus();
  }

  const CoordinatorOptions options_;
  std::vector<MemberInfo> members_;  // constant once connected
  std::unique_ptr<CoordinatorServer> server_;
  LossTeller losses_;
  CoordinatorSession session_{options_, losses_};
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
        absl::StrCat("the coordinator's address is ", in_quotes(options.address),
                     "; it must be HOST:PORT, as in host-a:4000, the same on all clients"));
  }
  if (!options.relay.empty() && !parse_address(options.relay).has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("the relay's address is ",
                                                   in_quotes(options.relay),
                                                   "; it must be HOST:PORT of this host"));
  }
  auto coordinator = std::make_unique<GrpcCoordinator>(options);
  TESSERA_RETURN_IF_ERROR(coordinator->connect());
  return coordinator;
}

}  // namespace tessera
