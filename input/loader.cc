// SPDX-License-Identifier: Apache-2.0
//
// A step has two parts. load() reads the rows of this client and makes its shards, on the thread
// that reads ahead or in the caller. settle() is the exchange between the clients, in the caller.
#include "input/loader.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/public.h"
#include "base/shape.h"
#include "base/stable_hash.h"
#include "base/wait_reports.h"
#include "device/device.h"
#include "input/agreement.h"
#include "input/batch_reader.h"
#include "input/loading.h"
#include "input/node.h"

namespace tessera::input {
namespace internal {

struct TESSERA_INTERNAL LoaderRep {
  Client client;
  Dataset dataset;
  std::vector<Layout> layouts;  // of one mesh
  LoadOptions options;
  std::vector<int64_t> positions;  // of this client's devices in the mesh
  // Between the clients of the mesh. Nothing for a single client.
  std::optional<Agreement> agreement;
  // The spec of an element. Nothing if it is known only from an element.
  std::optional<std::vector<TensorSpec>> spec;

  const DatasetRep& dataset_rep() const { return DatasetAccess::rep(dataset); }
  // Whether clients may have different results of a step.
  bool agrees_each_step() const {
    const Node& node = *dataset_rep().node;
    return agreement.has_value() && (node.can_fail() || !node.extent().has_random_access());
  }
  std::vector<int64_t> rows_of(int64_t batch_size) const;
};

// The rows of a batch of which this client holds a part, ascending.
std::vector<int64_t> LoaderRep::rows_of(int64_t batch_size) const {
  std::set<std::pair<int64_t, int64_t>> parts;  // first row, end
  for (const Layout& layout : layouts) {
    Shape shape(static_cast<size_t>(layout.rank()), 1);
    shape[0] = batch_size;
    for (const int64_t position : positions) {
      const Box box = layout.box(shape, position);
      parts.emplace(box.offsets[0], box.offsets[0] + box.sizes[0]);
    }
  }
  std::vector<int64_t> rows;
  int64_t next = 0;
  for (const auto& [begin, end] : parts) {
    for (next = std::max(next, begin); next < end; ++next) rows.push_back(next);
  }
  return rows;
}

// One client's view of a step.
struct Loaded {
  Status status;
  bool is_end = false;
  int64_t size = 0;
  int64_t step = 0;
  std::optional<std::vector<TensorSpec>>
      types;                     // of an element; nothing if no row of this client shows it
  std::vector<DTensor> tensors;  // made when the types are known
  IteratorState after;

  bool is_last() const { return is_end || !status.ok(); }
};

namespace {

// Checks that the layouts fit batches of these types.
Status check_layouts(absl::Span<const TensorSpec> types, absl::Span<const Layout> layouts) {
  if (types.size() != layouts.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("distribute: ", layouts.size(), " layouts are given, and an element has ",
                     types.size(), " tensors; give one layout for each"));
  }
  for (size_t k = 0; k < types.size(); ++k) {
    if (layouts[k].rank() == static_cast<int>(types[k].shape.size()) + 1) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "distribute: layout ", layouts[k].to_string(), " has ", layouts[k].rank(), " dims; tensor ",
        k, " is ", types[k].to_string(), ", in batches it has one dim more"));
  }
  return absl::OkStatus();
}

// A row of a round: whether the step is the end, its size and number, and the dtype and shape of
// each tensor, or -1 if they are not known.
Agreement::Row row_of(const Loaded& loaded, absl::Span<const Layout> layouts) {
  Agreement::Row row = {loaded.is_end, loaded.size, loaded.step};
  for (size_t k = 0; k < layouts.size(); ++k) {
    const size_t rank = static_cast<size_t>(layouts[k].rank()) - 1;
    if (loaded.types.has_value()) {
      const TensorSpec& type = (*loaded.types)[k];
      row.push_back(static_cast<int64_t>(type.dtype));
      row.insert(row.end(), type.shape.begin(), type.shape.end());
    } else {
      row.insert(row.end(), rank + 1, -1);
    }
  }
  return row;
}
int64_t num_columns(absl::Span<const Layout> layouts) {
  int64_t columns = 3;
  for (const Layout& layout : layouts) columns += layout.rank();
  return columns;
}
// The types that a row encodes; nothing if they are not known.
std::optional<std::vector<TensorSpec>> types_in(const Agreement::Row& row,
                                                absl::Span<const Layout> layouts) {
  std::vector<TensorSpec> types;
  auto number = row.begin() + 3;
  for (const Layout& layout : layouts) {
    if (*number == -1) return std::nullopt;
    const auto dtype = static_cast<DType>(*number++);
    types.push_back({dtype, Shape(number, number + layout.rank() - 1)});
    number += layout.rank() - 1;
  }
  return types;
}

std::string text_of_step(const Agreement::Row& row) {
  if (row[0] != 0) return "the end of the data";
  return absl::StrCat("step ", row[2], " with ", row[1], " elements");
}
std::string text_of_types(const std::vector<TensorSpec>& types) {
  std::string text;
  for (const TensorSpec& type : types) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", type.to_string());
  }
  return text;
}

}  // namespace

class TESSERA_INTERNAL IteratorRep {
 public:
  IteratorRep(std::shared_ptr<const LoaderRep> loader, std::unique_ptr<BatchReader> reader)
      : loader_(std::move(loader)),
        reader_(std::move(reader)),
        state_(reader_->state()),
        ahead_(loader_->options.prefetch, [this] { return load(); }) {}

  Status start_reading_ahead() { return ahead_.start(); }
  StatusOr<std::optional<Batch>> next();
  const IteratorState& state() const { return state_; }

 private:
  // Reads a step. Called by one thread: the thread that reads ahead, if there is one.
  Loaded load();
  void load_step(Loaded* loaded);
  Status settle(Loaded* loaded) const;

  const std::shared_ptr<const LoaderRep> loader_;
  const std::unique_ptr<BatchReader> reader_;

  // Used by the caller's thread.
  IteratorState state_;
  Status failed_;
  bool ended_ = false;

  ReadAhead<Loaded> ahead_;  // the last member: its thread uses the others
};

Loaded IteratorRep::load() {
  Loaded loaded;
  loaded.step = reader_->state().step;
  load_step(&loaded);
  if (!loaded.status.ok()) {
    loaded.status = with_context(loaded.status, absl::StrCat("step ", loaded.step, " on client ",
                                                             loader_->client.client_id()));
  }
  loaded.after = reader_->state();
  return loaded;
}

void IteratorRep::load_step(Loaded* loaded) {
  StatusOr<std::optional<RowBatch>> batch =
      reader_->next([this](int64_t size) { return loader_->rows_of(size); });
  loaded->status = batch.status();
  if (!batch.ok()) return;
  loaded->is_end = !batch->has_value();
  if (loaded->is_end) return;
  const RowBatch& rows = **batch;
  loaded->size = rows.size;
  loaded->step = rows.step;
  loaded->types = loader_->spec;
  if (!rows.elements.empty()) {
    loaded->types = types_of(rows.elements[0]);
    loaded->status = check_alike(rows);
    if (loaded->status.ok()) loaded->status = check_layouts(*loaded->types, loader_->layouts);
  }
  if (!loaded->status.ok() || !loaded->types.has_value()) return;
  loaded->tensors = make_tensors(*loaded->types, loader_->layouts, rows);
}

// Agrees on a step with all clients, or returns an error that is equal on all.
Status IteratorRep::settle(Loaded* loaded) const {
  const std::vector<Layout>& layouts = loader_->layouts;
  const Agreement& agreement = *loader_->agreement;
  StatusOr<Agreement::Row> row = Agreement::Row();
  if (loaded->status.ok()) {
    row = row_of(*loaded, layouts);
  } else {
    row = loaded->status;
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Agreement::Row> rows, agreement.exchange(row));
  std::optional<std::vector<TensorSpec>> types;
  int client_of_types = 0;
  for (size_t k = 0; k < rows.size(); ++k) {
    if (text_of_step(rows[k]) != text_of_step(rows[0])) {
      return absl::InvalidArgumentError(
          absl::StrCat("clients read different data: client ", agreement.clients()[0], " has ",
                       text_of_step(rows[0]), ", client ", agreement.clients()[k], " has ",
                       text_of_step(rows[k]), "; give every client the same elements"));
    }
    if (rows[k][0] != 0) continue;
    std::optional<std::vector<TensorSpec>> own = types_in(rows[k], layouts);
    if (!own.has_value()) continue;
    if (!types.has_value()) {
      types = std::move(own);
      client_of_types = agreement.clients()[k];
    } else if (*types != *own) {
      return absl::InvalidArgumentError(
          absl::StrCat("step ", rows[k][2], ": elements are ", text_of_types(*types), " on client ",
                       client_of_types, ", and ", text_of_types(*own), " on client ",
                       agreement.clients()[k], "; map them to one shape"));
    }
  }
  if (!loaded->is_end && loaded->tensors.empty()) {
    loaded->tensors = make_tensors(*types, layouts, {.size = loaded->size});
  }
  return absl::OkStatus();
}

StatusOr<std::optional<Batch>> IteratorRep::next() {
  TESSERA_RETURN_IF_ERROR(failed_);
  if (ended_) return std::nullopt;
  Loaded loaded = ahead_.take([this] {
    return report_reading(loader_->client,
                          absl::StrCat("next() of step ", state_.step, " of a data set"),
                          {loader_->dataset_rep().node});
  });
  failed_ = loader_->agrees_each_step() ? settle(&loaded) : loaded.status;
  TESSERA_RETURN_IF_ERROR(failed_);
  state_ = std::move(loaded.after);
  ended_ = loaded.is_end;
  if (ended_) return std::nullopt;
  return Batch{std::move(loaded.tensors), loaded.size, loaded.step};
}

}  // namespace internal

Iterator::Iterator(std::unique_ptr<internal::IteratorRep> rep) : rep_(std::move(rep)) {}
Iterator::Iterator(Iterator&&) noexcept = default;
Iterator& Iterator::operator=(Iterator&&) noexcept = default;
Iterator::~Iterator() = default;

StatusOr<std::optional<Batch>> Iterator::next() {
  if (rep_ == nullptr) return absl::FailedPreconditionError("the iterator was moved from");
  return rep_->next();
}

IteratorState Iterator::state() const { return rep_ == nullptr ? IteratorState() : rep_->state(); }

namespace {

StatusOr<std::unique_ptr<internal::IteratorRep>> open(
    const std::shared_ptr<const internal::LoaderRep>& loader, const IteratorState& from) {
  const ReportedWait wait = internal::report_reading(loader->client, "iterate() of a data set",
                                                     {loader->dataset_rep().node});
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<internal::BatchReader> reader,
                           internal::BatchReader::open(loader->dataset, from));
  auto iterator = std::make_unique<internal::IteratorRep>(loader, std::move(reader));
  TESSERA_RETURN_IF_ERROR(iterator->start_reading_ahead());
  return iterator;
}

// Equal on clients that iterate over the same data set, layouts and state.
int64_t hash_of_call(const internal::LoaderRep& loader, const IteratorState& from) {
  uint64_t hash = stable_hash(from.to_string(), loader.dataset_rep().hash());
  for (const Layout& layout : loader.layouts) {
    hash = stable_hash(layout.to_string_with_mesh(), hash);
  }
  return static_cast<int64_t>(hash);
}

}  // namespace

StatusOr<Iterator> Loader::iterate(const IteratorState& from) const {
  if (rep_ == nullptr) return absl::FailedPreconditionError("the loader was moved from");
  StatusOr<std::unique_ptr<internal::IteratorRep>> iterator = open(rep_, from);
  if (rep_->agreement.has_value()) {
    const internal::Agreement& agreement = *rep_->agreement;
    internal::Agreement::Row row(static_cast<size_t>(internal::num_columns(rep_->layouts)));
    row[0] = hash_of_call(*rep_, from);
    StatusOr<internal::Agreement::Row> own = row;
    if (!iterator.ok()) {
      own = with_context(iterator.status(),
                         absl::StrCat("iterate on client ", rep_->client.client_id()));
    }
    TESSERA_ASSIGN_OR_RETURN(const std::vector<internal::Agreement::Row> rows,
                             agreement.exchange(own));
    for (size_t k = 1; k < rows.size(); ++k) {
      if (rows[k] == rows[0]) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("iterate: clients ", agreement.clients()[0], " and ", agreement.clients()[k],
                       " have different data sets, layouts or iterator states; make the same call "
                       "on every client"));
    }
  }
  TESSERA_RETURN_IF_ERROR(iterator);
  return Iterator(*std::move(iterator));
}

std::vector<TensorSpec> Loader::element_spec() const {
  return rep_ == nullptr ? std::vector<TensorSpec>() : rep_->dataset.element_spec();
}
std::optional<int64_t> Loader::cardinality() const {
  return rep_ == nullptr ? std::nullopt : rep_->dataset.cardinality();
}

namespace {

Status check_arguments(const Client& client, const Dataset& batches,
                       absl::Span<const Layout> layouts, const LoadOptions& options) {
  TESSERA_RETURN_IF_ERROR(batches.status());
  if (!internal::DatasetAccess::rep(batches).batching.has_value()) {
    return absl::InvalidArgumentError(
        "distribute: the data set has no batches; call batch(size) last");
  }
  if (layouts.empty()) {
    return absl::InvalidArgumentError("distribute: no layouts are given; give one for each tensor");
  }
  for (const Layout& layout : layouts) {
    if (layout.mesh() != layouts[0].mesh()) {
      return absl::InvalidArgumentError(
          absl::StrCat("distribute: layouts are on ", layouts[0].mesh().to_string(), " and on ",
                       layout.mesh().to_string(), "; give layouts on one mesh"));
    }
    if (layout.rank() == 0) {
      return absl::InvalidArgumentError(
          "distribute: layout [] has no dims; dim 0 of a batch is that of its elements");
    }
    // The mesh is abstract, or its client was shut down.
    const DTensor nothing =
        zeros<uint8_t>(Shape(static_cast<size_t>(layout.rank()), 0), layout.without_partial());
    TESSERA_RETURN_IF_ERROR(with_context(nothing.status(), "distribute"));
    if (nothing.num_local_shards() == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("distribute: client ", client.client_id(), " has no device of ",
                       layout.mesh().to_string(), "; only clients with one take part"));
    }
  }
  return internal::check_load_options("distribute", client, layouts[0].mesh(), options);
}

}  // namespace

StatusOr<Loader> distribute(const Client& client, const Dataset& batches,
                            const LayoutArgs& layout_args, const LoadOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<Layout> layouts, layout_args.layouts());
  TESSERA_RETURN_IF_ERROR(check_arguments(client, batches, layouts, options));
  const Mesh& mesh = layouts[0].mesh();
  std::vector<int64_t> positions;
  for (const Device& device : client.local_devices()) {
    const std::optional<int64_t> position = mesh.position_of_device(device.id);
    if (position.has_value()) positions.push_back(*position);
  }
  const internal::Node& node = *internal::DatasetAccess::rep(batches).node;
  std::optional<std::vector<TensorSpec>> spec;
  if (node.knows_spec()) {
    TESSERA_ASSIGN_OR_RETURN(spec, node.spec());
    TESSERA_RETURN_IF_ERROR(internal::check_layouts(*spec, layouts));
    for (const TensorSpec& tensor : *spec) {
      if (std::count(tensor.shape.begin(), tensor.shape.end(), -1) > 0) {
        spec.reset();  // the size is known only from an element
        break;
      }
    }
  }
  TESSERA_ASSIGN_OR_RETURN(
      internal::Agreement agreement,
      internal::Agreement::create(client, mesh, internal::num_columns(layouts)));
  const bool has_one_client = agreement.clients().size() == 1;
  return Loader(std::make_shared<const internal::LoaderRep>(internal::LoaderRep{
      .client = client,
      .dataset = batches,
      .layouts = std::move(layouts),
      .options = options,
      .positions = std::move(positions),
      .agreement = has_one_client ? std::nullopt : std::optional(std::move(agreement)),
      .spec = std::move(spec),
  }));
}

}  // namespace tessera::input
