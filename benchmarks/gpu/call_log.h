// SPDX-License-Identifier: Apache-2.0
//
// CallLog: records the calls of this process's threads and their times.
//
//   log->prepare();                                      once in a process, before it is turned on
//   log->turn_on();
//   { const CallLog::Timer timer(*log, "set_device"); ... }
//   log->turn_off();
//   for (const CallLog::Call& call : log->take()) ...    the calls since the last take()
//
// Adding a call takes no lock and allocates no memory. It uses the next place of a fixed number of
// places; further calls are dropped and counted. While the log is off, a call costs a load.
//
// Thread-safe, except prepare(), turn_on(), turn_off() and take(), which one thread calls.
#ifndef TESSERA_BENCHMARKS_GPU_CALL_LOG_H_
#define TESSERA_BENCHMARKS_GPU_CALL_LOG_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace tessera::benchmarks {

class CallLog {
 public:
  struct Call {
    const char* function;  // a literal
    int thread;
    int64_t start_ns;
    int64_t end_ns;  // of a mark: start_ns
  };

  explicit CallLog(size_t capacity = size_t{1} << 20) : capacity_(capacity) {}

  // Allocates the memory, in the process that uses it. Pages shared with a parent would be copied
  // while calls are timed.
  void prepare();
  void turn_on() { is_on_.store(true); }
  void turn_off() { is_on_.store(false); }
  bool is_on() const { return is_on_.load(std::memory_order_acquire); }
  // Returns the calls in the order of their starts. Requires that the log is off.
  std::vector<Call> take();
  size_t num_dropped() const;

  void add(const char* function, int64_t start_ns, int64_t end_ns);
  // Adds a moment, if the log is on.
  void mark(const char* name);

  // The name of the calling thread in texts; "thread 3" for a thread without one.
  void name_this_thread(std::string name);
  std::string thread_name(int thread) const;

  static int64_t now_ns();

  // Adds a call that lasts as long as the object, if the log is on when it begins.
  class Timer {
   public:
    Timer(CallLog& log, const char* function)
        : log_(log),
          function_(log.is_on() ? function : nullptr),
          start_ns_(function_ == nullptr ? 0 : now_ns()) {}
    ~Timer() {
      if (function_ != nullptr) log_.add(function_, start_ns_, now_ns());
    }
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;

   private:
    CallLog& log_;
    const char* const function_;
    const int64_t start_ns_;
  };

 private:
  // Complete once it has a function.
  struct Entry {
    std::atomic<const char*> function{nullptr};
    int thread = 0;
    int64_t start_ns = 0;
    int64_t end_ns = 0;
  };

  const size_t capacity_;
  std::unique_ptr<Entry[]> entries_;
  std::atomic<bool> is_on_{false};
  std::atomic<size_t> next_{0};  // a place is used once: a late writer overwrites nothing
  size_t num_taken_ = 0;
  mutable std::mutex mutex_;  // guards names_
  std::map<int, std::string> names_;
};

}  // namespace tessera::benchmarks

#endif  // TESSERA_BENCHMARKS_GPU_CALL_LOG_H_
