// SPDX-License-Identifier: Apache-2.0
#include "base/wait_reports.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/format.h"

namespace tessera {
namespace {

// When a wait is reported for the n-th time, in units.
int64_t units_until(int num_reports) {
  constexpr int64_t kFirst[] = {1, 3, 6, 12, 30};
  constexpr int kNumFirst = std::size(kFirst);
  return num_reports < kNumFirst ? kFirst[num_reports] : kFirst[kNumFirst - 1] * (num_reports - 3);
}

// One call for the whole line: lines of several processes do not mix.
void write_line(const WaitReport& report) {
  const std::string line = absl::StrCat("tessera: ", report.text, "\n");
  (void)!write(STDERR_FILENO, line.data(), line.size());
}

// A reader of stderr that has gone must not end the process for the sake of a report.
void block_sigpipe() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

}  // namespace

Status WaitReports::start() {
  TESSERA_ASSIGN_OR_RETURN(thread_, start_thread("reports of long waits", [this] { run(); }));
  return absl::OkStatus();
}

void WaitReports::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void WaitReports::set_source(Source source) {
  std::lock_guard<std::mutex> lock(looking_);
  source_ = std::move(source);
}

void WaitReports::set_listener(Listener listener) {
  std::lock_guard<std::mutex> lock(mutex_);
  listener_ = std::move(listener);
}

void WaitReports::run() {
  block_sigpipe();
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    const absl::Time next = look(steady_now());
    lock.lock();
    changed_.wait_until(lock, to_chrono_steady(next), [this] { return stopping_; });
  }
}

std::map<std::string, std::vector<WaitReports::Wait>> WaitReports::list_waits() {
  std::vector<Wait> waits;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [number, wait] : registered_) {
      waits.push_back(wait);
      waits.back().missing = [this, number = number,
                              missing = wait.missing]() -> std::optional<Missing> {
        std::optional<Missing> found = missing();
        std::lock_guard<std::mutex> lock(mutex_);
        return registered_.count(number) > 0 ? std::move(found) : std::nullopt;
      };
    }
  }
  if (source_) {
    for (Wait& wait : source_()) waits.push_back(std::move(wait));
  }
  std::map<std::string, std::vector<Wait>> by_operation;
  for (Wait& wait : waits) by_operation[wait.operation].push_back(std::move(wait));
  for (auto& [operation, same] : by_operation) {
    std::stable_sort(same.begin(), same.end(),
                     [](const Wait& a, const Wait& b) { return a.since < b.since; });
  }
  return by_operation;
}

absl::Time WaitReports::look(absl::Time now) {
  std::lock_guard<std::mutex> lock(looking_);
  const auto current = list_waits();
  std::erase_if(written_, [&](const auto& known) { return current.count(known.first) == 0; });
  absl::Time next = now + options_.unit;
  for (const auto& [operation, waits] : current) {
    Written& written = written_[operation];
    // A later call of the operation.
    if (written.since != waits[0].since) written = {waits[0].since};
    const auto due = [&] {
      return written.since + units_until(written.num_reports) * options_.unit;
    };
    if (due() <= now) {
      if (const std::optional<WaitReport> report = describe(waits, now)) {
        options_.sink ? options_.sink(*report) : write_line(*report);
      }
    }
    while (due() <= now) ++written.num_reports;
    next = std::min(next, due());
  }
  return next;
}

std::optional<WaitReport> WaitReports::describe(const std::vector<Wait>& waits,
                                                absl::Time now) const {
  WaitReport report;
  report.operation = waits[0].operation;
  report.waited = now - waits[0].since;
  std::vector<std::string> texts;
  std::set<int> clients;
  bool is_there = false;
  for (const Wait& wait : waits) {
    const std::optional<Missing> missing = wait.missing();
    if (!missing.has_value()) continue;
    is_there = true;
    clients.insert(missing->clients.begin(), missing->clients.end());
    const bool is_new = std::find(texts.begin(), texts.end(), missing->text) == texts.end();
    if (!missing->text.empty() && is_new) texts.push_back(missing->text);
  }
  if (!is_there) return std::nullopt;
  report.missing.assign(clients.begin(), clients.end());
  report.text =
      absl::StrCat(options_.subject, " has waited for ", format_duration(report.waited), " in ",
                   report.operation, texts.empty() ? "" : ": ", absl::StrJoin(texts, "; "));
  return report;
}

uint64_t WaitReports::add(Wait wait) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (listener_) listener_(wait.operation, /*is_waiting=*/true);
  registered_.emplace(++last_number_, std::move(wait));
  return last_number_;
}

void WaitReports::remove(uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto ended = registered_.extract(number);
  if (!listener_) return;
  const bool others_wait = !registered_.empty();
  listener_(others_wait ? registered_.rbegin()->second.operation : ended.mapped().operation,
            others_wait);
}

ReportedWait::ReportedWait(WaitReports* reports, std::string operation,
                           std::function<std::optional<WaitReports::Missing>()> missing,
                           std::optional<absl::Time> since)
    : reports_(reports) {
  if (reports_ == nullptr) return;
  number_ = reports_->add(
      {std::move(operation), since.has_value() ? *since : steady_now(), std::move(missing)});
}

ReportedWait::~ReportedWait() {
  if (reports_ != nullptr) reports_->remove(number_);
}

}  // namespace tessera
