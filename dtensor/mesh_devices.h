// SPDX-License-Identifier: Apache-2.0
//
// MeshDevices: the devices of this client that belong to a mesh. Internal to dtensor/.
#ifndef TESSERA_DTENSOR_MESH_DEVICES_H_
#define TESSERA_DTENSOR_MESH_DEVICES_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "device/device.h"
#include "mesh/mesh.h"

namespace tessera {

struct MeshDevice {
  int ordinal;
  int device_id;
  int64_t position;  // in the mesh
};
// Devices of a client whose lists need no memory from the heap.
inline constexpr size_t kInlineLocalDevices = 8;
using MeshDevices = absl::InlinedVector<MeshDevice, kInlineLocalDevices>;

// `local`: the devices of this client, by ordinal. So is the result.
inline MeshDevices devices_in(const Mesh& mesh, absl::Span<const Device> local) {
  MeshDevices result;
  for (const Device& device : local) {
    if (const std::optional<int64_t> position = mesh.position_of_device(device.id)) {
      result.push_back({device.ordinal, device.id, *position});
    }
  }
  return result;
}

}  // namespace tessera

#endif  // TESSERA_DTENSOR_MESH_DEVICES_H_
