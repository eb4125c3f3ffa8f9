// SPDX-License-Identifier: Apache-2.0
//
// Loader: the batches of a data set as tensors over the devices of all clients.
//
//   StatusOr<Layout> rows = Layout::batch_sharded(mesh, "batch", /*rank=*/2);
//   StatusOr<Loader> loader = distribute(client, images.batch(128), {*rows});
//   StatusOr<Iterator> iterator = loader->iterate();
//   for (;;) {
//     StatusOr<std::optional<Batch>> batch = iterator->next();
//     if (!batch.ok() || !batch->has_value()) break;
//     ... (*batch)->tensors[0] ...
//   }
//
// Step s is the same global batch for any mesh, any layouts, and any number of clients; tensor k of
// the batch has layout k. Each client reads only the elements in its boxes along dim 0. (It reads a
// stream whole.) The batch at the end of the data may be smaller than the others: the layout splits
// the elements that are left.
//
// Collective over the clients of the mesh: they make the same calls of iterate() and next(), of the
// same data set, in the same order as their other collective calls. A read that fails on one client
// is the error of that step on all; iterate() finds a data set that differs.
#ifndef TESSERA_INPUT_LOADER_H_
#define TESSERA_INPUT_LOADER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/status.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "input/dataset.h"
#include "input/iterator_state.h"
#include "input/source.h"
#include "layout/layout.h"

namespace tessera::input {

namespace internal {
struct LoaderRep;
class IteratorRep;
}  // namespace internal

// Where the shards of a batch are: on the devices of the layouts, or in memory of the host, which
// CPU devices use anyway; on a mesh of GPUs kOnHost is not implemented.
enum class Transfer { kToDevice, kOnHost };

struct LoadOptions {
  Transfer transfer = Transfer::kToDevice;
  // Batches that a thread reads ahead; 0: next() reads. The thread calls the functions of the data
  // set.
  int prefetch = 1;
};

struct Batch {
  std::vector<DTensor> tensors;
  int64_t size = 0;  // elements, of all clients
  int64_t step = 0;  // IteratorState::step before it
};

// Move-only; used by one thread at a time. Its destructor waits for the function that its thread is
// in.
class Iterator {
 public:
  Iterator(Iterator&&) noexcept;
  Iterator& operator=(Iterator&&) noexcept;
  ~Iterator();

  // The next batch; nothing at the end, as often as asked: on all clients at the same step. An
  // error stays, and is equal on all clients; iterate(state()) tries the step again.
  //
  // Where an element can fail to be read, and the mesh has several clients, the clients agree on
  // each batch, after the earlier work of their devices. While a function of the data set does not
  // return on one client, the others wait as in any collective: for
  // ClientOptions::collective_timeout.
  StatusOr<std::optional<Batch>> next();
  // The state of the batch that comes next; batches that were read ahead do not count.
  IteratorState state() const;

 private:
  friend class Loader;
  explicit Iterator(std::unique_ptr<internal::IteratorRep> rep);

  std::unique_ptr<internal::IteratorRep> rep_;  // null: moved from
};

class Loader {
 public:
  // From a state of any iterator over the same data set, whatever its mesh. InvalidArgument where
  // clients give other data sets, layouts or states. FailedPrecondition of a Loader that was moved
  // from, which has no elements.
  StatusOr<Iterator> iterate(const IteratorState& from = {}) const;
  // As of the data set.
  std::vector<TensorSpec> element_spec() const;
  std::optional<int64_t> cardinality() const;

 private:
  friend StatusOr<Loader> distribute(const Client& client, const Dataset& batches,
                                     std::vector<Layout> layouts, const LoadOptions& options);
  explicit Loader(std::shared_ptr<const internal::LoaderRep> rep) : rep_(std::move(rep)) {}

  std::shared_ptr<const internal::LoaderRep> rep_;  // null: moved from
};

// A layout for each tensor of a batch, all on one live mesh; any layout, partial ones included (the
// value is then held as dtensor.h says). InvalidArgument for a data set that carries an error or
// has no batches, and layouts that do not fit; FailedPrecondition for an abstract mesh, and on a
// client without a device of the mesh. Local: no communication. TF:
// Strategy.experimental_distribute_dataset, dtensor.DTensorDataset.
StatusOr<Loader> distribute(const Client& client, const Dataset& batches,
                            std::vector<Layout> layouts, const LoadOptions& options = {});

}  // namespace tessera::input

#endif  // TESSERA_INPUT_LOADER_H_
