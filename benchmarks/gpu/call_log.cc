// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/gpu/call_log.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera::benchmarks {
namespace {

int this_thread() {
  static std::atomic<int> next{0};
  thread_local const int number = next.fetch_add(1);
  return number;
}

}  // namespace

int64_t CallLog::now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void CallLog::prepare() {
  if (entries_ == nullptr) entries_ = std::make_unique<Entry[]>(capacity_);
}

void CallLog::add(const char* function, int64_t start_ns, int64_t end_ns) {
  const size_t place = next_.fetch_add(1, std::memory_order_relaxed);
  if (place >= capacity_) return;
  Entry& entry = entries_[place];
  entry.thread = this_thread();
  entry.start_ns = start_ns;
  entry.end_ns = end_ns;
  entry.function.store(function, std::memory_order_release);
}

void CallLog::mark(const char* name) {
  if (!is_on()) return;
  const int64_t now = now_ns();
  add(name, now, now);
}

std::vector<CallLog::Call> CallLog::take() {
  const size_t end = std::min(next_.load(), capacity_);
  std::vector<Call> calls;
  for (; num_taken_ < end; ++num_taken_) {
    const Entry& entry = entries_[num_taken_];
    const char* const function = entry.function.load(std::memory_order_acquire);
    if (function == nullptr) continue;  // the call was running when the log was turned off
    calls.push_back({function, entry.thread, entry.start_ns, entry.end_ns});
  }
  std::stable_sort(calls.begin(), calls.end(),
                   [](const Call& a, const Call& b) { return a.start_ns < b.start_ns; });
  return calls;
}

size_t CallLog::num_dropped() const {
  const size_t end = next_.load();
  return end > capacity_ ? end - capacity_ : 0;
}

void CallLog::name_this_thread(std::string name) {
  std::lock_guard<std::mutex> lock(mutex_);
  names_[this_thread()] = std::move(name);
}

std::string CallLog::thread_name(int thread) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto named = names_.find(thread);
  return named == names_.end() ? absl::StrCat("thread ", thread) : named->second;
}

}  // namespace tessera::benchmarks
