// SPDX-License-Identifier: Apache-2.0
#include "servers/cluster_coordinator.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/format.h"
#include "base/text.h"
#include "base/wait_reports.h"
#include "input/source.h"
#include "job/coordinator/coordinator_server.h"
#include "job/environment/environment.h"
#include "servers/chief_waits.h"
#include "servers/closure_scheduler.h"
#include "servers/dataset_answers.h"
#include "servers/handle_access.h"
#include "servers/heartbeats.h"
#include "servers/outcome.h"
#include "servers/parameter_servers.h"
#include "servers/registry_names.h"
#include "servers/shard_rows.h"
#include "servers/task_links.h"
#include "servers/task_token.h"
#include "servers/tensor_message.h"
#include "servers/value_state.h"
#include "servers/variable_place.h"
#include "servers/variable_table.h"
#include "servers/wire.h"
#include "tessera/servers/parameter_server.pb.h"

namespace tessera::distribute {

namespace {

using internal::ChiefWaits;
using internal::DatasetAnswers;
using internal::DatasetPlace;
using internal::ParameterServers;
using internal::RegistryNames;
using internal::RemoteDatasetAccess;
using internal::TaskClient;
using internal::TaskLinks;
using internal::ValueState;
using internal::VariableAccess;
using internal::VariablePlace;
using internal::VariableTable;

constexpr absl::Duration kConnectTimeout = absl::Minutes(1);

uint64_t random_number() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

Status check_cluster(const cluster::Cluster& cluster) {
  const int num_chiefs = cluster.spec.num_tasks("chief");
  if (num_chiefs > 1) {
    return absl::InvalidArgumentError(absl::StrCat("the cluster ", cluster.spec.to_string(),
                                                   " has ", num_chiefs,
                                                   " tasks of job chief; a cluster has one"));
  }
  for (const char* const job : {"worker", "ps"}) {
    if (cluster.spec.num_tasks(job) > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("the cluster ", cluster.spec.to_string(),
                                                   " has no task of job ", job,
                                                   "; a ClusterCoordinator needs one or more"));
  }
  if (cluster.task_type != "chief") {
    return absl::InvalidArgumentError(
        absl::StrCat("a ClusterCoordinator is made by the chief, and this task is ",
                     in_quotes(cluster.task_type), "; a worker and a ps start a Server"));
  }
  return internal::check_token(cluster.spec);
}

Status check_options(const CoordinatorOptions& options) {
  const auto check = [](const char* name, int64_t value) {
    return value >= 1 ? absl::OkStatus()
                      : absl::InvalidArgumentError(
                            absl::StrCat(name, " is ", value, "; it must be 1 or more"));
  };
  TESSERA_RETURN_IF_ERROR(check("queue_limit", options.queue_limit));
  TESSERA_RETURN_IF_ERROR(check("max_attempts", options.max_attempts));
  if (options.heartbeat_interval.has_value() &&
      (*options.heartbeat_interval < kLeastHeartbeatInterval ||
       *options.heartbeat_interval > kMostHeartbeatInterval)) {
    return absl::InvalidArgumentError(absl::StrCat("heartbeat_interval is ",
                                                   format_duration(*options.heartbeat_interval),
                                                   "; it must be from 1 ms to 1 h"));
  }
  if (options.worker_wait > absl::ZeroDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "worker_wait is ", format_duration(options.worker_wait), "; it must be longer than 0"));
}

// The interval of the options, or else of the environment.
StatusOr<absl::Duration> heartbeat_interval_of(const CoordinatorOptions& options) {
  constexpr absl::Duration kDefault = absl::Seconds(4);
  TESSERA_ASSIGN_OR_RETURN(const JobTimes times,
                           read_job_times({.heartbeat_interval = options.heartbeat_interval},
                                          [](const char* name) { return std::getenv(name); }));
  const bool is_given = options.heartbeat_interval.has_value() ||
                        std::getenv("TESSERA_HEARTBEAT_INTERVAL") != nullptr;
  return is_given ? times.heartbeat_interval : kDefault;
}

}  // namespace

class ClusterCoordinator::Impl {
 public:
  Impl(const cluster::ClusterSpec& spec, Partitioner partitioner, const CoordinatorOptions& options,
       absl::Duration wait_report_unit)
      : num_workers_(spec.num_tasks("worker")),
        num_ps_(spec.num_tasks("ps")),
        chief_(random_number()),
        partitioner_(std::move(partitioner)),
        worker_wait_(options.worker_wait),
        workers_(names_of("worker", spec)),
        ps_names_(names_of("ps", spec)),
        scheduler_({.workers = workers_,
                    .num_ps = num_ps_,
                    .queue_limit = options.queue_limit,
                    .worker_wait = options.worker_wait,
                    .max_attempts = options.max_attempts}),
        is_updating_(num_ps_, false),
        variables_(num_ps_),
        waits_(new ChiefWaits{
            WaitReports(
                {.subject = "the chief", .sink = options.on_wait, .unit = wait_report_unit}),
            [this] { return describe_awaited(); }}) {}

  ~Impl() {
    waits_->reports.stop();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      is_stopping_ = true;
      scheduler_.stop();
    }
    act();
    if (servers_ != nullptr) servers_->close();
    if (links_ != nullptr) links_->stop(end_);
  }

  // Sets the reason that the servers get at the end; by default OK, the end in order.
  void set_end(const Status& reason) { end_ = reason; }

  Status connect(const cluster::ClusterSpec& spec, absl::Duration heartbeat_interval) {
    TESSERA_RETURN_IF_ERROR(prepare_grpc());
    TESSERA_RETURN_IF_ERROR(waits_->reports.start());
    const ReportedWait wait = waits_->in("ClusterCoordinator::create");
    const absl::Time deadline = steady_now() + std::min(kConnectTimeout, worker_wait_);
    TESSERA_ASSIGN_OR_RETURN(
        std::unique_ptr<TaskLinks> links,
        TaskLinks::start(
            spec, chief_, heartbeat_interval,
            {.new_session = [this](const TaskLinks::Task& task) { return new_session(task); },
             .up = [this](const TaskLinks::Task& task, uint64_t session,
                          const rpc::HelloResponse& response) { up(task, session, response); },
             .lost = [this](const TaskLinks::Task& task, const Status& why) { lost(task, why); },
             .refused =
                 [this](const TaskLinks::Task&, const Status& why) {
                   std::lock_guard<std::mutex> lock(mutex_);
                   refused_.Update(why);
                   changed_.notify_all();
                 },
             .tick = [this] { tick(); }}));
    std::unique_lock<std::mutex> lock(mutex_);
    links_ = std::move(links);
    changed_.notify_all();
    changed_.wait_until(lock, to_chrono_steady(deadline), [this] {
      return !refused_.ok() || !ps_lost_.ok() || num_up_ == num_workers_ + num_ps_;
    });
    TESSERA_RETURN_IF_ERROR(refused_);
    TESSERA_RETURN_IF_ERROR(ps_lost_);
    if (num_up_ < num_workers_ + num_ps_) {
      return absl::DeadlineExceededError(
          absl::StrCat("ClusterCoordinator: tasks of the cluster that were not reached: ",
                       absl::StrJoin(links_->tasks_away(), "; ")));
    }
    TESSERA_ASSIGN_OR_RETURN(servers_, ParameterServers::connect(chief_, links_->ps_addresses()));
    return absl::OkStatus();
  }

  int num_workers() const { return num_workers_; }
  int num_ps() const { return num_ps_; }

  StatusOr<RemoteVariable> variable(std::string name, const HostArray& initial) {
    if (name.empty()) return absl::InvalidArgumentError("a variable needs a name");
    TESSERA_RETURN_IF_ERROR(
        with_context(initial.validate(), absl::StrCat("variable ", in_quotes(name))));
    VariablePlace place = {
        .name = std::move(name), .dtype = initial.dtype, .shape = initial.shape, .chief = chief_};
    TESSERA_ASSIGN_OR_RETURN(
        place.rows, internal::shard_rows(partitioner_, initial.shape, initial.dtype, num_ps_));
    {
      std::lock_guard<std::mutex> lock(mutex_);
      TESSERA_RETURN_IF_ERROR(ps_lost_);
      TESSERA_RETURN_IF_ERROR(variables_.add(&place));
    }
    const ReportedWait wait =
        waits_->in(absl::StrCat("ClusterCoordinator::variable of ", in_quotes(place.name)));
    const Status created = servers_->create(place, initial);
    std::lock_guard<std::mutex> lock(mutex_);
    TESSERA_RETURN_IF_ERROR(ps_lost_);
    TESSERA_RETURN_IF_ERROR(created);
    return VariableAccess::make(std::move(place));
  }

  RemoteValue schedule(absl::string_view function, std::vector<Argument> args) {
    auto value = std::make_shared<ValueState>(std::string(function), waits_);
    StatusOr<rpc::RunRequest> request = request_of(function, args);
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (!scheduler_.has_room()) {
        const ReportedWait wait = waits_->in("ClusterCoordinator::schedule");
        changed_.wait(lock, [this] { return scheduler_.has_room(); });
      }
      if (request.ok()) {
        const Status known = registry_names_.check_function(function);
        if (!known.ok()) request = known;
      }
      const ClosureId id = request.ok() ? scheduler_.add(std::string(function), steady_now())
                                        : scheduler_.add_failed(request.status());
      closures_[id].value = value;
      if (request.ok()) closures_[id].request = *std::move(request);
    }
    act();
    return RemoteValue(std::move(value));
  }

  StatusOr<RemoteDataset> create_per_worker_dataset(absl::string_view function) {
    DatasetPlace place = {
        .name = std::string(function), .chief = chief_, .number = 0, .num_workers = num_workers_};
    {
      std::lock_guard<std::mutex> lock(mutex_);
      TESSERA_RETURN_IF_ERROR(ps_lost_);
      TESSERA_RETURN_IF_ERROR(registry_names_.check_dataset(function));
      place.number = scheduler_.add_dataset();
    }
    const absl::Time deadline = steady_now() + worker_wait_;
    const ReportedWait wait = waits_->in(
        absl::StrCat("ClusterCoordinator::create_per_worker_dataset of ", in_quotes(function)));
    while (true) {
      TESSERA_ASSIGN_OR_RETURN(std::optional<std::vector<input::TensorSpec>> spec,
                               make_on_workers(place));
      std::unique_lock<std::mutex> lock(mutex_);
      TESSERA_RETURN_IF_ERROR(ps_lost_);
      if (spec.has_value()) {
        place.spec = *std::move(spec);
        return RemoteDatasetAccess::make(std::move(place));
      }
      if (steady_now() >= deadline) {
        return absl::UnavailableError(absl::StrCat("data set ", in_quotes(function),
                                                   ": no worker was there for ",
                                                   format_duration(worker_wait_)));
      }
      changed_.wait_until(lock, to_chrono_steady(steady_now() + kLongestTick),
                          [this] { return !ps_lost_.ok(); });
    }
  }

  StatusOr<bool> done() {
    std::lock_guard<std::mutex> lock(mutex_);
    TESSERA_RETURN_IF_ERROR(scheduler_.take_error());
    return scheduler_.is_idle();
  }

  Status join(absl::Duration timeout) {
    const ReportedWait wait = waits_->in("ClusterCoordinator::join");
    std::unique_lock<std::mutex> lock(mutex_);
    const bool in_time = changed_.wait_until(lock, to_chrono_steady(steady_now() + timeout),
                                             [this] { return scheduler_.is_idle(); });
    if (in_time) return scheduler_.take_error();
    return absl::DeadlineExceededError(not_in_time(count_closures(), timeout, "after"));
  }

 private:
  // Requires the lock.
  std::string count_closures() const {
    return absl::StrCat(closures_.size(), " closure", closures_.size() == 1 ? " is" : "s are",
                        " not over");
  }

  // Describes the waits of this chief's calls: the missing tasks, and the workers' activities, the
  // longest first.
  std::optional<WaitReports::Missing> describe_awaited() {
    constexpr size_t kMostParts = 12;
    std::vector<std::string> parts;
    std::vector<std::pair<absl::Time, std::string>> activities;  // each with its beginning
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (links_ == nullptr) return std::nullopt;
      parts.push_back(!closures_.empty() ? count_closures()
                                         : absl::StrCat(num_up_, " of ", num_workers_ + num_ps_,
                                                        " tasks are connected"));
      for (const auto& [worker, run] : runs_) {
        if (!scheduler_.is_current(run.key)) continue;
        activities.emplace_back(
            run.since,
            absl::StrCat(workers_[worker], " has been ",
                         run.has_returned ? "waiting for the parameter servers after " : "",
                         "running function ", in_quotes(run.function)));
      }
      for (const auto& [place, making] : makings_) {
        activities.emplace_back(making.since,
                                absl::StrCat(workers_[place.first], " has been making data set ",
                                             in_quotes(making.dataset)));
      }
    }
    for (std::string& task : links_->describe_missing()) parts.push_back(std::move(task));
    std::sort(activities.begin(), activities.end());
    for (auto& [since, activity] : activities) {
      parts.push_back(absl::StrCat(activity, " for ", format_duration(steady_now() - since)));
    }
    if (parts.size() > kMostParts) {
      const size_t num_more = parts.size() - kMostParts;
      parts.resize(kMostParts);
      parts.push_back(absl::StrCat(num_more, " more tasks"));
    }
    return WaitReports::Missing{absl::StrJoin(parts, "; "), {}};
  }

  struct Closure {
    rpc::RunRequest request;  // with the numbers of the latest run
    std::shared_ptr<ValueState> value;
  };
  struct Run {
    ClosureId closure = 0;
    RunKey key = {};
    std::string function = {};
    absl::Time since = {};      // of sending the run or of its return
    bool has_returned = false;  // and its pushes are not yet applied
  };
  struct Making {
    std::string dataset;
    absl::Time since;
  };

  static std::vector<std::string> names_of(const char* job, const cluster::ClusterSpec& spec) {
    std::vector<std::string> names;
    for (int i = 0; i < spec.num_tasks(job); ++i) {
      names.push_back(TaskLinks::Task{job, i, spec.task_address(job, i).value_or("")}.to_string());
    }
    return names;
  }

  // Asks the workers that are up, and waits until their running functions have returned. A worker
  // that connects later makes the data set when it gets its first closure that reads it.
  StatusOr<std::optional<std::vector<input::TensorSpec>>> make_on_workers(
      const DatasetPlace& place) {
    std::vector<std::pair<int, uint64_t>> workers;  // each with its session
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (int worker = 0; worker < num_workers_; ++worker) {
        const std::optional<uint64_t> session = scheduler_.session(worker);
        if (session.has_value()) workers.emplace_back(worker, *session);
      }
    }
    const auto answers =
        std::make_shared<DatasetAnswers>(place.name, static_cast<int>(workers.size()));
    for (const auto& [worker, session] : workers) {
      {
        std::lock_guard<std::mutex> lock(mutex_);
        makings_[{worker, place.number}] = {place.name, steady_now()};
      }
      rpc::MakeDatasetRequest request;
      request.mutable_caller()->set_chief(chief_);
      request.mutable_caller()->set_session(session);
      internal::set_dataset(request.mutable_dataset(), place);
      links_->call<rpc::MakeDatasetRequest, rpc::MakeDatasetResponse>(
          "worker", worker, &TaskClient::Stub::PrepareAsyncMakeDataset, request,
          [this, answers, worker = worker, number = place.number](
              const grpc::Status& status, rpc::MakeDatasetResponse& response) {
            {
              std::lock_guard<std::mutex> lock(mutex_);
              makings_.erase({worker, number});
            }
            answers->add(workers_[worker], status, response);
          });
    }
    return answers->wait();
  }

  // InvalidArgument for arguments of another coordinator, and for more bytes than a message may
  // have.
  Status check_arguments(absl::string_view function, absl::Span<const Argument> args) const {
    int64_t num_bytes = 0;
    for (size_t i = 0; i < args.size(); ++i) {
      const std::string where = absl::StrCat("argument ", i, " of function ", in_quotes(function));
      if (const auto* const array = std::get_if<HostArray>(&args[i])) {
        TESSERA_RETURN_IF_ERROR(with_context(array->validate(), where));
        num_bytes += static_cast<int64_t>(array->bytes.size());
      } else if (const auto* const dataset = std::get_if<RemoteDataset>(&args[i])) {
        const DatasetPlace& place = RemoteDatasetAccess::place(*dataset);
        if (place.chief != chief_) {
          return absl::InvalidArgumentError(absl::StrCat(
              where, ": data set ", in_quotes(place.name), " is of another ClusterCoordinator"));
        }
      } else if (const auto& variable = std::get<RemoteVariable>(args[i]);
                 VariableAccess::place(variable).chief != chief_) {
        return absl::InvalidArgumentError(absl::StrCat(
            where, ": variable ", in_quotes(variable.name()), " is of another ClusterCoordinator"));
      }
    }
    if (num_bytes <= internal::kMostMessageBytes) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "the arguments of function ", in_quotes(function), " have ", format_bytes(num_bytes),
        "; the most is ", format_bytes(internal::kMostMessageBytes), ", use a variable"));
  }
  StatusOr<rpc::RunRequest> request_of(absl::string_view function,
                                       absl::Span<const Argument> args) const {
    TESSERA_RETURN_IF_ERROR(check_arguments(function, args));
    rpc::RunRequest request;
    request.set_function(std::string(function));
    for (const Argument& arg : args) internal::set_argument(request.add_arguments(), arg);
    return request;
  }

  uint64_t new_session(const TaskLinks::Task& task) {
    std::lock_guard<std::mutex> lock(mutex_);
    return task.is_worker() ? scheduler_.new_session(task.index) : ++last_ps_session_;
  }

  void up(const TaskLinks::Task& task, uint64_t session, const rpc::HelloResponse& response) {
    Status accepted;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      // Waits for links_, which is set after start() has returned; start() does not wait for this
      // call.
      changed_.wait(lock, [this] { return links_ != nullptr; });
      if (!task.is_worker()) {
        // A parameter server that was lost and returns has no variables: the loss is permanent.
        ++num_up_;
        ps_sessions_[task.index] = session;
      } else {
        accepted = registry_names_.add(task.to_string(),
                                       {response.functions().begin(), response.functions().end()},
                                       {response.datasets().begin(), response.datasets().end()});
        if (accepted.ok()) {
          ++num_up_;
          scheduler_.worker_up(task.index, session);
        } else {
          refused_.Update(accepted);
        }
      }
      changed_.notify_all();
    }
    if (!accepted.ok()) links_->dismiss(task, accepted);
    act();
  }

  void lost(const TaskLinks::Task& task, const Status& why) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      --num_up_;
      if (task.is_worker()) {
        scheduler_.worker_lost(task.index, why, steady_now());
      } else {
        lose_ps(task.index, why);
      }
    }
    if (!task.is_worker() && servers_ != nullptr) servers_->close();
    act();
  }
  // Requires the lock. After releasing it the caller closes servers_ and calls act().
  void lose_ps(int ps, const Status& why) {
    const std::string names = variables_.names_on(ps);
    ps_lost_.Update(Status(
        why.code(),
        absl::StrCat(why.message(),
                     names.empty() ? "; it held no variables" : "; with it are lost the variables ",
                     names)));
    scheduler_.ps_lost(ps_lost_);
    changed_.notify_all();
  }

  void tick() {
    std::vector<std::pair<RunKey, rpc::RunRequest>> runs;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      scheduler_.advance(steady_now());
      for (const RunKey& run : std::exchange(resends_, {})) {
        const auto it = closures_.find(runs_[run.worker].closure);
        if (!scheduler_.is_current(run)) continue;
        if (it != closures_.end()) {
          runs.emplace_back(run, it->second.request);
        } else {
          scheduler_.run_finished(run, absl::CancelledError("its closure is over"), {});
        }
      }
    }
    for (auto& [run, request] : runs) send(run, std::move(request));
    act();
  }

  // Takes the scheduler's actions after an event. The caller must not hold a lock.
  void act() {
    std::vector<std::pair<RunKey, rpc::RunRequest>> runs;
    std::vector<std::pair<int, rpc::UpdateRequest>> updates;
    std::vector<std::pair<std::shared_ptr<ValueState>, Status>> finished;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (links_ == nullptr) return;
      for (const ClosureScheduler::Dispatch& dispatch : scheduler_.take_dispatches()) {
        rpc::RunRequest& request = closures_[dispatch.closure].request;
        request.mutable_caller()->set_chief(chief_);
        request.mutable_caller()->set_session(dispatch.run.session);
        request.set_run(dispatch.run.run);
        request.set_attempt(dispatch.attempt);
        for (rpc::Argument& argument : *request.mutable_arguments()) {
          if (!argument.has_dataset()) continue;
          rpc::Dataset& dataset = *argument.mutable_dataset();
          dataset.set_position(scheduler_.position(dataset.number(), dispatch.run.worker));
        }
        runs_[dispatch.run.worker] = {.closure = dispatch.closure,
                                      .key = dispatch.run,
                                      .function = request.function(),
                                      .since = steady_now()};
        runs.emplace_back(dispatch.run, request);
      }
      for (int ps = 0; ps < num_ps_ && !is_stopping_; ++ps) {
        if (is_updating_[ps]) continue;
        const ServerUpdate* const update = scheduler_.update(ps);
        if (update == nullptr) continue;
        is_updating_[ps] = true;
        internal::set_update(&updates.emplace_back(ps, rpc::UpdateRequest()).second, *update);
      }
      for (ClosureScheduler::Settled& settled : scheduler_.take_settled()) {
        const auto it = closures_.find(settled.closure);
        finished.emplace_back(std::move(it->second.value), std::move(settled.status));
        closures_.erase(it);
      }
      changed_.notify_all();
    }
    for (const auto& [value, status] : finished) value->finish(status);
    for (auto& [run, request] : runs) send(run, std::move(request));
    for (auto& [ps, request] : updates) send_update(ps, std::move(request));
  }

  void send(const RunKey& run, rpc::RunRequest request) {
    links_->call<rpc::RunRequest, rpc::RunResponse>(
        "worker", run.worker, &TaskClient::Stub::PrepareAsyncRun, request,
        [this, run](const grpc::Status& status, rpc::RunResponse& response) {
          answered(run, status, response);
        });
  }
  void answered(const RunKey& run, const grpc::Status& status, const rpc::RunResponse& response) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!scheduler_.is_current(run)) return;
      if (!status.ok() && internal::is_transient(status)) {
        // Sends the worker the same run again: only heartbeats decide whether it is lost.
        resends_.push_back(run);
        return;
      }
      if (status.ok() && response.was_given_up()) return;  // the next heartbeat reports it
      const std::string where = absl::StrCat("worker ", run.worker);
      Status outcome =
          status.ok() ? with_context(internal::status_of(response.outcome()), where)
                      : absl::InternalError(absl::StrCat(where, ": ", internal::text_of(status)));
      if (outcome.ok()) {
        outcome = keep_results(runs_[run.worker].closure, response);
        if (!outcome.ok()) {
          outcome = absl::InternalError(absl::StrCat(where, ": ", outcome.message()));
        }
      }
      std::vector<DatasetPosition> positions;
      for (const rpc::RunResponse::Position& reached : response.positions()) {
        positions.push_back({reached.dataset(), reached.position()});
      }
      scheduler_.run_finished(
          run, outcome,
          std::vector<int>(response.num_pushes().begin(), response.num_pushes().end()),
          std::move(positions));
      Run& last = runs_[run.worker];
      if (scheduler_.is_current(run) && !std::exchange(last.has_returned, true)) {
        last.since = steady_now();
      }
    }
    act();
  }
  Status keep_results(ClosureId id, const rpc::RunResponse& response) {
    const auto it = closures_.find(id);
    if (it == closures_.end()) return absl::OkStatus();  // the closure is over
    std::vector<HostArray> results;
    for (int i = 0; i < response.results_size(); ++i) {
      StatusOr<HostArray> array = internal::array_of(response.results(i));
      TESSERA_RETURN_IF_ERROR(
          with_context(array.status(),
                       absl::StrCat("result ", i, " of function ",
                                    in_quotes(it->second.request.function()), " cannot be read")));
      results.push_back(*std::move(array));
    }
    it->second.value->set_results(std::move(results));
    return absl::OkStatus();
  }

  void send_update(int ps, rpc::UpdateRequest request) {
    const uint64_t number = request.number();
    request.mutable_caller()->set_chief(chief_);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      request.mutable_caller()->set_session(ps_sessions_.at(ps));
    }
    links_->call<rpc::UpdateRequest, rpc::Outcome>(
        "ps", ps, &TaskClient::Stub::PrepareAsyncUpdate, request,
        [this, ps, number](const grpc::Status& status, rpc::Outcome& outcome) {
          updated(ps, number, status, outcome);
        });
  }
  // If the update was not answered, the next tick sends it again, until it is answered or the
  // server is lost. A refused update can never be applied, and this server's variables would differ
  // from the others', so the server is lost.
  void updated(int ps, uint64_t number, const grpc::Status& status, const rpc::Outcome& answer) {
    if (!status.ok() && internal::is_transient(status)) {
      std::lock_guard<std::mutex> lock(mutex_);
      is_updating_[ps] = false;
      return;
    }
    const Status outcome =
        status.ok() ? internal::status_of(answer) : absl::InternalError(internal::text_of(status));
    {
      std::lock_guard<std::mutex> lock(mutex_);
      is_updating_[ps] = false;
      if (absl::IsFailedPrecondition(outcome)) return;  // the next heartbeat reports it
      if (outcome.ok()) {
        scheduler_.update_applied(ps, number);
      } else {
        lose_ps(ps, with_context(outcome, absl::StrCat(ps_names_[ps], " refuses update ", number)));
      }
    }
    if (!outcome.ok() && servers_ != nullptr) servers_->close();
    act();
  }

  const int num_workers_;
  const int num_ps_;
  const uint64_t chief_;
  const Partitioner partitioner_;
  const absl::Duration worker_wait_;
  const std::vector<std::string> workers_;   // their names in messages
  const std::vector<std::string> ps_names_;  // names in messages
  std::mutex mutex_;                         // guards the members below
  std::condition_variable changed_;
  ClosureScheduler scheduler_;
  std::map<ClosureId, Closure> closures_;  // closures that are not over
  std::map<int, Run> runs_;                // the latest run of each worker
  // Data sets that workers are making, by worker and data set.
  std::map<std::pair<int, int>, Making> makings_;
  std::vector<RunKey> resends_;    // runs whose answers did not arrive
  std::vector<bool> is_updating_;  // whether an update to this ps is under way
  std::map<int, uint64_t> ps_sessions_;
  uint64_t last_ps_session_ = 0;
  int num_up_ = 0;
  Status refused_;  // why a task rejects this chief
  Status ps_lost_;
  bool is_stopping_ = false;
  Status end_;  // used only by the caller's thread
  RegistryNames registry_names_;
  VariableTable variables_;

  const std::shared_ptr<ChiefWaits> waits_;
  std::unique_ptr<ParameterServers> servers_;  // constant once connected
  std::unique_ptr<TaskLinks> links_;           // constant once connected
};

Status RemoteValue::await(absl::Duration timeout) const { return state_->await(timeout); }
StatusOr<std::vector<HostArray>> RemoteValue::fetch() const { return state_->fetch(); }

StatusOr<ClusterCoordinator> ClusterCoordinator::create(const cluster::Cluster& cluster,
                                                        Partitioner partitioner,
                                                        const CoordinatorOptions& options) {
  return create(cluster, std::move(partitioner), options, WaitReports::Options().unit);
}

StatusOr<ClusterCoordinator> ClusterCoordinator::create(const cluster::Cluster& cluster,
                                                        Partitioner partitioner,
                                                        const CoordinatorOptions& options,
                                                        absl::Duration wait_report_unit) {
  TESSERA_RETURN_IF_ERROR(check_cluster(cluster));
  TESSERA_RETURN_IF_ERROR(check_options(options));
  TESSERA_RETURN_IF_ERROR(internal::validate(partitioner));
  TESSERA_ASSIGN_OR_RETURN(const absl::Duration heartbeat_interval, heartbeat_interval_of(options));
  auto impl =
      std::make_unique<Impl>(cluster.spec, std::move(partitioner), options, wait_report_unit);
  const Status connected = impl->connect(cluster.spec, heartbeat_interval);
  if (!connected.ok()) {
    impl->set_end(connected);
    return connected;
  }
  return ClusterCoordinator(std::move(impl));
}

ClusterCoordinator::ClusterCoordinator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ClusterCoordinator::ClusterCoordinator(ClusterCoordinator&& other) noexcept = default;
ClusterCoordinator& ClusterCoordinator::operator=(ClusterCoordinator&& other) noexcept = default;
ClusterCoordinator::~ClusterCoordinator() = default;

int ClusterCoordinator::num_workers() const { return impl_ == nullptr ? 0 : impl_->num_workers(); }
int ClusterCoordinator::num_ps() const { return impl_ == nullptr ? 0 : impl_->num_ps(); }
Status ClusterCoordinator::check_not_moved_from() const {
  if (impl_ != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError("the ClusterCoordinator was moved from");
}
StatusOr<RemoteVariable> ClusterCoordinator::variable(std::string name, const HostArray& initial) {
  TESSERA_RETURN_IF_ERROR(check_not_moved_from());
  return impl_->variable(std::move(name), initial);
}
RemoteValue ClusterCoordinator::schedule(absl::string_view function, std::vector<Argument> args) {
  if (impl_ != nullptr) return impl_->schedule(function, std::move(args));
  auto value = std::make_shared<ValueState>(std::string(function));
  value->finish(check_not_moved_from());
  return RemoteValue(std::move(value));
}
StatusOr<RemoteDataset> ClusterCoordinator::create_per_worker_dataset(
    absl::string_view dataset_function) {
  TESSERA_RETURN_IF_ERROR(check_not_moved_from());
  return impl_->create_per_worker_dataset(dataset_function);
}
StatusOr<bool> ClusterCoordinator::done() {
  TESSERA_RETURN_IF_ERROR(check_not_moved_from());
  return impl_->done();
}
Status ClusterCoordinator::join(absl::Duration timeout) {
  TESSERA_RETURN_IF_ERROR(check_not_moved_from());
  return impl_->join(timeout);
}

StatusOr<std::vector<std::vector<HostArray>>> ClusterCoordinator::fetch(
    absl::Span<const RemoteValue> values) {
  std::vector<std::vector<HostArray>> result;
  for (const RemoteValue& value : values) {
    TESSERA_ASSIGN_OR_RETURN(std::vector<HostArray> tensors, value.fetch());
    result.push_back(std::move(tensors));
  }
  return result;
}

}  // namespace tessera::distribute
