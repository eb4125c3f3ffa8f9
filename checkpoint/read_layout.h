// SPDX-License-Identifier: Apache-2.0
//
// read_layout: the layout in which the clients read a tensor, so that each host reads a byte once.
// relayout() from there to the target moves the bytes between the devices of a host.
//
//   [8, 6] under [-, gpu] on {node=2, gpu=4}, 4 devices per host: each host wants the whole tensor
//
//     target: device gpu=i wants columns        read: rows, [gpu, -]
//       0 1 2 2 3 3  of each row                  0 0 0 0 0 0     long runs instead of 8 short ones
//       0 1 2 2 3 3                               0 0 0 0 0 0
//       ...                                       1 1 1 1 1 1
//       0 1 2 2 3 3                               ...
//
//   [8, 6] under [node, -]: each host wants 4 rows, all its devices the same ones
//     read: [(node,gpu), -]: every device reads a row of its own; the relayout copies it
//
// How. Each axis of the mesh is cut into the sub-axis along which devices stay on their host
// (intra-host) and the rest (inter-host).
// - Inter-host sub-axes keep their places in the dims: they say which elements the host wants.
// - Intra-host sub-axes that are minor in a dim are taken from it: along them the shards of a host
//   are one interval.
// - These, and the intra-host sub-axes that replicate, become the minor axes of one dim: the first
//   that has an index for each device, so that a device reads consecutive rows; else the longest.
// - Intra-host sub-axes with an inter-host one minor to them stay in their place.
//
// Internal to checkpoint/. Pure; safe to call from any thread.
#ifndef TESSERA_CHECKPOINT_READ_LAYOUT_H_
#define TESSERA_CHECKPOINT_READ_LAYOUT_H_

#include "base/shape.h"
#include "base/status.h"
#include "layout/layout.h"
#include "relayout/topology.h"

namespace tessera::checkpoint::internal {

// A layout without partial axes on the mesh of `target`, in which the devices of a host together
// hold the elements that they hold under `target`, each once. Partial axes of the target count as
// replicated. A scalar has no dim to split: its layout is replicated.
// - InvalidArgument for a shape that is not legal for the layout.
// - Unimplemented where no layout has that property: the hosts do not differ by sub-axes of the
//   mesh, as 3 devices on two hosts.
// O(devices).
StatusOr<Layout> read_layout(const Layout& target, const Shape& shape, const Topology& topology);

}  // namespace tessera::checkpoint::internal

#endif  // TESSERA_CHECKPOINT_READ_LAYOUT_H_
