// SPDX-License-Identifier: Apache-2.0
//
// Pipelines: data sets, each of which feeds some of the replicas with batches of its own. Internal
// to distribute/.
//
//   2 clients of 2 replicas, a pipeline for each client
//
//   cut        pipeline 0   0 1 2 3    ->  replica 0: 0 1   replica 1: 2 3
//   in turn    pipeline 0   0 1, 2 3   ->  replica 0: 0 1   replica 1: 2 3      two batches
//
// A step: load() reads the part of this client, by the thread that reads ahead or by the caller;
// then the clients exchange, for each replica, the types and sizes of its tensors, and for each
// pipeline the position after the step, or an error. So all of them decide alike whether the data
// has ended, and know the whole state.
#ifndef TESSERA_DISTRIBUTE_PIPELINES_H_
#define TESSERA_DISTRIBUTE_PIPELINES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "distribute/call.h"
#include "distribute/input_options.h"
#include "distribute/strategy_state.h"
#include "distribute/values.h"
#include "dtensor/dtensor.h"
#include "input/batch_reader.h"
#include "input/dataset.h"
#include "input/iterator_state.h"
#include "input/loading.h"

namespace tessera::distribute::internal {

// How a data set is read. The number of a policy is in the states of its iterators.
enum class ReadPolicy : uint8_t {
  kData = 1,
  kFile,
  kOff,
  kFunctionPerWorker,
  kFunctionPerReplica,
};
std::string policy_name(ReadPolicy policy);
// InvalidArgument for a state of another policy, naming both.
Status check_policy(const input::IteratorState& state, ReadPolicy policy);

struct Pipeline {
  int id = 0;
  input::Dataset dataset;          // in batches
  std::vector<int> replicas = {};  // the replicas that it feeds, as indices in local_replicas()
};

struct PipelineSet {
  std::shared_ptr<const StrategyState> strategy;
  ReadPolicy policy = ReadPolicy::kOff;
  AtEnd at_end = AtEnd::kAll;
  int prefetch = 0;
  std::vector<Pipeline> local = {};  // pipelines of this client
  // The replicas that each pipeline feeds, of all clients. The call of the first tells its
  // position.
  std::vector<std::vector<int>> replicas = {};
  uint64_t hash = 0;  // of the descriptions of all pipelines
  std::optional<int64_t> num_steps = {};

  int num_pipelines() const { return static_cast<int>(replicas.size()); }
  bool cuts_batches() const { return policy == ReadPolicy::kFile || policy == ReadPolicy::kOff; }
};

// The positions of all pipelines as one state, and back. By number of the pipeline.
input::IteratorState state_of(const PipelineSet& set, int64_t epoch, int64_t step,
                              absl::Span<const input::IteratorState> pipelines);
StatusOr<std::vector<input::IteratorState>> states_in(const PipelineSet& set,
                                                      const input::IteratorState& state);

class PipelineIterator {
 public:
  static StatusOr<std::unique_ptr<PipelineIterator>> open(std::shared_ptr<const PipelineSet> set,
                                                          const input::IteratorState& from);

  // As in DistributedIterator.
  StatusOr<std::optional<DistributedBatch>> next();
  input::IteratorState state() const { return state_of(*set_, epoch_, step_, states_); }

 private:
  // The part of a step that this client has.
  struct LocalStep {
    Status status;
    std::vector<std::vector<DTensor>> tensors;  // by local replica; none: its pipeline has no more
    std::vector<input::IteratorState> after;    // by local pipeline
    bool is_last() const { return !status.ok(); }
  };

  PipelineIterator(std::shared_ptr<const PipelineSet> set, int64_t epoch, int64_t step,
                   std::vector<input::IteratorState> states)
      : set_(std::move(set)),
        epoch_(epoch),
        step_(step),
        states_(std::move(states)),
        loading_step_(step),
        ahead_(set_->prefetch, [this] { return load(); }) {}

  // Reads a step. Called by one thread: the thread that reads ahead, if there is one.
  LocalStep load();
  Status load_pipeline(size_t index, LocalStep* step);
  int local_id(int local_replica) const { return set_->strategy->local_replicas()[local_replica]; }

  std::vector<Call> calls_of(const LocalStep& step) const;
  // Agrees with all clients on a step that load() has read.
  StatusOr<std::optional<DistributedBatch>> settle(LocalStep step);
  // Whether the data has ended: for all pipelines, or under kFirst for one.
  bool is_end(absl::Span<const Call> calls) const;
  std::vector<DistributedValues> values_of(LocalStep step, const Call& example) const;

  const std::shared_ptr<const PipelineSet> set_;

  // Used by the caller's thread.
  const int64_t epoch_;
  int64_t step_;
  std::vector<input::IteratorState> states_;  // by pipeline of all clients, of the next step
  Status failed_;
  bool ended_ = false;

  // Used by the thread that loads.
  std::vector<std::unique_ptr<input::internal::BatchReader>> readers_;  // by local pipeline
  int64_t loading_step_;

  input::internal::ReadAhead<LocalStep> ahead_;  // the last member: its thread uses the others
};

}  // namespace tessera::distribute::internal

#endif  // TESSERA_DISTRIBUTE_PIPELINES_H_
