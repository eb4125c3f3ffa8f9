// SPDX-License-Identifier: Apache-2.0
//
// Products of tensors that are summed over dims they have in common.
//
// Where a summed dim is split alike on all operands the result is partial: each device sums its
// part, and nothing is sent. An operand may be partial (sums and averages) where the others are
// whole along those axes.
//
// Operands have one dtype, of numbers. f16 and bf16 are computed in f32 and rounded once, products
// of several operands too; each term of a partial result is rounded. Integers wrap.
#ifndef TESSERA_OPS_CONTRACT_H_
#define TESSERA_OPS_CONTRACT_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/public.h"
#include "dtensor/dtensor.h"
#include "ops/out.h"

namespace TESSERA_PUBLIC tessera {
namespace ops {

// As numpy.matmul: the last two dims are matrices, the dims before them broadcast; a vector is a
// row on the left and a column on the right, and that dim leaves the result. InvalidArgument for
// rank 0 and sizes that do not fit.
DTensor matmul(const DTensor& a, const DTensor& b, const Out& out = {});

// "bik,kj->bij": a letter for each dim; dims with the same letter are walked through together, and
// a letter that is not behind the arrow is summed over. Without an arrow the result has the letters
// that occur once, in alphabetical order. Blanks are ignored. Operands are multiplied from left to
// right. InvalidArgument names the letter or the part of the equation that is wrong; a letter twice
// in one operand (its diagonal) and "..." are refused.
DTensor einsum(absl::string_view equation, absl::Span<const DTensor> operands, const Out& out = {});

}  // namespace ops
}  // namespace tessera

#endif  // TESSERA_OPS_CONTRACT_H_
