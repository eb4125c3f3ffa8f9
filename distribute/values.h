// SPDX-License-Identifier: Apache-2.0
//
// Distributed values: the values of the replicas of a strategy.
//
//   a DTensor over the strategy's mesh   replicated along the replica axes, each replica has the
//                                        value (TF: Mirrored); sharded, its shard; partial, its
//                                        term (TF: SyncOnRead)
//   PerReplica                           a tensor of any shape for each replica
//
// Values, cheap to copy. TF: tf.distribute.DistributedValues.
#ifndef TESSERA_DISTRIBUTE_VALUES_H_
#define TESSERA_DISTRIBUTE_VALUES_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "base/public.h"
#include "base/status.h"
#include "dtensor/dtensor.h"

namespace TESSERA_PUBLIC tessera {
namespace distribute {

namespace internal {
class Replicas;
struct ValueAccess;
}  // namespace internal

// A tensor for each replica, on the mesh of that replica. This client has the tensors of its own
// replicas. Like a DTensor it may carry an error instead: then it has no tensors.
class PerReplica {
 public:
  // A move copies: the moved-from value stays valid.
  PerReplica(const PerReplica&) = default;
  PerReplica& operator=(const PerReplica&) = default;

  // The replicas of the strategy, on all clients.
  int num_replicas() const;
  // The ids of the replicas that this client has, ascending.
  absl::Span<const int> local_replicas() const;
  // The tensor of the index-th local replica; a tensor with an error where there is none.
  const DTensor& local(int index) const;
  // Blocks until the local tensors are ready; the first error.
  Status await() const;
  // The error known now, without waiting.
  Status status() const;

 private:
  friend struct internal::ValueAccess;
  struct Rep;
  explicit PerReplica(std::shared_ptr<const Rep> rep) : rep_(std::move(rep)) {}

  std::shared_ptr<const Rep> rep_;
};

class DistributedValues {
 public:
  DistributedValues(PerReplica value) : value_(std::move(value)) {}  // NOLINT: on purpose
  DistributedValues(DTensor value) : value_(std::move(value)) {}     // NOLINT: on purpose

  // One of the two is null.
  const PerReplica* per_replica() const { return std::get_if<PerReplica>(&value_); }
  const DTensor* tensor() const { return std::get_if<DTensor>(&value_); }

 private:
  std::variant<PerReplica, DTensor> value_;
};

// A step of a data set for all replicas.
struct DistributedBatch {
  std::vector<DistributedValues> values = {};  // by tensor of an element
  int64_t size = 0;                            // elements, of all replicas
  // kData: the step of its epoch (IteratorState::step); else counted from the first step.
  int64_t step = 0;
};

// The replica that a value is asked for.
struct ValueContext {
  int replica_id_in_sync_group = 0;
  int num_replicas_in_sync = 1;
};

}  // namespace distribute
}  // namespace tessera

#endif  // TESSERA_DISTRIBUTE_VALUES_H_
