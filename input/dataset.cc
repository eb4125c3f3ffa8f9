// SPDX-License-Identifier: Apache-2.0
#include "input/dataset.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/stable_hash.h"
#include "input/batch_reader.h"
#include "input/file_sources.h"
#include "input/node.h"

namespace tessera::input {
namespace {

using internal::DatasetAccess;
using internal::DatasetRep;
using internal::NamedSource;
using internal::NodePtr;

class RangeSource : public Source {
 public:
  explicit RangeSource(int64_t n) : n_(n) {}
  std::vector<TensorSpec> spec() const override { return {{DType::kInt64, {}}}; }
  std::optional<int64_t> size() const override { return n_; }
  StatusOr<Element> read(int64_t index) const override {
    return Element{HostArray::scalar<int64_t>(index)};
  }

 private:
  const int64_t n_;
};

// Requires arrays of rank 1 and more with equal sizes of dim 0.
class SlicesSource : public Source {
 public:
  explicit SlicesSource(Element tensors) : tensors_(std::move(tensors)) {}
  std::vector<TensorSpec> spec() const override {
    std::vector<TensorSpec> spec;
    for (const HostArray& tensor : tensors_) spec.push_back({tensor.dtype, slice_shape(tensor)});
    return spec;
  }
  std::optional<int64_t> size() const override { return tensors_[0].shape[0]; }
  StatusOr<Element> read(int64_t index) const override {
    Element element;
    for (const HostArray& tensor : tensors_) {
      Shape shape = slice_shape(tensor);
      const int64_t bytes = num_bytes(shape, tensor.dtype);
      const auto first = tensor.bytes.begin() + index * bytes;
      element.push_back({tensor.dtype, std::move(shape), {first, first + bytes}});
    }
    return element;
  }

 private:
  static Shape slice_shape(const HostArray& tensor) {
    return Shape(tensor.shape.begin() + 1, tensor.shape.end());
  }
  const Element tensors_;
};

class GeneratorSource : public Source {
 public:
  using Fn = std::function<StatusOr<std::optional<Element>>(int64_t index)>;
  GeneratorSource(std::vector<TensorSpec> spec, Fn fn)
      : spec_(std::move(spec)), fn_(std::move(fn)) {}
  std::vector<TensorSpec> spec() const override { return spec_; }
  std::optional<int64_t> size() const override { return std::nullopt; }
  StatusOr<Element> read(int64_t index) const override {
    TESSERA_ASSIGN_OR_RETURN(std::optional<Element> element, fn_(index));
    if (!element.has_value()) return absl::OutOfRangeError("the end of the generator");
    return *std::move(element);
  }

 private:
  const std::vector<TensorSpec> spec_;
  const Fn fn_;
};

Dataset dataset_of(std::shared_ptr<const Source> source, uint64_t hash, bool can_fail) {
  return DatasetAccess::make({.status = {},
                              .node = internal::source_node(std::move(source), hash, can_fail),
                              .batching = {}});
}
StatusOr<Dataset> dataset_of(StatusOr<NamedSource> source) {
  TESSERA_RETURN_IF_ERROR(source);
  return dataset_of(std::move(source->source), source->hash, /*can_fail=*/true);
}

// The hash of the spec and number of elements, for a source whose elements are not known.
uint64_t hash_of_spec(absl::string_view kind, const std::vector<TensorSpec>& spec,
                      std::optional<int64_t> size) {
  const int64_t count = size.value_or(-1);
  uint64_t hash = stable_hash(absl::MakeConstSpan(&count, 1), stable_hash(kind));
  for (const TensorSpec& tensor : spec) hash = stable_hash(tensor.to_string(), hash);
  return hash;
}

Status check_spec(absl::string_view subject, const std::vector<TensorSpec>& spec) {
  for (size_t i = 0; i < spec.size(); ++i) {
    Shape shape = spec[i].shape;
    for (int64_t& size : shape) {
      if (size == -1) size = 0;
    }
    if (const Status status = validate_shape(shape, spec[i].dtype); !status.ok()) {
      return with_context(status, absl::StrCat(subject, ": tensor ", i, " of the spec"));
    }
  }
  return absl::OkStatus();
}

Dataset failed(Status status) {
  return DatasetAccess::make({.status = std::move(status), .node = nullptr, .batching = {}});
}
template <class... Parts>
Dataset refused(const Parts&... parts) {
  return failed(absl::InvalidArgumentError(absl::StrCat(parts...)));
}

// The data set that `make` makes of the node. An error that the data set carries stays. After
// batch() every operation is an error.
template <class Make>
Dataset operation(const Dataset& dataset, absl::string_view name, Make make) {
  const DatasetRep& rep = DatasetAccess::rep(dataset);
  if (!rep.status.ok()) return dataset;
  if (rep.batching.has_value()) {
    return refused(name, " comes after batch; batch is the last operation");
  }
  return make(rep.node);
}
Dataset with_node(NodePtr node) {
  return DatasetAccess::make({.status = {}, .node = std::move(node), .batching = {}});
}

}  // namespace

HostIterator::HostIterator(std::unique_ptr<internal::BatchReader> reader, bool is_batched)
    : reader_(std::move(reader)), is_batched_(is_batched) {}
HostIterator::HostIterator(HostIterator&&) noexcept = default;
HostIterator& HostIterator::operator=(HostIterator&&) noexcept = default;
HostIterator::~HostIterator() = default;

StatusOr<std::optional<Element>> HostIterator::next() {
  if (reader_ == nullptr) {
    return absl::FailedPreconditionError("the iterator was moved from");
  }
  TESSERA_ASSIGN_OR_RETURN(std::optional<internal::RowBatch> batch, reader_->next([](int64_t size) {
    std::vector<int64_t> rows(static_cast<size_t>(size));
    std::iota(rows.begin(), rows.end(), 0);
    return rows;
  }));
  if (!batch.has_value()) return std::nullopt;
  if (!is_batched_) return std::move(batch->elements[0]);
  TESSERA_RETURN_IF_ERROR(internal::check_alike(*batch));
  return internal::stack(batch->elements);
}

IteratorState HostIterator::state() const {
  return reader_ == nullptr ? IteratorState() : reader_->state();
}

StatusOr<Dataset> Dataset::from_source(std::shared_ptr<const Source> source) {
  if (source == nullptr) return absl::InvalidArgumentError("from_source: the source is null");
  const std::optional<int64_t> size = source->size();
  if (size.has_value() && *size < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("from_source: the source has size ", *size, "; a size is 0 or more"));
  }
  const std::vector<TensorSpec> spec = source->spec();
  TESSERA_RETURN_IF_ERROR(check_spec("from_source", spec));
  return dataset_of(std::move(source), hash_of_spec("source", spec, size), /*can_fail=*/true);
}

StatusOr<Dataset> Dataset::from_slices(Element tensors) {
  if (tensors.empty()) return absl::InvalidArgumentError("from_slices: no tensors are given");
  uint64_t hash = stable_hash("from_slices");
  for (size_t i = 0; i < tensors.size(); ++i) {
    const HostArray& tensor = tensors[i];
    if (const Status status = tensor.validate(); !status.ok()) {
      return with_context(status, absl::StrCat("from_slices: tensor ", i));
    }
    if (tensor.shape.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("from_slices: tensor ", i, " is a scalar; elements are parts along dim 0"));
    }
    if (tensor.shape[0] != tensors[0].shape[0]) {
      return absl::InvalidArgumentError(
          absl::StrCat("from_slices: tensor 0 has ", tensors[0].shape[0],
                       " elements along dim 0, "
                       "tensor ",
                       i, " has ", tensor.shape[0], "; they have as many"));
    }
    hash = stable_hash(TensorSpec{tensor.dtype, tensor.shape}.to_string(), hash);
    hash = stable_hash(
        absl::string_view(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()),
        hash);
  }
  return dataset_of(std::make_shared<const SlicesSource>(std::move(tensors)), hash,
                    /*can_fail=*/false);
}

Dataset Dataset::range(int64_t n) {
  if (n < 0) return refused("range: n is ", n, "; give 0 or more");
  return dataset_of(std::make_shared<const RangeSource>(n), hash_of_spec("range", {}, n),
                    /*can_fail=*/false);
}

StatusOr<Dataset> Dataset::npy(std::string file) { return dataset_of(internal::npy_source(file)); }
StatusOr<Dataset> Dataset::idx(std::string file) { return dataset_of(internal::idx_source(file)); }
StatusOr<Dataset> Dataset::csv(std::vector<std::string> files, std::vector<DType> columns,
                               const CsvOptions& options) {
  return dataset_of(internal::csv_source(files, columns, options));
}
StatusOr<Dataset> Dataset::text_lines(std::vector<std::string> files) {
  return dataset_of(internal::text_source(files));
}
StatusOr<Dataset> Dataset::fixed_records(std::vector<std::string> files, int64_t bytes) {
  return dataset_of(internal::record_source(files, bytes));
}

StatusOr<Dataset> Dataset::generator(
    std::vector<TensorSpec> spec,
    std::function<StatusOr<std::optional<Element>>(int64_t index)> fn) {
  if (fn == nullptr) return absl::InvalidArgumentError("generator: the function is empty");
  TESSERA_RETURN_IF_ERROR(check_spec("generator", spec));
  const uint64_t hash = hash_of_spec("generator", spec, std::nullopt);
  return dataset_of(std::make_shared<const GeneratorSource>(std::move(spec), std::move(fn)), hash,
                    /*can_fail=*/true);
}

Dataset Dataset::shuffle(uint64_t seed) const {
  return operation(*this, "shuffle", [&](const NodePtr& node) {
    switch (node->extent().kind) {
      case internal::Extent::Kind::kStream:
        return refused(
            "shuffle: a stream has no random access; shuffle before filter, and make a "
            "source with a size");
      case internal::Extent::Kind::kEndless:
        return refused("shuffle: the data set has no end; shuffle before repeat");
      case internal::Extent::Kind::kKnown:
        break;
    }
    return with_node(internal::shuffle_node(node, seed));
  });
}

Dataset Dataset::map(std::function<StatusOr<Element>(Element)> fn, int parallelism) const {
  return operation(*this, "map", [&](const NodePtr& node) {
    constexpr int kMaxParallelism = 1024;
    if (fn == nullptr) return refused("map: the function is empty");
    if (parallelism < 0 || parallelism > kMaxParallelism) {
      return refused("map: parallelism is ", parallelism, "; give 0 to ", kMaxParallelism);
    }
    return with_node(internal::map_node(node, std::move(fn), std::max(parallelism, 1)));
  });
}

Dataset Dataset::filter(std::function<StatusOr<bool>(const Element&)> keep) const {
  return operation(*this, "filter", [&](const NodePtr& node) {
    if (keep == nullptr) return refused("filter: the function is empty");
    return with_node(internal::filter_node(node, std::move(keep)));
  });
}

Dataset Dataset::repeat(std::optional<int64_t> epochs) const {
  return operation(*this, "repeat", [&](const NodePtr& node) {
    if (epochs.has_value() && *epochs < 0) {
      return refused("repeat: the number of epochs is ", *epochs, "; give 0 or more");
    }
    return with_node(internal::repeat_node(node, epochs));
  });
}

Dataset Dataset::take(int64_t n) const {
  return operation(*this, "take", [&](const NodePtr& node) {
    if (n < 0) return refused("take: n is ", n, "; give 0 or more");
    return with_node(internal::take_node(node, n));
  });
}

Dataset Dataset::skip(int64_t n) const {
  return operation(*this, "skip", [&](const NodePtr& node) {
    if (n < 0) return refused("skip: n is ", n, "; give 0 or more");
    return with_node(internal::skip_node(node, n));
  });
}

Dataset Dataset::shard(int64_t num, int64_t index) const {
  return operation(*this, "shard", [&](const NodePtr& node) {
    if (num < 1) return refused("shard: the number of shards is ", num, "; give 1 or more");
    if (index < 0 || index >= num) {
      return refused("shard: the index is ", index, "; of ", num, " shards it is 0 to ", num - 1);
    }
    return with_node(internal::shard_node(node, num, index));
  });
}

Dataset Dataset::cache() const {
  return operation(*this, "cache", [&](const NodePtr& node) {
    if (node->extent().kind == internal::Extent::Kind::kEndless) {
      return refused("cache: the data set has no end; cache before repeat");
    }
    return with_node(internal::cache_node(node));
  });
}

Dataset Dataset::batch(int64_t size, Remainder remainder) const {
  return operation(*this, "batch", [&](const NodePtr& node) {
    if (size < 1) return refused("batch: the size is ", size, "; give 1 or more");
    if (remainder != Remainder::kKeep && remainder != Remainder::kDrop) {
      return refused("batch: Remainder(", static_cast<int>(remainder),
                     ") is not an enumerator; use kKeep or kDrop");
    }
    return DatasetAccess::make(
        {.status = {}, .node = node, .batching = internal::Batching{size, remainder}});
  });
}

const internal::DatasetRep& Dataset::rep() const {
  if (rep_ != nullptr) return *rep_;
  static const auto* const moved_from = new DatasetRep{
      .status = absl::FailedPreconditionError(
          "the data set was moved from; use the one that it was moved to, or pass a copy"),
      .node = nullptr,
      .batching = {}};
  return *moved_from;
}

std::vector<TensorSpec> Dataset::element_spec() const {
  if (!rep().status.ok()) return {};
  StatusOr<std::vector<TensorSpec>> spec = rep().node->spec();
  if (!spec.ok()) return {};
  if (rep().batching.has_value()) {
    const bool drops = rep().batching->remainder == Remainder::kDrop;
    for (TensorSpec& tensor : *spec) {
      tensor.shape.insert(tensor.shape.begin(), drops ? rep().batching->size : -1);
    }
  }
  return *std::move(spec);
}

std::optional<int64_t> Dataset::cardinality() const {
  if (!rep().status.ok()) return std::nullopt;
  const internal::Extent extent = rep().node->extent();
  if (extent.kind != internal::Extent::Kind::kKnown) return std::nullopt;
  if (!rep().batching.has_value()) return extent.size;
  const int64_t size = rep().batching->size;
  const bool has_rest = rep().batching->remainder == Remainder::kKeep && extent.size % size != 0;
  return extent.size / size + has_rest;
}

std::vector<std::string> Dataset::files() const {
  return rep().status.ok() ? rep().node->files() : std::vector<std::string>();
}

Status Dataset::status() const { return rep().status; }

StatusOr<HostIterator> Dataset::iterate(const IteratorState& from) const {
  TESSERA_RETURN_IF_ERROR(rep().status);
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<internal::BatchReader> reader,
                           internal::BatchReader::open(*this, from));
  return HostIterator(std::move(reader), rep().batching.has_value());
}

}  // namespace tessera::input
