// SPDX-License-Identifier: Apache-2.0
//
// Errands: runs functions in their order on a thread of its own, for callers that must not block:
// the engine's callbacks, above all.
//
//   Errands errands("the ends of waits");
//   errands.post([wait] { wait.end(error); });     may wait for a lock that another client holds
//
// The thread starts with the first function. Thread-safe.
#ifndef TESSERA_TRANSPORT_ERRANDS_H_
#define TESSERA_TRANSPORT_ERRANDS_H_

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "base/fork_guard.h"
#include "base/status.h"
#include "base/thread.h"

namespace tessera::transport {

class Errands {
 public:
  // `subject`: the purpose of the thread, for the error of post().
  explicit Errands(std::string subject) : subject_(std::move(subject)) {}
  ~Errands();

  // Does not block. ResourceExhausted where no thread can be started: the function is dropped.
  // After begin_stop() the function is dropped without an error.
  Status post(absl::AnyInvocable<void()> errand);
  // Drops functions that have not begun, and ends pause(). Does not block.
  void begin_stop();
  // Calls begin_stop(), and waits for the function that runs.
  void stop();
  // For a function that runs: blocks for `duration`; false where the function must end.
  bool pause(absl::Duration duration);

 private:
  void run();

  const std::string subject_;
  const ForkGuard fork_guard_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<absl::AnyInvocable<void()>> errands_;
  bool is_stopping_ = false;
  Thread thread_;
};

}  // namespace tessera::transport

#endif  // TESSERA_TRANSPORT_ERRANDS_H_
