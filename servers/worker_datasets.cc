// SPDX-License-Identifier: Apache-2.0
#include "servers/worker_datasets.h"

#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/exception_status.h"
#include "base/host_array.h"
#include "base/shape.h"
#include "base/text.h"
#include "dtensor/dtensor.h"
#include "input/input_context.h"
#include "input/iterator_state.h"
#include "layout/layout.h"

namespace tessera::distribute::internal {
namespace {

std::string text_of(const DatasetPlace& place) {
  return absl::StrCat("data set ", in_quotes(place.name));
}

std::vector<int64_t> all_rows(int64_t size) {
  std::vector<int64_t> rows(static_cast<size_t>(size));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

}  // namespace

WorkerDatasets::WorkerDatasets(int worker, Mesh mesh, const FunctionRegistry& functions)
    : worker_(worker), mesh_(std::move(mesh)), functions_(functions) {}

StatusOr<std::vector<input::TensorSpec>> WorkerDatasets::make(const DatasetPlace& place) {
  const StatusOr<const input::Dataset*> dataset = dataset_of(place);
  TESSERA_RETURN_IF_ERROR(with_context(dataset.status(), text_of(place)));
  return (*dataset)->element_spec();
}

StatusOr<const input::Dataset*> WorkerDatasets::dataset_of(const DatasetPlace& place) {
  std::optional<input::Dataset>& dataset = entries_[place.number].dataset;
  if (dataset.has_value()) return &*dataset;
  const FunctionRegistry::DatasetFunction* const fn = functions_.find_dataset(place.name);
  if (fn == nullptr) {
    return absl::NotFoundError(absl::StrCat("it is not in the registry of worker ", worker_, ": ",
                                            absl::StrJoin(functions_.dataset_names(), ", ")));
  }
  const InputContext context = {.num_input_pipelines = place.num_workers,
                                .input_pipeline_id = worker_,
                                .num_replicas_in_sync = 1};
  TESSERA_ASSIGN_OR_RETURN(input::Dataset made,
                           call_guarded<StatusOr<input::Dataset>>([&] { return (*fn)(context); }));
  TESSERA_RETURN_IF_ERROR(made.status());
  if (!input::internal::DatasetAccess::rep(made).batching.has_value()) {
    return absl::InvalidArgumentError("it has no batches; call batch(size) last");
  }
  dataset = std::move(made);
  return &*dataset;
}

void WorkerDatasets::begin_run(uint64_t chief) {
  chief_ = chief;
  for (auto& [number, entry] : entries_) entry.is_passed = false;
}

void WorkerDatasets::pass(const DatasetPlace& place, std::string position) {
  Entry& entry = entries_[place.number];
  entry.is_passed = true;
  entry.is_read = false;
  entry.failed = absl::OkStatus();
  if (entry.at == position) return;
  entry.reader = nullptr;
  entry.at = std::move(position);
}

StatusOr<std::optional<input::Batch>> WorkerDatasets::next(const DatasetPlace& place) {
  const auto it = entries_.find(place.number);
  if (place.chief != chief_ || it == entries_.end() || !it->second.is_passed) {
    return absl::InvalidArgumentError(
        absl::StrCat(text_of(place),
                     " is not an argument of this call; pass it to schedule, and read it there"));
  }
  Entry& entry = it->second;
  TESSERA_RETURN_IF_ERROR(entry.failed);
  StatusOr<std::optional<input::Batch>> batch = read(place, &entry);
  if (batch.ok()) {
    entry.is_read = true;
    entry.at = entry.reader->state().to_string();
    if (!batch->has_value()) entry.reader = nullptr;  // frees its threads and buffers
    return batch;
  }
  entry.failed = with_context(batch.status(), text_of(place));
  entry.reader = nullptr;
  return entry.failed;
}

StatusOr<std::optional<input::Batch>> WorkerDatasets::read(const DatasetPlace& place,
                                                           Entry* entry) {
  if (entry->reader == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(const input::Dataset* const dataset, dataset_of(place));
    input::IteratorState from;
    if (!entry->at.empty()) {
      TESSERA_ASSIGN_OR_RETURN(from, input::IteratorState::parse(entry->at));
    }
    TESSERA_ASSIGN_OR_RETURN(entry->reader, input::internal::BatchReader::open(*dataset, from));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::optional<input::internal::RowBatch> rows,
                           entry->reader->next(all_rows));
  if (!rows.has_value()) return std::nullopt;
  TESSERA_RETURN_IF_ERROR(input::internal::check_alike(*rows));
  TESSERA_ASSIGN_OR_RETURN(input::Batch batch, batch_of(*rows));
  return batch;
}

StatusOr<input::Batch> WorkerDatasets::batch_of(const input::internal::RowBatch& rows) const {
  TESSERA_ASSIGN_OR_RETURN(const input::Element arrays, input::internal::stack(rows.elements));
  input::Batch batch = {.tensors = {}, .size = rows.size, .step = rows.step};
  for (const HostArray& array : arrays) {
    batch.tensors.push_back(tessera::internal::from_host_raw(
        array.dtype, array.bytes.data(), num_elements(array.shape), array.shape,
        Layout::batch_sharded(mesh_, "device", static_cast<int>(array.shape.size()))));
  }
  return batch;
}

std::vector<DatasetPosition> WorkerDatasets::positions() const {
  std::vector<DatasetPosition> result;
  for (const auto& [number, entry] : entries_) {
    if (entry.is_passed && entry.is_read) result.push_back({number, entry.at});
  }
  return result;
}

}  // namespace tessera::distribute::internal
