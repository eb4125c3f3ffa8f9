// SPDX-License-Identifier: Apache-2.0
//
// WorkerDatasets: reads the per-worker data sets of one worker for its functions.
//
//   datasets.begin_run(chief);
//   datasets.pass(place, position);        an argument of the run, and the chief's position
//   datasets.next(place) ...               by the function
//   datasets.positions()                   with the answer, if the function has returned OK
//
// Invariants:
//   1. A run reads from the position that it was passed, whatever earlier runs have read. A reader
//      at another position, whose batches do not count, is opened again.
//   2. After an error of the data set all further reads of the run return it, and the position
//      stays before the batch that could not be read.
//
// Used by one thread at a time.
#ifndef TESSERA_SERVERS_WORKER_DATASETS_H_
#define TESSERA_SERVERS_WORKER_DATASETS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "input/batch_reader.h"
#include "input/dataset.h"
#include "input/loader.h"
#include "input/source.h"
#include "mesh/mesh.h"
#include "servers/closure_scheduler.h"
#include "servers/function_registry.h"
#include "servers/handle_access.h"

namespace tessera::distribute::internal {

class WorkerDatasets {
 public:
  // `functions` must outlive this object.
  WorkerDatasets(int worker, Mesh mesh, const FunctionRegistry& functions);

  // Makes a data set, and returns the spec of its batches. If the data set exists, does not call
  // the function of the registry again. NotFound for a name that is not in the registry;
  // InvalidArgument for a data set without batches; the error of the function or the data set.
  StatusOr<std::vector<input::TensorSpec>> make(const DatasetPlace& place);

  // Begins a run of this coordinator, without data sets.
  void begin_run(uint64_t chief);
  // Allows the run to read this data set, from this position.
  void pass(const DatasetPlace& place, std::string position);
  // Returns the next batch, split along dim 0 over the devices of the worker. At the end every call
  // returns nothing. InvalidArgument for a data set that was not passed. An error of the data set
  // names it.
  StatusOr<std::optional<input::Batch>> next(const DatasetPlace& place);
  // The positions of the run in the data sets from which it has got a batch, or the end.
  std::vector<DatasetPosition> positions() const;

 private:
  struct Entry {
    std::optional<input::Dataset> dataset;
    std::unique_ptr<input::internal::BatchReader> reader;  // at `at`; null: not open
    std::string at;
    // State of the run.
    bool is_passed = false;
    bool is_read = false;
    Status failed;
  };

  StatusOr<const input::Dataset*> dataset_of(const DatasetPlace& place);
  StatusOr<std::optional<input::Batch>> read(const DatasetPlace& place, Entry* entry);
  StatusOr<input::Batch> batch_of(const input::internal::RowBatch& rows) const;

  const int worker_;
  const Mesh mesh_;
  const FunctionRegistry& functions_;
  uint64_t chief_ = 0;
  std::map<int, Entry> entries_;  // by the number of the data set
};

}  // namespace tessera::distribute::internal

#endif  // TESSERA_SERVERS_WORKER_DATASETS_H_
