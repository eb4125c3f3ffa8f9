// SPDX-License-Identifier: Apache-2.0
//
// ReplicaRun: one Strategy::run(), whose replica functions take turns. Internal to distribute/.
//
// Each local replica has a thread; one thread runs at a time: the lowest that is not waiting. A
// replica that makes a call of all replicas waits in it and hands over. When every local replica
// waits or has returned, the thread that was last settles the round: it compares the calls of all
// replicas, also of other clients, and
//
//   all wait in the same call    runs it once, and each replica gets its result
//   all have returned            the run has ended
//   anything else                the run has failed: every waiting replica gets the error, and so
//                                does every later call
//
// Every client settles the same rounds in the same order, and all of them see the same calls. So
// all of them end, or fail with one Status, in the same round. A run that has failed does not
// communicate again.
#ifndef TESSERA_DISTRIBUTE_REPLICA_RUN_H_
#define TESSERA_DISTRIBUTE_REPLICA_RUN_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "base/public.h"
#include "base/status.h"
#include "distribute/call.h"
#include "distribute/function_results.h"
#include "distribute/options.h"
#include "distribute/strategy_state.h"
#include "dtensor/dtensor.h"

namespace tessera::distribute::internal {

class TESSERA_INTERNAL ReplicaRun {
 public:
  // The results of a call for the arguments of the local replicas: a row for each, of both.
  using Action = absl::FunctionRef<StatusOr<Rows>(const Rows& args, absl::Span<const Call> calls)>;
  // The terms of a call, equal for all replicas.
  struct Terms {
    Terms() = default;
    // Not an aggregate: gcc 12 takes the dims of a braced Freedom inside of one for uninitialized.
    explicit Terms(const CommunicationOptions& options, Freedom freedom = {},
                   bool may_call_strategy = false)
        : freedom(std::move(freedom)), options(options), may_call_strategy(may_call_strategy) {}

    Freedom freedom;
    CommunicationOptions options;
    // The action is a function of the user's, which may use the strategy.
    bool may_call_strategy = false;
  };

  // A call of the function of the local replica with this index.
  using Function = absl::FunctionRef<ReplicaResult(int index)>;

  ReplicaRun(std::shared_ptr<StrategyState> strategy, const CommunicationOptions& options);

  const std::shared_ptr<StrategyState>& strategy() const { return strategy_; }

  // The options of calls of replicas that set none of their own.
  const CommunicationOptions& options() const { return options_; }

  // Runs the function for each local replica, and returns when all have returned.
  RunResult run(Function fn);

  // A call of the local replica with this index. `calls`: set to the calls of all replicas if it
  // succeeds.
  ReplicaResult meet(int index, const std::string& text, std::vector<DTensor> args,
                     const Terms& terms, Action action,
                     std::shared_ptr<const std::vector<Call>>* calls = nullptr);

 private:
  enum class Place : uint8_t { kReady, kWaiting, kReturned };
  struct Replica {
    Place place = Place::kReady;
    Call call;
    std::vector<DTensor> args;
    ReplicaResult result;
  };

  // Whether the calling thread runs a replica function.
  bool is_in_function() const;
  void run_replica(int index, Function fn);
  // Hands over to the lowest replica that is ready; settles the round where there is none. `lock`
  // is held, and released while the round is settled.
  void hand_over(std::unique_lock<std::mutex>& lock);
  void settle(std::unique_lock<std::mutex>& lock);
  // The results of the call that all wait in; nothing where all have returned, without an action.
  StatusOr<Rows> settle_calls(const Terms& terms, const Action* action);

  const std::shared_ptr<StrategyState> strategy_;
  const CommunicationOptions options_;
  // The calls of the last round that succeeded. Its replicas read them before the next round is
  // settled.
  std::shared_ptr<const std::vector<Call>> settled_;

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::vector<Replica> replicas_;
  Terms terms_;  // the terms of the call that replicas wait in
  const Action* action_ = nullptr;
  int turn_ = 0;  // whose thread runs; the number of replicas: none
  Status failed_;
  bool has_ended_ = false;
  bool runs_user_action_ = false;
  std::thread::id running_;
};

}  // namespace tessera::distribute::internal

#endif  // TESSERA_DISTRIBUTE_REPLICA_RUN_H_
