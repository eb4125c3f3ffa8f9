// SPDX-License-Identifier: Apache-2.0
#include "servers/task_links.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/format.h"
#include "job/environment/host.h"
#include "servers/heartbeats.h"
#include "servers/outcome.h"
#include "servers/task_token.h"

namespace tessera::distribute::internal {
namespace {

// The timeouts of one greeting, and of the goodbye.
constexpr absl::Duration kHelloTimeout = absl::Seconds(2);
constexpr absl::Duration kByeTimeout = absl::Seconds(1);

std::string name_of_this_process() {
  const MemberInfo self = describe_this_process();
  return absl::StrCat(self.host, " (pid ", self.pid, ")");
}

}  // namespace

std::string TaskLinks::Task::to_string() const {
  return absl::StrCat(job, " ", index, " (", address, ")");
}

TaskLinks::TaskLinks(uint64_t chief, absl::Duration interval, Callbacks callbacks)
    : chief_(chief),
      chief_name_(name_of_this_process()),
      interval_(interval),
      callbacks_(std::move(callbacks)) {}

StatusOr<std::unique_ptr<TaskLinks>> TaskLinks::start(const cluster::ClusterSpec& spec,
                                                      uint64_t chief,
                                                      absl::Duration heartbeat_interval,
                                                      Callbacks callbacks) {
  std::unique_ptr<TaskLinks> links(new TaskLinks(chief, heartbeat_interval, std::move(callbacks)));
  for (const char* const job : {"ps", "worker"}) {
    for (int index = 0; index < spec.num_tasks(job); ++index) {
      Link link;
      TESSERA_ASSIGN_OR_RETURN(std::string address, spec.task_address(job, index));
      link.task = {.job = job, .index = index, .address = std::move(address)};
      links->links_.push_back(std::move(link));
    }
  }
  TESSERA_ASSIGN_OR_RETURN(
      links->thread_,
      start_thread("the heartbeats of a chief", [started = links.get()] { started->run(); }));
  return links;
}

void TaskLinks::stop(const Status& reason) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(is_stopping_, true)) return;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  say_goodbye(reason);
  for (Link& link : links_) {
    if (link.client != nullptr) link.client->close();
  }
}

void TaskLinks::say_goodbye(const Status& reason) {
  std::vector<std::pair<std::shared_ptr<TaskClient>, rpc::ByeRequest>> told;
  {
    // A callback may be dismissing a task.
    std::lock_guard<std::mutex> lock(mutex_);
    for (const Link& link : links_) {
      if (!link.is_up && !link.is_dismissed) continue;
      if (link.client == nullptr) continue;  // it was lost before it was dismissed
      rpc::ByeRequest request;
      request.mutable_caller()->set_chief(chief_);
      set_outcome(request.mutable_reason(), link.is_dismissed ? link.why_away : reason);
      told.emplace_back(link.client, std::move(request));
    }
  }
  std::mutex mutex;
  std::condition_variable all_said;
  size_t num_left = told.size();
  for (const auto& [client, request] : told) {
    client->call<rpc::ByeRequest, rpc::Outcome>(&TaskClient::Stub::PrepareAsyncBye, request,
                                                steady_now() + kByeTimeout,
                                                [&](const grpc::Status&, rpc::Outcome&) {
                                                  std::lock_guard<std::mutex> lock(mutex);
                                                  if (--num_left == 0) all_said.notify_all();
                                                });
  }
  std::unique_lock<std::mutex> lock(mutex);
  all_said.wait(lock, [&] { return num_left == 0; });
}

void TaskLinks::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  absl::Time next_tick = steady_now();
  while (!is_stopping_) {
    lock.unlock();
    for (size_t link = 0; link < links_.size(); ++link) keep(link);
    callbacks_.tick();
    lock.lock();
    // Ticks that were missed are not repeated.
    next_tick = std::max(next_tick + tick_of(interval_), steady_now());
    changed_.wait_until(lock, to_chrono_steady(next_tick), [this] { return is_stopping_; });
  }
}

Status TaskLinks::count_tick(Link* link) {
  const bool is_broken = std::exchange(link->is_broken, false);
  if (std::exchange(link->is_answered, false)) {
    link->num_silent = 0;
    link->num_broken = 0;
  } else {
    ++link->num_silent;
    if (is_broken) ++link->num_broken;
  }
  if (!link->why_over.ok()) return link->why_over;
  if (link->num_broken >= kMostBrokenTicks) {
    return absl::UnavailableError(
        absl::StrCat("its connection broke off, and ", link->num_broken,
                     " heartbeats in a row found none; the last: ", link->why_away.message()));
  }
  if (link->num_silent < most_silent_ticks(interval_)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("it missed more than ", kMissedHeartbeats,
                                             " heartbeats of ", format_duration(interval_),
                                             "; the last: ", link->why_away.message()));
}

// One tick of one link.
void TaskLinks::keep(size_t index) {
  Status why_lost;
  bool is_up;
  bool greets;
  bool beats;
  bool attends;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Link& link = links_[index];
    is_up = link.is_up;
    greets = !is_up && !link.is_greeting && !link.is_dismissed &&
             (!link.task.is_worker() || all_ps_are_up());
    if (is_up) why_lost = count_tick(&link);
    beats = is_up && why_lost.ok() && !std::exchange(link.is_beating, true);
    attends = is_up && why_lost.ok() && !std::exchange(link.is_attending, true);
  }
  if (!why_lost.ok()) lose(index, why_lost);
  if (greets) greet(index);
  if (attends) attend(index);
  if (beats) beat(index);
}

void TaskLinks::beat(size_t index) {
  rpc::BeatRequest request;
  std::shared_ptr<TaskClient> client;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Link& link = links_[index];
    if (link.client == nullptr) return;
    request.mutable_caller()->set_chief(chief_);
    request.mutable_caller()->set_session(link.session);
    client = link.client;
    link.why_away = absl::UnavailableError("no answer");
  }
  const uint64_t session = request.caller().session();
  client->call<rpc::BeatRequest, rpc::Outcome>(
      &TaskClient::Stub::PrepareAsyncBeat, request, steady_now() + kMissedHeartbeats * interval_,
      [this, index, session](const grpc::Status& status, rpc::Outcome& response) {
        std::lock_guard<std::mutex> lock(mutex_);
        Link& link = links_[index];
        if (link.session != session) return;
        link.is_beating = false;
        if (!status.ok()) {
          link.why_away = absl::UnavailableError(text_of(status));
          link.is_broken = status.error_code() == grpc::StatusCode::UNAVAILABLE;
          // The task was started again: another process answers, with another token.
          if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED)
            link.why_over = link.why_away;
          return;
        }
        const Status outcome = status_of(response);
        if (outcome.ok()) {
          link.is_answered = true;
        } else {
          link.why_over = outcome;
        }
      },
      TaskClient::Unconnected::kFail);
}

// Opens the call Attend, which ends with the connection. The next tick opens it again.
void TaskLinks::attend(size_t index) {
  rpc::BeatRequest request;
  std::shared_ptr<TaskClient> client;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    client = links_[index].client;
    if (client == nullptr) return;
    request.mutable_caller()->set_chief(chief_);
    request.mutable_caller()->set_session(links_[index].session);
  }
  client->call<rpc::BeatRequest, rpc::Outcome>(
      &TaskClient::Stub::PrepareAsyncAttend, request, absl::InfiniteFuture(),
      [this, index, session = request.caller().session()](const grpc::Status&, rpc::Outcome&) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (links_[index].session == session) links_[index].is_attending = false;
      },
      TaskClient::Unconnected::kFail);
}

void TaskLinks::greet(size_t index) {
  const Task& task = links_[index].task;  // constant
  const StatusOr<std::string> token = find_token(task.address, steady_now());
  rpc::HelloRequest request;
  std::shared_ptr<TaskClient> before;
  std::shared_ptr<TaskClient> client;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Link& link = links_[index];
    if (!token.ok()) {
      link.why_away = token.status();
      return;
    }
    if (link.client == nullptr || link.token != *token) {
      StatusOr<std::unique_ptr<TaskClient>> created = TaskClient::create(task.address, *token);
      if (!created.ok()) {
        link.why_away = created.status();
        return;
      }
      link.token = *token;
      before = std::exchange(link.client, *std::move(created));
    }
    client = link.client;
    link.is_greeting = true;
    for (const Link& ps : links_) {
      if (ps.task.is_worker()) continue;
      rpc::ParameterServer* const added = request.add_ps();
      added->set_address(ps.task.address);
      added->set_token(ps.token);
    }
  }
  if (before != nullptr) before->close();
  const uint64_t session = callbacks_.new_session(task);
  request.mutable_caller()->set_chief(chief_);
  request.mutable_caller()->set_session(session);
  request.set_chief_name(chief_name_);
  request.set_task_type(task.job);
  request.set_task(task.index);
  request.set_heartbeat_interval_us(absl::ToInt64Microseconds(interval_));
  client->call<rpc::HelloRequest, rpc::HelloResponse>(
      &TaskClient::Stub::PrepareAsyncHello, request, steady_now() + kHelloTimeout,
      [this, index, session](const grpc::Status& status, rpc::HelloResponse& response) {
        greeted(index, session, status, response);
      },
      TaskClient::Unconnected::kFail);
}

void TaskLinks::greeted(size_t index, uint64_t session, const grpc::Status& status,
                        const rpc::HelloResponse& response) {
  const Status outcome =
      status.ok() ? status_of(response.outcome()) : absl::UnavailableError(text_of(status));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Link& link = links_[index];
    link.is_greeting = false;
    if (is_stopping_) return;
    link.why_away = outcome;
    if (outcome.ok()) {
      link.is_up = true;
      link.is_answered = true;
      link.is_broken = false;
      link.is_beating = false;
      link.is_attending = false;
      link.num_silent = 0;
      link.num_broken = 0;
      link.session = session;
      link.why_over = absl::OkStatus();
    }
    changed_.notify_all();
  }
  const Task& task = links_[index].task;
  if (outcome.ok()) callbacks_.up(task, session, response);
  if (absl::IsFailedPrecondition(outcome)) callbacks_.refused(task, outcome);
}

void TaskLinks::lose(size_t index, const Status& why) {
  std::shared_ptr<TaskClient> client;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Link& link = links_[index];
    // If the task was dismissed after the tick found the loss, the goodbye needs its connection.
    if (!link.is_up) return;
    link.is_up = false;
    link.why_away = why;
    link.token.clear();
    client = std::exchange(link.client, nullptr);
  }
  callbacks_.lost(links_[index].task,
                  absl::UnavailableError(
                      absl::StrCat(links_[index].task.to_string(), " is lost: ", why.message())));
  client->close();
}

std::vector<std::string> TaskLinks::tasks_away() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::string> result;
  for (const Link& link : links_) {
    if (link.is_up) continue;
    result.push_back(absl::StrCat(link.task.to_string(), ": ", link.why_away.message()));
  }
  return result;
}

std::vector<std::string> TaskLinks::describe_missing() const {
  std::vector<std::string> result;
  for (const std::string& task : tasks_away()) result.push_back(absl::StrCat("missing ", task));
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Link& link : links_) {
    // The answer to a single heartbeat may still be under way.
    if (!link.is_up || link.num_silent < 2) continue;
    result.push_back(absl::StrCat(link.task.to_string(), " has not answered for ",
                                  format_duration(link.num_silent * tick_of(interval_))));
  }
  return result;
}

std::vector<TaskAddress> TaskLinks::ps_addresses() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<TaskAddress> result;
  for (const Link& link : links_) {
    if (!link.task.is_worker()) result.push_back({link.task.address, link.token});
  }
  return result;
}

void TaskLinks::dismiss(const Task& task, const Status& reason) {
  rpc::ByeRequest request;
  request.mutable_caller()->set_chief(chief_);
  set_outcome(request.mutable_reason(), reason);
  std::shared_ptr<TaskClient> client;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Link& link : links_) {
      if (link.task.job != task.job || link.task.index != task.index) continue;
      link.is_up = false;
      link.is_dismissed = true;
      link.why_away = reason;
      client = link.client;
    }
  }
  if (client == nullptr) return;  // already lost
  client->call<rpc::ByeRequest, rpc::Outcome>(&TaskClient::Stub::PrepareAsyncBye, request,
                                              steady_now() + kByeTimeout,
                                              [](const grpc::Status&, rpc::Outcome&) {});
}

std::shared_ptr<TaskClient> TaskLinks::client_of(absl::string_view job, int index) const {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Link& link : links_) {
    if (link.task.job == job && link.task.index == index) return link.client;
  }
  return nullptr;
}

bool TaskLinks::all_ps_are_up() const {
  for (const Link& link : links_) {
    if (!link.task.is_worker() && !link.is_up) return false;
  }
  return true;
}

}  // namespace tessera::distribute::internal
