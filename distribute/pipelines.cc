// SPDX-License-Identifier: Apache-2.0
#include "distribute/pipelines.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/shape.h"
#include "base/wait_reports.h"
#include "distribute/value_access.h"
#include "input/node.h"
#include "input/source.h"
#include "layout/layout.h"

namespace tessera::distribute::internal {
namespace {

using input::IteratorState;
using input::TensorSpec;
using input::internal::BatchReader;
using input::internal::RowBatch;

constexpr char kNextText[] = "next()";

// A state begins with minus the number of its policy, which no position is, and the number of
// pipelines. Each pipeline has its epoch, its step, and the number of its positions before these.
constexpr size_t kNumbersOfSet = 2;
constexpr size_t kNumbersOfPipeline = 3;

// Nothing of a state made by hand.
std::optional<ReadPolicy> policy_of(const IteratorState& state) {
  if (state.pipelines.empty() || state.pipelines[0] >= 0) {
    if (state.dataset == 0 && state.pipelines.empty()) return std::nullopt;
    return ReadPolicy::kData;
  }
  // ReadPolicy has 8 bits: a number that it does not hold stands for no policy.
  const int64_t number = state.pipelines[0];
  return static_cast<ReadPolicy>(number < -UINT8_MAX ? UINT8_MAX : -number);
}

template <class... Parts>
Status refused_state(const IteratorState& state, const Parts&... parts) {
  return absl::InvalidArgumentError(
      absl::StrCat("the iterator state ", state.to_string(), " ", parts...));
}

std::vector<int64_t> all_rows(int64_t size) {
  std::vector<int64_t> rows(static_cast<size_t>(size));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

// A wait of this client for the functions and sources of its pipelines.
ReportedWait report_reading(const PipelineSet& set, std::string call) {
  std::vector<std::shared_ptr<const input::internal::Node>> nodes;
  for (const Pipeline& pipeline : set.local) {
    nodes.push_back(input::internal::DatasetAccess::rep(pipeline.dataset).node);
  }
  return input::internal::report_reading(set.strategy->client(), std::move(call), std::move(nodes));
}

// Rows [first, end) as a batch of their own.
RowBatch part_of_batch(RowBatch& batch, int64_t first, int64_t end) {
  RowBatch part = {.size = end - first, .step = batch.step, .rows = all_rows(end - first)};
  part.elements.assign(std::make_move_iterator(batch.elements.begin() + first),
                       std::make_move_iterator(batch.elements.begin() + end));
  return part;
}

struct TypedBatch {
  RowBatch rows;
  std::vector<TensorSpec> types = {};  // of an element
};
// The next batch of a pipeline, whose elements are alike; nothing at the end.
StatusOr<std::optional<TypedBatch>> read_batch(BatchReader& reader) {
  TESSERA_ASSIGN_OR_RETURN(std::optional<RowBatch> rows, reader.next(all_rows));
  if (!rows.has_value()) return std::nullopt;
  TESSERA_RETURN_IF_ERROR(input::internal::check_alike(*rows));
  TypedBatch batch = {.rows = *std::move(rows)};
  batch.types = input::internal::types_of(batch.rows.elements[0]);
  if (batch.types.empty()) {
    return absl::InvalidArgumentError("an element has no tensors; give it one or more");
  }
  return batch;
}

// The batch as tensors of a replica, whole on each of its devices.
StatusOr<std::vector<DTensor>> make_tensors(absl::Span<const TensorSpec> types, const Mesh& mesh,
                                            const RowBatch& batch) {
  std::vector<Layout> layouts;
  for (const TensorSpec& type : types) {
    TESSERA_ASSIGN_OR_RETURN(Layout layout,
                             Layout::replicated(mesh, static_cast<int>(type.shape.size()) + 1));
    layouts.push_back(std::move(layout));
  }
  return input::internal::make_tensors(types, layouts, batch);
}

// "i64 [2], f32 [2, 3]".
std::string text_of(const Call& call) {
  std::string text;
  for (const TensorKind& kind : call.tensors) {
    absl::StrAppend(&text, text.empty() ? "" : ", ",
                    TensorSpec{kind.dtype, kind.shape}.to_string());
  }
  return text;
}

bool has_like_tensors(const Call& a, const Call& b) {
  return std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(),
                    [](const TensorKind& x, const TensorKind& y) {
                      return x.dtype == y.dtype && x.shape.size() == y.shape.size();
                    });
}

DTensor empty_tensor(const TensorKind& example, const Mesh& mesh) {
  Shape shape = example.shape;
  shape[0] = 0;
  return tessera::internal::from_function_raw(
      example.dtype, shape, Layout::replicated(mesh, static_cast<int>(shape.size())),
      [](const Box&, std::byte*) {});
}

}  // namespace

std::string policy_name(ReadPolicy policy) {
  switch (policy) {
    case ReadPolicy::kData:
      return "kData";
    case ReadPolicy::kFile:
      return "kFile";
    case ReadPolicy::kOff:
      return "kOff";
    case ReadPolicy::kFunctionPerWorker:
      return "a function for each worker";
    case ReadPolicy::kFunctionPerReplica:
      return "a function for each replica";
  }
  return "another version of Tessera";
}

Status check_policy(const IteratorState& state, ReadPolicy policy) {
  const std::optional<ReadPolicy> made_by = policy_of(state);
  if (!made_by.has_value() || *made_by == policy) return absl::OkStatus();
  return refused_state(state, "was made under ", policy_name(*made_by),
                       "; this data set is read under ", policy_name(policy));
}

IteratorState state_of(const PipelineSet& set, int64_t epoch, int64_t step,
                       absl::Span<const IteratorState> pipelines) {
  IteratorState state = {.dataset = set.hash, .epoch = epoch, .step = step};
  state.pipelines = {-static_cast<int64_t>(set.policy), set.num_pipelines()};
  for (const IteratorState& each : pipelines) {
    state.pipelines.insert(state.pipelines.end(),
                           {each.epoch, each.step, static_cast<int64_t>(each.pipelines.size())});
    state.pipelines.insert(state.pipelines.end(), each.pipelines.begin(), each.pipelines.end());
  }
  return state;
}

StatusOr<std::vector<IteratorState>> states_in(const PipelineSet& set, const IteratorState& state) {
  TESSERA_RETURN_IF_ERROR(check_policy(state, set.policy));
  if (state.epoch < 0 || state.step < 0) {
    return refused_state(state, "has a negative epoch or step");
  }
  const int num_pipelines = set.num_pipelines();
  if (!policy_of(state).has_value()) {
    if (state.step != 0) {
      return refused_state(state,
                           "has no positions of pipelines, so it begins an epoch: give step 0");
    }
    return std::vector<IteratorState>(num_pipelines, {.epoch = state.epoch});
  }
  const Status cut_short = refused_state(state, "should have the positions of ", num_pipelines,
                                         " pipelines, and more "
                                         "or fewer numbers");
  const absl::Span<const int64_t> numbers = state.pipelines;
  if (numbers.size() < kNumbersOfSet) return cut_short;
  if (numbers[1] != num_pipelines) {
    return refused_state(state, "was made with ", numbers[1], " pipelines; this data set has ",
                         num_pipelines, ", one for each ",
                         set.policy == ReadPolicy::kFunctionPerReplica ? "replica" : "client");
  }
  if (state.dataset != set.hash) {
    return refused_state(state, "was made by another data set; the hash of this one is h",
                         absl::Hex(set.hash, absl::kZeroPad16));
  }
  std::vector<IteratorState> states;
  size_t at = kNumbersOfSet;
  for (int i = 0; i < num_pipelines; ++i) {
    if (numbers.size() - at < kNumbersOfPipeline) return cut_short;
    const int64_t count = numbers[at + 2];
    IteratorState& each = states.emplace_back();
    each.epoch = numbers[at];
    each.step = numbers[at + 1];
    at += kNumbersOfPipeline;
    if (count < 0 || static_cast<uint64_t>(count) > numbers.size() - at) return cut_short;
    const absl::Span<const int64_t> positions = numbers.subspan(at, static_cast<size_t>(count));
    each.pipelines.assign(positions.begin(), positions.end());
    at += static_cast<size_t>(count);
  }
  if (at != numbers.size()) return cut_short;
  return states;
}

StatusOr<std::unique_ptr<PipelineIterator>> PipelineIterator::open(
    std::shared_ptr<const PipelineSet> set, const IteratorState& from) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<IteratorState> states, states_in(*set, from));
  const ReportedWait wait = report_reading(*set, "iterate() of a data set");
  std::unique_ptr<PipelineIterator> iterator(
      new PipelineIterator(std::move(set), from.epoch, from.step, std::move(states)));
  for (const Pipeline& pipeline : iterator->set_->local) {
    StatusOr<std::unique_ptr<BatchReader>> reader =
        BatchReader::open(pipeline.dataset, iterator->states_[pipeline.id]);
    TESSERA_RETURN_IF_ERROR(with_context(reader.status(), absl::StrCat("pipeline ", pipeline.id)));
    iterator->readers_.push_back(*std::move(reader));
  }
  TESSERA_RETURN_IF_ERROR(iterator->ahead_.start());
  return iterator;
}

// Loads the tensors of this client's replicas. A pipeline at its end gives nothing, again and
// again, while others go on.
PipelineIterator::LocalStep PipelineIterator::load() {
  LocalStep step;
  step.tensors.resize(set_->strategy->local_replicas().size());
  for (size_t i = 0; i < readers_.size() && step.status.ok(); ++i) {
    const Status status = load_pipeline(i, &step);
    step.status = with_context(status, absl::StrCat("step ", loading_step_, " on client ",
                                                    set_->strategy->client().client_id(),
                                                    ", pipeline ", set_->local[i].id));
    step.after.push_back(readers_[i]->state());
  }
  ++loading_step_;
  return step;
}

// Reads one batch and cuts it, or a batch for each replica until there is none.
Status PipelineIterator::load_pipeline(size_t index, LocalStep* step) {
  const std::vector<int>& replicas = set_->local[index].replicas;
  const auto count = static_cast<int64_t>(replicas.size());
  std::optional<TypedBatch> batch;
  for (int64_t k = 0; k < count; ++k) {
    if (k == 0 || !set_->cuts_batches()) {
      TESSERA_ASSIGN_OR_RETURN(batch, read_batch(*readers_[index]));
      if (!batch.has_value()) return absl::OkStatus();
    }
    const auto [first, end] = set_->cuts_batches() ? shard_interval(batch->rows.size, count, k)
                                                   : std::pair(int64_t{0}, batch->rows.size);
    TESSERA_ASSIGN_OR_RETURN(
        step->tensors[replicas[k]],
        make_tensors(batch->types, set_->strategy->mesh_of(local_id(replicas[k])),
                     part_of_batch(batch->rows, first, end)));
  }
  return absl::OkStatus();
}

// The types and shapes of each local replica's tensors; the first replica of a pipeline carries its
// position too, the first local replica an error.
std::vector<Call> PipelineIterator::calls_of(const LocalStep& step) const {
  std::vector<Call> calls;
  for (const std::vector<DTensor>& tensors : step.tensors) {
    Call& call = calls.emplace_back(Call{.text = kNextText});
    for (const DTensor& tensor : tensors) {
      call.tensors.push_back({tensor.dtype(), tensor.shape(), /*layout=*/""});
    }
  }
  calls[0].error = step.status;
  if (!step.status.ok()) return calls;
  for (size_t i = 0; i < set_->local.size(); ++i) {
    calls[set_->local[i].replicas[0]].value = step.after[i].to_string();
  }
  return calls;
}

bool PipelineIterator::is_end(absl::Span<const Call> calls) const {
  const auto has_nothing = [&](const Call& call) { return call.tensors.empty(); };
  if (set_->at_end == AtEnd::kAll) return std::all_of(calls.begin(), calls.end(), has_nothing);
  return std::any_of(
      set_->replicas.begin(), set_->replicas.end(),
      [&](const std::vector<int>& replicas) { return has_nothing(calls[replicas[0]]); });
}

// The decision of all clients on one list of calls: an error, the end, or the step with its size
// and the positions after it. The members change only where there is a step.
StatusOr<std::optional<DistributedBatch>> PipelineIterator::settle(LocalStep step) {
  const StrategyState& strategy = *set_->strategy;
  const absl::Span<const std::string> names = strategy.names();
  TESSERA_ASSIGN_OR_RETURN(
      std::vector<Call> calls,
      strategy.exchange().calls_of_all(calls_of(step), strategy.options().communication));
  std::vector<Call> texts;
  for (const Call& call : calls) {
    TESSERA_RETURN_IF_ERROR(call.error);
    texts.push_back({.text = call.text});
  }
  TESSERA_RETURN_IF_ERROR(check_calls(texts, names, {}));
  if (is_end(calls)) return std::nullopt;

  DistributedBatch batch = {.step = step_};
  const Call* example = nullptr;  // of the first replica whose pipeline has more
  for (size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].tensors.empty()) continue;
    if (calls[i].tensors[0].shape.empty()) {
      return absl::InternalError(absl::StrCat("step ", step_, ": ", names[i],
                                              " has a batch without rows; report this as a bug of "
                                              "Tessera"));
    }
    batch.size += calls[i].tensors[0].shape[0];
    if (example == nullptr) example = &calls[i];
    if (has_like_tensors(*example, calls[i])) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("step ", step_, ": ", names[example - calls.data()], " has ",
                     text_of(*example), ", ", names[i], " has ", text_of(calls[i]),
                     "; give all replicas as many tensors, of the same dtypes and ranks"));
  }
  for (size_t i = 0; i < states_.size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(states_[i], IteratorState::parse(calls[set_->replicas[i][0]].value));
  }
  ++step_;
  batch.values = values_of(std::move(step), *example);
  return batch;
}

std::vector<DistributedValues> PipelineIterator::values_of(LocalStep step,
                                                           const Call& example) const {
  std::vector<DistributedValues> values;
  for (size_t k = 0; k < example.tensors.size(); ++k) {
    std::vector<DTensor> parts;
    for (size_t i = 0; i < step.tensors.size(); ++i) {
      const Mesh& mesh = set_->strategy->mesh_of(local_id(static_cast<int>(i)));
      parts.push_back(step.tensors[i].empty() ? empty_tensor(example.tensors[k], mesh)
                                              : std::move(step.tensors[i][k]));
    }
    values.push_back(ValueAccess::make(set_->strategy, std::move(parts)));
  }
  return values;
}

StatusOr<std::optional<DistributedBatch>> PipelineIterator::next() {
  TESSERA_RETURN_IF_ERROR(failed_);
  if (ended_) return std::nullopt;
  StatusOr<std::optional<DistributedBatch>> batch = settle(ahead_.take([this] {
    return report_reading(*set_, absl::StrCat("next() of step ", step_, " of a data set"));
  }));
  failed_ = batch.status();
  ended_ = batch.ok() && !batch->has_value();
  return batch;
}

}  // namespace tessera::distribute::internal
