// SPDX-License-Identifier: Apache-2.0
//
// Parts of a tensor: what the devices of a smaller mesh hold of it, as a tensor of that mesh; and
// back. Internal, for distribute/. Nothing is copied, and nothing is sent.
#ifndef TESSERA_DTENSOR_PARTS_H_
#define TESSERA_DTENSOR_PARTS_H_

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/dtensor.h"
#include "layout/layout.h"
#include "mesh/mesh.h"

namespace tessera::internal {

// What the devices of `layout`, which are some of those of `whole`, hold of it, seen as a tensor of
// this shape. Requires that each of them holds a box of the same sizes under both layouts. Shares
// the buffers. An error of the tensor is that of its part.
DTensor part_of(const DTensor& whole, const Layout& layout, const Shape& shape);

// The tensor whose devices hold what they hold of the parts. Requires a layout of a live mesh,
// parts of this dtype, and each local device of the mesh in one of them, with a box of the same
// sizes. The error of a part is that of its devices, which other clients learn from the next
// operation that needs their shards.
DTensor assemble(absl::Span<const DTensor> parts, DType dtype, const Layout& layout,
                 const Shape& shape);

// The tensor as one of other devices: those at the same positions of a mesh with the same axes, of
// which each is of the same client. Requires devices that are CPUs. Shares the buffers: whichever
// device fills one, an operation of the other waits for it.
DTensor seen_by(const DTensor& tensor, const Mesh& mesh);

// Waits for a local shard, as DTensor::shard() numbers them, and views it without its type.
StatusOr<RawShard> raw_shard(const DTensor& tensor, int local_device);

}  // namespace tessera::internal

#endif  // TESSERA_DTENSOR_PARTS_H_
