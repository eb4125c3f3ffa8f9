// SPDX-License-Identifier: Apache-2.0
//
// Makes tensors of elements, for input/loader.h and distribute/dataset.h. Internal.
#ifndef TESSERA_INPUT_LOADING_H_
#define TESSERA_INPUT_LOADING_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "base/thread.h"
#include "base/wait_reports.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "input/batch_reader.h"
#include "input/loader.h"
#include "input/node.h"
#include "input/source.h"
#include "layout/layout.h"
#include "mesh/mesh.h"

namespace tessera::input::internal {

// The results of `load`, in order. A thread computes up to `count` results ahead. With a count of 0
// there is no thread, and take() calls `load`.
//
// - `load` is called by one thread at a time.
// - After a result whose T::is_last() is true nothing is computed ahead, and take() must not be
//   called again.
// - One thread makes all calls. The destructor waits for a running call of `load`.
template <class T>
class ReadAhead {
 public:
  ReadAhead(int count, std::function<T()> load) : count_(count), load_(std::move(load)) {}
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;
  ~ReadAhead() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  // Must be called before the first take().
  Status start() {
    if (count_ == 0) return absl::OkStatus();
    TESSERA_ASSIGN_OR_RETURN(
        thread_,
        start_thread("the thread of an input iterator that reads ahead", [this] { run(); }));
    return absl::OkStatus();
  }

  // If the result is not ready, calls report() and keeps its result until the wait ends.
  template <class Report>
  T take(Report report) {
    if (!thread_.joinable()) {
      [[maybe_unused]] const auto wait = report();
      return load_();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    if (ready_.empty()) {
      [[maybe_unused]] const auto wait = report();
      changed_.wait(lock, [this] { return !ready_.empty(); });
    }
    T result = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    changed_.notify_all();
    return result;
  }

 private:
  void run() {
    for (bool is_last = false; !is_last;) {
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock,
                      [this] { return stopping_ || static_cast<int>(ready_.size()) < count_; });
        if (stopping_) return;
      }
      T result = load_();
      is_last = result.is_last();
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        ready_.push_back(std::move(result));
      }
      changed_.notify_all();
    }
  }

  const int count_;
  const std::function<T()> load_;

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<T> ready_;
  bool stopping_ = false;
  Thread thread_;
};

// A report that `call` waits for the functions and sources of these data sets. Data sets in memory
// cannot fail. If all are in memory, no wait is reported.
ReportedWait report_reading(const Client& client, std::string call,
                            std::vector<std::shared_ptr<const Node>> nodes);

std::vector<TensorSpec> types_of(const Element& element);

// Makes a tensor for each type. Tensor k has layout k and the rows of the batch that it holds.
// Requires these rows in the batch, with equal types (check_alike()) that are `types`.
std::vector<DTensor> make_tensors(absl::Span<const TensorSpec> types,
                                  absl::Span<const Layout> layouts, const RowBatch& batch);

// InvalidArgument for a prefetch or transfer out of range, Unimplemented for options that the local
// devices of the mesh do not support. `call` names the public call in messages.
Status check_load_options(absl::string_view call, const Client& client, const Mesh& mesh,
                          const LoadOptions& options);

}  // namespace tessera::input::internal

#endif  // TESSERA_INPUT_LOADING_H_
