// SPDX-License-Identifier: Apache-2.0
//
// What replicas compute together: reductions, by the CrossDeviceOps of their strategy, and
// gathering. Internal to distribute/.
//
// `rows` are the tensors of the local replicas, and `calls` the calls of all replicas with these
// tensors, which agree. Where a function takes one value the rows have one tensor each.
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

DTensor reduced_along(ReduceOp op, const DTensor& x, const std::vector<int64_t>& dims);

// The values that the rows have, each moved to one layout for all replicas: the layout of replica 0
// without partial axes.
StatusOr<std::vector<PerReplica>> alike(const StrategyState& strategy, const Rows& rows,
                                        absl::Span<const Call> calls);
// The same for what can be reduced.
StatusOr<std::vector<PerReplica>> terms_of(const StrategyState& strategy, ReduceOp op,
                                           const Rows& rows, absl::Span<const Call> calls);

// Element by element, to a destination or, without one, to all replicas.
StatusOr<DTensor> reduce_value(const StrategyState& strategy, ReduceOp op, const Rows& rows,
                               absl::Span<const Call> calls,
                               const std::optional<Layout>& destination,
                               const CommunicationOptions& options);
// Along dims of each tensor too.
StatusOr<DTensor> reduce_dims(const StrategyState& strategy, ReduceOp op, const Rows& rows,
                              absl::Span<const Call> calls, absl::Span<const int64_t> dims,
                              const CommunicationOptions& options);
StatusOr<DTensor> gather_value(const StrategyState& strategy, const Rows& rows,
                               absl::Span<const Call> calls, int64_t dim);
// A tensor of the first replica, on all. Clients without the first replica pass any tensor of its
// dtype and shape.
StatusOr<DTensor> from_first(const StrategyState& strategy, const DTensor& part);

// By the strategy's CrossDeviceOps. An exception of these is an error, and so is another number of
// tensors.
StatusOr<std::vector<DTensor>> batch_reduce(const StrategyState& strategy, ReduceOp op,
                                            absl::Span<const PerReplica> values,
                                            absl::Span<const Layout> destinations,
                                            const CommunicationOptions& options);
StatusOr<DTensor> broadcast(const StrategyState& strategy, const DTensor& value,
                            LayoutArg destination, const CommunicationOptions& options);

}  // namespace tessera::distribute::internal

#endif  // TESSERA_DISTRIBUTE_REDUCTIONS_H_
