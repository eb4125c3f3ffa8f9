// SPDX-License-Identifier: Apache-2.0
#include "collectives/span/long_waits.h"

#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/status.h"

namespace tessera::span {
namespace {

// The shortest wait in a report. Devices of one circle began to wait within about this time of each
// other.
constexpr absl::Duration kShortestWait = absl::Milliseconds(500);
// How long a report stays open: a device that waits for long meanwhile is in the next one.
constexpr absl::Duration kReportLimit = absl::Seconds(2);
// How long a run may take to end. The coordinator gives the circle up before.
constexpr absl::Duration kEndLimit = absl::Seconds(10);
// Between two attempts to end the open report.
constexpr absl::Duration kStopPause = absl::Milliseconds(50);

}  // namespace

void LongWaits::note() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++num_notes_;
  if (is_running_ || is_stopping_) return;
  // Where no thread can be started the next note tries again.
  is_running_ = errands_.post([this] { run(); }).ok();
}

void LongWaits::run() {
  WaitsReport report;
  bool is_in_circle = false;
  while (true) {
    uint64_t num_notes;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      num_notes = num_notes_;
    }
    const absl::Time start = steady_now();
    for (LocalWait& wait : site_.waits()) {
      if (start - wait.since >= kShortestWait) report.waits.push_back(std::move(wait.wait));
    }
    const bool has_news = is_in_circle || !report.waits.empty();
    CircleStep step;
    bool is_answered = true;
    if (has_news) {
      StatusOr<CircleStep> answer = coordinator_.report_waits(report, start + kReportLimit);
      is_answered = answer.ok();
      if (is_answered) step = *std::move(answer);
    }
    // A reply that was not answered may have been lost, and goes into the next report.
    report.waits.clear();
    if (is_answered) report = take(step);
    is_in_circle = report.circle != 0;
    std::unique_lock<std::mutex> lock(mutex_);
    if (has_news && step.kind == CircleStep::kNone) {
      changed_.wait_until(lock, to_chrono_steady(start + kReportLimit),
                          [&] { return is_stopping_; });
    }
    is_running_ = !is_stopping_ && (has_news || num_notes_ != num_notes);
    if (is_running_) continue;
    changed_.notify_all();
    return;
  }
}

WaitsReport LongWaits::take(const CircleStep& step) {
  WaitsReport reply = {.waits = {}, .circle = step.number, .at = step.at, .is_done = true};
  const bool has_waits = step.waits.size() >= 2;
  switch (step.kind) {
    case CircleStep::kConfirm:
      reply.is_done = site_.confirms(step.waits);
      return reply;
    case CircleStep::kEnd:
      if (has_waits) end(step);
      return reply;
    case CircleStep::kRelease:
      if (!has_waits) return {};
      site_.await_verdict(step.waits[0]);
      site_.release(step.waits[1]);
      return {};
    case CircleStep::kNone:
      return {};
  }
  return {};
}

void LongWaits::end(const CircleStep& step) {
  const bool is_first = step.at == 1;
  if (!is_first) site_.await_verdict(step.waits[0]);
  // The run may end after this has returned.
  const auto has_ended = std::make_shared<bool>(false);
  site_.end(step.waits[1], step.named, /*is_held=*/is_first, [this, has_ended] {
    std::lock_guard<std::mutex> lock(mutex_);
    *has_ended = true;
    changed_.notify_all();
  });
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_until(lock, to_chrono_steady(steady_now() + kEndLimit),
                      [&] { return *has_ended || is_stopping_; });
}

void LongWaits::stop() {
  std::unique_lock<std::mutex> lock(mutex_);
  is_stopping_ = true;
  changed_.notify_all();
  while (is_running_) {
    lock.unlock();
    // Ends the open report; the thread may be about to open it.
    coordinator_.report_waits({}, steady_now()).IgnoreError();
    lock.lock();
    changed_.wait_until(lock, to_chrono_steady(steady_now() + kStopPause),
                        [&] { return !is_running_; });
  }
  lock.unlock();
  errands_.stop();
}

}  // namespace tessera::span
