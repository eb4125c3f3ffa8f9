// SPDX-License-Identifier: Apache-2.0
//
// ValueState: the state and result of a closure. A RemoteValue is a handle to it.
//
// Thread-safe.
#ifndef TESSERA_SERVERS_VALUE_STATE_H_
#define TESSERA_SERVERS_VALUE_STATE_H_

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/format.h"
#include "base/host_array.h"
#include "base/status.h"
#include "base/text.h"
#include "base/wait_reports.h"
#include "servers/chief_waits.h"

namespace tessera::distribute::internal {

class ValueState {
 public:
  // `waits` is null if the value is over at once.
  explicit ValueState(std::string function, std::shared_ptr<ChiefWaits> waits = nullptr)
      : function_(std::move(function)), waits_(std::move(waits)) {}

  // Must precede finish(OK).
  void set_results(std::vector<HostArray> results) {
    std::lock_guard<std::mutex> lock(mutex_);
    results_ = std::move(results);
  }
  void finish(const Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    status_ = status;
    is_over_ = true;
    changed_.notify_all();
  }
  Status await(absl::Duration timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (is_over_) return status_;
    const ReportedWait wait =
        waits_->in(absl::StrCat("RemoteValue::await of function ", in_quotes(function_)));
    if (!changed_.wait_until(lock, to_chrono_steady(steady_now() + timeout),
                             [this] { return is_over_; })) {
      return absl::DeadlineExceededError(not_in_time(
          absl::StrCat("the closure of function ", in_quotes(function_), " is not over"), timeout,
          "after"));
    }
    return status_;
  }
  StatusOr<std::vector<HostArray>> fetch() {
    TESSERA_RETURN_IF_ERROR(await(absl::InfiniteDuration()));
    std::lock_guard<std::mutex> lock(mutex_);
    return results_;
  }

 private:
  const std::string function_;
  const std::shared_ptr<ChiefWaits> waits_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  bool is_over_ = false;
  Status status_;
  std::vector<HostArray> results_;
};

}  // namespace tessera::distribute::internal

#endif  // TESSERA_SERVERS_VALUE_STATE_H_
