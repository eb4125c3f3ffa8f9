// SPDX-License-Identifier: Apache-2.0
#include "distribute/worker_runner.h"

#include <cstddef>
#include <exception>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/format.h"
#include "distribute/host_copy.h"
#include "distribute/wire.h"

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

// An exception must not leave the worker's thread: that would end the process.
StatusOr<std::vector<DTensor>> call_guarded(const FunctionRegistry::Function& fn,
                                            WorkerContext& context,
                                            absl::Span<const Argument> arguments) {
  try {
    return fn(context, arguments);
  } catch (const std::exception& e) {
    return absl::UnknownError(absl::StrCat("the function raised an exception: ", e.what()));
  } catch (...) {
    return absl::UnknownError(
        "the function raised an exception that is not a std::exception; catch it there");
  }
}

}  // namespace

StatusOr<std::shared_ptr<WorkerRunner>> WorkerRunner::start(int worker, Mesh mesh,
                                                            FunctionRegistry functions) {
  std::shared_ptr<WorkerRunner> runner(
      new WorkerRunner(worker, std::move(mesh), std::move(functions)));
  // The thread holds the runner: a function may return after stop() has given it up.
  TESSERA_ASSIGN_OR_RETURN(
      runner->thread_, start_thread("the functions of a worker", [runner] { runner->serve(); }));
  return runner;
}

Status WorkerRunner::begin_session(uint64_t chief, uint64_t session,
                                   const std::vector<ParameterServers::Address>& servers) {
  std::vector<Answer> waiting;
  std::shared_ptr<ParameterServers> before;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    before = servers_;
    waiting = std::exchange(waiting_, {});
  }
  // The function of the session before gets Cancelled from then on.
  if (before != nullptr) before->close();
  for (const Answer& answer : waiting) {
    answer(given_up("the chief has begun another session"));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (!running_.empty()) {
    return absl::UnavailableError(
        absl::StrCat("function \"", running_, "\", which was given up, still runs"));
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
    } else if (request.caller().session() != session_ || request.run() < last_run_) {
      response = given_up("the run is of an earlier session");
    } else if (request.run() == last_run_ && answer_.has_value()) {
      response = *answer_;
    } else if (request.run() == last_run_) {
      waiting_.push_back(std::move(answer));
      return;
    } else {
      // The chief has given up the run before, whose function may still run.
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

Status WorkerRunner::stop(absl::Time deadline) {
  std::lock_guard<std::mutex> stop_lock(stop_mutex_);
  std::vector<Answer> waiting;
  std::shared_ptr<ParameterServers> servers;
  std::unique_lock<std::mutex> lock(mutex_);
  is_stopping_ = true;
  request_.reset();
  changed_.notify_all();
  const bool in_time =
      changed_.wait_until(lock, to_chrono_steady(deadline), [this] { return has_ended_; });
  const std::string running = running_;
  waiting = std::exchange(waiting_, {});
  servers = servers_;
  lock.unlock();
  for (const Answer& answer : waiting) {
    answer(given_up("the worker has ended"));
  }
  if (servers != nullptr) servers->close();
  if (in_time) {
    if (thread_.joinable()) thread_.join();
    return absl::OkStatus();
  }
  if (thread_.joinable()) thread_.detach();
  return absl::DeadlineExceededError(
      absl::StrCat("function \"", running, "\" of worker ", worker_, " still runs"));
}

void WorkerRunner::serve() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return is_stopping_ || request_.has_value(); });
    if (!request_.has_value()) break;
    const rpc::RunRequest request = *std::exchange(request_, std::nullopt);
    const std::shared_ptr<ParameterServers> servers = servers_;
    running_ = request.function();
    lock.unlock();
    rpc::RunResponse response = run_function(request, *servers);
    lock.lock();
    running_.clear();
    if (request.caller().session() != session_ || request.run() != last_run_) continue;
    const std::vector<Answer> waiting = std::exchange(waiting_, {});
    answer_ = response;
    lock.unlock();
    for (const Answer& answer : waiting) answer(response);
    lock.lock();
  }
  has_ended_ = true;
  changed_.notify_all();
}

rpc::RunResponse WorkerRunner::run_function(const rpc::RunRequest& request,
                                            ParameterServers& servers) {
  rpc::RunResponse response;
  const Status status = call(request, servers, &response);
  return status.ok() ? response : failed(status);
}

Status WorkerRunner::call(const rpc::RunRequest& request, ParameterServers& servers,
                          rpc::RunResponse* response) {
  const FunctionRegistry::Function* const function = functions_.find(request.function());
  if (function == nullptr) {
    return absl::NotFoundError(absl::StrCat("function \"", request.function(),
                                            "\" is not in the registry of worker ", worker_, ": ",
                                            absl::StrJoin(functions_.names(), ", ")));
  }
  const std::string where = absl::StrCat("function \"", request.function(), "\"");
  std::vector<Argument> arguments;
  for (const rpc::Argument& message : request.arguments()) {
    StatusOr<Argument> argument = argument_of(message, request.caller().chief());
    TESSERA_RETURN_IF_ERROR(argument.status());
    arguments.push_back(*std::move(argument));
  }
  WorkerContext context(worker_, request.attempt(), mesh_, servers);
  const StatusOr<std::vector<DTensor>> results = call_guarded(*function, context, arguments);
  TESSERA_RETURN_IF_ERROR(with_context(results.status(), where));
  int64_t num_bytes = 0;
  for (size_t i = 0; i < results->size(); ++i) {
    const StatusOr<HostArray> array = to_host_array((*results)[i]);
    TESSERA_RETURN_IF_ERROR(with_context(array.status(), absl::StrCat(where, ", result ", i)));
    num_bytes += static_cast<int64_t>(array->bytes.size());
    if (num_bytes > kMostMessageBytes) {
      return absl::InvalidArgumentError(absl::StrCat(where, " returns more than ",
                                                     format_bytes(kMostMessageBytes),
                                                     "; return less, or push it to a variable"));
    }
    set_array(response->add_results(), *array);
  }
  const RunKey run = {
      .worker = worker_, .session = request.caller().session(), .run = request.run()};
  const StatusOr<std::vector<int>> staged = servers.stage(run, context.pushes_);
  TESSERA_RETURN_IF_ERROR(with_context(staged.status(), absl::StrCat("the pushes of ", where)));
  response->mutable_num_pushes()->Assign(staged->begin(), staged->end());
  return absl::OkStatus();
}

}  // namespace tessera::distribute::internal
