// SPDX-License-Identifier: Apache-2.0
//
// Saver: runs the saves of one client, one after the other, in a thread of its own.
//
//   save(), save_async() --> admit() --> queue --> thread: run_save() --> SaveState::finish()
//
// Invariants:
//   1. saves run in the order of enqueue(), which is the same on all clients;
//   2. the thread exists from the first save on. It has no work when the saver is destroyed: each
//      save holds the client to which the saver belongs.
//
// Thread-safe. Internal to checkpoint/.
#ifndef TESSERA_CHECKPOINT_SAVER_H_
#define TESSERA_CHECKPOINT_SAVER_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "base/thread.h"
#include "checkpoint/options.h"
#include "checkpoint/save_request.h"
#include "dtensor/rounds.h"

namespace tessera::checkpoint::internal {

using tessera::internal::Rounds;

class Saver {
 public:
  Saver() = default;
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // Counts a save as pending; enqueue() of it follows. With `limits` it first waits until they
  // allow the save; the ResourceExhausted of tensors that exceed them alone becomes the request's
  // `refused`, and is returned too.
  Status admit(SaveRequest& request, const AsyncOptions* limits);
  // Appends an admitted save.
  void enqueue(std::unique_ptr<SaveRequest> request);

  // As BackgroundWork.
  Status take_error();
  Status finish(absl::Time deadline);
  bool is_current() const { return thread_.is_current(); }

 private:
  void run();
  void run_one(std::unique_ptr<SaveRequest> request, uint32_t number);

  Rounds rounds_{"save"};
  std::atomic<bool> stopping_{false};  // the client shuts down: saves are cut off

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<std::unique_ptr<SaveRequest>> queue_;
  int num_pending_ = 0;     // admitted, in the queue, and the running one
  int64_t held_bytes_ = 0;  // of these
  uint32_t num_saves_ = 0;  // that have begun
  std::vector<std::shared_ptr<SaveState>> failed_;
  bool ends_ = false;
  Thread thread_;
};

}  // namespace tessera::checkpoint::internal

#endif  // TESSERA_CHECKPOINT_SAVER_H_
