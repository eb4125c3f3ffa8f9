// SPDX-License-Identifier: Apache-2.0
#include "input/batch_reader.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/math.h"
#include "base/stable_hash.h"

namespace tessera::input::internal {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

}  // namespace

uint64_t DatasetRep::hash() const {
  uint64_t hash = node->hash();
  if (batching.has_value()) {
    const int64_t numbers[] = {batching->size, static_cast<int64_t>(batching->remainder)};
    hash = stable_hash(absl::MakeConstSpan(numbers), stable_hash("batch", hash));
  }
  return hash == 0 ? 1 : hash;
}

StatusOr<Dataset> with_files(const Dataset& dataset, absl::Span<const int64_t> keep) {
  DatasetRep rep = DatasetAccess::rep(dataset);
  TESSERA_RETURN_IF_ERROR(rep.status);
  TESSERA_ASSIGN_OR_RETURN(rep.node, rep.node->with_files(keep));
  return DatasetAccess::make(std::move(rep));
}

StatusOr<std::unique_ptr<BatchReader>> BatchReader::open(const Dataset& dataset,
                                                         const IteratorState& from) {
  const DatasetRep& rep = DatasetAccess::rep(dataset);
  const Batching batching = rep.batching.value_or(Batching{1, Remainder::kKeep});
  std::unique_ptr<BatchReader> reader(new BatchReader(rep, batching));
  TESSERA_RETURN_IF_ERROR(reader->start(from));
  return reader;
}

Status BatchReader::start(const IteratorState& from) {
  if (from.dataset != 0 && from.dataset != hash_) {
    return absl::InvalidArgumentError(
        absl::StrCat("the iterator state ", from.to_string(),
                     " was made by another data set; the hash of this "
                     "one is h",
                     absl::Hex(hash_, absl::kZeroPad16)));
  }
  if (from.epoch < 0 || from.step < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the iterator state ", from.to_string(), " has a negative epoch or step"));
  }
  return node_->extent().has_random_access() ? start_random_access(from) : start_stream(from);
}

Status BatchReader::start_stream(const IteratorState& from) {
  Positions positions(from.pipelines);
  Start start;
  (node_->is_repetition() ? start.repetition : start.epoch) = from.epoch;
  if (!from.pipelines.empty()) start.positions = &positions;
  TESSERA_ASSIGN_OR_RETURN(reader_, node_->open(start));
  if (!positions.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the iterator state ", from.to_string(), " has more pipeline positions than the data set"));
  }
  stream_epoch_ = from.epoch;
  stream_step_ = from.step;
  if (from.pipelines.empty()) return drop(*reader_, saturating_mul(from.step, batching_.size));
  return absl::OkStatus();
}

int64_t BatchReader::first_batch_at(__int128 element) const {
  const __int128 batches = (element + batching_.size - 1) / batching_.size;
  return saturated(batches * batching_.size);
}

// Batch k begins at element k * size. In a repetition of n elements, epoch e begins at element e n,
// which need not begin a batch: step 0 of the epoch is the first batch that begins in it.
Status BatchReader::start_random_access(const IteratorState& from) {
  if (!from.pipelines.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the iterator state ", from.to_string(),
                     " has pipeline positions, and the data set is not a stream"));
  }
  const std::optional<int64_t> repeated = node_->repetition_size();
  if (repeated.has_value()) {
    position_ = first_batch_at(static_cast<__int128>(from.epoch) * *repeated);
  } else {
    epoch_ = from.epoch;
  }
  position_ = saturating_add(position_, saturating_mul(from.step, batching_.size));
  const int64_t end = first_batch_at(node_->extent().limit());
  if (position_ > end || position_ == kMax) {
    return absl::InvalidArgumentError(absl::StrCat("the iterator state ", from.to_string(),
                                                   " is beyond the end of the data set"));
  }
  TESSERA_ASSIGN_OR_RETURN(pool_, WorkerPool::start(node_->parallelism()));
  return absl::OkStatus();
}

IteratorState BatchReader::state() const {
  IteratorState state = {.dataset = hash_};
  if (reader_ != nullptr) {
    if (!failed_.ok()) return before_;
    state.epoch = reader_->epoch();
    state.step = state.epoch == stream_epoch_ ? stream_step_ : 0;
    reader_->save(&state.pipelines);
    return state;
  }
  state.epoch = epoch_;
  int64_t first = 0;
  const int64_t repeated = node_->repetition_size().value_or(0);
  if (repeated > 0) {
    state.epoch = position_ / repeated;
    first = first_batch_at(static_cast<__int128>(state.epoch) * repeated);
  }
  state.step = (position_ - first) / batching_.size;
  return state;
}

StatusOr<std::optional<RowBatch>> BatchReader::next(ChooseRows rows) {
  TESSERA_RETURN_IF_ERROR(failed_);
  StatusOr<std::optional<RowBatch>> batch = read_next(rows);
  failed_ = batch.status();
  return batch;
}

StatusOr<std::optional<RowBatch>> BatchReader::read_next(ChooseRows rows) {
  return reader_ != nullptr ? next_of_stream(rows) : next_by_index(rows);
}

StatusOr<std::optional<RowBatch>> BatchReader::next_of_stream(ChooseRows rows) {
  if (stream_ended_) return std::nullopt;
  before_ = state();
  RowBatch batch;
  std::vector<Element> elements;
  TESSERA_RETURN_IF_ERROR(reader_->read(batching_.size, &elements));
  batch.size = static_cast<int64_t>(elements.size());
  stream_ended_ = batch.size < batching_.size;
  if (batch.size == 0 || (stream_ended_ && batching_.remainder == Remainder::kDrop)) {
    return std::nullopt;
  }
  const int64_t epoch = reader_->epoch_read();
  batch.step = epoch == stream_epoch_ ? stream_step_ : 0;
  stream_epoch_ = epoch;
  stream_step_ = batch.step + 1;
  batch.rows = rows(batch.size);
  for (const int64_t row : batch.rows) batch.elements.push_back(std::move(elements[row]));
  return batch;
}

StatusOr<std::optional<RowBatch>> BatchReader::next_by_index(ChooseRows rows) {
  const int64_t left = node_->extent().limit() - position_;
  if (left <= 0 || (left < batching_.size && batching_.remainder == Remainder::kDrop)) {
    return std::nullopt;
  }
  RowBatch batch = {.size = std::min(left, batching_.size), .step = state().step};
  batch.rows = rows(batch.size);
  if (batching_.size == 1 && node_->parallelism() > 1) {
    TESSERA_ASSIGN_OR_RETURN(Element element, take_ahead());
    batch.elements.push_back(std::move(element));
  } else {
    std::vector<int64_t> indices = batch.rows;
    for (int64_t& index : indices) index += position_;
    for (StatusOr<Element>& element : read_elements(*node_, *pool_, epoch_, indices)) {
      TESSERA_RETURN_IF_ERROR(element);
      batch.elements.push_back(*std::move(element));
    }
  }
  position_ = saturating_add(position_, batching_.size);
  return batch;
}

StatusOr<Element> BatchReader::take_ahead() {
  if (ahead_.empty()) {
    constexpr int64_t kElementsPerThread = 4;
    const int64_t left = node_->extent().limit() - position_;
    std::vector<int64_t> indices(
        std::min<int64_t>(left, kElementsPerThread * node_->parallelism()));
    for (size_t i = 0; i < indices.size(); ++i) indices[i] = position_ + static_cast<int64_t>(i);
    ahead_ = read_elements(*node_, *pool_, epoch_, indices);
    std::reverse(ahead_.begin(), ahead_.end());
  }
  StatusOr<Element> element = std::move(ahead_.back());
  ahead_.pop_back();
  return element;
}

Status check_alike(const RowBatch& batch) {
  const std::vector<Element>& elements = batch.elements;
  for (size_t k = 1; k < elements.size(); ++k) {
    if (elements[k].size() != elements[0].size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("batch: row ", batch.rows[0], " has ", elements[0].size(), " tensors, row ",
                       batch.rows[k], " has ", elements[k].size(), "; all have as many"));
    }
    for (size_t t = 0; t < elements[0].size(); ++t) {
      const HostArray& first = elements[0][t];
      const HostArray& other = elements[k][t];
      if (first.dtype == other.dtype && first.shape == other.shape) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "batch: tensor ", t, " is ", TensorSpec{first.dtype, first.shape}.to_string(), " in row ",
          batch.rows[0], ", and ", TensorSpec{other.dtype, other.shape}.to_string(), " in row ",
          batch.rows[k], "; map them to one shape"));
    }
  }
  return absl::OkStatus();
}

StatusOr<Element> stack(absl::Span<const Element> elements) {
  Element stacked;
  for (size_t t = 0; t < elements[0].size(); ++t) {
    HostArray array{elements[0][t].dtype, elements[0][t].shape, {}};
    array.shape.insert(array.shape.begin(), static_cast<int64_t>(elements.size()));
    TESSERA_RETURN_IF_ERROR(validate_shape(array.shape, array.dtype));
    array.bytes.reserve(static_cast<size_t>(num_bytes(array.shape, array.dtype)));
    for (const Element& element : elements) {
      array.bytes.insert(array.bytes.end(), element[t].bytes.begin(), element[t].bytes.end());
    }
    stacked.push_back(std::move(array));
  }
  return stacked;
}

}  // namespace tessera::input::internal
