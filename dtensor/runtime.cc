// SPDX-License-Identifier: Apache-2.0
#include "dtensor/runtime.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/format.h"
#include "base/stable_hash.h"
#include "base/text.h"
#include "base/thread.h"
#include "collectives/platform/open_platform.h"
#include "dtensor/check_options.h"
#include "dtensor/describe_devices.h"
#include "dtensor/fetch_program.h"
#include "dtensor/no_sync.h"
#include "dtensor/run_before_exit.h"
#include "dtensor/taken_streams.h"
#include "job/cluster/job_environment.h"
#include "job/coordinator/connect_coordinator.h"
#include "job/environment/environment.h"
#include "job/environment/host.h"
#include "job/environment/job_token.h"
#include "job/launcher/status_channel.h"
#include "mesh/mesh_runtime.h"
#include "relayout/plan.h"

namespace tessera {
namespace {

// A waiter that finds the deadline passed lets the device's own thread notice it first: its text
// then counts this client as arrived.
constexpr absl::Duration kDeadlineGrace = absl::Milliseconds(20);
// How long shutdown() waits past its timeout for the work that it has cancelled.
constexpr absl::Duration kCancelGrace = absl::Milliseconds(200);

// Devices of one client are of one process, and clients of one id of a host are on one host.
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

// Bounds of the caches. Programs: rows of devices and pulls, each some 600 bytes. Plans of
// barriers: devices, and as many beside them as a plan costs.
constexpr int64_t kMostOfPrograms = 100'000;
constexpr int64_t kMostOfBarrierPlans = 20'000;
constexpr int64_t kWeightOfPlan = 16;

uint64_t next_runtime_number() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

// Ends the runtime as its last handle goes:
//
//   where the last handle goes    the runtime
//   on a thread of the user's     ends at once: ~Runtime waits for the threads of its devices
//   on a thread of a device       ends on another thread, because no thread can wait for itself
//   in a report of a long wait    the same
//   in a forked child             stays: its threads and shared memory are the parent's
//
// The first: a program may rely on the job being left when the handle has gone. The second happens
// where a local function holds a tensor, a mesh or the client, and outlives all other handles.
void dispose(Runtime* runtime) {
  if (runtime->is_in_forked_child()) return keep_until_exit(runtime);
  if (runtime->check_may_wait("~Client").ok() && !runtime->is_in_report()) {
    delete runtime;
    return;
  }
  if (run_before_exit("the end of a client", [runtime] { delete runtime; }).ok()) return;
  // It stays in the job until the process ends, as if a handle were left.
  keep_until_exit(runtime);
}

}  // namespace

Runtime::Runtime(const ClientOptions& options, const internal::ClientHooks& hooks)
    : number_(next_runtime_number()),
      options_(options),
      hooks_(hooks),
      barrier_plans_(kMostOfBarrierPlans),
      programs_(kMostOfPrograms),
      fetches_(kMostOfPrograms),
      most_group_bytes_(ClientDevices::kGroupBytes) {}

StatusOr<std::shared_ptr<Runtime>> Runtime::connect(const ClientOptions& options,
                                                    const internal::ClientHooks& hooks) {
  TESSERA_RETURN_IF_ERROR(check_options(options));
  TESSERA_ASSIGN_OR_RETURN(const JobTimes times,
                           read_job_times({.heartbeat_interval = options.heartbeat_interval,
                                           .collective_timeout = options.collective_timeout}));
  const absl::Time begin = steady_now();
  const absl::Time deadline = begin + options.connect_timeout;
  std::shared_ptr<Runtime> runtime(new Runtime(options, hooks), dispose);
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
  TESSERA_RETURN_IF_ERROR(runtime->start_reports(job.client_id));
  CoordinatorOptions coordinator;
  coordinator.address = job.coordinator;
  coordinator.relay = job.relay;
  coordinator.service_host =
      job.coordinator_is_hosted ? ServiceHost::kElsewhere : ServiceHost::kClient0;
  // A file of it is needed no longer than until all clients have connected.
  TESSERA_ASSIGN_OR_RETURN(const JobToken token, find_job_token(job, deadline));
  coordinator.token = token.text;
  coordinator.job = job.job;
  coordinator.num_clients = job.num_clients;
  TESSERA_RETURN_IF_ERROR(check_host_id());
  coordinator.self = describe_this_process();
  coordinator.self.client_id = job.client_id;
  const std::vector<std::string>& host_ids = runtime->hooks_.host_ids;
  if (!host_ids.empty()) coordinator.self.host_id = host_ids[job.client_id];
  coordinator.self.num_local_devices = job.num_local_devices;
  coordinator.self.device_type = device_type_name(options.device_type);
  const std::vector<Arithmetic>& arithmetic = runtime->hooks_.arithmetic;
  coordinator.self.arithmetic =
      (arithmetic.empty() ? Arithmetic::of_this_host() : arithmetic[job.client_id]).to_string();
  coordinator.connect_timeout = options.connect_timeout;
  coordinator.deadline = deadline;
  coordinator.heartbeat_interval = times.heartbeat_interval;
  coordinator.reports = runtime->reports_.get();
  coordinator.begin = begin;
  TESSERA_ASSIGN_OR_RETURN(runtime->coordinator_, connect_coordinator(coordinator));
  // A word for one run of the job: a token may serve many runs.
  const uint64_t job_word =
      stable_hash(token.text, /*seed=*/runtime->coordinator_->members()[0].incarnation);
  const ReportedWait wait(
      runtime->reports_.get(), "connect",
      [raw = runtime.get()] { return raw->awaited_by_connect(); }, begin);
  const Status started = runtime->start_devices(std::move(platform), times, job_word, deadline);
  if (!started.ok()) return runtime->coordinator_->cause_of_failed_start(started);
  runtime->open_ = true;
  // After all that lasts as long as the process was made: it goes first.
  prepare_run_before_exit();
  return runtime;
}

Status Runtime::start_devices(std::unique_ptr<Platform> platform, const JobTimes& times,
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
  if (hooks_.topology.has_value()) {
    topology_ = *hooks_.topology;
  } else if (options_.link_costs.has_value() || !is_one_host) {
    LinkCosts costs = options_.link_costs.value_or(LinkCosts());
    if (!options_.link_costs.has_value()) {
      TESSERA_ASSIGN_OR_RETURN(const transport::NetworkCost measured,
                               client_devices_->measure_network(*coordinator_, deadline));
      costs.network = {measured.latency_s, 1 / measured.bytes_per_s};
    }
    TESSERA_ASSIGN_OR_RETURN(topology_, topology_of(devices_, members, costs));
  }
  coordinator_->set_lost_callback(
      [devices = client_devices_.get()](int client, const Status& reason) {
        // The launcher then knows that what this client does next is not the root cause.
        report_fatal_status(reason);
        devices->report_lost(client, reason);
      });
  return absl::OkStatus();
}

StatusOr<std::shared_ptr<Buffer>> Runtime::allocate(int ordinal, int64_t size_bytes) {
  TESSERA_RETURN_IF_ERROR(check_open());
  return Buffer::allocate(device(ordinal).memory(), size_bytes);
}

Runtime::~Runtime() {
  if (!open_) return;
  close();
  stop(absl::InfiniteFuture());
}

Status Runtime::check_open() const {
  TESSERA_RETURN_IF_ERROR(client_devices_->check_process());
  if (open_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("client ", client_id(), " has shut down; connect a new client first"));
}

StatusOr<Runtime::Turn> Runtime::take_turn() {
  Turn turn(order_mutex_);
  // Under the lock: stop() waits for the operation that has begun, and none begins after that.
  TESSERA_RETURN_IF_ERROR(check_open());
  return turn;
}

int Runtime::local_rank() const {
  const absl::Span<const MemberInfo> members = coordinator_->members();
  const MemberInfo& self = members[client_id()];
  return static_cast<int>(
      std::count_if(members.begin(), members.begin() + client_id(),
                    [&](const MemberInfo& other) { return are_on_one_host(other, self); }));
}

MeshDevices Runtime::local_devices_of(const Mesh& mesh) const {
  MeshDevices result;
  for (const Device& device : local_devices()) {
    if (const std::optional<int64_t> position = mesh.position_of_device(device.id)) {
      result.push_back({device.ordinal, device.id, *position});
    }
  }
  return result;
}

StatusOr<Mesh> Runtime::make_mesh(std::vector<MeshAxis> axes, std::vector<int> device_ids,
                                  const MeshOptions& options) {
  TESSERA_RETURN_IF_ERROR(check_open());
  for (const int id : device_ids) {
    if (id >= static_cast<int>(devices_.size())) {
      return absl::InvalidArgumentError(absl::StrCat("a mesh names device ", id, "; the job has ",
                                                     devices_.size(), " devices, 0 to ",
                                                     devices_.size() - 1));
    }
  }
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, Mesh::create(std::move(axes), std::move(device_ids)));
  std::set<int> owners;
  for (const int id : mesh.device_ids()) owners.insert(devices_[id].client_id);
  if (owners.count(client_id()) > 0 && owners.size() > 1) {
    const std::vector<int> participants(owners.begin(), owners.end());
    const absl::Time deadline =
        options.timeout.has_value() ? steady_now() + *options.timeout : absl::InfiniteFuture();
    const std::string value =
        absl::StrCat(mesh.to_string(), " of devices ", describe_devices(mesh.device_ids()));
    const ReportedWait wait(reports_.get(), absl::StrCat("create_mesh ", value),
                            [this, value] { return awaited(AwaitedCall::kCheckIn, value); });
    const Status agreed = coordinator_->check_in("create_mesh", value, participants, deadline);
    if (absl::IsUnavailable(agreed)) report_fatal_status(agreed);
    TESSERA_RETURN_IF_ERROR(agreed);
  }
  return internal::with_runtime(mesh, shared_from_this());
}

StatusOr<std::shared_ptr<const Runtime::BarrierPlan>> Runtime::barrier_plan(const Mesh& mesh) {
  if (std::shared_ptr<const BarrierPlan> known = barrier_plans_.find(mesh)) return known;
  // The cache lives as long as the runtime: it must not hold a mesh that holds the runtime.
  auto plan = std::make_shared<BarrierPlan>(BarrierPlan{internal::with_runtime(mesh, nullptr),
                                                        absl::StrCat("on ", mesh.to_string()),
                                                        local_devices_of(mesh),
                                                        nullptr,
                                                        {}});
  if (!plan->local.empty()) {
    TESSERA_ASSIGN_OR_RETURN(plan->group, this->group(mesh.device_ids()));
  }
  for (const MeshDevice& device : plan->local) {
    TESSERA_ASSIGN_OR_RETURN(
        plan->collectives.emplace_back(),
        Collective::make({static_cast<int>(mesh.size()), static_cast<int>(device.position)},
                         {.kind = OpKind::kBarrier, .dtype = DType::kInt32, .count = 1}));
  }
  Mesh key = plan->mesh;
  return barrier_plans_.insert(std::move(key), std::move(plan), kWeightOfPlan + mesh.size());
}

int32_t Runtime::barrier_term(int device_id) const {
  return hooks_.barrier_term ? hooks_.barrier_term(device_id) : 1;
}

bool Runtime::meet_here(const BarrierPlan& plan, int64_t* sum) {
  if (static_cast<int64_t>(plan.local.size()) < plan.mesh.size()) return false;
  TakenStreams streams;
  for (const MeshDevice& device : plan.local) {
    if (!streams.take(stream(device.ordinal))) return false;
    *sum += barrier_term(device.device_id);
  }
  return true;
}

// The tensor behind the barrier: int32 of the mesh's shape, fully sharded, one 1 per device.
StatusOr<Runtime::Arrivals> Runtime::start_barrier(const BarrierPlan& plan,
                                                   const BarrierCall& barrier) {
  Arrivals arrivals(plan.local.size());
  // All memory first: where there is none, no device has begun.
  for (Arrival& arrival : arrivals) {
    // The sum, and behind it the term.
    TESSERA_ASSIGN_OR_RETURN(arrival.sum, client_devices_->allocate_on_host(2 * sizeof(int32_t)));
  }
  const SharedText name(quoted_whole(barrier.name));
  const SharedText shown_name(quoted(barrier.name));
  for (size_t i = 0; i < arrivals.size(); ++i) {
    const MeshDevice& device = plan.local[i];
    const std::shared_ptr<Buffer>& sum = arrivals[i].sum;
    auto* const term = reinterpret_cast<int32_t*>(sum->mutable_data()) + 1;
    *term = barrier_term(device.device_id);
    Arguments arguments = {
        .in = reinterpret_cast<const std::byte*>(term),
        .out_buffer = sum,
        .detail = name,
        .detail_field = "name",
        .label = Label(std::string("barrier"), 0, shown_name, plan.where),
        // Waited for first, below.
        .caller_waits = device.ordinal == plan.local.back().ordinal,
    };
    if (barrier.timeout.has_value()) {
      arguments.timeout = *barrier.timeout;
      arguments.deadline = barrier.deadline;
    }
    arrivals[i].work = plan.group->start(plan.collectives[i], std::move(arguments));
  }
  return arrivals;
}

StatusOr<int64_t> Runtime::await_barrier(const Arrivals& arrivals, const BarrierCall& call) {
  for (auto arrival = arrivals.rbegin(); arrival != arrivals.rend(); ++arrival) {
    TESSERA_RETURN_IF_ERROR(call.timeout.has_value()
                                ? arrival->work->wait(call.deadline + kDeadlineGrace - steady_now())
                                : arrival->work->await());
  }
  return *reinterpret_cast<const int32_t*>(arrivals[0].sum->data());
}

Status Runtime::barrier(const Mesh& mesh, absl::string_view name,
                        std::optional<absl::Duration> timeout) {
  TESSERA_RETURN_IF_ERROR(check_open());
  const StatusOr<std::shared_ptr<const BarrierPlan>> found = barrier_plan(mesh);
  if (!found.ok()) {
    return with_context(found.status(),
                        absl::StrCat("barrier ", quoted(name), " on ", mesh.to_string()));
  }
  const BarrierPlan& plan = **found;
  if (plan.local.empty()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(check_may_wait("barrier"));
  const BarrierCall call = {name, timeout,
                            timeout.has_value() ? steady_now() + *timeout : absl::InfiniteFuture()};
  int64_t sum = 0;
  TESSERA_ASSIGN_OR_RETURN(Turn turn, take_turn());
  if (!meet_here(plan, &sum)) {
    TESSERA_ASSIGN_OR_RETURN(const Arrivals arrivals, start_barrier(plan, call));
    turn.unlock();
    TESSERA_ASSIGN_OR_RETURN(sum, await_barrier(arrivals, call));
  }
  if (sum != mesh.size()) {
    return absl::InternalError(absl::StrCat("barrier ", quoted(name), " ", plan.where.view(),
                                            ": the sum over the devices is ", sum, ", expected ",
                                            mesh.size(), "; this is a bug of Tessera"));
  }
  return absl::OkStatus();
}

StatusOr<std::shared_ptr<GroupBackend>> Runtime::group(absl::Span<const int> device_ids) {
  TESSERA_RETURN_IF_ERROR(check_open());
  if (client_devices_->num_group_bytes() > most_group_bytes_.load(std::memory_order_relaxed)) {
    programs_.clear();
    fetches_.clear();
    barrier_plans_.clear();
    client_devices_->forget_unused_groups();
    // What users hold stays: the caches are not emptied again before there is much more.
    const uint64_t kLeast = ClientDevices::kGroupBytes;
    most_group_bytes_.store(std::max(kLeast, client_devices_->num_group_bytes() + kLeast / 4),
                            std::memory_order_relaxed);
  }
  return client_devices_->group(device_ids);
}

Status Runtime::sync_devices() {
  TESSERA_RETURN_IF_ERROR(check_open());
  TESSERA_RETURN_IF_ERROR(check_may_wait("sync_devices"));
  {
    std::lock_guard<std::mutex> lock(no_sync_mutex_);
    const std::thread::id self = std::this_thread::get_id();
    if (std::find(no_sync_.begin(), no_sync_.end(), self) != no_sync_.end()) {
      return absl::FailedPreconditionError(
          "sync_devices is called in a replica function, and other replicas have yet to give the "
          "devices what it would wait for; call it after run()");
    }
  }
  return client_devices_->sync();
}

void Runtime::forbid_sync(std::thread::id thread) {
  std::lock_guard<std::mutex> lock(no_sync_mutex_);
  no_sync_.push_back(thread);
}

void Runtime::allow_sync(std::thread::id thread) {
  std::lock_guard<std::mutex> lock(no_sync_mutex_);
  no_sync_.erase(std::find(no_sync_.begin(), no_sync_.end(), thread));
}

namespace internal {

NoSync::NoSync(const Client& client) : runtime_(runtime_of(client)) {
  runtime_->forbid_sync(std::this_thread::get_id());
}
NoSync::~NoSync() { runtime_->allow_sync(std::this_thread::get_id()); }

}  // namespace internal

StatusOr<std::shared_ptr<const RelayoutProgram>> Runtime::relayout_program(
    const ProgramArgs& args) {
  if (std::shared_ptr<const RelayoutProgram> known = programs_.find(args)) return known;
  // The cache lives as long as the runtime: it must not hold meshes that hold the runtime.
  ProgramKey key = {*args.from.with_mesh(internal::with_runtime(args.from.mesh(), nullptr)),
                    *args.to.with_mesh(internal::with_runtime(args.to.mesh(), nullptr)), args.shape,
                    args.dtype, args.replicas};
  const PlanOptions plan_options = {.topology = topology_,
                                    .reduction_order = options_.reduction_order};
  TESSERA_ASSIGN_OR_RETURN(RelayoutPlan plan,
                           plan_relayout(key.from, key.to, key.shape, key.dtype, plan_options));
  const auto find_group = [this](absl::Span<const int> ids) { return group(ids); };
  TESSERA_ASSIGN_OR_RETURN(
      std::shared_ptr<const RelayoutProgram> program,
      RelayoutProgram::create(program_client(find_group), std::move(plan), key.replicas));
  if (program->lacks_groups()) return program;
  const int64_t weight = program->weight();
  return programs_.insert(std::move(key), std::move(program), weight);
}

StatusOr<std::shared_ptr<const StepProgram>> Runtime::fetch_program(
    const std::shared_ptr<const Fetch>& fetch) {
  if (std::shared_ptr<const StepProgram> known = fetches_.find(fetch)) return known;
  const auto find_group = [this](absl::Span<const int> ids) { return group(ids); };
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<const StepProgram> program,
                           make_fetch_program(program_client(find_group), *fetch));
  if (program->lacks_groups()) return program;
  const int64_t weight = program->weight();
  return fetches_.insert(fetch, std::move(program), weight);
}

void Runtime::close() {
  // The thread that starts an operation has a turn: its operation reaches all of its devices first.
  const std::lock_guard<std::mutex> turn(order_mutex_);
  open_ = false;
}

Status Runtime::shutdown(absl::Duration timeout) {
  TESSERA_RETURN_IF_ERROR(check_may_wait("shutdown"));
  if (is_in_report()) {
    return absl::FailedPreconditionError(
        "shutdown is called in on_wait, and would wait for that call; call it in another thread");
  }
  std::lock_guard<std::mutex> lock(shutdown_mutex_);
  if (!open_) return absl::OkStatus();
  const absl::Time deadline = steady_now() + timeout;
  Status status;
  close();
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
  const std::string still_run = stop(std::max(deadline, steady_now() + kCancelGrace));
  if (!is_idle) {
    status = absl::DeadlineExceededError(absl::StrCat(
        "shutdown of client ", client_id(), ": ",
        not_in_time("work was still pending", timeout, "after"), " and was cancelled", still_run));
  }
  status.Update(left);
  return status;
}

std::string Runtime::stop(absl::Time deadline) {
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
                      [self = shared_from_this()] { self->client_devices_->end_threads(); });
  if (!rest.ok()) client_devices_->end_threads();
  return still_run;
}

}  // namespace tessera
