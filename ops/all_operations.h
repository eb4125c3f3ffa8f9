// SPDX-License-Identifier: Apache-2.0
//
// all_operations(): every operation, and plans by name from dtypes and shapes, without tensors.
//
//   const Shape a = {1024, 512}, b = {512, 2048};
//   const OperandType operands[] = {{DType::kFloat32, a}, {DType::kFloat32, b}};
//   StatusOr<OpPlan> plan = plan_operation("matmul", operands, {});
//   plan->rule.to_string()   [a, b] [b, c] -> [a, c]; b contracted (sum)
//
// Tapes, tools/plan, the table of docs/internals/ops.md, the fuzzers and the tables of tests
// iterate over this list.
#ifndef TESSERA_OPS_ALL_OPERATIONS_H_
#define TESSERA_OPS_ALL_OPERATIONS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "compute/pointwise_ops.h"
#include "ops/attributes.h"
#include "ops/operation.h"

namespace tessera::ops {

// clang-format off
#define TESSERA_OPERATIONS_(X)                                                            \
  /* contract.cc */ X(kMatmul) X(kEinsum) X(kProduct)                                     \
  /* pointwise.cc */ X(kSelect) X(kClip) X(kCast) X(kCastTerms)                           \
  /* reductions.cc */ X(kSum) X(kMean) X(kProd) X(kMax) X(kMin) X(kAll) X(kAny) X(kVar)   \
  X(kNorm) X(kLogsumexp) X(kProductsOfOthers)                                             \
  /* lines.cc */ X(kArgmax) X(kArgmin) X(kCumsum) X(kSort) X(kTopK) X(kIndicesOfSort)     \
  X(kValuesOfTopK) X(kExtremesOfShards) X(kIndicesOfExtremes) X(kTopsOfShards)            \
  X(kSumsOfShards)                                                                        \
  /* shapes.cc */ X(kTranspose) X(kReshape) X(kExpandDims) X(kSqueeze) X(kBroadcastTo)    \
  X(kSlice) X(kNarrow) X(kFlip)                                                           \
  /* creation.cc */ X(kZerosLike) X(kOnesLike) X(kFullLike) X(kTril) X(kTriu)             \
  /* joining.cc */ X(kSplit) X(kConcat) X(kStack) X(kPad) X(kRoll) X(kTile)               \
  /* indexing.cc */ X(kTake) X(kScatterAdd) X(kOneHot)                                    \
  /* conv.cc */ X(kConv2d) X(kConv2dByX) X(kConv2dByFilter) X(kMaxPool2d)                 \
  X(kMaxPool2dAtPlaces) X(kMaxPool2dByX) X(kAvgPool2d) X(kAvgPool2dByX)                   \
  /* nn.cc */ X(kSoftmax) X(kLogSoftmax) X(kLayerNorm) X(kSoftmaxCrossEntropy)            \
  X(kAttention) X(kSoftmaxGradient) X(kLogSoftmaxGradient) X(kNormalize)                  \
  X(kNormalizeGradient) X(kPick) X(kMaskLaterKeys)                                        \
  /* elementwise.cc, local_gradient.cc, tape.cc, tape_graph.cc */                         \
  X(kElementwise) X(kLocalMap) X(kCustomGradient) X(kRelayout)
// clang-format on
#define TESSERA_DECLARE_(name) extern const Operation name;
TESSERA_OPERATIONS_(TESSERA_DECLARE_)
#undef TESSERA_DECLARE_
// pointwise.cc: the operations of compute/pointwise_ops.h.
const Operation& pointwise_operation(kernels::PointwiseOp op);

absl::Span<const Operation* const> all_operations();
// Those with a sample: users call them by their names.
absl::Span<const Operation* const> called_operations();
// InvalidArgument for a name that is unknown, with the nearest one.
StatusOr<const Operation*> find_operation(absl::string_view name);

struct SampleOperand {
  DType dtype;
  Shape shape;
};
// The operands and the attributes of the sample: "dim=1; k=2". Requires a sample.
std::vector<SampleOperand> sample_operands(const Operation& operation);
std::string sample_attributes(const Operation& operation);
// Requires a sample and a plan.
StatusOr<OpPlan> plan_sample(const Operation& operation);

// InvalidArgument for a name that is unknown or of an operation that is always made of parts, for a
// wrong number of operands, for attributes that are unknown, missing or malformed, and for what the
// operation itself refuses.
StatusOr<OpPlan> plan_operation(absl::string_view name, Operands operands,
                                const AttributeTexts& attributes);

}  // namespace tessera::ops

#endif  // TESSERA_OPS_ALL_OPERATIONS_H_
