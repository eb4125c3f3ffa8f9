// SPDX-License-Identifier: Apache-2.0
//
// apply(): the one way to run an operation (operation.h).
//
//   DTensor neg(const DTensor& x, const Out& out) { return only(apply(kNeg, {x}, {}, out)); }
//
// Checks the operands; takes the parts of the operation where they are used; else infers the
// layouts (infer.h), moves the operands and has every device compute; tapes that know an operand
// record the result. The decision about a call is made once for equal calls: it is cached by the
// operation's address and by everything else that it depends on.
//
// Invariants:
//   1. a refused call is refused on every client before a byte is sent, with a message that begins
//      with the name of the operation;
//   2. an operand with an error gives a result with the first error, and nothing is sent;
//   3. operands keep their values and layouts.
//
// Any thread may call these functions; the clients of a mesh make the same calls in the same order.
// Nothing waits for a device.
#ifndef TESSERA_OPS_APPLY_H_
#define TESSERA_OPS_APPLY_H_

#include <initializer_list>
#include <utility>

#include "absl/types/span.h"
#include "base/status.h"
#include "dtensor/dtensor.h"
#include "ops/attributes.h"
#include "ops/operation.h"
#include "ops/out.h"

namespace tessera::ops {

// One operand at least; a value for each attribute of the operation, in its order, or none where
// all are unset.
Results apply(const Operation& operation, absl::Span<const DTensor> operands,
              Attributes::Values values = {}, const Out& out = {});
inline Results apply(const Operation& operation, std::initializer_list<DTensor> operands,
                     Attributes::Values values = {}, const Out& out = {}) {
  return apply(operation, absl::MakeConstSpan(operands.begin(), operands.size()), std::move(values),
               out);
}

// The result of an operation that has one.
inline DTensor only(Results results) { return std::move(results[0]); }

// The result of a call that was refused.
Results refuse(const OpCall& call, Status error);

}  // namespace tessera::ops

#endif  // TESSERA_OPS_APPLY_H_
