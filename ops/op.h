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
// equal calls: what a call decides is cached, by everything that the decision depends on.
//
// Invariants:
//   1. what is refused is refused on every client before a byte is sent, with a message that begins
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
#include "device/engine.h"
#include "dtensor/dtensor.h"
#include "ops/out.h"
#include "ops/rule.h"

namespace tessera::ops {

// What a kernel sees of its device: dense arrays. The sizes of a dim are those of the device's part
// of its factors; a dim that is not split has its whole size.
struct LocalCall {
  Engine& engine;  // of the device
  absl::Span<const Box> in_boxes;
  absl::Span<const std::byte* const> in;
  const Box& out_box;
  std::byte* out;
  // Whether this device holds the term of the result that what is added once belongs to.
  bool is_first_term;
};
using LocalKernel = std::function<Status(const LocalCall&)>;

// What an operation does with operands of these dtypes and shapes.
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
  // Whatever else the plan depends on.
  absl::Span<const int64_t> attributes;
  const Out& out;
  // Whether the attributes say all that the plan depends on.
  bool is_cached = true;
  // Whether the kernel reads and writes memory itself, and not by the engine.
  bool needs_host = false;
};

// `operation` tells operations apart, even with one name: an address that no other has.
DTensor run_operation(const OpCall& call, const void* operation,
                      absl::FunctionRef<StatusOr<OpPlan>()> plan);
template <class T>
inline constexpr char kOperationTag = 0;
// The operation is the type of the plan: that of a lambda is its own.
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
