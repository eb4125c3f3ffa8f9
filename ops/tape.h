// SPDX-License-Identifier: Apache-2.0
//
// Tape: reverse-mode gradients.
//
//   Tape tape;
//   const DTensor w = tape.watch(weights);
//   const DTensor loss = ops::mean(ops::square(ops::matmul(x, w) - y));
//   const DTensor gradient = tape.gradient(loss, {w})[0];       in the layout of the weights
//
// The tape records the computation of each tensor made from a watched one by operations and
// relayout(). The record ends with that tensor, or with the tape if the tape ends first. gradient()
// uses up the records that led to its target, unless it is asked to keep them.
//
// Second derivatives: a gradient is made of operations. An outer tape that watches a tensor before
// an inner one does records the inner one's gradient(); or one tape keeps what it recorded.
//
//   Tape outer, inner;
//   const DTensor x = inner.watch(outer.watch(values));
//   const DTensor slope = inner.gradient(f(x), {x})[0];
//   const DTensor curvature = outer.gradient(ops::sum(slope), {x})[0];
//
// Every client calls the same functions in the same order, as for all operations. A tape may be
// used by one thread at a time. TF: tf.GradientTape.
#ifndef TESSERA_OPS_TAPE_H_
#define TESSERA_OPS_TAPE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/public.h"
#include "dtensor/dtensor.h"

namespace TESSERA_PUBLIC tessera {

enum class Reduce : uint8_t {
  kNow,    // gradients are whole along the axes that their sources do not name
  kLater,  // they may be partial there (sum): to be added up first, or reduced to shards
};

struct GradientOptions {
  // The cotangent of the target, of its shape and dtype. Unset: 1, for a target that is a scalar.
  std::optional<DTensor> seed = {};
  Reduce reduce = Reduce::kNow;
  // Whether the tape keeps its records for another gradient(), and records this one.
  bool keep = false;
  // Called once for each source, by its index, as soon as its gradient is known: from the last
  // layer of a network to the first. So a program can reduce gradients in the order in which the
  // devices will have them. Sources on which the target does not depend come last. Where gradient()
  // fails, it has been called for the gradients known before, or for none.
  std::function<void(size_t source, const DTensor& gradient)> on_finished = {};
};

namespace internal {
class TapeRecord;
}  // namespace internal

class Tape {
 public:
  Tape();
  // Forgets its records: tensors that were computed from watched tensors keep only their values.
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  // A tensor with the value of x, watched. Takes floats, or the result is InvalidArgument.
  DTensor watch(const DTensor& x);

  // d(target)/d(source) for each source, which is a watched tensor or computed from one. It has the
  // source's layout without its partial axes. Zeros where the target does not depend on it. Errors
  // are in the tensors, all of them then:
  //   InvalidArgument for a source that this tape does not know: it is neither returned by watch()
  //       nor computed from such a tensor, as the value of a variable in place of the watched
  //       tensor, or a tensor of another tape;
  //   InvalidArgument for a target that other tapes know and this one does not;
  //   InvalidArgument for a target that is no scalar without a seed, and for a seed of another
  //       shape or dtype;
  //   FailedPrecondition where the records that led to the target were used up.
  std::vector<DTensor> gradient(const DTensor& target, absl::Span<const DTensor> sources,
                                const GradientOptions& options = {});

 private:
  const std::shared_ptr<internal::TapeRecord> record_;
};

// A tensor with the value of x that no tape has recorded.
DTensor stop_gradient(const DTensor& x);

// forward(inputs), with backward(inputs, result, cotangent) in place of its gradient: one gradient
// for each input, nothing where it is zero. The forward function is not recorded.
using Forward = std::function<DTensor(absl::Span<const DTensor> inputs)>;
using Backward = std::function<std::vector<std::optional<DTensor>>(
    absl::Span<const DTensor> inputs, const DTensor& result, const DTensor& cotangent)>;
DTensor custom_gradient(absl::Span<const DTensor> inputs, const Forward& forward,
                        const Backward& backward);

// forward(inputs), of which only the inputs are kept: gradient() runs the function once more. It
// must give the same value twice.
DTensor rematerialize(const Forward& forward, absl::Span<const DTensor> inputs);

namespace internal {
// A result that was computed from the operands, but not by operations: where a tape that knows an
// operand reaches it, gradient() is InvalidArgument with this text. Keeps no operand.
DTensor without_gradient(DTensor result, absl::Span<const DTensor> operands,
                         absl::string_view error);
}  // namespace internal

namespace ops {
// They read as operations, too.
using tessera::custom_gradient;
using tessera::rematerialize;
using tessera::stop_gradient;
}  // namespace ops

}  // namespace tessera

#endif  // TESSERA_OPS_TAPE_H_
