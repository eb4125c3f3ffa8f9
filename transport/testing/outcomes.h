// SPDX-License-Identifier: Apache-2.0
//
// Outcomes: waits for the ends of operations of an Engine.
//
//   Outcomes sent;
//   engine.send(1, 7, bytes, nullptr, sent.next());
//   TESSERA_RETURN_IF_ERROR(sent.wait());           all that were handed out have ended
//
// Thread-safe. It may be destroyed before the operations end.
#ifndef TESSERA_TRANSPORT_TESTING_OUTCOMES_H_
#define TESSERA_TRANSPORT_TESTING_OUTCOMES_H_

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "transport/engine.h"

namespace tessera::transport {

class Outcomes {
 public:
  // For one more operation.
  Engine::Done next() {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    ++shared_->expected;
    return [shared = shared_](const Status& status) {
      std::lock_guard<std::mutex> lock(shared->mutex);
      shared->results.push_back(status);
      shared->changed.notify_all();
    };
  }

  // The results in the order in which the operations ended, once all have; fewer where they do not
  // within a minute.
  std::vector<Status> all() {
    std::unique_lock<std::mutex> lock(shared_->mutex);
    shared_->changed.wait_until(lock, to_chrono_steady(steady_now() + absl::Minutes(1)),
                                [&] { return shared_->results.size() >= shared_->expected; });
    return shared_->results;
  }

  // The first error; DeadlineExceeded where operations do not end.
  Status wait() {
    const std::vector<Status> results = all();
    for (const Status& status : results) TESSERA_RETURN_IF_ERROR(status);
    std::lock_guard<std::mutex> lock(shared_->mutex);
    if (results.size() == shared_->expected) return absl::OkStatus();
    return absl::DeadlineExceededError(
        absl::StrCat(results.size(), " of ", shared_->expected, " operations ended"));
  }

  size_t num_ended() const {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    return shared_->results.size();
  }

 private:
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    size_t expected = 0;
    std::vector<Status> results;
  };
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace tessera::transport

#endif  // TESSERA_TRANSPORT_TESTING_OUTCOMES_H_
