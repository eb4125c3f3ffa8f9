// SPDX-License-Identifier: Apache-2.0
//
// Parts of a tensor: the shards of the devices of a smaller mesh, as a tensor of that mesh; and the
// inverse. Internal, for distribute/. Nothing is copied, and nothing is sent.
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

// The shards of `whole` on the devices of `layout`, which must be devices of `whole`, as a tensor
// of this shape. Requires that each of them holds a box of the same sizes under both layouts.
// Shares the buffers. An error of the tensor is the error of its part.
DTensor part_of(const DTensor& whole, const Layout& layout, const Shape& shape);

// The tensor whose devices hold the shards of the parts. Requires a layout of a live mesh, parts of
// this dtype, and each local device of the mesh in a part, with a box of the same sizes. The error
// of a part becomes the error of its devices, which other clients learn from the next operation
// that needs their shards.
DTensor assemble(absl::Span<const DTensor> parts, DType dtype, const Layout& layout,
                 const Shape& shape);

// The tensor on other devices: the devices at the same positions of a mesh with the same axes, each
// of the same client. Requires devices that are CPUs. Shares the buffers: whichever device fills a
// buffer, an operation of the other one waits for it.
DTensor seen_by(const DTensor& tensor, const Mesh& mesh);

// Waits for a local shard, as DTensor::shard() numbers them, and views it without its type.
StatusOr<RawShard> raw_shard(const DTensor& tensor, int local_device);

}  // namespace tessera::internal

#endif  // TESSERA_DTENSOR_PARTS_H_
