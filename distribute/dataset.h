// SPDX-License-Identifier: Apache-2.0
//
// DistributedDataset: the batches of a data set for the replicas of a strategy.
//
//   StatusOr<DistributedDataset> batches = strategy.distribute_dataset(images.batch(128), {});
//   StatusOr<DistributedIterator> iterator = batches->iterate();
//   for (;;) {
//     StatusOr<std::optional<DistributedBatch>> batch = iterator->next();
//     if (!batch.ok() || !batch->has_value()) break;
//     strategy.run(step, (*batch)->values[0], (*batch)->values[1]);
//   }
//
// The first step, for 2 clients of 2 replicas and batches of 4:
//
//   kAuto, kData   0 / 1 / 2 / 3: tensors split along dim 0 over the replica axes
//                  (input::distribute)
//   kFile          client 0 reads files 0, 2, ..., client 1 files 1, 3, ..., two elements each
//   kOff           0 / 1 / 0 / 1: each client reads everything
//   a function     makes a data set for each client, whose batches go to its replicas in turn; or
//                  with kPerReplica a data set for each replica
//
// A pipeline is the data set that a client or replica reads for itself. Its values are PerReplica,
// of any sizes, and shapes may differ from replica to replica too.
//
// Sizes. Under kFile and kOff a batch of b elements is for all replicas. The split rule over all
// replicas says how many of the b elements each replica gets. A pipeline reads the sum for its
// client's replicas at once, and cuts it by the split rule over them. Batches of functions are not
// cut.
//
// The end. All clients see it at the same step. Under AtEnd::kAll a step has the elements that
// pipelines have left: a replica without elements has tensors of size 0 along dim 0. Under kFirst
// the first step for which a pipeline has nothing is the end.
//
// Collective over the clients of the strategy's mesh, like their other calls. Where pipelines are
// read by several clients, these exchange sizes, positions and errors at each step. An error of one
// client is returned on all.
#ifndef TESSERA_DISTRIBUTE_DATASET_H_
#define TESSERA_DISTRIBUTE_DATASET_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/public.h"
#include "base/status.h"
#include "distribute/input_options.h"
#include "distribute/strategy.h"
#include "distribute/values.h"
#include "input/dataset.h"
#include "input/input_context.h"
#include "input/iterator_state.h"
#include "input/source.h"

namespace TESSERA_PUBLIC tessera {
namespace distribute {

namespace internal {
struct DatasetRep;
struct DatasetIteratorRep;
}  // namespace internal

// Move-only; used by one thread at a time. Its destructor waits for the function that its thread is
// in.
class DistributedIterator {
 public:
  DistributedIterator(DistributedIterator&&) noexcept;
  DistributedIterator& operator=(DistributedIterator&&) noexcept;
  ~DistributedIterator();

  // The next step; nothing at the end, as often as asked. An error stays, and is equal on all
  // clients; iterate(state()) tries the step again. FailedPrecondition in a replica function. Waits
  // for the other clients as any collective. TF: get_next_as_optional.
  StatusOr<std::optional<DistributedBatch>> next();
  // The state of the step that comes next; equal on all clients. Steps read ahead do not count.
  input::IteratorState state() const;

 private:
  friend class DistributedDataset;
  explicit DistributedIterator(std::unique_ptr<internal::DatasetIteratorRep> rep);

  std::unique_ptr<internal::DatasetIteratorRep> rep_;  // null: moved from
};

// Handle: copies mean the same data set. Made by Strategy::distribute_dataset() and
// Strategy::distribute_datasets_from_function().
class DistributedDataset {
 public:
  // kData: from a state of any iterator over the same data set, whatever its replicas and clients.
  // Else from a state of the same policy and number of pipelines, or from a state made by hand with
  // an epoch, which then begins in all pipelines. InvalidArgument names both otherwise, and where
  // clients give other states.
  StatusOr<DistributedIterator> iterate(const input::IteratorState& from = {}) const;
  // kData: the spec of the data set. Else of the first pipeline of this client, with -1 along dim
  // 0. A map hides the spec of its elements: the first element is then read.
  std::vector<input::TensorSpec> element_spec() const;
  // Steps. Nothing where a pipeline is endless or a stream.
  std::optional<int64_t> cardinality() const;

 private:
  friend class Strategy;
  explicit DistributedDataset(std::shared_ptr<const internal::DatasetRep> rep)
      : rep_(std::move(rep)) {}

  std::shared_ptr<const internal::DatasetRep> rep_;  // null: moved from
};

}  // namespace distribute
}  // namespace tessera

#endif  // TESSERA_DISTRIBUTE_DATASET_H_
