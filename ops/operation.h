// SPDX-License-Identifier: Apache-2.0
//
// Operation: a value that says all about an operation: its name, operands, attributes, plan,
// gradient and a sample of a call. apply() runs it (apply.h). all_operations() lists all of them
// (all_operations.h), for tapes, tools/plan, the documentation, fuzzers and tests.
//
//   constexpr AttributeSpec kFlipAttributes[] = {{"dims", AttributeKind::kInts, "[1]"}};
//
//   StatusOr<OpPlan> plan_flip(Operands x, const Attributes& attributes) { ... }
//   Gradients flip_gradient(const GradientCall& call) {
//     return {flip(call.cotangent, call.attributes.integers("dims"))};
//   }
//   constinit const Operation kFlip = {.name = "flip", .arity = {1, 1},
//                                      .attributes = kFlipAttributes, .plan = plan_flip,
//                                      .gradient = flip_gradient, .sample = "f32 [8, 6]"};
//   DTensor flip(const DTensor& x, const Dims& dims, const Out& out) {
//     return only(apply(kFlip, {x}, {dims.of_rank(rank_of(x))}, out));
//   }
//
// An operation has a plan (a rule, a local kernel and what it makes), or parts (the same made of
// other operations), or both: then the parts decide by the layouts of the call which is used.
//
// Invariants (tests/ops/every_operation_test.cc):
//   1. a plan depends on the dtypes and shapes of the operands and on the attributes alone;
//   2. names are unique: clients that have to agree compare names;
//   3. an operation is known by its address; none is copied.
//
// JAX: a primitive with its rules. Unlike there a field cannot be forgotten: Gradient has no
// default.
#ifndef TESSERA_OPS_OPERATION_H_
#define TESSERA_OPS_OPERATION_H_

#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "compute/engine.h"
#include "dtensor/dtensor.h"
#include "ops/attributes.h"
#include "ops/operand_type.h"
#include "ops/out.h"
#include "ops/refusal.h"
#include "ops/rule.h"

namespace tessera::ops {

// ---- Plans

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

using Operands = absl::Span<const OperandType>;
using Plan = StatusOr<OpPlan> (*)(Operands operands, const Attributes& attributes);

using kernels::dense_strides;

// ---- Gradients

// One gradient for each operand; nothing where it is zero.
using Gradients = std::vector<std::optional<DTensor>>;

struct GradientCall {
  absl::Span<const DTensor> operands;
  const DTensor& result;
  const DTensor& cotangent;         // of the result
  const std::vector<bool>& needed;  // by operand: gradients not needed may be left out
  const Attributes& attributes;
};
// Computes gradients by operations.
using GradientFn = Gradients (*)(const GradientCall& call);

// What a tape does with a result of an operation.
class Gradient {
 public:
  // Records it; gradient() calls the function.
  constexpr Gradient(GradientFn function) : function_(function) {}  // NOLINT: a field's value
  // Does not record it: the result is constant wherever it has a derivative.
  static constexpr Gradient zero() { return Gradient(nullptr, nullptr); }
  // Records it; gradient() is InvalidArgument with this text.
  static constexpr Gradient refused(const char* why) { return Gradient(nullptr, why); }
  // Records nothing itself: the parts do, of which the operation is always made.
  static constexpr Gradient of_parts() { return Gradient(nullptr, nullptr); }

  // Whether tapes record a result of this dtype. Integers are constant.
  bool records(DType dtype) const {
    return is_floating_point(dtype) && (function_ != nullptr || why_ != nullptr);
  }
  // Requires records().
  Gradients operator()(const GradientCall& call) const;

 private:
  constexpr Gradient(GradientFn function, const char* why) : function_(function), why_(why) {}

  GradientFn function_ = nullptr;
  const char* why_ = nullptr;
};

// ---- Operations

struct Operation;

// One call. References to the caller's.
struct OpCall {
  const Operation& operation;
  absl::Span<const DTensor> operands;  // one at least
  const Attributes& attributes;
  const Out& out;
};
// The results of a call: one, except where the operation says more.
using Results = absl::InlinedVector<DTensor, 1>;
// The results, made of other operations; none where the plan is to be used. The operands have no
// errors and are on one mesh.
using Parts = Results (*)(const OpCall& call);

struct Arity {
  static constexpr int kMany = std::numeric_limits<int>::max();

  int least;
  int most;
};

struct Operation {
  const char* name;
  Arity arity;
  absl::Span<const AttributeSpec> attributes = {};
  Plan plan = nullptr;  // null: made of parts, always
  Gradient gradient;
  Parts parts = nullptr;
  // The names of the parts, for documentation.
  const char* made_of = "";
  // Operands of a call: "f32 [8, 6]; i32 [4]". Null: a part of other operations, which users do not
  // call.
  const char* sample = nullptr;
  // Attributes of the sample beside those that a call needs: "dims=[1]".
  const char* sample_attributes = "";
  // Whether the kernel reads and writes memory itself, and not by the engine.
  bool needs_host = false;
  // Whether the kernel calls a function of the user.
  bool calls_user = false;
};

}  // namespace tessera::ops

#endif  // TESSERA_OPS_OPERATION_H_
