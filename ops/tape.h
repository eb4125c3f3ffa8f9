// SPDX-License-Identifier: Apache-2.0
//
// Tape: reverse-mode gradients.
//
//   Tape tape;
//   const DTensor w = tape.watch(weights);
//   const DTensor loss = ops::mean(ops::square(ops::matmul(x, w) - y));
//   const DTensor gradient = tape.gradient(loss, {w})[0];       in the layout of the weights
//
// What is computed from a watched tensor, by operations and relayout(), is recorded with the tensor
// that is computed, and forgotten with it, or with the tape if that ends first. gradient() uses up
// what led to its target, unless it is asked to keep it.
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
#include "dtensor/dtensor.h"

namespace tessera {

enum class Reduce : uint8_t {
  kNow,    // gradients are whole along the axes that their sources do not name
  kLater,  // they may be partial there (sum): to be added up first, or reduced to shards
};

struct GradientOptions {
  // The gradient of what is really asked for by the target; of its shape and dtype. Unset: 1, of a
  // target that is a scalar.
  std::optional<DTensor> seed = {};
  Reduce reduce = Reduce::kNow;
  // Whether the tape keeps what it recorded, for another gradient of it, and records this one.
  bool keep = false;
  // Called once for each source, by its index, as soon as its gradient is known: from the last
  // layer of a network to the first. So a program can reduce gradients in the order in which the
  // devices will have them. Sources on which the target does not depend come last. Where
  // gradient() fails, it has been called for those that were known before, or for none.
  std::function<void(size_t source, const DTensor& gradient)> on_finished = {};
};

namespace internal {
class TapeRecord;
}  // namespace internal

class Tape {
 public:
  Tape();
  // Forgets what it recorded: tensors that were computed from watched ones keep their values alone.
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  // The same value, watched. Of floats, or the result is InvalidArgument.
  DTensor watch(const DTensor& x);

  // d(target)/d(source) for each source, which is a watched tensor or computed from one: under the
  // source's layout without its partial axes. Zeros where the target does not depend on it. Errors
  // are in the tensors, all of them then:
  //   InvalidArgument for a source that this tape does not know: one that watch() did not return
  //       and that is not computed from one, as the value of a variable in place of the watched
  //       tensor, or a tensor of another tape;
  //   InvalidArgument for a target that other tapes know and this one does not;
  //   InvalidArgument for a target that is no scalar without a seed, and for a seed of another
  //       shape or dtype;
  //   FailedPrecondition where what led to the target was used up.
  std::vector<DTensor> gradient(const DTensor& target, absl::Span<const DTensor> sources,
                                const GradientOptions& options = {});

 private:
  const std::shared_ptr<internal::TapeRecord> record_;
};

// The same value, of which no tape knows where it came from.
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
// A result that was made of the operands, but not by operations: where a tape that knows an operand
// reaches it, gradient() is InvalidArgument with this text. Keeps no operand.
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
