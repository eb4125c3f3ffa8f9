// SPDX-License-Identifier: Apache-2.0
//
// relayout(): moves the value of a tensor to another layout.
//
//   DTensor rows = iota<float>({8, 6}, Layout::parse(mesh, "[batch, -]"));
//   const DTensor columns = relayout(rows, "[-, model]");
//   const DTensor whole = relayout(std::move(rows), "[-, -]");
//
// The last call gives `rows` away. Any thread may call it, and the call returns immediately. An
// error of the source or of the layout travels with the result (dtensor.h).
#ifndef TESSERA_DTENSOR_RELAYOUT_H_
#define TESSERA_DTENSOR_RELAYOUT_H_

#include "base/public.h"
#include "dtensor/dtensor.h"
#include "dtensor/replicas.h"
#include "layout/layout.h"

namespace TESSERA_PUBLIC tessera {

// Moves the value to another layout, whose text is read on the tensor's mesh;
// `relayout(std::move(x), to)` gives the source away. plan_relayout() plans the steps. Partial
// terms are reduced where the target is not partial. Collective over the clients whose devices take
// part; no client waits for another one where nothing is remote. TF DTensor: relayout. PyTorch:
// DTensor.redistribute. JAX: device_put.
//
// Memory:
// - An equivalent layout shares the buffers of the source.
// - If the caller keeps the source, a device whose new box is consecutive in its old one and whose
//   row of the plan is local (the rows of a replicated tensor) shares the source's buffer: nothing
//   is copied, and the memory of the source is held until the result is dropped too. Buffers are
//   immutable, so the values are the same.
// - If the caller gives the source away (moved in, without another copy of the handle), it is
//   copied instead, and its memory is released as soon as the first step has read it.
DTensor relayout(DTensor tensor, const LayoutArg& layout, Replicas replicas = Replicas::kOwn);

}  // namespace tessera

#endif  // TESSERA_DTENSOR_RELAYOUT_H_
