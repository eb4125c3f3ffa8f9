// SPDX-License-Identifier: Apache-2.0
//
// The lower bound: the bytes that the device which receives most must receive under every plan.
// Internal to relayout/.
//
//   [-] sum{x} -> [-] on {x=4, z=2}: 8 elements, n = 4 terms, each on 2 of 8 devices
//
//     new boxes              8 devices * 8 elements            64
//     reductions             8 elements * (n - 2)              16
//     mean                   (64 + 16) / 8                     10 elements per device
//
// Moves. A device must receive the elements of its new box that it does not hold, each once.
//
// Reductions of n >= 2 terms. A value is an element of the tensor or, where partial axes stay, an
// element and a term that stays: each is the reduction of n terms of its own. H is the set of the
// devices that hold a term of the value: one term each, any number of copies of each term. W is the
// set of the devices that want the value. Count the messages about it, each a function of what its
// sender knows:
//
//   1. Each device of W receives one at least: it holds one term at most, and n >= 2 are needed.
//   2. Let d be the first device that all n terms have reached. Until then a holder of each term
//      but d's own has sent one: n - 1 messages if d is in H, n if it is not.
//   3. At that moment no other device has been reached by all. Each of W but d must receive one
//      more: |W| - 1 messages if d is in W, |W| if it is not.
//   4. So there are at least |W| + n - 2 messages, and |W| + n - 1 where no device of W holds a
//      term, for then d cannot be in both.
//
// A message about one value arrives at one device. Hence some device receives at least the largest
// new box (1), and at least the mean of all messages (4) over the devices of both layouts, rounded
// up:
//
//   max(max_d |B_d|, ceil((sum_d |B_d| + (n - 2) * values + lonely values) / devices))
//
// lonely values being values that no device of W holds a term of. For copies of a whole tensor on n
// devices this is 2(n-1)/n of it (Patarasuk and Yuan), for shards n-1 times the size of a shard.
//
// The bound holds for plans with these properties:
// - they send values of single elements;
// - they leave the terms of partial axes that stay as they are (terms could trade elements);
// - they end in `goal`, where expansions begin (an expansion could put parts of the value
//   elsewhere).
//
// Between layouts on the same devices some messages reach the bound in every case of at most 4
// devices tried (lower_bound_test.cc). Where the devices differ they may not, since a device
// without a term cannot help before the reductions are done. A plan of few steps may miss the bound
// all the same: sums of uneven boxes would have to be passed from device to device.
#ifndef TESSERA_RELAYOUT_LOWER_BOUND_H_
#define TESSERA_RELAYOUT_LOWER_BOUND_H_

#include <cstdint>

#include "base/shape.h"
#include "layout/layout.h"
#include "relayout/sub_axes.h"

namespace tessera::internal {

// In elements, within int64. `reduced` are the partial axes of `from` that `goal` does not have;
// the others are the same in both. O(devices) on at most 2^20 of them. Among more, lonely values,
// which are found by a list of all cells, count as 0, and the bound is lower.
int64_t least_received_elements(const Layout& from, const Layout& goal, const SubAxes& reduced,
                                const Shape& shape);

}  // namespace tessera::internal

#endif  // TESSERA_RELAYOUT_LOWER_BOUND_H_
