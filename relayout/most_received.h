// SPDX-License-Identifier: Apache-2.0
//
// The device that receives most in a move, found without looking at every device. Internal to
// relayout/.
//
//   [x] -> [-] on {x=4}, 10 elements         old boxes of 3, 2, 3 and 2 elements
//     bound                10 - 2            no device receives more: the smallest old box has 2
//     position 1 receives  10 - 2            so it is a device that receives most
//
// A device receives |B| - |B n A|: its new box without the part that it already holds. In each dim
// the largest shard of the new layout bounds the first term from above, and the smallest shard of
// the old layout that can be in it bounds the second from below:
//
//   the new layout cuts the old shards further, or is the same      the whole new shard
//   the new layout gathers the minor axes of the old one            the smallest of its old shards
//   otherwise                                                       0
//
// With R >= Q >= 0 for the products over the other dims, R * n - Q * c does not fall where n grows:
// c stays, or grows with n by as much at most. So the product over all dims of the largest n, less
// the product of the corresponding c, bounds every device. A position that attains the bound is the
// answer. The search tries positions that hold a largest shard of every dim and, where the axes are
// free, a smallest old one in it: O(rank) for each of at most 128.
//
// Where none of them attains the bound (shards are uneven and axes move between dims, or the meshes
// differ), the search looks at all positions that differ in an axis of either layout, until one
// attains it: O(devices) at most, and exact in every case.
#ifndef TESSERA_RELAYOUT_MOST_RECEIVED_H_
#define TESSERA_RELAYOUT_MOST_RECEIVED_H_

#include <cstdint>

#include "relayout/pull_routing.h"

namespace tessera::internal {

struct MostReceived {
  int64_t elements = 0;
  int64_t position = 0;       // of a device that receives so many, in the mesh of the new layout
  int64_t num_looked_at = 0;  // positions; for tests
};

MostReceived most_received(const PullRouting& routing);

}  // namespace tessera::internal

#endif  // TESSERA_RELAYOUT_MOST_RECEIVED_H_
