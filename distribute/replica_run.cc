// SPDX-License-Identifier: Apache-2.0
#include "distribute/replica_run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/exception_status.h"
#include "base/thread.h"
#include "distribute/value_access.h"
#include "dtensor/no_sync.h"

namespace tessera::distribute::internal {
namespace {

// A replica's result of a failed call: as many tensors as it passed, at least one.
ReplicaResult failed_result(const Status& error, absl::Span<const DTensor> args, const Mesh& mesh) {
  if (args.empty()) return {error, {failed_on(mesh, error)}};
  return {error, all_failed(args, error)};
}

}  // namespace

ReplicaRun::ReplicaRun(std::shared_ptr<StrategyState> strategy, const CommunicationOptions& options)
    : strategy_(std::move(strategy)),
      options_(options),
      replicas_(strategy_->local_replicas().size()) {}

bool ReplicaRun::is_in_function() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return !runs_user_action_ && running_ == std::this_thread::get_id();
}

void ReplicaRun::run_replica(int index, Function fn) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return turn_ == index; });
    running_ = std::this_thread::get_id();
  }
  const int id = strategy_->local_replicas()[index];
  const tessera::internal::NoSync no_sync(strategy_->client());
  auto result = call_guarded<ReplicaResult>([&] { return fn(index); });
  for (DTensor& tensor : result.values) tensor = strategy_->on_replica(tensor, id);
  std::unique_lock<std::mutex> lock(mutex_);
  Replica& replica = replicas_[index];
  replica.place = Place::kReturned;
  replica.call = call_of(std::string(kReturned), result.values, {});
  // Only the status counts: errors of the tensors may come from the run itself.
  replica.call.error = result.status;
  replica.result = std::move(result);
  hand_over(lock);
}

void ReplicaRun::hand_over(std::unique_lock<std::mutex>& lock) {
  const auto lowest_ready = [this] {
    size_t index = 0;
    while (index < replicas_.size() && replicas_[index].place != Place::kReady) ++index;
    return static_cast<int>(index);
  };
  turn_ = lowest_ready();
  if (turn_ == static_cast<int>(replicas_.size())) {
    settle(lock);
    turn_ = lowest_ready();
  }
  changed_.notify_all();
}

StatusOr<Rows> ReplicaRun::settle_calls(const Terms& terms, const Action* action) {
  std::vector<Call> local;
  for (const Replica& replica : replicas_) local.push_back(replica.call);
  TESSERA_ASSIGN_OR_RETURN(
      std::vector<Call> calls,
      strategy_->exchange().agree(std::move(local), terms.freedom, terms.options));
  if (action == nullptr) return Rows();
  settled_ = std::make_shared<const std::vector<Call>>(std::move(calls));
  Rows args;
  for (const Replica& replica : replicas_) args.push_back(replica.args);
  return (*action)(args, *settled_);
}

void ReplicaRun::settle(std::unique_lock<std::mutex>& lock) {
  bool all_returned = true;
  for (const Replica& replica : replicas_) all_returned &= replica.place == Place::kReturned;
  Terms terms(options_, {.any_tensor = true});
  if (!all_returned) terms = terms_;
  const Action* const action = all_returned ? nullptr : action_;
  StatusOr<Rows> results = failed_.ok() ? StatusOr<Rows>(Rows()) : failed_;
  if (failed_.ok()) {
    // No other thread of this run does anything meanwhile: all of them wait.
    runs_user_action_ = terms.may_call_strategy;
    lock.unlock();
    results = call_guarded<StatusOr<Rows>>([&] { return settle_calls(terms, action); });
    lock.lock();
    runs_user_action_ = false;
  }
  if (!results.ok()) failed_ = results.status();
  if (all_returned) {
    has_ended_ = true;
    return;
  }
  for (size_t i = 0; i < replicas_.size(); ++i) {
    Replica& replica = replicas_[i];
    if (replica.place != Place::kWaiting) continue;
    const int id = strategy_->local_replicas()[i];
    replica.result = results.ok() ? ReplicaResult{absl::OkStatus(), std::move((*results)[i])}
                                  : failed_result(failed_, replica.args, strategy_->mesh_of(id));
    replica.args.clear();
    replica.place = Place::kReady;
  }
}

ReplicaResult ReplicaRun::meet(int index, const std::string& text, std::vector<DTensor> args,
                               const Terms& terms, Action action,
                               std::shared_ptr<const std::vector<Call>>* calls) {
  const Mesh& mesh = strategy_->mesh_of(strategy_->local_replicas()[index]);
  Call call = call_of(text, args, terms.options);
  std::unique_lock<std::mutex> lock(mutex_);
  if (has_ended_) {
    return failed_result(absl::FailedPreconditionError(absl::StrCat(
                             call.text, ": the replica function of this call has returned")),
                         args, mesh);
  }
  if (!failed_.ok()) return failed_result(failed_, args, mesh);
  Replica& replica = replicas_[index];
  replica.place = Place::kWaiting;
  replica.call = std::move(call);
  replica.args = std::move(args);
  terms_ = terms;
  action_ = &action;
  hand_over(lock);
  changed_.wait(lock, [&] { return turn_ == index && replica.place == Place::kReady; });
  running_ = std::this_thread::get_id();
  if (calls != nullptr) *calls = settled_;
  return std::move(replica.result);
}

RunResult ReplicaRun::run(Function fn) {
  strategy_->push_run([this] { return is_in_function(); });
  std::vector<Thread> threads;
  Status started;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    StatusOr<Thread> thread =
        start_thread("a replica function", [this, i, fn] { run_replica(static_cast<int>(i), fn); });
    if (thread.ok()) {
      threads.push_back(*std::move(thread));
      continue;
    }
    // The replica counts as if its function had failed.
    started = thread.status();
    std::unique_lock<std::mutex> lock(mutex_);
    replicas_[i].place = Place::kReturned;
    replicas_[i].call = {.text = std::string(kReturned), .error = started};
    replicas_[i].result.status = started;
    if (turn_ == static_cast<int>(i)) hand_over(lock);
  }
  for (Thread& thread : threads) thread.join();
  strategy_->pop_run();

  std::lock_guard<std::mutex> lock(mutex_);
  size_t most = failed_.ok() ? 0 : 1;
  for (const Replica& replica : replicas_) most = std::max(most, replica.result.values.size());
  RunResult result = {failed_, {}};
  for (size_t k = 0; k < most; ++k) {
    std::vector<DTensor> tensors;
    for (const Replica& replica : replicas_) {
      if (failed_.ok() && k < replica.result.values.size()) {
        tensors.push_back(replica.result.values[k]);
      }
    }
    result.values.push_back(failed_.ok() ? ValueAccess::make(strategy_, std::move(tensors))
                                         : ValueAccess::failed(strategy_, failed_));
  }
  return result;
}

}  // namespace tessera::distribute::internal
