// SPDX-License-Identifier: Apache-2.0
//
// FunctionResult: the result of a user's function in one form, whatever the function returns.
// Internal to distribute/.
//
//   Status, or an error of a StatusOr   the status, and no values
//   a DTensor or a PerReplica           one value
//   a list of these                     its values
//
// to_result() makes it, and as_returned() gives it back in the form of the function.
#ifndef TESSERA_DISTRIBUTE_FUNCTION_RESULTS_H_
#define TESSERA_DISTRIBUTE_FUNCTION_RESULTS_H_

#include <cstddef>
#include <iterator>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/public.h"
#include "base/status.h"
#include "distribute/values.h"
#include "dtensor/dtensor.h"

namespace TESSERA_PUBLIC tessera {
namespace distribute::internal {

// Values, or an error; with an error there may be values that carry it.
template <class Value>
struct FunctionResult {
  FunctionResult(Status status = {}, std::vector<Value> values = {})  // NOLINT: on purpose
      : status(std::move(status)), values(std::move(values)) {}

  Status status;
  std::vector<Value> values;
};
// The result of a replica's function.
using ReplicaResult = FunctionResult<DTensor>;
// The results of all local replicas. On an error there is at least one value.
using RunResult = FunctionResult<PerReplica>;
// The result of the function of merge_call(): each value is for all replicas.
using MergeResult = FunctionResult<DistributedValues>;

// The kind of a type that a function returns.
template <class Result>
struct Kind {
  static constexpr bool kIsStatusOr = false;
  static constexpr bool kIsStatus = std::is_same_v<Result, Status>;
  static constexpr bool kIsOne =
      std::is_same_v<Result, DTensor> || std::is_same_v<Result, PerReplica>;
};
template <class T>
struct Kind<StatusOr<T>> : Kind<T> {
  static constexpr bool kIsStatusOr = true;
};

template <class Value, class Result>
FunctionResult<Value> to_result(Result result) {
  if constexpr (Kind<Result>::kIsStatusOr) {
    if (!result.ok()) return result.status();
    return to_result<Value>(*std::move(result));
  } else if constexpr (Kind<Result>::kIsStatus) {
    return {std::move(result), {}};
  } else if constexpr (Kind<Result>::kIsOne && std::is_convertible_v<Result, Value>) {
    return {absl::OkStatus(), {Value(std::move(result))}};
  } else {
    static_assert(!std::is_same_v<Value, DTensor> || std::is_same_v<Result, std::vector<DTensor>>,
                  "a replica function returns a DTensor, a std::vector<DTensor>, a StatusOr of "
                  "either, or a Status");
    return {absl::OkStatus(), std::vector<Value>(std::make_move_iterator(result.begin()),
                                                 std::make_move_iterator(result.end()))};
  }
}

// The result in the form for a function that returns a Result: a Status, one value or a list.
// Requires a value for the second.
template <class Result, class Value>
auto as_returned(FunctionResult<Value> result) {
  if constexpr (Kind<Result>::kIsStatus) {
    return result.status;
  } else if constexpr (Kind<Result>::kIsOne) {
    return result.values[0];
  } else {
    return std::move(result.values);
  }
}

// fn(first, rest[0], rest[1], ...).
template <class Fn, class First, class Value, size_t... index>
auto call_with(Fn& fn, First& first, [[maybe_unused]] absl::Span<const Value> rest,
               std::index_sequence<index...>) {
  return fn(first, rest[index]...);
}

}  // namespace distribute::internal
}  // namespace tessera

#endif  // TESSERA_DISTRIBUTE_FUNCTION_RESULTS_H_
