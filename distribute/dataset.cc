// SPDX-License-Identifier: Apache-2.0
#include "distribute/dataset.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "base/public.h"
#include "base/stable_hash.h"
#include "base/text.h"
#include "base/wait_reports.h"
#include "distribute/call.h"
#include "distribute/pipelines.h"
#include "distribute/strategy_state.h"
#include "dtensor/client.h"
#include "input/batch_reader.h"
#include "input/loading.h"
#include "input/node.h"
#include "layout/layout.h"

namespace tessera::distribute {

namespace internal {

struct TESSERA_INTERNAL DatasetRep {
  std::shared_ptr<const StrategyState> strategy;
  std::optional<input::Loader> loader;           // under kData
  std::shared_ptr<const PipelineSet> pipelines;  // under other policies
};

struct DatasetIteratorRep {
  std::shared_ptr<const StrategyState> strategy;
  std::optional<input::Iterator> batches;       // under kData
  std::unique_ptr<PipelineIterator> pipelines;  // under other policies
};

}  // namespace internal

namespace {

using input::internal::DatasetAccess;
using internal::Call;
using internal::Pipeline;
using internal::PipelineSet;
using internal::ReadPolicy;
using internal::StrategyState;

constexpr char kDataset[] = "distribute_dataset";
constexpr char kFunctions[] = "distribute_datasets_from_function";

template <class... Parts>
Status refused(const char* call, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(call, ": ", parts...));
}

// Errors of a call that do not depend on the data set.
Status check_call(const StrategyState& strategy, const char* call, const InputOptions& options) {
  TESSERA_RETURN_IF_ERROR(strategy.check_not_in_replica(call, "it outside of run()"));
  if (strategy.local_replicas().empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(call, ": client ", strategy.client().client_id(), " has no device of ",
                     strategy.mesh().to_string(), "; only clients with one take part"));
  }
  const auto check = [&](const char* type, auto value, auto last, const char* names) {
    if (value <= last) return absl::OkStatus();
    return refused(call, type, "(", static_cast<int>(value), ") is not an enumerator; use ", names);
  };
  TESSERA_RETURN_IF_ERROR(check("AutoShardPolicy", options.auto_shard, AutoShardPolicy::kOff,
                                "kAuto, kData, kFile or kOff"));
  TESSERA_RETURN_IF_ERROR(check("InputReplicationMode", options.replication_mode,
                                InputReplicationMode::kPerReplica, "kPerWorker or kPerReplica"));
  TESSERA_RETURN_IF_ERROR(check("AtEnd", options.at_end, AtEnd::kFirst, "kAll or kFirst"));
  return input::internal::check_load_options(call, strategy.client(), strategy.mesh(),
                                             options.load);
}

// The calls of all replicas, if they agree; `values`, by local replica if there are any, may
// differ.
StatusOr<std::vector<Call>> agree_on(const StrategyState& strategy, const std::string& text,
                                     const Status& error,
                                     const std::vector<std::string>& values = {}) {
  std::vector<Call> local(strategy.local_replicas().size(), Call{.text = text});
  for (size_t i = 0; i < values.size(); ++i) local[i].value = values[i];
  local[0].error = error;
  return strategy.exchange().agree(std::move(local), {.any_value = true},
                                   strategy.options().communication);
}

const char* at_end_name(AtEnd at_end) { return at_end == AtEnd::kAll ? "kAll" : "kFirst"; }

// kData

// Layouts that split the batches of such elements over the replicas.
StatusOr<std::vector<Layout>> layouts_of(const StrategyState& strategy,
                                         const std::vector<input::TensorSpec>& spec) {
  std::vector<Layout> layouts;
  for (const input::TensorSpec& tensor : spec) {
    std::vector<DimSharding> dims(tensor.shape.size() + 1);
    dims[0].assign(strategy.replica_axes().begin(), strategy.replica_axes().end());
    TESSERA_ASSIGN_OR_RETURN(Layout layout, Layout::create(strategy.mesh(), std::move(dims)));
    layouts.push_back(std::move(layout));
  }
  return layouts;
}

// The spec of the elements; one scalar where only an element would show it and there is none.
StatusOr<std::vector<input::TensorSpec>> spec_of(const Client& client,
                                                 const input::Dataset& dataset) {
  TESSERA_RETURN_IF_ERROR(dataset.status());
  const std::shared_ptr<const input::internal::Node> node = DatasetAccess::rep(dataset).node;
  const ReportedWait wait = input::internal::report_reading(client, kDataset, {node});
  StatusOr<std::vector<input::TensorSpec>> spec = node->spec();
  if (absl::IsOutOfRange(spec.status())) return std::vector<input::TensorSpec>(1);
  return spec;
}

// Pipelines

// The replicas of each pipeline: all replicas of a client, or one replica. InvalidArgument where a
// replica has several clients.
StatusOr<std::vector<std::vector<int>>> deal_replicas(const StrategyState& strategy,
                                                      const char* call, bool per_replica) {
  std::vector<std::vector<int>> by_client;
  std::vector<std::vector<int>> one_each;
  std::vector<int> num_clients(strategy.num_replicas(), 0);
  for (const auto& [client, replicas] : strategy.replicas_of_client()) {
    for (const int replica : replicas) ++num_clients[replica];
    by_client.push_back(replicas);
  }
  for (int replica = 0; replica < strategy.num_replicas(); ++replica) {
    one_each.push_back({replica});
    if (num_clients[replica] == 1) continue;
    return refused(call, strategy.names()[replica],
                   " has devices of several clients, and each client reads batches of its own; "
                   "use kData");
  }
  return per_replica ? one_each : by_client;
}

// The steps of a pipeline, -1 where they are not known.
int64_t steps_of(const PipelineSet& set, const Pipeline& pipeline) {
  const std::optional<int64_t> batches = pipeline.dataset.cardinality();
  if (!batches.has_value()) return -1;
  const int64_t per_step = set.cuts_batches() ? 1 : static_cast<int64_t>(pipeline.replicas.size());
  return *batches / per_step + (*batches % per_step != 0);
}

// Completes the set by the hashes and steps of the other clients' pipelines.
Status complete(const std::string& text, const Status& error, PipelineSet* set) {
  std::vector<std::string> values(set->strategy->local_replicas().size());
  for (const Pipeline& pipeline : set->local) {
    values[pipeline.replicas[0]] =
        absl::StrCat(DatasetAccess::rep(pipeline.dataset).hash(), ",", steps_of(*set, pipeline));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Call> calls,
                           agree_on(*set->strategy, text, error, values));
  std::vector<int64_t> steps;
  for (const std::vector<int>& replicas : set->replicas) {
    const std::string& said = calls[replicas[0]].value;
    const std::vector<std::string> parts = absl::StrSplit(said, ',');
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[1], &steps.emplace_back())) {
      return absl::InternalError(absl::StrCat(
          "what replica ", replicas[0], " says of its pipeline, ", in_quotes(said),
          ", cannot be read; build all clients from one Tessera; where they are, report this as a "
          "bug of Tessera"));
    }
    set->hash = stable_hash(parts[0], set->hash);
  }
  if (std::count(steps.begin(), steps.end(), -1) > 0) return absl::OkStatus();
  set->num_steps = set->at_end == AtEnd::kAll ? *std::max_element(steps.begin(), steps.end())
                                              : *std::min_element(steps.begin(), steps.end());
  return absl::OkStatus();
}

// kFile and kOff: errors that all clients find, which have the same data set.
Status check_shares(const StrategyState& strategy, const input::Dataset& dataset, ReadPolicy policy,
                    absl::Span<const int64_t> shares) {
  if (policy == ReadPolicy::kFile) {
    const size_t num_files = dataset.files().size();
    if (num_files == 0) {
      return refused(kDataset,
                     "kFile deals the files of a data set to clients, and this one has no files; "
                     "use kData");
    }
    if (num_files < shares.size()) {
      return refused(kDataset, "kFile deals ", num_files, " files to ", shares.size(),
                     " pipelines, one for each client, and some would have none; use kData, which "
                     "cuts batches by element");
    }
  }
  const auto none = std::find(shares.begin(), shares.end(), 0);
  if (none == shares.end()) return absl::OkStatus();
  const auto client = std::next(strategy.replicas_of_client().begin(), none - shares.begin());
  return refused(kDataset, internal::policy_name(policy), " cuts batches of ",
                 DatasetAccess::rep(dataset).batching->size, " over ", strategy.num_replicas(),
                 " replicas, which leaves none for client ", client->first, "; give batches of ",
                 strategy.num_replicas(), " or more");
}

// How many elements of a batch each pipeline reads.
std::vector<int64_t> shares_of(int64_t batch_size, const PipelineSet& set) {
  std::vector<int64_t> shares;
  for (const std::vector<int>& replicas : set.replicas) {
    int64_t& share = shares.emplace_back(0);
    for (const int replica : replicas) {
      const auto [first, end] = shard_interval(batch_size, set.strategy->num_replicas(), replica);
      share += end - first;
    }
  }
  return shares;
}

// The data set of a pipeline of kFile or kOff.
StatusOr<input::Dataset> part_of(const input::Dataset& dataset, ReadPolicy policy, int pipeline,
                                 absl::Span<const int64_t> shares) {
  input::Dataset part = dataset;
  if (policy == ReadPolicy::kFile) {
    std::vector<int64_t> keep;
    const auto num_files = static_cast<int64_t>(dataset.files().size());
    for (int64_t file = pipeline; file < num_files; file += static_cast<int64_t>(shares.size())) {
      keep.push_back(file);
    }
    TESSERA_ASSIGN_OR_RETURN(part, input::internal::with_files(dataset, keep));
  }
  input::internal::DatasetRep rep = DatasetAccess::rep(part);
  rep.batching->size = shares[pipeline];
  return DatasetAccess::make(std::move(rep));
}

}  // namespace

// Iterators

DistributedIterator::DistributedIterator(std::unique_ptr<internal::DatasetIteratorRep> rep)
    : rep_(std::move(rep)) {}
DistributedIterator::DistributedIterator(DistributedIterator&&) noexcept = default;
DistributedIterator& DistributedIterator::operator=(DistributedIterator&&) noexcept = default;
DistributedIterator::~DistributedIterator() = default;

StatusOr<std::optional<DistributedBatch>> DistributedIterator::next() {
  if (rep_ == nullptr) return absl::FailedPreconditionError("the iterator was moved from");
  TESSERA_RETURN_IF_ERROR(rep_->strategy->check_not_in_replica("next()", "it outside of run()"));
  if (rep_->pipelines != nullptr) return rep_->pipelines->next();
  TESSERA_ASSIGN_OR_RETURN(std::optional<input::Batch> batch, rep_->batches->next());
  if (!batch.has_value()) return std::nullopt;
  DistributedBatch result = {.size = batch->size, .step = batch->step};
  for (DTensor& tensor : batch->tensors) result.values.push_back(std::move(tensor));
  return result;
}

input::IteratorState DistributedIterator::state() const {
  if (rep_ == nullptr) return {};
  return rep_->pipelines != nullptr ? rep_->pipelines->state() : rep_->batches->state();
}

StatusOr<DistributedIterator> DistributedDataset::iterate(const input::IteratorState& from) const {
  if (rep_ == nullptr) return absl::FailedPreconditionError("the data set was moved from");
  const StrategyState& strategy = *rep_->strategy;
  TESSERA_RETURN_IF_ERROR(strategy.check_not_in_replica("iterate()", "it outside of run()"));
  // Opens the pipelines of this client; an error of one client is returned on all.
  StatusOr<std::unique_ptr<internal::PipelineIterator>> pipelines = nullptr;
  Status opened = rep_->loader.has_value() ? check_policy(from, ReadPolicy::kData) : Status();
  if (rep_->pipelines != nullptr) {
    pipelines = internal::PipelineIterator::open(rep_->pipelines, from);
    opened = pipelines.status();
  }
  TESSERA_RETURN_IF_ERROR(
      agree_on(strategy, absl::StrCat("iterate(", from.to_string(), ")"), opened).status());
  internal::DatasetIteratorRep rep = {rep_->strategy, std::nullopt, *std::move(pipelines)};
  if (rep_->loader.has_value()) {
    TESSERA_ASSIGN_OR_RETURN(rep.batches, rep_->loader->iterate(from));
  }
  return DistributedIterator(std::make_unique<internal::DatasetIteratorRep>(std::move(rep)));
}

std::vector<input::TensorSpec> DistributedDataset::element_spec() const {
  if (rep_ == nullptr) return {};
  if (rep_->loader.has_value()) return rep_->loader->element_spec();
  std::vector<input::TensorSpec> spec = rep_->pipelines->local[0].dataset.element_spec();
  for (input::TensorSpec& tensor : spec) tensor.shape[0] = -1;
  return spec;
}

std::optional<int64_t> DistributedDataset::cardinality() const {
  if (rep_ == nullptr) return std::nullopt;
  return rep_->loader.has_value() ? rep_->loader->cardinality() : rep_->pipelines->num_steps;
}

// Data sets

namespace {

StatusOr<std::shared_ptr<const internal::DatasetRep>> cut_for_replicas(
    const std::shared_ptr<StrategyState>& strategy, const input::Dataset& dataset,
    const std::string& text, const input::LoadOptions& load) {
  const StatusOr<std::vector<input::TensorSpec>> spec = spec_of(strategy->client(), dataset);
  TESSERA_RETURN_IF_ERROR(agree_on(*strategy, text, spec.status()).status());
  TESSERA_RETURN_IF_ERROR(spec.status());  // of a replica that several clients share
  TESSERA_ASSIGN_OR_RETURN(std::vector<Layout> layouts, layouts_of(*strategy, *spec));
  TESSERA_ASSIGN_OR_RETURN(input::Loader loader, input::distribute(strategy->client(), dataset,
                                                                   std::move(layouts), load));
  return std::make_shared<const internal::DatasetRep>(
      internal::DatasetRep{strategy, std::move(loader), nullptr});
}

// Completes the set by the pipelines of this client, whose data sets `make` makes by number. An
// error of one client is returned on all.
StatusOr<std::shared_ptr<const internal::DatasetRep>> read_by_pipelines(
    PipelineSet set, const std::string& text,
    absl::FunctionRef<StatusOr<input::Dataset>(int pipeline)> make) {
  const std::shared_ptr<const StrategyState> strategy = set.strategy;
  const absl::Span<const int> local = strategy->local_replicas();
  Status made;
  for (int id = 0; id < set.num_pipelines() && made.ok(); ++id) {
    const auto first = std::find(local.begin(), local.end(), set.replicas[id][0]);
    if (first == local.end()) continue;
    StatusOr<input::Dataset> dataset = make(id);
    made = dataset.status();
    if (!made.ok()) continue;
    std::vector<int> indices(set.replicas[id].size());
    std::iota(indices.begin(), indices.end(), static_cast<int>(first - local.begin()));
    set.local.push_back({id, *std::move(dataset), std::move(indices)});
  }
  TESSERA_RETURN_IF_ERROR(complete(text, made, &set));
  return std::make_shared<const internal::DatasetRep>(internal::DatasetRep{
      strategy, std::nullopt, std::make_shared<const PipelineSet>(std::move(set))});
}

}  // namespace

StatusOr<DistributedDataset> Strategy::distribute_dataset(const input::Dataset& global_batches,
                                                          const InputOptions& options) const {
  TESSERA_RETURN_IF_ERROR(check_call(*state_, kDataset, options));
  if (options.replication_mode == InputReplicationMode::kPerReplica) {
    return refused(kDataset, "kPerReplica is a mode of ", kFunctions,
                   "(); batches of a data set are cut for the replicas");
  }
  const ReadPolicy policy = options.auto_shard == AutoShardPolicy::kFile  ? ReadPolicy::kFile
                            : options.auto_shard == AutoShardPolicy::kOff ? ReadPolicy::kOff
                                                                          : ReadPolicy::kData;
  const Status carried = global_batches.status();
  const uint64_t hash = carried.ok() ? DatasetAccess::rep(global_batches).hash() : 0;
  const std::string text =
      absl::StrCat(kDataset, "(data set h", absl::Hex(hash, absl::kZeroPad16), ", ",
                   internal::policy_name(policy), ", ", at_end_name(options.at_end), ")");
  TESSERA_RETURN_IF_ERROR(agree_on(*state_, text, carried).status());
  const std::optional<input::internal::Batching>& batching =
      DatasetAccess::rep(global_batches).batching;
  if (!batching.has_value()) {
    return refused(kDataset, "the data set has no batches; call batch(size) last");
  }
  if (policy == ReadPolicy::kData) {
    TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<const internal::DatasetRep> rep,
                             cut_for_replicas(state_, global_batches, text, options.load));
    return DistributedDataset(std::move(rep));
  }
  PipelineSet set = {.strategy = state_,
                     .policy = policy,
                     .at_end = options.at_end,
                     .prefetch = options.load.prefetch};
  TESSERA_ASSIGN_OR_RETURN(set.replicas, deal_replicas(*state_, kDataset, /*per_replica=*/false));
  const std::vector<int64_t> shares = shares_of(batching->size, set);
  TESSERA_RETURN_IF_ERROR(check_shares(*state_, global_batches, policy, shares));
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<const internal::DatasetRep> rep,
                           read_by_pipelines(std::move(set), text, [&](int pipeline) {
                             return part_of(global_batches, policy, pipeline, shares);
                           }));
  return DistributedDataset(std::move(rep));
}

namespace {

// Calls a function of the user's for a pipeline.
StatusOr<input::Dataset> dataset_of_function(
    const std::function<StatusOr<input::Dataset>(const InputContext&)>& fn,
    const InputContext& context) {
  StatusOr<input::Dataset> dataset = absl::UnknownError("the function did not return");
  Status status = input::internal::call_guarded([&] {
    dataset = fn(context);
    return dataset.ok() ? dataset->status() : dataset.status();
  });
  if (status.ok() && !DatasetAccess::rep(*dataset).batching.has_value()) {
    status = absl::InvalidArgumentError("the data set has no batches; call batch(size) last");
  }
  TESSERA_RETURN_IF_ERROR(
      with_context(status, absl::StrCat("the function for pipeline ", context.input_pipeline_id)));
  return dataset;
}

}  // namespace

StatusOr<DistributedDataset> Strategy::distribute_datasets_from_function(
    std::function<StatusOr<input::Dataset>(const InputContext&)> fn,
    const InputOptions& options) const {
  TESSERA_RETURN_IF_ERROR(check_call(*state_, kFunctions, options));
  if (fn == nullptr) return refused(kFunctions, "the function is empty");
  if (options.auto_shard == AutoShardPolicy::kData ||
      options.auto_shard == AutoShardPolicy::kFile) {
    return refused(kFunctions, options.auto_shard == AutoShardPolicy::kData ? "kData" : "kFile",
                   " is a policy of ", kDataset,
                   "(); the function cuts the data by its InputContext");
  }
  const bool per_replica = options.replication_mode == InputReplicationMode::kPerReplica;
  PipelineSet set = {
      .strategy = state_,
      .policy = per_replica ? ReadPolicy::kFunctionPerReplica : ReadPolicy::kFunctionPerWorker,
      .at_end = options.at_end,
      .prefetch = options.load.prefetch};
  TESSERA_ASSIGN_OR_RETURN(set.replicas, deal_replicas(*state_, kFunctions, per_replica));
  const std::string text = absl::StrCat(kFunctions, "(", per_replica ? "kPerReplica" : "kPerWorker",
                                        ", ", at_end_name(options.at_end), ")");
  InputContext context = {.num_input_pipelines = set.num_pipelines(),
                          .num_replicas_in_sync = num_replicas_in_sync()};
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<const internal::DatasetRep> rep,
                           read_by_pipelines(std::move(set), text, [&](int pipeline) {
                             context.input_pipeline_id = pipeline;
                             return dataset_of_function(fn, context);
                           }));
  return DistributedDataset(std::move(rep));
}

}  // namespace tessera::distribute
