// SPDX-License-Identifier: Apache-2.0
#include "servers/worker_runner.h"

#include <cstddef>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/exception_status.h"
#include "base/format.h"
#include "base/text.h"
#include "input/source.h"
#include "servers/handle_access.h"
#include "servers/host_copy.h"
#include "servers/outcome.h"
#include "servers/pending_push.h"
#include "servers/push_ledger.h"
#include "servers/remote_dataset.h"
#include "servers/wire.h"
#include "servers/worker_context.h"

namespace tessera::distribute::internal {
namespace {

rpc::RunResponse failed(const Status& status) {
  rpc::RunResponse response;
  set_outcome(response.mutable_outcome(), status);
  return response;
}

rpc::RunResponse given_up(absl::string_view why) {
  rpc::RunResponse response = failed(absl::CancelledError(why));
  response.set_was_given_up(true);
  return response;
}

rpc::MakeDatasetResponse no_dataset(const Status& status, bool was_given_up) {
  rpc::MakeDatasetResponse response;
  set_outcome(response.mutable_outcome(), status);
  response.set_was_given_up(was_given_up);
  return response;
}

}  // namespace

StatusOr<std::shared_ptr<WorkerRunner>> WorkerRunner::start(int worker, Mesh mesh,
                                                            FunctionRegistry functions) {
  std::shared_ptr<WorkerRunner> runner(
      new WorkerRunner(worker, std::move(mesh), std::move(functions)));
  // The thread shares ownership of the runner, as a function may return after stop() has given it
  // up.
  TESSERA_ASSIGN_OR_RETURN(
      runner->thread_, start_thread("the functions of a worker", [runner] { runner->serve(); }));
  return runner;
}

void WorkerRunner::Waiting::give_up(absl::string_view why) const {
  for (const Answer& answer : runs) answer(given_up(why));
  for (const Making& making : makings) {
    making.answer(no_dataset(absl::CancelledError(why), /*was_given_up=*/true));
  }
}

WorkerRunner::Waiting WorkerRunner::take_waiting() {
  Waiting waiting = {.runs = std::exchange(waiting_, {}), .makings = {}};
  for (Making& making : makings_) waiting.makings.push_back(std::move(making));
  makings_.clear();
  return waiting;
}

Status WorkerRunner::begin_session(uint64_t chief, uint64_t session,
                                   const std::vector<ParameterServers::Address>& servers) {
  Waiting waiting;
  std::shared_ptr<ParameterServers> before;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    before = servers_;
    waiting = take_waiting();
  }
  // The calls of the earlier session's function are Cancelled from then on.
  if (before != nullptr) before->close();
  waiting.give_up("the chief has begun another session");
  std::lock_guard<std::mutex> lock(mutex_);
  if (!running_.empty()) {
    return absl::UnavailableError(absl::StrCat(running_, ", which was given up, still runs"));
  }
  request_.reset();
  TESSERA_ASSIGN_OR_RETURN(servers_, ParameterServers::connect(chief, servers));
  session_ = session;
  last_run_ = 0;
  answer_.reset();
  return absl::OkStatus();
}

void WorkerRunner::run(const rpc::RunRequest& request, Answer answer) {
  rpc::RunResponse response;
  std::vector<Answer> given_up_by_this;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_stopping_) {
      response = given_up("the worker has ended");
    } else if (request.caller().session() != session_ || request.run() < last_run_ ||
               request.run() == 0) {
      response = given_up("the run is of an earlier session");
    } else if (request.run() == last_run_ && answer_.has_value()) {
      response = *answer_;
    } else if (request.run() == last_run_) {
      waiting_.push_back(std::move(answer));
      return;
    } else {
      // The chief has given up the earlier run, whose function may still be running.
      given_up_by_this = std::exchange(waiting_, {});
      waiting_.push_back(std::exchange(answer, nullptr));
      last_run_ = request.run();
      answer_.reset();
      request_ = request;
      changed_.notify_all();
    }
  }
  for (const Answer& other : given_up_by_this) other(given_up("the chief runs another function"));
  if (answer != nullptr) answer(response);
}

void WorkerRunner::make_dataset(const rpc::MakeDatasetRequest& request, DatasetAnswer answer) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!is_stopping_ && request.caller().session() == session_) {
      makings_.push_back({request, std::move(answer)});
      changed_.notify_all();
      return;
    }
  }
  answer(no_dataset(absl::CancelledError("the session of the worker is over"),
                    /*was_given_up=*/true));
}

Status WorkerRunner::stop(absl::Time deadline) {
  std::lock_guard<std::mutex> stop_lock(stop_mutex_);
  std::shared_ptr<ParameterServers> servers;
  std::unique_lock<std::mutex> lock(mutex_);
  is_stopping_ = true;
  request_.reset();
  changed_.notify_all();
  const bool in_time =
      changed_.wait_until(lock, to_chrono_steady(deadline), [this] { return has_ended_; });
  const std::string running = running_;
  const Waiting waiting = take_waiting();
  servers = servers_;
  lock.unlock();
  waiting.give_up("the worker has ended");
  if (servers != nullptr) servers->close();
  if (in_time) {
    if (thread_.joinable()) thread_.join();
    return absl::OkStatus();
  }
  if (thread_.joinable()) thread_.detach();
  return absl::DeadlineExceededError(absl::StrCat(running, " of worker ", worker_, " still runs"));
}

void WorkerRunner::serve() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock,
                  [this] { return is_stopping_ || request_.has_value() || !makings_.empty(); });
    if (is_stopping_) break;
    if (makings_.empty()) {
      serve_run(lock);
    } else {
      serve_dataset(lock);
    }
  }
  has_ended_ = true;
  changed_.notify_all();
}

void WorkerRunner::serve_dataset(std::unique_lock<std::mutex>& lock) {
  const Making making = std::move(makings_.front());
  makings_.pop_front();
  const rpc::Dataset& message = making.request.dataset();
  running_ = absl::StrCat("the function of data set ", in_quotes(message.name()));
  lock.unlock();
  StatusOr<std::vector<input::TensorSpec>> spec = std::vector<input::TensorSpec>();
  const StatusOr<DatasetPlace> place = dataset_of(message, making.request.caller().chief());
  if (place.ok()) {
    spec = datasets_.make(*place);
  } else {
    spec = place.status();
  }
  rpc::MakeDatasetResponse response = no_dataset(spec.status(), /*was_given_up=*/false);
  if (spec.ok()) set_spec(response.mutable_spec(), *spec);
  lock.lock();
  running_.clear();
  lock.unlock();
  making.answer(response);
  lock.lock();
}

void WorkerRunner::serve_run(std::unique_lock<std::mutex>& lock) {
  const rpc::RunRequest request = *std::exchange(request_, std::nullopt);
  const std::shared_ptr<ParameterServers> servers = servers_;
  running_ = absl::StrCat("function ", in_quotes(request.function()));
  lock.unlock();
  rpc::RunResponse response = run_function(request, *servers);
  lock.lock();
  running_.clear();
  if (request.caller().session() != session_ || request.run() != last_run_) return;
  const std::vector<Answer> waiting = std::exchange(waiting_, {});
  answer_ = response;
  lock.unlock();
  for (const Answer& answer : waiting) answer(response);
  lock.lock();
}

rpc::RunResponse WorkerRunner::run_function(const rpc::RunRequest& request,
                                            ParameterServers& servers) {
  rpc::RunResponse response;
  const Status status = call(request, servers, &response);
  if (!status.ok()) return failed(status);
  set_outcome(response.mutable_outcome(), status);
  return response;
}

Status WorkerRunner::call(const rpc::RunRequest& request, ParameterServers& servers,
                          rpc::RunResponse* response) {
  const FunctionRegistry::Function* const function = functions_.find(request.function());
  if (function == nullptr) {
    return absl::NotFoundError(absl::StrCat("function ", in_quotes(request.function()),
                                            " is not in the registry of worker ", worker_, ": ",
                                            absl::StrJoin(functions_.names(), ", ")));
  }
  const std::string where = absl::StrCat("function ", in_quotes(request.function()));
  const uint64_t chief = request.caller().chief();
  std::vector<Argument> arguments;
  datasets_.begin_run(chief);
  for (int i = 0; i < request.arguments_size(); ++i) {
    const rpc::Argument& message = request.arguments(i);
    StatusOr<Argument> argument = argument_of(message, chief, servers.num_servers());
    TESSERA_RETURN_IF_ERROR(
        with_context(argument.status(), absl::StrCat("argument ", i, " of ", where)));
    if (const auto* const dataset = std::get_if<RemoteDataset>(&*argument)) {
      datasets_.pass(RemoteDatasetAccess::place(*dataset), message.dataset().position());
    }
    arguments.push_back(*std::move(argument));
  }
  WorkerContext context(worker_, request.attempt(), mesh_, servers, datasets_);
  const StatusOr<std::vector<DTensor>> results =
      call_guarded<StatusOr<std::vector<DTensor>>>([&] { return (*function)(context, arguments); });
  TESSERA_RETURN_IF_ERROR(with_context(results.status(), where));
  int64_t result_bytes = 0;
  for (const DTensor& result : *results) result_bytes += num_bytes(result.shape(), result.dtype());
  if (result_bytes > kMostMessageBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, " returns ", format_bytes(result_bytes), "; the most is ",
                     format_bytes(kMostMessageBytes), "; return less, or push it to a variable"));
  }
  for (size_t i = 0; i < results->size(); ++i) {
    const StatusOr<HostArray> array = to_host_array((*results)[i]);
    TESSERA_RETURN_IF_ERROR(with_context(array.status(), absl::StrCat(where, ", result ", i)));
    set_array(response->add_results(), *array);
  }
  const RunKey run = {
      .worker = worker_, .session = request.caller().session(), .run = request.run()};
  const StatusOr<std::vector<int>> staged = servers.stage(run, context.pushes_);
  TESSERA_RETURN_IF_ERROR(with_context(staged.status(), absl::StrCat("the pushes of ", where)));
  response->mutable_num_pushes()->Assign(staged->begin(), staged->end());
  for (DatasetPosition& reached : datasets_.positions()) {
    rpc::RunResponse::Position* const message = response->add_positions();
    message->set_dataset(reached.dataset);
    message->set_position(std::move(reached.position));
  }
  return absl::OkStatus();
}

}  // namespace tessera::distribute::internal
