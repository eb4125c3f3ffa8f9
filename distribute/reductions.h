// SPDX-License-Identifier: Apache-2.0
//
// Reductions over the replicas of a strategy, by its CrossDeviceOps, and gathering. Internal to
// distribute/.
//
// `rows` are the tensors of the local replicas, and `calls` the calls of all replicas with these
// tensors, which agree. For a function of one value each row has one tensor.
//
// Functions that take a strategy are collective over its clients, which pass equal `calls`. Errors
// that follow from the arguments are returned; later ones are carried by the tensors.
#ifndef TESSERA_DISTRIBUTE_REDUCTIONS_H_
#define TESSERA_DISTRIBUTE_REDUCTIONS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "base/reduce_op.h"
#include "base/status.h"
#include "distribute/call.h"
#include "distribute/options.h"
#include "distribute/replicas.h"
#include "distribute/strategy_state.h"
#include "distribute/values.h"
#include "dtensor/dtensor.h"
#include "layout/layout.h"

namespace tessera::distribute::internal {

// The reduction of one tensor along dims.
DTensor reduced_along(ReduceOp op, const DTensor& x, const std::vector<int64_t>& dims);

// The values that the rows have, each moved to one layout for all replicas: the layout of replica 0
// without partial axes.
StatusOr<std::vector<PerReplica>> alike(const StrategyState& strategy, const Rows& rows,
                                        absl::Span<const Call> calls);
// As alike(), for a reduction. InvalidArgument for a dtype for which the op is not defined.
StatusOr<std::vector<PerReplica>> terms_of(const StrategyState& strategy, ReduceOp op,
                                           const Rows& rows, absl::Span<const Call> calls);

// Reduces element by element, to a destination or, without one, to all replicas.
StatusOr<DTensor> reduce_value(const StrategyState& strategy, ReduceOp op, const Rows& rows,
                               absl::Span<const Call> calls,
                               const std::optional<Layout>& destination,
                               const CommunicationOptions& options);
// Reduces along dims of each tensor too, to all replicas. InvalidArgument for a minimum or maximum
// of no elements.
StatusOr<DTensor> reduce_dims(const StrategyState& strategy, ReduceOp op, const Rows& rows,
                              absl::Span<const Call> calls, absl::Span<const int64_t> dims,
                              const CommunicationOptions& options);
// The tensors of the replicas along dim, by replica id, on all devices.
StatusOr<DTensor> gather_value(const StrategyState& strategy, const Rows& rows,
                               absl::Span<const Call> calls, int64_t dim);
// A tensor of the first replica, on all. Clients without the first replica pass any tensor of its
// dtype and shape.
StatusOr<DTensor> from_first(const StrategyState& strategy, const DTensor& part);

// Calls of the strategy's CrossDeviceOps. An exception becomes an error, and another number of
// tensors is Internal.
StatusOr<std::vector<DTensor>> batch_reduce(const StrategyState& strategy, ReduceOp op,
                                            absl::Span<const PerReplica> values,
                                            absl::Span<const Layout> destinations,
                                            const CommunicationOptions& options);
StatusOr<DTensor> broadcast(const StrategyState& strategy, const DTensor& value,
                            const LayoutArg& destination, const CommunicationOptions& options);

}  // namespace tessera::distribute::internal

#endif  // TESSERA_DISTRIBUTE_REDUCTIONS_H_
