// SPDX-License-Identifier: Apache-2.0
//
// ClientState: what checkpoint/ keeps for a client: its saver, and the number of its Checkpointers.
//
// Made by the first call that needs it, and destroyed with the client. Thread-safe. Internal to
// checkpoint/.
#ifndef TESSERA_CHECKPOINT_CLIENT_STATE_H_
#define TESSERA_CHECKPOINT_CLIENT_STATE_H_

#include <atomic>

#include "absl/time/time.h"
#include "base/status.h"
#include "checkpoint/saver.h"
#include "dtensor/background_work.h"
#include "dtensor/client.h"

namespace tessera::checkpoint::internal {

class ClientState : public tessera::internal::BackgroundWork {
 public:
  // Requires a client that was not moved from.
  static ClientState& of(const Client& client);

  Saver& saver() { return saver_; }
  // Numbers the Checkpointers of this client, equal on all clients.
  int next_run() { return num_runs_++; }

  Status take_error() override { return saver_.take_error(); }
  Status finish(absl::Time deadline) override { return saver_.finish(deadline); }
  bool is_current() const override { return saver_.is_current(); }

 private:
  Saver saver_;
  std::atomic<int> num_runs_{0};
};

}  // namespace tessera::checkpoint::internal

#endif  // TESSERA_CHECKPOINT_CLIENT_STATE_H_
