// SPDX-License-Identifier: Apache-2.0
//
// Rule: what an operation does with the dims of its operands, for one call with known shapes.
//
// Every dim of every operand and of the result is made of factors, major to minor. Two dims that
// have a factor in common are walked through together, and may be split along the same mesh axes.
//
//   matmul  [m, k] [k, n] -> [m, n]      k contracted: a device that holds a part of k computes a
//                                        term of the sum
//   add     [a, b] [b] -> [a, b]         a dim of size 1 that is broadcast has no factor
//   softmax [a, b] -> [a, b]             b whole: each device needs all of it
//   reshape [ab] -> [a, b]               one dim, two factors
//   flip    [a] -> [a]; a moved          a device that holds a part of the result needs another
//                                        part of the operand, which it fetches from the devices
//                                        that hold it
//
// Layout inference (infer.h), the checks of an operation and its documentation come from the rule;
// an operation has no layout code of its own.
//
// Invariants (checked by validate()):
//   1. the sizes of the factors of a dim multiply to the size of the dim; but a moved dim of an
//      operand has one factor, whose size is the size of another dim;
//   2. no operand has a factor twice, nor has the result;
//   3. a contracted factor is in no dim of the result;
//   4. a factor of the result that no operand has is whole: no layout of an operand splits it.
//
// Shardy: OpShardingRule, which names the same factors. PyTorch: the placements of an op strategy.
#ifndef TESSERA_OPS_RULE_H_
#define TESSERA_OPS_RULE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"

namespace tessera::ops {

enum class FactorKind : uint8_t {
  kPassed,      // its axes split the result as they split the operands
  kContracted,  // reduced: its axes become partial axes of the result
  kWhole,       // every device needs all of it, and the result is whole
};

struct Factor {
  FactorKind kind = FactorKind::kPassed;
  int64_t size = 1;
};

// The factors of a dim by their numbers, major to minor. Empty: a dim of size 1, or a dim that is
// never split.
using RuleDim = std::vector<int>;
using RuleDims = std::vector<RuleDim>;

// Which elements of an operand's dim a range of a factor needs: index i needs elements floor((i *
// scale + first) / divisor) to floor((i * scale + last) / divisor).
//
//   slice from 3 by steps of 2     scale 2, first 3, last 3
//   flip of n elements             scale -1, first n - 1, last n - 1
//   a window of 3, padding 1       first -1, last 1
struct Reach {
  int64_t scale = 1;
  int64_t first = 0;
  int64_t last = 0;
  int64_t divisor = 1;
  // Whether indices outside of the dim are taken modulo its size (roll); else they are no elements
  // (padding).
  bool is_periodic = false;

  // All of a dim of this size, whatever the index.
  static Reach all(int64_t size) { return {0, 0, size - 1}; }
  // The elements that [begin, end) needs of a dim of this size, as {first, end}; for a periodic dim
  // perhaps outside of it.
  std::pair<int64_t, int64_t> of(int64_t begin, int64_t end, int64_t size) const;

  friend bool operator==(const Reach&, const Reach&) = default;
};

// A dim of an operand of which a device needs other elements than its part of the dim's factor.
struct MovedDim {
  int operand;
  int dim;
  Reach reach;
};

// How partial operands pass.
enum class Linearity : uint8_t {
  kNone,   // they are reduced first
  kJoint,  // linear in all carriers together (add): the result is partial, and a carrier that is
           // whole becomes a term
  kEach,   // linear in each carrier alone (mul): one carrier keeps its terms along an axis
};

struct Rule {
  std::vector<Factor> factors;
  std::vector<RuleDims> operands;
  RuleDims result;
  std::vector<MovedDim> moved;
  // How parts of contracted factors become one.
  ReduceOp contraction = ReduceOp::kSum;
  Linearity linearity = Linearity::kNone;
  // Which operands may be partial where the op is linear; empty: all.
  std::vector<bool> carriers;
  // Which reductions of partial operands pass; bit k is ReduceOp k. Movements pass all.
  uint8_t reductions = 0;
  // The arithmetic of a device: seconds for each point of the space of all factors.
  double seconds_per_point = 1e-9;

  bool may_carry(int operand) const {
    return linearity != Linearity::kNone && (carriers.empty() || carriers[operand]);
  }
  // Null where the dim is not moved.
  const Reach* reach(int operand, int dim) const;
  bool passes(ReduceOp op) const { return (reductions >> static_cast<int>(op) & 1) != 0; }

  // Adds a factor and returns its number.
  int add_factor(int64_t size, FactorKind kind = FactorKind::kPassed);
  // Internal where an invariant does not hold for operands and a result of these shapes: a mistake
  // in the operation.
  Status validate(absl::Span<const Shape> operand_shapes, const Shape& result_shape) const;
  // "[a, b] [b, c] -> [a, c]; b contracted (sum)".
  std::string to_string() const;
};

constexpr uint8_t reduction_bit(ReduceOp op) {
  return static_cast<uint8_t>(1 << static_cast<int>(op));
}
inline constexpr uint8_t kSums = reduction_bit(ReduceOp::kSum) | reduction_bit(ReduceOp::kAvg);
inline constexpr uint8_t kAllReductions = (1 << kNumReduceOps) - 1;

}  // namespace tessera::ops

#endif  // TESSERA_OPS_RULE_H_
