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
// - Step s is the same global batch for any mesh, any layouts, and any number of clients.
// - Tensor k of the batch has layout k.
// - Each client reads only the elements in its boxes along dim 0, and the whole of a stream.
// - The batch at the end of the data may be smaller than the others; the layout then splits the
//   remaining elements.
//
// Collective over the clients of the mesh: they make the same calls of iterate() and next(), on the
// same data set, in the same order as their other collective calls. If a read fails on one client,
// the step fails with that error on all. iterate() fails if clients have different data sets.
#ifndef TESSERA_INPUT_LOADER_H_
#define TESSERA_INPUT_LOADER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/public.h"
#include "base/status.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "input/dataset.h"
#include "input/iterator_state.h"
#include "input/source.h"
#include "layout/layout.h"

namespace TESSERA_PUBLIC tessera {
namespace input {

namespace internal {
struct LoaderRep;
class IteratorRep;
}  // namespace internal

// Where the shards of a batch are: in memory of the devices or of the host. For CPU devices both
// are the same. kOnHost is Unimplemented on a mesh with GPUs of this client.
enum class Transfer { kToDevice, kOnHost };

struct LoadOptions {
  Transfer transfer = Transfer::kToDevice;
  // The number of batches that a thread reads ahead, up to 1024. The thread calls the functions of
  // the data set. With 0, next() reads.
  int prefetch = 1;
};

struct Batch {
  std::vector<DTensor> tensors;
  int64_t size = 0;  // elements, of all clients
  int64_t step = 0;  // IteratorState::step before it
};

// Move-only; used by one thread at a time. The destructor waits for a running function of the data
// set to return.
class Iterator {
 public:
  Iterator(Iterator&&) noexcept;
  Iterator& operator=(Iterator&&) noexcept;
  ~Iterator();

  // Returns the next batch. At the end, which is the same step on all clients, every call returns
  // nothing. After an error, which is equal on all clients, every later call returns the same
  // error; iterate(state()) tries the step again.
  //
  // If reading an element can fail and the mesh has several clients, they exchange a few bytes with
  // each batch. This exchange waits for the earlier work of their devices. If a function of the
  // data set does not return on one client, the others wait for ClientOptions::collective_timeout,
  // as in any collective.
  StatusOr<std::optional<Batch>> next();
  // The state of the next batch. Batches that were read ahead do not count.
  IteratorState state() const;

 private:
  friend class Loader;
  explicit Iterator(std::unique_ptr<internal::IteratorRep> rep);

  std::unique_ptr<internal::IteratorRep> rep_;  // null: moved from
};

class Loader {
 public:
  // Starts at a state of any iterator over the same data set, whatever its mesh. InvalidArgument
  // where clients pass different data sets, layouts or states. FailedPrecondition for a Loader that
  // was moved from.
  StatusOr<Iterator> iterate(const IteratorState& from = {}) const;
  // As for the data set.
  std::vector<TensorSpec> element_spec() const;
  std::optional<int64_t> cardinality() const;

 private:
  friend StatusOr<Loader> distribute(const Client& client, const Dataset& batches,
                                     const LayoutArgs& layouts, const LoadOptions& options);
  explicit Loader(std::shared_ptr<const internal::LoaderRep> rep) : rep_(std::move(rep)) {}

  std::shared_ptr<const internal::LoaderRep> rep_;  // null: moved from
};

// Makes a Loader. `layouts` has a layout for each tensor of a batch, all on one live mesh. Partial
// layouts are allowed; the value is then held as dtensor.h says.
//
// - InvalidArgument: a data set that carries an error or has no batches; layouts that do not fit.
// - FailedPrecondition: an abstract mesh; a client without a device of the mesh.
//
// Local: no communication. TF: Strategy.experimental_distribute_dataset, dtensor.DTensorDataset.
StatusOr<Loader> distribute(const Client& client, const Dataset& batches, const LayoutArgs& layouts,
                            const LoadOptions& options = {});

}  // namespace input
}  // namespace tessera

#endif  // TESSERA_INPUT_LOADER_H_
