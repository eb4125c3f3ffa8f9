// SPDX-License-Identifier: Apache-2.0
#include "distribute/reductions.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/exception_status.h"
#include "base/shape.h"
#include "distribute/cross_device_ops.h"
#include "distribute/value_access.h"
#include "dtensor/parts.h"
#include "dtensor/relayout.h"
#include "mesh/mesh.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/shapes.h"

namespace tessera::distribute::internal {
namespace {

bool is_half(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

StatusOr<DTensor> reduce_across(const StrategyState& strategy, ReduceOp op, const PerReplica& value,
                                const LayoutArg& destination, const CommunicationOptions& options) {
  return call_guarded<StatusOr<DTensor>>(
      [&] { return strategy.options().cross_device_ops->reduce(op, value, destination, options); });
}

}  // namespace

DTensor reduced_along(ReduceOp op, const DTensor& x, const std::vector<int64_t>& dims) {
  const bool is_bool = x.dtype() == DType::kBool;
  switch (op) {
    case ReduceOp::kSum:
      return ops::sum(x, dims);
    case ReduceOp::kProd:
      return ops::prod(x, dims);
    case ReduceOp::kMin:
      return is_bool ? ops::all(x, dims) : ops::min(x, dims);
    case ReduceOp::kMax:
      return is_bool ? ops::any(x, dims) : ops::max(x, dims);
    case ReduceOp::kAvg:
      return ops::mean(x, dims);
  }
  return x;
}

StatusOr<std::vector<PerReplica>> alike(const StrategyState& strategy, const Rows& rows,
                                        absl::Span<const Call> calls) {
  std::vector<PerReplica> values;
  for (size_t k = 0; k < calls[0].tensors.size(); ++k) {
    std::vector<DTensor> parts = column(rows, k);
    for (size_t i = 0; i < parts.size(); ++i) {
      const Mesh& mesh = strategy.mesh_of(strategy.local_replicas()[i]);
      TESSERA_ASSIGN_OR_RETURN(Layout layout, Layout::parse(mesh, calls[0].tensors[k].layout));
      layout = layout.without_partial();
      if (parts[i].layout() != layout) parts[i] = relayout(parts[i], layout);
    }
    values.push_back(ValueAccess::make(strategy.shared_from_this(), std::move(parts)));
  }
  return values;
}

StatusOr<std::vector<PerReplica>> terms_of(const StrategyState& strategy, ReduceOp op,
                                           const Rows& rows, absl::Span<const Call> calls) {
  for (const TensorKind& tensor : calls[0].tensors) {
    TESSERA_RETURN_IF_ERROR(validate_reduction(op, tensor.dtype));
  }
  return alike(strategy, rows, calls);
}

StatusOr<DTensor> reduce_value(const StrategyState& strategy, ReduceOp op, const Rows& rows,
                               absl::Span<const Call> calls,
                               const std::optional<Layout>& destination,
                               const CommunicationOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<PerReplica> values,
                           terms_of(strategy, op, rows, calls));
  TESSERA_ASSIGN_OR_RETURN(const Layout whole, strategy.on_whole_mesh(values[0].local(0).layout()));
  return reduce_across(strategy, op, values[0], destination.value_or(whole), options);
}

StatusOr<DTensor> reduce_dims(const StrategyState& strategy, ReduceOp op, const Rows& rows,
                              absl::Span<const Call> calls, absl::Span<const int64_t> dims,
                              const CommunicationOptions& options) {
  std::vector<DTensor> parts = column(rows, 0);
  const DType dtype = parts[0].dtype();
  const Shape shape = parts[0].shape();
  TESSERA_RETURN_IF_ERROR(validate_reduction(op, dtype));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> reduced,
                           normal_dims(dims, static_cast<int64_t>(shape.size())));
  double count = 0;
  for (const Call& call : calls) {
    double elements = 1;
    for (const int64_t dim : reduced) elements *= static_cast<double>(call.tensors[0].shape[dim]);
    count += elements;
  }
  if (count == 0 && (op == ReduceOp::kMax || op == ReduceOp::kMin)) {
    return absl::InvalidArgumentError(
        absl::StrCat("reduce(", reduce_op_name(op),
                     "): no replica has an element, and of none there is no ", reduce_op_name(op)));
  }
  const int rank = static_cast<int>(shape.size() - reduced.size());
  const ReduceOp across = op == ReduceOp::kAvg ? ReduceOp::kSum : op;
  for (size_t i = 0; i < parts.size(); ++i) {
    DTensor& part = parts[i];
    if (is_half(dtype)) part = ops::cast(part, DType::kFloat32);
    part = reduced_along(across, part, reduced);
    part = relayout(part, Layout::replicated(strategy.mesh_of(strategy.local_replicas()[i]), rank));
  }
  const PerReplica value = ValueAccess::make(strategy.shared_from_this(), std::move(parts));
  TESSERA_ASSIGN_OR_RETURN(
      DTensor result,
      reduce_across(strategy, across, value, Layout::replicated(strategy.mesh(), rank), options));
  if (op == ReduceOp::kAvg) result = ops::div(result, count);
  return is_half(dtype) ? ops::cast(result, dtype) : result;
}

StatusOr<DTensor> gather_value(const StrategyState& strategy, const Rows& rows,
                               absl::Span<const Call> calls, int64_t dim) {
  std::vector<DTensor> parts = column(rows, 0);
  const int rank = static_cast<int>(parts[0].shape().size());
  if (dim < 0) dim += rank;
  int64_t largest = 0;
  bool is_even = true;
  for (const Call& call : calls) {
    const int64_t size = call.tensors[0].shape[dim];
    largest = std::max(largest, size);
    is_even &= size == calls[0].tensors[0].shape[dim];
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i] = relayout(parts[i],
                        Layout::replicated(strategy.mesh_of(strategy.local_replicas()[i]), rank));
    if (is_even) continue;
    std::vector<int64_t> none(rank, 0);
    std::vector<int64_t> high(rank, 0);
    high[dim] = largest - parts[i].shape()[dim];
    parts[i] = ops::pad(parts[i], none, high);
  }
  TESSERA_ASSIGN_OR_RETURN(const DTensor pieces,
                           strategy.whole_of_pieces(parts, dim, largest * strategy.num_replicas()));
  DTensor padded = relayout(pieces, Layout::replicated(strategy.mesh(), rank));
  if (is_even) return padded;
  std::vector<DTensor> kept;
  for (int replica = 0; replica < strategy.num_replicas(); ++replica) {
    std::vector<int64_t> starts(rank, 0);
    std::vector<int64_t> limits = padded.shape();
    starts[dim] = replica * largest;
    limits[dim] = starts[dim] + calls[replica].tensors[0].shape[dim];
    kept.push_back(ops::slice(padded, starts, limits));
  }
  return ops::concat(kept, dim);
}

StatusOr<DTensor> from_first(const StrategyState& strategy, const DTensor& part) {
  const int rank = static_cast<int>(part.shape().size());
  TESSERA_ASSIGN_OR_RETURN(const Layout first, Layout::replicated(strategy.mesh_of(0), rank));
  const bool is_here = !strategy.local_replicas().empty() && strategy.local_replicas()[0] == 0;
  const DTensor source = is_here
                             ? relayout(part, first)
                             : tessera::internal::assemble({}, part.dtype(), first, part.shape());
  return relayout(source, Layout::replicated(strategy.mesh(), rank));
}

StatusOr<std::vector<DTensor>> batch_reduce(const StrategyState& strategy, ReduceOp op,
                                            absl::Span<const PerReplica> values,
                                            absl::Span<const Layout> destinations,
                                            const CommunicationOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(
      std::vector<DTensor> results, call_guarded<StatusOr<std::vector<DTensor>>>([&] {
        return strategy.options().cross_device_ops->batch_reduce(op, values, destinations, options);
      }));
  if (results.size() == values.size()) return results;
  return absl::InternalError(absl::StrCat("batch_reduce() of the strategy's CrossDeviceOps gave ",
                                          results.size(), " tensors for ", values.size(),
                                          " values"));
}

StatusOr<DTensor> broadcast(const StrategyState& strategy, const DTensor& value,
                            const LayoutArg& destination, const CommunicationOptions& options) {
  return call_guarded<StatusOr<DTensor>>(
      [&] { return strategy.options().cross_device_ops->broadcast(value, destination, options); });
}

}  // namespace tessera::distribute::internal
