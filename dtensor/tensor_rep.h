// SPDX-License-Identifier: Apache-2.0
//
// TensorRep: the object to which a DTensor points. Internal to dtensor/.
#ifndef TESSERA_DTENSOR_TENSOR_REP_H_
#define TESSERA_DTENSOR_TENSOR_REP_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "base/public.h"
#include "base/shape.h"
#include "base/status.h"
#include "collectives/shared.h"
#include "device/buffer.h"
#include "dtensor/mesh_devices.h"
#include "dtensor/runtime.h"
#include "layout/layout.h"

namespace tessera::internal {

class Trace;  // device_op.h

// Either `error` is set and there are no buffers: the tensor failed on all clients alike, before
// anything was started. Or there is one buffer for each of `devices`, each with a status of its
// own, which the collectives carry to the other clients.
struct TESSERA_INTERNAL TensorRep {
  DType dtype = DType::kFloat32;
  Shared<Shape> shape;
  std::optional<Layout> layout;
  Status error;
  std::shared_ptr<Runtime> runtime;
  // The text of explain(); null where no operation of ops/ made the tensor.
  std::shared_ptr<const std::string> explanation;
  // How the value was computed, for tapes; null where none records it.
  std::shared_ptr<const Trace> trace;
  MeshDevices devices;
  absl::InlinedVector<std::shared_ptr<const Buffer>, kInlineLocalDevices> buffers;

  // The buffer of a local device; null where it holds no shard.
  std::shared_ptr<const Buffer> buffer_of(int ordinal) const;
  // The error of a call of `function`, which waits for this local shard, as far as it is known
  // without waiting: the tensor's, an index out of range, or a thread that must not wait.
  Status check_shard(absl::string_view function, int local_device) const;
  // Waits until a buffer of a local device is ready.
  Status await(const Buffer& buffer) const;
  Box box_of(const MeshDevice& device) const { return layout->box(*shape, device.position); }
};

// Makes the TensorRep of a tensor without buffers yet, of the client behind the layout's mesh.
// Errors that are equal on all clients: the error of the layout, an abstract mesh, a shape that
// does not fit, a reduction that the dtype does not have.
StatusOr<std::shared_ptr<TensorRep>> new_tensor(DType dtype, Shared<Shape> shape,
                                                const StatusOr<Layout>& layout);

// Whether a new tensor's device at this position holds the value under the layout, instead of the
// identity of its reduction.
bool holds_value(const Layout& layout, int64_t position);

}  // namespace tessera::internal

#endif  // TESSERA_DTENSOR_TENSOR_REP_H_
