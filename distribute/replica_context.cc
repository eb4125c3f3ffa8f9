// SPDX-License-Identifier: Apache-2.0
#include "distribute/replica_context.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "distribute/call.h"
#include "distribute/reductions.h"
#include "distribute/replica_run.h"
#include "distribute/replicas.h"
#include "distribute/strategy_state.h"
#include "distribute/value_access.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/shapes.h"
#include "ops/tape.h"

namespace tessera::distribute {

using internal::all_failed;
using internal::Call;
using internal::call_text;
using internal::ReplicaResult;
using internal::ReplicaRun;
using internal::Rows;
using internal::StrategyState;
using internal::ValueAccess;

ReplicaContext::ReplicaContext(const Strategy& strategy, std::shared_ptr<internal::ReplicaRun> run,
                               int index)
    : strategy_(strategy),
      id_(run->strategy()->local_replicas()[index]),
      mesh_(run->strategy()->mesh_of(id_)),
      run_(std::move(run)),
      index_(index) {}

int ReplicaContext::num_replicas_in_sync() const { return run_->strategy()->num_replicas(); }

namespace {

// The calls of a replica, for their gradients too, which are asked for while its function runs.
struct Caller {
  std::shared_ptr<ReplicaRun> run;
  int index;

  const StrategyState& strategy() const { return *run->strategy(); }
  int id() const { return strategy().local_replicas()[index]; }

  // Replicas compare the text.
  std::vector<DTensor> all_reduce(const std::string& text, ReduceOp op,
                                  absl::Span<const DTensor> xs,
                                  const CommunicationOptions& asked) const;
  std::vector<DTensor> all_reduce(ReduceOp op, absl::Span<const DTensor> xs,
                                  const CommunicationOptions& asked) const {
    return all_reduce(call_text("all_reduce", op), op, xs, asked);
  }
  DTensor all_gather(const DTensor& x, int dim, const CommunicationOptions& asked) const;
};

// The gradient of prod() over all terms, which each replica gathers: a quotient of the product and
// its own term would not exist where that is 0, and may be out of range.
DTensor product_of_other_terms(const Caller& caller, const DTensor& x, const DTensor& cotangent,
                               const CommunicationOptions& options) {
  Tape tape;
  const DTensor terms = tape.watch(caller.all_gather(ops::expand_dims(x, 0), 0, options));
  const DTensor gradients = tape.gradient(ops::prod(terms, {0}), {terms}, {.seed = cotangent})[0];
  std::vector<int64_t> starts(gradients.shape().size(), 0);
  std::vector<int64_t> limits = gradients.shape();
  starts[0] = caller.id();
  limits[0] = caller.id() + 1;
  return ops::reshape(ops::slice(gradients, starts, limits), x.shape());
}

// The gradient by a term. Sum and mean: the sum or mean of the cotangents. Product: the sum of the
// cotangents times the product of the other terms. Extreme: the sum of the cotangents, in equal
// parts for the terms that equal the extreme.
std::vector<std::optional<DTensor>> gradient_of_term(const Caller& caller, ReduceOp op,
                                                     const DTensor& x, const DTensor& y,
                                                     const DTensor& cotangent,
                                                     const CommunicationOptions& options) {
  const auto reduce = [&](ReduceOp each, const DTensor& tensor) {
    return caller.all_reduce(each, {tensor}, options)[0];
  };
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return {reduce(op, cotangent)};
    case ReduceOp::kProd:
      return {product_of_other_terms(caller, x, reduce(ReduceOp::kSum, cotangent), options)};
    default: {
      const DTensor is_extreme = ops::cast(ops::equal(x, y), x.dtype());
      return {ops::div_or_zero(ops::mul_or_zero(reduce(ReduceOp::kSum, cotangent), is_extreme),
                               reduce(ReduceOp::kSum, is_extreme))};
    }
  }
}

std::vector<DTensor> Caller::all_reduce(const std::string& text, ReduceOp op,
                                        absl::Span<const DTensor> xs,
                                        const CommunicationOptions& asked) const {
  if (xs.empty()) return {};
  const StatusOr<CommunicationOptions> options = strategy().options_over(run->options(), asked);
  if (!options.ok()) return all_failed(xs, options.status());
  const auto reduce_all = [&](const Rows& rows, absl::Span<const Call> calls) -> StatusOr<Rows> {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<PerReplica> values,
                             internal::terms_of(strategy(), op, rows, calls));
    std::vector<Layout> destinations;
    for (const PerReplica& value : values) {
      TESSERA_ASSIGN_OR_RETURN(Layout whole, strategy().on_whole_mesh(value.local(0).layout()));
      destinations.push_back(std::move(whole));
    }
    TESSERA_ASSIGN_OR_RETURN(
        const std::vector<DTensor> reduced,
        internal::batch_reduce(strategy(), op, values, destinations, *options));
    return strategy().on_replicas(reduced);
  };
  std::vector<DTensor> stopped;
  for (const DTensor& x : xs) stopped.push_back(stop_gradient(x));
  const std::vector<DTensor> values =
      run->meet(index, text, std::move(stopped), ReplicaRun::Terms(*options), reduce_all).values;
  std::vector<DTensor> results;
  for (size_t k = 0; k < xs.size(); ++k) {
    results.push_back(custom_gradient(
        {xs[k]}, [&](absl::Span<const DTensor>) { return values[k]; },
        [caller = *this, op, asked](absl::Span<const DTensor> inputs, const DTensor& result,
                                    const DTensor& cotangent) {
          return gradient_of_term(caller, op, inputs[0], result, cotangent, asked);
        }));
  }
  return results;
}

DTensor Caller::all_gather(const DTensor& x, int dim, const CommunicationOptions& asked) const {
  const StatusOr<CommunicationOptions> options = strategy().options_over(run->options(), asked);
  if (!options.ok()) return all_failed({x}, options.status())[0];
  const auto gather_all = [&](const Rows& rows, absl::Span<const Call> calls) -> StatusOr<Rows> {
    TESSERA_ASSIGN_OR_RETURN(const DTensor whole,
                             internal::gather_value(strategy(), rows, calls, dim));
    return strategy().on_replicas({whole});
  };
  std::shared_ptr<const std::vector<Call>> calls;
  const ReplicaResult gathered =
      run->meet(index, absl::StrCat("all_gather(dim ", dim, ")"), {stop_gradient(x)},
                ReplicaRun::Terms(*options, {.dims = {dim}}), gather_all, &calls);
  if (!gathered.status.ok()) return gathered.values[0];
  const int64_t along = dim < 0 ? dim + static_cast<int64_t>(x.shape().size()) : dim;
  int64_t begin = 0;
  for (int replica = 0; replica < id(); ++replica) {
    begin += (*calls)[replica].tensors[0].shape[along];
  }
  return custom_gradient(
      {x}, [&](absl::Span<const DTensor>) { return gathered.values[0]; },
      [caller = *this, along, begin, asked](
          absl::Span<const DTensor> inputs, const DTensor&,
          const DTensor& cotangent) -> std::vector<std::optional<DTensor>> {
        const DTensor sum = caller.all_reduce(ReduceOp::kSum, {cotangent}, asked)[0];
        std::vector<int64_t> limits = inputs[0].shape();
        std::vector<int64_t> starts(limits.size(), 0);
        starts[along] = begin;
        limits[along] += begin;
        return {ops::slice(sum, starts, limits)};
      });
}

}  // namespace

DTensor ReplicaContext::all_reduce(ReduceOp op, const DTensor& x,
                                   const CommunicationOptions& options) {
  return all_reduce(op, absl::MakeConstSpan(&x, 1), options)[0];
}

std::vector<DTensor> ReplicaContext::all_reduce(ReduceOp op, absl::Span<const DTensor> xs,
                                                const CommunicationOptions& options) {
  return Caller{run_, index_}.all_reduce(op, xs, options);
}

std::vector<DTensor> ReplicaContext::gradient(Tape& tape, const DTensor& target,
                                              absl::Span<const DTensor> sources, ReduceOp op,
                                              const CommunicationOptions& options) {
  std::vector<size_t> order;
  std::vector<DTensor> finished;
  GradientOptions how;
  how.on_finished = [&](size_t source, const DTensor& gradient) {
    order.push_back(source);
    finished.push_back(gradient);
  };
  std::vector<DTensor> gradients = tape.gradient(target, sources, how);
  if (finished.size() < gradients.size()) {  // They are errors, which the other replicas get too.
    finished = gradients;
    order.resize(gradients.size());
    std::iota(order.begin(), order.end(), 0);
  }
  const std::string text =
      absl::StrCat("gradient(", reduce_op_name(op), "), finished ", absl::StrJoin(order, ", "));
  const std::vector<DTensor> reduced = Caller{run_, index_}.all_reduce(text, op, finished, options);
  for (size_t i = 0; i < order.size(); ++i) gradients[order[i]] = reduced[i];
  return gradients;
}

DTensor ReplicaContext::all_gather(const DTensor& x, int dim, const CommunicationOptions& options) {
  return Caller{run_, index_}.all_gather(x, dim, options);
}

ReplicaResult ReplicaContext::merge_raw(MergeFunction fn, std::vector<DTensor> args) {
  const std::shared_ptr<StrategyState>& state = run_->strategy();
  const auto merge = [&](const Rows& rows, absl::Span<const Call>) -> StatusOr<Rows> {
    std::vector<PerReplica> merged;
    for (size_t k = 0; k < rows[0].size(); ++k) {
      merged.push_back(ValueAccess::make(state, internal::column(rows, k)));
    }
    const internal::MergeResult result = fn(merged);
    TESSERA_RETURN_IF_ERROR(result.status);
    return state->rows_of(result.values);
  };
  return run_->meet(
      index_, "merge_call", std::move(args),
      ReplicaRun::Terms(run_->options(), {.any_tensor = true}, /*may_call_strategy=*/true), merge);
}

}  // namespace tessera::distribute
