// SPDX-License-Identifier: Apache-2.0
//
// BatchReader: reads the batches of a data set in order, and of each batch the rows that this
// client needs. Internal to input/.
//
//   range(10) in batches of 4    step 0: 0 1 2 3    step 1: 4 5 6 7    step 2: 8 9
//   rows {2, 3} of each          2 3                6 7                nothing below 2
//
// With random access other rows are not read. A stream is read whole, because its number of rows is
// known only at its end.
#ifndef TESSERA_INPUT_BATCH_READER_H_
#define TESSERA_INPUT_BATCH_READER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "base/public.h"
#include "base/status.h"
#include "input/dataset.h"
#include "input/iterator_state.h"
#include "input/node.h"
#include "input/source.h"
#include "input/worker_pool.h"

namespace tessera::input::internal {

struct Batching {
  int64_t size;
  Remainder remainder;
};

// The representation of a Dataset. Either `status` is an error, or `node` is not null.
struct TESSERA_INTERNAL DatasetRep {
  Status status;
  NodePtr node;
  std::optional<Batching> batching;

  // A hash of the whole description; not 0, which a state made by hand has.
  uint64_t hash() const;
};

struct DatasetAccess {
  static Dataset make(DatasetRep rep) {
    return Dataset(std::make_shared<const DatasetRep>(std::move(rep)));
  }
  static const DatasetRep& rep(const Dataset& dataset) { return dataset.rep(); }
};

// The data set over only some of its files. InvalidArgument where it has no files.
StatusOr<Dataset> with_files(const Dataset& dataset, absl::Span<const int64_t> keep);

struct RowBatch {
  int64_t size = 0;  // of the whole batch
  int64_t step = 0;
  std::vector<int64_t> rows = {};  // that were read, ascending
  std::vector<Element> elements = {};
};

class TESSERA_INTERNAL BatchReader {
 public:
  // Requires a rep without an error. A data set without batches is read as batches of one element.
  static StatusOr<std::unique_ptr<BatchReader>> open(const Dataset& dataset,
                                                     const IteratorState& from);

  // Reads the rows rows(size), ascending, of the next batch. Returns nothing at the end. If rows
  // fail, returns the error of the first one, and so does every later call.
  using ChooseRows = absl::FunctionRef<std::vector<int64_t>(int64_t size)>;
  StatusOr<std::optional<RowBatch>> next(ChooseRows rows);
  // The state of the batch that comes next.
  IteratorState state() const;

 private:
  BatchReader(const DatasetRep& rep, Batching batching)
      : node_(rep.node), hash_(rep.hash()), batching_(batching) {}
  Status start(const IteratorState& from);
  Status start_stream(const IteratorState& from);
  Status start_random_access(const IteratorState& from);
  // The first batch that begins at or after this element.
  int64_t first_batch_at(__int128 element) const;
  StatusOr<std::optional<RowBatch>> read_next(ChooseRows rows);
  StatusOr<std::optional<RowBatch>> next_of_stream(ChooseRows rows);
  StatusOr<std::optional<RowBatch>> next_by_index(ChooseRows rows);
  StatusOr<Element> take_ahead();

  const NodePtr node_;
  const uint64_t hash_;
  const Batching batching_;
  Status failed_;

  // For a stream: its reader, the epoch and step of the next batch, and the state before the last
  // call of next().
  std::unique_ptr<Reader> reader_;
  int64_t stream_epoch_ = 0;
  int64_t stream_step_ = 0;
  bool stream_ended_ = false;
  IteratorState before_;

  // For random access: the element that the next batch begins with, and the epoch of the node.
  std::unique_ptr<WorkerPool> pool_;
  int64_t position_ = 0;
  int64_t epoch_ = 0;
  // Elements from position_ on that were already read, in reverse. Used for a data set without
  // batches, whose elements several threads read at once.
  std::vector<StatusOr<Element>> ahead_;
};

// Joins the elements: each array has them along a new dim 0. InvalidArgument where their types
// differ. Requires at least one element.
StatusOr<Element> stack(absl::Span<const Element> elements);
// InvalidArgument where elements have different types. The message names two rows and their types.
Status check_alike(const RowBatch& batch);

}  // namespace tessera::input::internal

#endif  // TESSERA_INPUT_BATCH_READER_H_
