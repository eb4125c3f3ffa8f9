// SPDX-License-Identifier: Apache-2.0
//
// Call: a replica's description of a call that all replicas make together, and whether these agree.
// Pure; internal to distribute/.
//
// Every client decides on the calls of all replicas, so that all get the same Status. Between
// clients, calls travel as texts (encode_call()).
#ifndef TESSERA_DISTRIBUTE_CALL_H_
#define TESSERA_DISTRIBUTE_CALL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"

namespace tessera::distribute::internal {

struct TensorKind {
  DType dtype;
  Shape shape;
  std::string layout;  // on the mesh of the replica

  friend bool operator==(const TensorKind&, const TensorKind&) = default;
};

struct Call {
  // The call with what must be equal, as `all_reduce(sum) "loss"`; kReturned where the function of
  // the replica has returned.
  std::string text;
  std::vector<TensorKind> tensors = {};
  // Bits that must be equal, or empty.
  std::string value = {};
  // The error of the replica's function, or of an operand.
  Status error = {};
};
inline constexpr absl::string_view kReturned = "returned";
// As "all_reduce(sum)".
std::string call_text(absl::string_view name, ReduceOp op);

// The differences that are allowed between calls of replicas.
struct Freedom {
  bool any_tensor = false;  // tensors may differ in everything but their number
  bool any_value = false;
  // Tensors may differ in their sizes along these dims. A negative dim counts from the end.
  std::vector<int64_t> dims = {};
};

std::string encode_call(const Call& call);
// Nothing for a text that encode_call() does not write.
std::optional<Call> decode_call(absl::string_view text);

// OK, or why the replicas cannot go on together: the error of the first replica that has one, else
// InvalidArgument naming the first two replicas that disagree. `names` are the names of the
// replicas in messages.
Status check_calls(absl::Span<const Call> calls, absl::Span<const std::string> names,
                   const Freedom& freedom);

// The dims of a tensor of this rank, ascending. InvalidArgument for one out of range or given
// twice.
StatusOr<std::vector<int64_t>> normal_dims(absl::Span<const int64_t> dims, int64_t rank);

}  // namespace tessera::distribute::internal

#endif  // TESSERA_DISTRIBUTE_CALL_H_
