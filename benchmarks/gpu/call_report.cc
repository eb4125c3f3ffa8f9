// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/gpu/call_report.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "benchmarks/gpu/rounds.h"

namespace tessera::benchmarks {
namespace {

using Call = CallLog::Call;
using Calls = absl::Span<const Call>;

// Consecutive calls of one function on one thread.
struct Step {
  Call first;
  int64_t end_ns = 0;
  int64_t in_calls_ns = 0;
  int num_calls = 0;
};

double us(int64_t ns) { return static_cast<double>(ns) / 1000; }

double mean(const Times& times) {
  double sum = 0;
  for (const double time : times) sum += time;
  return times.empty() ? 0 : sum / static_cast<double>(times.size());
}

double quantile(Times times, double part) {
  if (times.empty()) return 0;
  std::sort(times.begin(), times.end());
  return times[static_cast<size_t>(part * static_cast<double>(times.size() - 1))];
}

bool begins_operation(const Call& call) { return std::strcmp(call.function, "group_start") == 0; }

// The calls of group_start() of the issuing thread.
std::vector<Call> operations_of(Calls calls) {
  std::vector<Call> starts;
  for (const Call& call : calls) {
    if (!begins_operation(call)) continue;
    if (starts.empty() || call.thread == starts[0].thread) starts.push_back(call);
  }
  return starts;
}

// By thread, in the order of their starts.
std::vector<Step> merge(Calls calls) {
  std::vector<Step> steps;
  std::map<int, size_t> last;  // of each thread
  for (const Call& call : calls) {
    const auto before = last.find(call.thread);
    const bool repeats = before != last.end() &&
                         std::strcmp(steps[before->second].first.function, call.function) == 0;
    if (!repeats) {
      last[call.thread] = steps.size();
      steps.push_back({.first = call});
    }
    Step& step = steps[last[call.thread]];
    step.end_ns = call.end_ns;
    step.in_calls_ns += call.end_ns - call.start_ns;
    ++step.num_calls;
  }
  return steps;
}

// The issuing thread's steps of each operation: from its group_start() to the next operation.
std::vector<std::vector<Step>> steps_of_operations(Calls calls) {
  std::vector<std::vector<Step>> operations;
  const std::vector<Call> starts = operations_of(calls);
  if (starts.empty()) return operations;
  for (const Step& step : merge(calls)) {
    if (step.first.thread != starts[0].thread) continue;
    if (begins_operation(step.first)) operations.emplace_back();
    if (!operations.empty()) operations.back().push_back(step);
  }
  return operations;
}

std::string names_of(const std::vector<Step>& steps) {
  std::string names;
  for (const Step& step : steps) absl::StrAppend(&names, step.first.function, " ");
  return names;
}

}  // namespace

std::string describe_calls(Calls calls, const CallLog& log) {
  const std::vector<Call> starts = operations_of(calls);
  if (starts.size() < 2) return "no operations\n";
  const auto count = static_cast<double>(starts.size());
  const double of_each =
      us(starts.back().start_ns - starts.front().start_ns) / static_cast<double>(starts.size() - 1);
  std::map<std::pair<int, std::string>, Times> by_function;
  std::map<int, double> by_thread;
  for (const Call& call : calls) {
    const double time = us(call.end_ns - call.start_ns);
    by_function[{call.thread, call.function}].push_back(time);
    by_thread[call.thread] += time;
  }
  std::string text = absl::StrFormat("%-20s %-18s %8s %9s %9s %9s %9s\n", "thread", "function",
                                     "calls/op", "mean us", "median", "95 %", "us/op");
  for (const auto& [key, times] : by_function) {
    absl::StrAppendFormat(
        &text, "%-20s %-18s %8.2f %9.2f %9.2f %9.2f %9.2f\n", log.thread_name(key.first),
        key.second, static_cast<double>(times.size()) / count, mean(times), median(times),
        quantile(times, 0.95), mean(times) * static_cast<double>(times.size()) / count);
  }
  for (const auto& [thread, time] : by_thread) {
    absl::StrAppendFormat(&text, "%s%s: %.2f us in calls of %.2f us for an operation, %.0f %%\n",
                          log.thread_name(thread), thread == starts[0].thread ? " (it issues)" : "",
                          time / count, of_each, 100 * time / count / of_each);
  }
  return text;
}

std::string describe_steps(Calls calls) {
  const std::vector<std::vector<Step>> all = steps_of_operations(calls);
  if (all.size() < 3) return "no operations\n";
  // The last operation has no end.
  std::map<std::string, std::vector<size_t>> alike;
  for (size_t i = 0; i + 1 < all.size(); ++i) alike[names_of(all[i])].push_back(i);
  const auto usual = std::max_element(alike.begin(), alike.end(), [](const auto& a, const auto& b) {
    return a.second.size() < b.second.size();
  });
  Times periods;
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    periods.push_back(us(all[i + 1][0].first.start_ns - all[i][0].first.start_ns));
  }
  const auto third = static_cast<std::ptrdiff_t>(periods.size() / 3);
  std::string text = absl::StrFormat(
      "from one group_start to the next: mean %.2f us, median %.2f, 10 %% %.2f, 90 %% %.2f, most "
      "%.2f; mean of the first third %.2f, of the last %.2f\n",
      mean(periods), median(periods), quantile(periods, 0.1), quantile(periods, 0.9),
      quantile(periods, 1), mean(Times(periods.begin(), periods.begin() + third)),
      mean(Times(periods.end() - third, periods.end())));
  absl::StrAppendFormat(&text, "%d of %d operations have these steps\n", usual->second.size(),
                        periods.size());
  absl::StrAppendFormat(&text, "%-18s %7s %9s %9s %9s | %9s %9s %9s\n", "step", "calls", "mean us",
                        "median", "in calls", "then mean", "median", "90 %");
  const size_t num_steps = all[usual->second[0]].size();
  for (size_t s = 0; s < num_steps; ++s) {
    Times lasts;
    Times in_calls;
    Times then;  // until the next step, or the next operation
    Times counts;
    for (const size_t i : usual->second) {
      const Step& step = all[i][s];
      const Step& next = s + 1 < num_steps ? all[i][s + 1] : all[i + 1][0];
      lasts.push_back(us(step.end_ns - step.first.start_ns));
      in_calls.push_back(us(step.in_calls_ns));
      then.push_back(us(next.first.start_ns - step.end_ns));
      counts.push_back(step.num_calls);
    }
    absl::StrAppendFormat(&text, "%-18s %7.1f %9.2f %9.2f %9.2f | %9.2f %9.2f %9.2f\n",
                          all[usual->second[0]][s].first.function, mean(counts), mean(lasts),
                          median(lasts), mean(in_calls), mean(then), median(then),
                          quantile(then, 0.9));
  }
  return text;
}

std::string describe_operations(Calls calls, const CallLog& log, int count) {
  const std::vector<Call> starts = operations_of(calls);
  const size_t first = starts.size() / 2;
  const size_t end = first + static_cast<size_t>(count);
  if (end >= starts.size()) return "too few operations\n";
  const int64_t begin_ns = starts[first].start_ns;
  const int64_t end_ns = starts[end].start_ns;
  std::vector<Call> within;
  for (const Call& call : calls) {
    if (call.end_ns >= begin_ns && call.start_ns < end_ns) within.push_back(call);
  }
  std::string text = absl::StrFormat("%10s %10s %9s  %s\n", "from us", "to us", "in calls", "");
  for (const Step& step : merge(within)) {
    absl::StrAppendFormat(
        &text, "%10.2f %10.2f %9.2f  %-20s %s%s\n", us(step.first.start_ns - begin_ns),
        us(step.end_ns - begin_ns), us(step.in_calls_ns), log.thread_name(step.first.thread),
        step.first.function, step.num_calls > 1 ? absl::StrCat(" x ", step.num_calls) : "");
  }
  return text;
}

}  // namespace tessera::benchmarks
