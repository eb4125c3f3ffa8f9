// SPDX-License-Identifier: Apache-2.0
#include "dtensor/job_connection.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/format.h"
#include "base/stable_hash.h"
#include "collectives/platform/open_platform.h"
#include "dtensor/check_options.h"
#include "dtensor/run_before_exit.h"
#include "job/cluster/job_environment.h"
#include "job/coordinator/connect_coordinator.h"
#include "job/environment/environment.h"
#include "job/environment/host.h"
#include "job/environment/job_token.h"
#include "job/launcher/status_channel.h"
#include "relayout/topology.h"

namespace tessera {
namespace {

// How long shutdown() waits past its timeout for the work that it has cancelled.
constexpr absl::Duration kCancelGrace = absl::Milliseconds(200);
// How long to wait for the coordinator's answer about an awaited call.
constexpr absl::Duration kAnswerLimit = absl::Seconds(1);

// Devices of one client belong to one process, and clients with one host id are on one host.
StatusOr<Topology> topology_of(absl::Span<const Device> devices,
                               absl::Span<const MemberInfo> members, const LinkCosts& costs) {
  const auto num_devices = static_cast<int64_t>(devices.size());
  std::vector<int> process_of;
  for (const Device& device : devices) process_of.push_back(device.client_id);
  const std::vector<int> host_of_client = number_hosts(members);
  std::vector<int> host_of;
  for (const Device& device : devices) host_of.push_back(host_of_client[device.client_id]);
  const int64_t per_process = std::count(process_of.begin(), process_of.end(), process_of[0]);
  // Clients of equally many devices are digits of a mesh, by which moves can be cut into batches.
  const int64_t per_host = std::count(host_of.begin(), host_of.end(), host_of[0]);
  bool even = true;
  for (int64_t id = 0; id < num_devices; ++id) {
    even &= process_of[id] == process_of[0] + id / per_process && host_of[id] == id / per_host;
  }
  if (even) return Topology::uniform(per_process, per_host, costs);
  return Topology::of_devices(std::move(process_of), std::move(host_of), costs);
}

// The best that the CPUs of all members can compute with.
StatusOr<Arithmetic> arithmetic_of(absl::Span<const MemberInfo> members) {
  TESSERA_ASSIGN_OR_RETURN(Arithmetic common, Arithmetic::parse(members[0].arithmetic));
  for (const MemberInfo& member : members.subspan(1)) {
    TESSERA_ASSIGN_OR_RETURN(const Arithmetic each, Arithmetic::parse(member.arithmetic));
    common = common_arithmetic(common, each);
  }
  return common;
}

// The clients are not connected among each other yet: their names are all that is known.
WaitReports::Missing awaited_by_connect(Coordinator& coordinator) {
  std::set<int> missing, silent;
  for (const AwaitedCall& call : coordinator.awaited(steady_now() + kAnswerLimit)) {
    missing.insert(call.missing.begin(), call.missing.end());
    silent.insert(call.silent.begin(), call.silent.end());
  }
  if (missing.empty()) return {};
  const auto name = [&](std::string* out, int client) {
    absl::StrAppend(out, coordinator.members()[client].to_string(),
                    silent.count(client) > 0 ? ", does not answer" : "");
  };
  return {absl::StrCat("missing ", absl::StrJoin(missing, "; ", name)),
          {missing.begin(), missing.end()}};
}

// The options that depend neither on the token nor on the time of the call.
CoordinatorOptions coordinator_options(const JobEnvironment& job, const ClientOptions& options,
                                       const internal::ClientHooks& hooks) {
  CoordinatorOptions coordinator;
  coordinator.address = job.coordinator;
  coordinator.relay = job.relay;
  coordinator.service_host =
      job.coordinator_is_hosted ? ServiceHost::kElsewhere : ServiceHost::kClient0;
  coordinator.job = job.job;
  coordinator.num_clients = job.num_clients;
  coordinator.self = describe_this_process();
  coordinator.self.client_id = job.client_id;
  if (!hooks.host_ids.empty()) coordinator.self.host_id = hooks.host_ids[job.client_id];
  coordinator.self.num_local_devices = job.num_local_devices;
  coordinator.self.device_type = device_type_name(options.device_type);
  coordinator.self.arithmetic =
      (hooks.arithmetic.empty() ? Arithmetic::of_this_host() : hooks.arithmetic[job.client_id])
          .to_string();
  coordinator.connect_timeout = options.connect_timeout;
  return coordinator;
}

}  // namespace

StatusOr<JobConnection> JobConnection::connect(const ClientOptions& options,
                                               const internal::ClientHooks& hooks) {
  TESSERA_RETURN_IF_ERROR(check_options(options));
  TESSERA_ASSIGN_OR_RETURN(const JobTimes times,
                           read_job_times({.heartbeat_interval = options.heartbeat_interval,
                                           .collective_timeout = options.collective_timeout}));
  const absl::Time begin = steady_now();
  const absl::Time deadline = begin + options.connect_timeout;
  JobConnection self(options, hooks);
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<Platform> platform,
      open_platform(options.device_type, {.cuda = hooks.cuda,
                                          .nccl = hooks.nccl,
                                          .nccl_adds = options.backend == Backend::kNccl,
                                          .collective_timeout = times.collective_timeout}));
  TESSERA_ASSIGN_OR_RETURN(
      const JobEnvironment job,
      read_job_environment({.coordinator = options.coordinator,
                            .client_id = options.client_id,
                            .num_clients = options.num_clients,
                            .num_local_devices = options.num_local_devices,
                            .default_local_devices = platform->default_num_devices(),
                            .token = options.token,
                            .share_gpus = hooks.share_gpus,
                            .coordinator_is_hosted = options.coordinator_is_hosted}));
  TESSERA_RETURN_IF_ERROR(check_address(job));
  TESSERA_RETURN_IF_ERROR(platform->prepare(job));
  TESSERA_RETURN_IF_ERROR(self.start_reports(job.client_id));
  // A file of it is needed no longer than until all clients have connected.
  TESSERA_ASSIGN_OR_RETURN(const JobToken token, find_job_token(job, deadline));
  TESSERA_RETURN_IF_ERROR(check_host_id());
  CoordinatorOptions coordinator = coordinator_options(job, options, hooks);
  coordinator.token = token.text;
  coordinator.deadline = deadline;
  coordinator.heartbeat_interval = times.heartbeat_interval;
  coordinator.begin = begin;
  coordinator.reports = self.reports_.get();
  TESSERA_ASSIGN_OR_RETURN(self.coordinator_, connect_coordinator(coordinator));
  // A word for one run of the job: a token may serve many runs.
  const uint64_t job_word =
      stable_hash(token.text, /*seed=*/self.coordinator_->members()[0].incarnation);
  const ReportedWait wait(
      self.reports_.get(), "connect",
      [coordinator = self.coordinator_.get()] { return awaited_by_connect(*coordinator); }, begin);
  const Status started = self.start_devices(std::move(platform), times, job_word, deadline);
  if (!started.ok()) return self.coordinator_->cause_of_failed_start(started);
  return self;
}

Status JobConnection::start_devices(std::unique_ptr<Platform> platform, const JobTimes& times,
                                    uint64_t job_word, absl::Time deadline) {
  const Status status = platform->join(*coordinator_, deadline);
  if (!status.ok()) {
    // All clients find the same error and leave, so that none is reported lost to another.
    coordinator_->leave(deadline).IgnoreError();
    return status;
  }
  for (const MemberInfo& member : coordinator_->members()) {
    for (int ordinal = 0; ordinal < member.num_local_devices; ++ordinal) {
      Device device;
      device.id = static_cast<int>(devices_.size());
      device.client_id = member.client_id;
      device.ordinal = ordinal;
      device.type = options_.device_type;
      device.host = member.host;
      devices_.push_back(device);
    }
  }
  const absl::Span<const MemberInfo> members = coordinator_->members();
  TESSERA_ASSIGN_OR_RETURN(arithmetic_, arithmetic_of(members));
  const bool is_one_host = std::all_of(members.begin(), members.end(), [&](const MemberInfo& m) {
    return are_on_one_host(m, members[0]);
  });
  TESSERA_ASSIGN_OR_RETURN(
      client_devices_,
      ClientDevices::start(std::move(platform), *coordinator_, devices_,
                           {.collective_timeout = times.collective_timeout,
                            .mpi = options_.backend == Backend::kMpi ? options_.mpi : nullptr,
                            .uses_gloo = options_.backend == Backend::kGloo,
                            .heartbeat_interval = times.heartbeat_interval,
                            .job_word = job_word,
                            .wrap_engine = hooks_.wrap_engine},
                           deadline));
  client_devices_->report_waits(*reports_);
  plan_options_.reduction_order = options_.reduction_order;
  if (hooks_.topology.has_value()) {
    plan_options_.topology = *hooks_.topology;
  } else if (options_.link_costs.has_value() || !is_one_host) {
    LinkCosts costs = options_.link_costs.value_or(LinkCosts());
    if (!options_.link_costs.has_value()) {
      TESSERA_ASSIGN_OR_RETURN(const transport::NetworkCost measured,
                               client_devices_->measure_network(*coordinator_, deadline));
      costs.network = {measured.latency_s, 1 / measured.bytes_per_s};
    }
    TESSERA_ASSIGN_OR_RETURN(plan_options_.topology, topology_of(devices_, members, costs));
  }
  coordinator_->set_lost_callback(
      [devices = client_devices_.get(), first = first_loss_](int client, const Status& reason) {
        {
          std::lock_guard<std::mutex> lock(first->mutex);
          first->status.Update(reason);
        }
        // The launcher then knows that later actions of this client are not the root cause.
        report_fatal_status(reason);
        devices->report_lost(client, reason);
      });
  return absl::OkStatus();
}

Status JobConnection::start_reports(int client_id) {
  WaitReports::Options options = {.subject = absl::StrCat("client ", client_id),
                                  .sink = options_.on_wait};
  if (hooks_.wait_report_unit > absl::ZeroDuration()) options.unit = hooks_.wait_report_unit;
  reports_ = std::make_unique<WaitReports>(std::move(options));
  return reports_->start();
}

WaitReports::Missing JobConnection::awaited(AwaitedCall::Kind kind, absl::string_view value) const {
  for (const AwaitedCall& call : coordinator_->awaited(steady_now() + kAnswerLimit)) {
    if (call.kind != kind || call.text != value || call.missing.empty()) continue;
    WaitReports::Missing missing = client_devices_->describe_clients(call.missing, call.silent);
    missing.text = absl::StrCat(call.num_clients - call.missing.size(), " of ", call.num_clients,
                                " clients arrived; missing ", missing.text);
    return missing;
  }
  return {};
}

Status JobConnection::first_loss() const {
  std::lock_guard<std::mutex> lock(first_loss_->mutex);
  return first_loss_->status;
}

int JobConnection::local_rank() const {
  const absl::Span<const MemberInfo> members = coordinator_->members();
  const MemberInfo& self = members[client_id()];
  return static_cast<int>(
      std::count_if(members.begin(), members.begin() + client_id(),
                    [&](const MemberInfo& other) { return are_on_one_host(other, self); }));
}

Status JobConnection::check_in(absl::string_view name, const std::string& value,
                               absl::Span<const int> participants, absl::Time deadline) const {
  const ReportedWait wait(reports_.get(), absl::StrCat(name, " ", value),
                          [this, value] { return awaited(AwaitedCall::kCheckIn, value); });
  const Status agreed = coordinator_->check_in(name, value, participants, deadline);
  if (absl::IsUnavailable(agreed)) report_fatal_status(agreed);
  return agreed;
}

Status JobConnection::leave(absl::Duration timeout, std::shared_ptr<const void> keep) {
  const absl::Time deadline = steady_now() + timeout;
  Status status;
  const bool is_idle = client_devices_->drain(deadline);
  // Before the job is told that this client leaves: operations with other clients then end as
  // Cancelled, not with the loss of the service where this client hosts it.
  is_idle ? client_devices_->show_shutdown() : client_devices_->cancel();
  Status left;
  {
    const ReportedWait wait(reports_.get(), "shutdown",
                            [this] { return awaited(AwaitedCall::kLeave, ""); });
    left = coordinator_->leave(std::max(deadline, steady_now() + absl::Milliseconds(100)));
  }
  client_devices_->leave();
  // Cancelled work needs a moment to end.
  const std::string still_run =
      stop(std::max(deadline, steady_now() + kCancelGrace), std::move(keep));
  if (!is_idle) {
    status = absl::DeadlineExceededError(absl::StrCat(
        "shutdown of client ", client_id(), ": ",
        not_in_time("work was still pending", timeout, "after"), " and was cancelled", still_run));
  }
  status.Update(left);
  return status;
}

std::string JobConnection::stop(absl::Time deadline, std::shared_ptr<const void> keep) {
  coordinator_->set_lost_callback(nullptr);
  // So that the streams finish.
  client_devices_->cancel();
  const std::string still_run = client_devices_->stop(deadline);
  reports_->stop();
  reports_->set_listener(nullptr);
  if (still_run.empty()) {
    client_devices_->end_threads();
    return still_run;
  }
  const Status rest =
      run_before_exit("the end of a client whose functions still run",
                      [this, keep = std::move(keep)] { client_devices_->end_threads(); });
  if (!rest.ok()) client_devices_->end_threads();
  return still_run;
}

}  // namespace tessera
