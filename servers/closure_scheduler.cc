// SPDX-License-Identifier: Apache-2.0
#include "servers/closure_scheduler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/format.h"
#include "base/text.h"

namespace tessera::distribute {

ClosureScheduler::ClosureScheduler(Options options)
    : options_(std::move(options)), workers_(options_.workers.size()), ps_(options_.num_ps) {
  for (size_t i = 0; i < workers_.size(); ++i) workers_[i].run.worker = static_cast<int>(i);
}

ClosureId ClosureScheduler::add(std::string function, absl::Time now) {
  const ClosureId id = next_closure_++;
  if (no_worker_since_.has_value() && queue_.empty()) {
    no_worker_since_ = std::max(*no_worker_since_, now);
  }
  closures_[id].function = std::move(function);
  if (has_error()) {
    settle(id, cancelled());
  } else if (!ps_lost_.ok()) {
    fail(id, ps_lost_);
  } else {
    queue_.push_back(id);
  }
  return id;
}

ClosureId ClosureScheduler::add_failed(const Status& status) {
  const ClosureId id = next_closure_++;
  if (has_error()) {
    settle(id, cancelled());
  } else {
    fail(id, status);
  }
  return id;
}

void ClosureScheduler::worker_up(int worker, uint64_t session) {
  workers_[worker].is_up = true;
  workers_[worker].run = {.worker = worker, .session = session, .run = 0};
  workers_[worker].is_busy = false;
  no_worker_since_.reset();
}

void ClosureScheduler::worker_lost(int worker, const Status& why, absl::Time now) {
  Worker& lost = workers_[worker];
  if (!std::exchange(lost.is_up, false)) return;
  const auto it = lost.is_busy ? closures_.find(lost.closure) : closures_.end();
  if (!has_worker()) {
    no_worker_since_ = now;
    why_no_worker_ = std::string(why.message());
    if (it != closures_.end() && it->second.state == State::kRunning) {
      absl::StrAppend(&why_no_worker_, ", while it ran function ", in_quotes(it->second.function),
                      " in attempt ", it->second.attempt);
    }
  }
  for (ParameterServer& ps : ps_) {
    ps.next.closed.push_back({worker, lost.run.session});
    ++lost.num_closing;
  }
  if (!std::exchange(lost.is_busy, false)) return;
  // A run that counts continues without its worker.
  if (it == closures_.end() || it->second.state != State::kRunning) return;
  Closure& closure = it->second;
  if (closure.attempt >= options_.max_attempts) {
    fail(lost.closure, absl::AbortedError(absl::StrCat(
                           "function ", in_quotes(closure.function), " was given up after ",
                           closure.attempt, " attempts; each ended with the loss of its worker, ",
                           "the last with: ", why.message())));
  } else if (has_error()) {
    settle(lost.closure, cancelled());
  } else {
    closure.state = State::kQueued;
    queue_.push_front(lost.closure);
  }
}

bool ClosureScheduler::is_current(const RunKey& run) const {
  const Worker& worker = workers_[run.worker];
  return worker.is_up && worker.is_busy && worker.run == run;
}

int ClosureScheduler::add_dataset() {
  positions_.emplace_back(workers_.size());
  return static_cast<int>(positions_.size()) - 1;
}

std::optional<uint64_t> ClosureScheduler::session(int worker) const {
  if (!workers_[worker].is_up) return std::nullopt;
  return workers_[worker].run.session;
}

void ClosureScheduler::run_finished(const RunKey& run, const Status& status,
                                    absl::Span<const int> num_pushes,
                                    std::vector<DatasetPosition> positions) {
  if (!is_current(run)) return;
  const ClosureId id = workers_[run.worker].closure;
  const auto it = closures_.find(id);
  if (it == closures_.end()) return release(run);   // the closure failed with a parameter server
  if (it->second.state != State::kRunning) return;  // a repeated answer
  const Status failed = status.ok() ? check_answer(run.worker, num_pushes, positions) : status;
  if (!failed.ok()) {
    fail(id, failed);
    return release(run);
  }
  // The run's pushes and reads count from here on, on every parameter server.
  it->second.state = State::kCommitting;
  for (DatasetPosition& reached : positions) {
    positions_[reached.dataset][run.worker] = std::move(reached.position);
  }
  for (size_t i = 0; i < ps_.size(); ++i) {
    if (num_pushes[i] == 0) continue;
    ps_[i].next.commits.push_back({run, num_pushes[i]});
    ps_[i].next_closures.push_back(id);
    ++it->second.num_updates_left;
  }
  if (it->second.num_updates_left > 0) return;
  settle(id, absl::OkStatus());
  release(run);
}

Status ClosureScheduler::check_answer(int worker, absl::Span<const int> num_pushes,
                                      absl::Span<const DatasetPosition> positions) const {
  const auto wrong = [&](const auto&... parts) {
    return absl::InternalError(absl::StrCat(
        options_.workers[worker], " has answered with ", parts...,
        "; build all tasks of the cluster from one Tessera; where they are, report this as a bug "
        "of Tessera"));
  };
  if (num_pushes.size() != ps_.size()) {
    return wrong("the numbers of pushes on ", num_pushes.size(), " parameter servers, and not on ",
                 ps_.size());
  }
  for (const int num : num_pushes) {
    if (num < 0) return wrong(num, " pushes");
  }
  const int num_datasets = static_cast<int>(positions_.size());
  for (const DatasetPosition& reached : positions) {
    if (reached.dataset >= 0 && reached.dataset < num_datasets) continue;
    return wrong("a position in data set ", reached.dataset, ", and ", num_datasets, " were made");
  }
  return absl::OkStatus();
}

void ClosureScheduler::update_applied(int ps, uint64_t number) {
  ParameterServer& server = ps_[ps];
  if (!server.under_way.has_value() || server.under_way->number != number) return;
  for (const ServerUpdate::Closed& closed : server.under_way->closed) {
    --workers_[closed.worker].num_closing;
  }
  server.under_way.reset();
  for (const ClosureId id : std::exchange(server.under_way_closures, {})) {
    const auto it = closures_.find(id);
    if (it == closures_.end() || --it->second.num_updates_left > 0) continue;
    const RunKey run = it->second.run;
    settle(id, absl::OkStatus());
    release(run);
  }
}

void ClosureScheduler::ps_lost(const Status& why) {
  if (!ps_lost_.ok()) return;
  ps_lost_ = why;
  if (!has_error()) {
    error_ = why;
  } else {
    ++num_others_;
  }
  queue_.clear();
  // Workers stay busy until they answer.
  while (!closures_.empty()) settle(closures_.begin()->first, why);
}

void ClosureScheduler::advance(absl::Time now) {
  if (!no_worker_since_.has_value() || queue_.empty()) return;
  if (now - *no_worker_since_ < options_.worker_wait) return;
  no_worker_since_ = now;
  const ClosureId first = queue_.front();
  fail(first,
       absl::UnavailableError(absl::StrCat(
           "no worker was there for ", format_duration(options_.worker_wait), ": ",
           absl::StrJoin(options_.workers, ", "),
           why_no_worker_.empty() ? std::string()
                                  : absl::StrCat("; the last was lost with: ", why_no_worker_))));
}

void ClosureScheduler::stop() {
  queue_.clear();
  while (!closures_.empty()) {
    settle(closures_.begin()->first, absl::CancelledError("the coordinator has ended"));
  }
}

std::vector<ClosureScheduler::Dispatch> ClosureScheduler::take_dispatches() {
  std::vector<Dispatch> result;
  for (Worker& worker : workers_) {
    if (queue_.empty()) break;
    if (!worker.is_up || worker.is_busy || worker.num_closing > 0) continue;
    const ClosureId id = queue_.front();
    queue_.pop_front();
    ++worker.run.run;
    worker.is_busy = true;
    worker.closure = id;
    Closure& closure = closures_[id];
    closure.state = State::kRunning;
    closure.run = worker.run;
    result.push_back({id, ++closure.attempt, worker.run});
  }
  return result;
}

const ServerUpdate* ClosureScheduler::update(int ps) {
  ParameterServer& server = ps_[ps];
  if (!ps_lost_.ok()) return nullptr;
  if (!server.under_way.has_value()) {
    if (server.next.commits.empty() && server.next.closed.empty()) return nullptr;
    server.under_way = std::exchange(server.next, {});
    server.under_way->number = ++server.last_number;
    server.under_way_closures = std::exchange(server.next_closures, {});
  }
  return &*server.under_way;
}

bool ClosureScheduler::has_room() const {
  return static_cast<int64_t>(queue_.size()) < options_.queue_limit || has_error() ||
         !ps_lost_.ok();
}

Status ClosureScheduler::take_error() {
  Status error = std::exchange(error_, absl::OkStatus());
  const int num_others = std::exchange(num_others_, 0);
  if (error.ok() || num_others == 0) return error;
  return Status(error.code(), absl::StrCat(error.message(), "; ", num_others, " more closure",
                                           num_others == 1 ? "" : "s", " failed"));
}

void ClosureScheduler::settle(ClosureId closure, Status status) {
  closures_.erase(closure);
  settled_.push_back({closure, std::move(status)});
}

void ClosureScheduler::fail(ClosureId closure, const Status& status) {
  if (has_error()) {
    ++num_others_;
  } else {
    error_ = status;
  }
  settle(closure, status);
  for (const ClosureId id : std::exchange(queue_, {})) {
    if (id != closure) settle(id, cancelled());
  }
}

Status ClosureScheduler::cancelled() const {
  return absl::CancelledError(
      absl::StrCat("not run, because another closure failed with: ", error_.message()));
}

void ClosureScheduler::release(const RunKey& run) {
  if (is_current(run)) workers_[run.worker].is_busy = false;
}

bool ClosureScheduler::has_worker() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.is_up; });
}

std::string ClosureScheduler::to_string() const {
  std::string text;
  for (const auto& [id, closure] : closures_) {
    absl::StrAppend(&text, "closure ", id, " ", static_cast<int>(closure.state), " attempt ",
                    closure.attempt, " ", closure.run.to_string(), " left ",
                    closure.num_updates_left, "\n");
  }
  for (const Worker& worker : workers_) {
    absl::StrAppend(&text, worker.run.to_string(), worker.is_up ? " up" : "",
                    worker.is_busy ? absl::StrCat(" with closure ", worker.closure) : "",
                    " last session ", worker.last_session, "\n");
  }
  for (const ParameterServer& ps : ps_) {
    absl::StrAppend(&text, "updates ", ps.last_number);
    const auto append = [&](const ServerUpdate& update) {
      for (const auto& commit : update.commits) absl::StrAppend(&text, " ", commit.run.to_string());
      for (const auto& [worker, session] : update.closed) {
        absl::StrAppend(&text, " closed ", worker, ".", session);
      }
    };
    if (ps.under_way.has_value()) {
      absl::StrAppend(&text, " under way");
      append(*ps.under_way);
    }
    absl::StrAppend(&text, " next");
    append(ps.next);
    absl::StrAppend(&text, "\n");
  }
  for (const std::vector<std::string>& positions : positions_) {
    absl::StrAppend(&text, "positions ", absl::StrJoin(positions, ","), "\n");
  }
  absl::StrAppend(&text, "queue ", absl::StrJoin(queue_, ","), " error ", error_.ToString(), " ",
                  num_others_, "\n");
  return text;
}

}  // namespace tessera::distribute
