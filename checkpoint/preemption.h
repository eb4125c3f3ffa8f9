// SPDX-License-Identifier: Apache-2.0
//
// Preemption: the step at which all clients stop, after any of them has had a signal.
//
//   client 1   SIGTERM --> "signal" to client 0, which tells all
//   each       last step of its program: 12, 14, 13    --> client 0: 14 is the last
//   each       true from 15 on
//
// A client has two threads: one sends its signal, the other one answers for the program with the
// last step that it has begun. From that moment the program waits in its next call of is_reached(),
// until client 0 has answers of all; so no step is begun that is not counted. The threads do not
// wait for programs, so a client that waits for another one in its step blocks nothing. Client 0
// alone tells the others: a client that ends in the middle would leave some of them waiting for
// answers of clients that do not know.
//
// is_reached() is called by one thread. Internal to checkpoint/.
#ifndef TESSERA_CHECKPOINT_PREEMPTION_H_
#define TESSERA_CHECKPOINT_PREEMPTION_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "base/thread.h"
#include "dtensor/client.h"
#include "job/environment/file_descriptor.h"

namespace tessera::checkpoint::internal {

class Preemption {
 public:
  // `run` numbers the objects of a client, equal on all clients. Handles `signal` from then on;
  // another handler of the program is called too. Children of fork() keep the action that the
  // program had set. ResourceExhausted where there is no thread or descriptor.
  static StatusOr<std::unique_ptr<Preemption>> start(const Client& client, int run, int signal);
  // The client then counts as beginning no step. Must not run in a forked child.
  ~Preemption();
  Preemption(const Preemption&) = delete;
  Preemption& operator=(const Preemption&) = delete;

  bool is_reached(int64_t step);

 private:
  Preemption(const Client& client, int run) : client_(client), run_(static_cast<uint32_t>(run)) {}
  std::string series_of(absl::string_view message) const;
  Status tell(absl::string_view message, absl::string_view text) const;
  // Waits for a message of this run, or the end of this object.
  StatusOr<std::string> hear(absl::string_view message, int sender) const;
  void send_signal();
  void await_news();
  int64_t find_limit();

  const Client client_;
  const uint32_t run_;
  FileDescriptor event_;  // readable after the signal, and at the end
  std::atomic<bool> ends_{false};
  std::atomic<int64_t> last_step_{std::numeric_limits<int64_t>::min()};
  std::atomic<bool> is_asked_{false};  // there was a signal; is_reached() waits for limit_

  std::mutex mutex_;  // guards the members below
  std::condition_variable known_;
  bool is_known_ = false;
  int64_t limit_ = std::numeric_limits<int64_t>::max();

  Thread sender_;
  Thread listener_;
};

}  // namespace tessera::checkpoint::internal

#endif  // TESSERA_CHECKPOINT_PREEMPTION_H_
