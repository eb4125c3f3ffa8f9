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
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "distribute/call.h"
#include "distribute/function_results.h"
#include "distribute/options.h"
#include "distribute/strategy_state.h"
#include "dtensor/dtensor.h"

namespace tessera::distribute::internal {

class ReplicaRun final : public RunningFunctions {
 public:
  // The results of a call for the arguments of all local replicas, by replica.
  using Results = std::vector<std::vector<DTensor>>;
  using Action = absl::FunctionRef<StatusOr<Results>(const std::vector<std::vector<DTensor>>& args,
                                                     absl::Span<const Call> calls)>;

  // A call of the function of the local replica with this index.
  using Function = absl::FunctionRef<ReplicaResult(int index)>;

  ReplicaRun(std::shared_ptr<StrategyState> strategy, const CommunicationOptions& options);

  const std::shared_ptr<StrategyState>& strategy() const { return strategy_; }

  // The options of calls of replicas that set none of their own.
  const CommunicationOptions& options() const { return options_; }

  // Runs the function for each local replica, and returns when all have returned.
  RunResult run(Function fn);

  // A call of the local replica with this index. `calls`: set to the calls of all replicas if it
  // succeeds. `may_call_strategy`: the action is a function of the user's, which may use the
  // strategy.
  ReplicaResult meet(int index, std::string text, std::vector<DTensor> args, const Freedom& freedom,
                     const CommunicationOptions& options, bool may_call_strategy, Action action,
                     std::shared_ptr<const std::vector<Call>>* calls = nullptr);

  bool is_replica_thread() const override;

 private:
  enum class Place : uint8_t { kReady, kWaiting, kReturned };
  struct Replica {
    Place place = Place::kReady;
    Call call;
    std::vector<DTensor> args;
    ReplicaResult result;
  };
  // The part of a call that the waiting replicas have in common.
  struct Round {
    Freedom freedom;
    CommunicationOptions options;
    bool may_call_strategy = false;
    const Action* action = nullptr;
  };

  void run_replica(int index, Function fn);
  // Hands over to the lowest replica that is ready; settles the round where there is none. `lock`
  // is held, and released while the round is settled.
  void hand_over(std::unique_lock<std::mutex>& lock);
  void settle(std::unique_lock<std::mutex>& lock);
  // The Status of the round, and the results where all wait in one call.
  StatusOr<Results> settle_calls(const Round& round, bool all_returned);

  const std::shared_ptr<StrategyState> strategy_;
  const CommunicationOptions options_;
  // The calls of the last round that succeeded. Its replicas read them before the next round is
  // settled.
  std::shared_ptr<const std::vector<Call>> settled_;

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::vector<Replica> replicas_;
  Round round_;
  int turn_ = 0;  // whose thread runs; the number of replicas: none
  Status failed_;
  bool has_ended_ = false;
  bool runs_user_action_ = false;
  std::thread::id running_;
};

}  // namespace tessera::distribute::internal

#endif  // TESSERA_DISTRIBUTE_REPLICA_RUN_H_
