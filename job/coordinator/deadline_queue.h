// SPDX-License-Identifier: Apache-2.0
//
// DeadlineQueue: runs a function when each of many deadlines passes.
//
//   auto handle = deadlines.add(now + timeout, [&] { ... });    infinite: never done
//   deadlines.remove(handle);                                   when it is settled earlier
//   deadlines.advance(now);                                     runs due entries, in order of time
//
// Invariant: an entry runs at most once, and never after remove(). O(log n) each. Not thread-safe.
#ifndef TESSERA_JOB_COORDINATOR_DEADLINE_QUEUE_H_
#define TESSERA_JOB_COORDINATOR_DEADLINE_QUEUE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "absl/time/time.h"

namespace tessera {

class DeadlineQueue {
 public:
  // Valid for remove() for ever, also after the entry has run.
  struct Handle {
    absl::Time deadline = absl::InfiniteFuture();
    uint64_t number = 0;
  };

  Handle add(absl::Time deadline, std::function<void()> expired) {
    const Handle handle = {deadline, ++last_number_};
    if (deadline != absl::InfiniteFuture()) {
      entries_.emplace(std::make_pair(deadline, handle.number), std::move(expired));
    }
    return handle;
  }
  void remove(const Handle& handle) { entries_.erase({handle.deadline, handle.number}); }

  void advance(absl::Time now) {
    while (!entries_.empty() && entries_.begin()->first.first <= now) {
      const std::function<void()> expired = std::move(entries_.begin()->second);
      entries_.erase(entries_.begin());
      expired();
    }
  }
  absl::Time next() const {
    return entries_.empty() ? absl::InfiniteFuture() : entries_.begin()->first.first;
  }

 private:
  std::map<std::pair<absl::Time, uint64_t>, std::function<void()>> entries_;
  uint64_t last_number_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_DEADLINE_QUEUE_H_
