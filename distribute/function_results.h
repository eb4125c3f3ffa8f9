// SPDX-License-Identifier: Apache-2.0
//
// The results of functions of replicas, of all the kinds that these may return, as one kind.
// Internal to distribute/.
#ifndef TESSERA_DISTRIBUTE_FUNCTION_RESULTS_H_
#define TESSERA_DISTRIBUTE_FUNCTION_RESULTS_H_

#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "distribute/values.h"
#include "dtensor/dtensor.h"

namespace tessera::distribute {

class Strategy;

namespace internal {

// The result of a replica's function.
struct ReplicaResult {
  Status status = {};
  std::vector<DTensor> tensors = {};
};
// The result of all local replicas.
struct RunResult {
  Status status = {};
  std::vector<PerReplica> values = {};  // at least one
};
// The result of the function of merge_call(): a value for all replicas, or an error.
struct MergeResult {
  Status status = {};
  std::vector<DistributedValues> values = {};
};
using MergeFunction =
    std::function<MergeResult(const Strategy& strategy, absl::Span<const PerReplica> args)>;

// The kinds of results that functions may have.
template <class T>
struct IsStatusOr : std::false_type {};
template <class T>
struct IsStatusOr<StatusOr<T>> : std::true_type {
  using Value = T;
};
template <class Result>
ReplicaResult to_replica_result(Result result) {
  if constexpr (IsStatusOr<Result>::value) {
    if (!result.ok()) return {result.status(), {}};
    return to_replica_result(*std::move(result));
  } else if constexpr (std::is_same_v<Result, Status>) {
    return {std::move(result), {}};
  } else if constexpr (std::is_same_v<Result, DTensor>) {
    return {absl::OkStatus(), {std::move(result)}};
  } else {
    static_assert(std::is_same_v<Result, std::vector<DTensor>>,
                  "a replica function returns a DTensor, a std::vector<DTensor>, a StatusOr of "
                  "either, or a Status");
    return {absl::OkStatus(), std::move(result)};
  }
}
template <class Result>
MergeResult to_merge_result(Result result) {
  if constexpr (IsStatusOr<Result>::value) {
    if (!result.ok()) return {result.status(), {}};
    return to_merge_result(*std::move(result));
  } else if constexpr (std::is_same_v<Result, Status>) {
    return {std::move(result), {}};
  } else if constexpr (std::is_same_v<Result, DTensor> || std::is_same_v<Result, PerReplica>) {
    return {absl::OkStatus(), {DistributedValues(std::move(result))}};
  } else {
    MergeResult merged;
    for (auto& each : result) merged.values.push_back(DistributedValues(std::move(each)));
    return merged;
  }
}
// The kind of a result without StatusOr: DTensor, a list, or Status.
template <class Result, class = void>
struct Kind {
  static constexpr bool kIsStatus = std::is_same_v<Result, Status>;
  static constexpr bool kIsOne =
      std::is_same_v<Result, DTensor> || std::is_same_v<Result, PerReplica>;
};
template <class Result>
struct Kind<Result, std::enable_if_t<IsStatusOr<Result>::value>>
    : Kind<typename IsStatusOr<Result>::Value> {};

}  // namespace internal
}  // namespace tessera::distribute

#endif  // TESSERA_DISTRIBUTE_FUNCTION_RESULTS_H_
