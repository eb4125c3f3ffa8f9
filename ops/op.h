// SPDX-License-Identifier: Apache-2.0
//
// run(): what all operations have in common. An operation is a rule (rule.h), a local kernel and
// what it makes; run() checks the operands, infers the layouts, moves the operands, and lets every
// device compute.
//
//   DTensor neg(const DTensor& x, const Out& out) {
//     return run({"neg", {&x, 1}, {}, out}, [&]() -> StatusOr<OpPlan> { ... });
//   }
//
// A plan depends on the dtypes, shapes and attributes of a call alone. It is asked for once for
// equal calls: the decision about a call is cached, by everything that it depends on.
//
// Invariants:
//   1. a refused call is refused on every client before a byte is sent, with a message that begins
//      with the name of the operation;
//   2. an operand with an error gives a result with the first error, and nothing is sent;
//   3. operands keep their values and layouts.
#ifndef TESSERA_OPS_OP_H_
#define TESSERA_OPS_OP_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "compute/engine.h"
#include "dtensor/dtensor.h"
#include "ops/out.h"
#include "ops/rule.h"

namespace tessera::ops {

// A kernel's view of its device: dense arrays. The size of a dim is the size of the device's part
// of its factors; a dim that is not split has its whole size.
struct LocalCall {
  Engine& engine;  // of the device
  absl::Span<const Box> in_boxes;
  absl::Span<const std::byte* const> in;
  const Box& out_box;
  std::byte* out;
  // Whether this device adds a scalar or a whole operand to its term of the result: in a partial
  // sum only devices with the first term do, elsewhere all.
  bool is_first_term;
};
using LocalKernel = std::function<Status(const LocalCall&)>;

// The plan of an operation for operands of these dtypes and shapes.
struct OpPlan {
  Rule rule;
  DType dtype;  // of the result
  Shape shape;
  LocalKernel kernel;
};

// One call. References to the caller's.
struct OpCall {
  const char* name;  // a literal
  absl::Span<const DTensor> operands;
  // Everything else that the plan depends on.
  absl::Span<const int64_t> attributes;
  const Out& out;
  // False where the plan depends on more than operands and attributes.
  bool is_cached = true;
  // Whether the kernel reads and writes memory itself, and not by the engine.
  bool needs_host = false;
};

// `operation` tells operations apart, even with one name: an address that no other operation has.
DTensor run_operation(const OpCall& call, const void* operation,
                      absl::FunctionRef<StatusOr<OpPlan>()> plan);
template <class T>
inline constexpr char kOperationTag = 0;
// The type of the plan identifies the operation: each lambda has its own type.
template <class Plan>
DTensor run(const OpCall& call, const Plan& plan) {
  return run_operation(call, &kOperationTag<Plan>, plan);
}
// A result that was refused.
DTensor refuse(const OpCall& call, Status error);

// InvalidArgument "name: texts".
template <class... Texts>
Status refusal(const char* name, const Texts&... texts) {
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", texts...));
}

// The bits of a number, as an attribute.
int64_t attribute_of(double value);

// `dim` counted from the end where it is negative. InvalidArgument "sum: dim 2 is out of range for
// a tensor of rank 2".
StatusOr<int> checked_dim(const char* name, int64_t dim, int64_t rank);

using kernels::dense_strides;

}  // namespace tessera::ops

#endif  // TESSERA_OPS_OP_H_
