// SPDX-License-Identifier: Apache-2.0
#include "dtensor/parts.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "device/buffer.h"
#include "dtensor/tensor_access.h"
#include "dtensor/tensor_rep.h"

namespace tessera::internal {

DTensor part_of(const DTensor& whole, const Layout& layout, const Shape& shape) {
  const TensorRep& from = TensorAccess::rep(whole);
  if (!from.error.ok()) return TensorAccess::failed(from.dtype, shape, layout, from.error);
  StatusOr<std::shared_ptr<TensorRep>> made = new_tensor(from.dtype, shape, layout);
  if (!made.ok()) return TensorAccess::failed(from.dtype, shape, layout, made.status());
  TensorRep& rep = **made;
  for (const MeshDevice& device : rep.devices) {
    rep.buffers.push_back(from.buffer_of(device.ordinal));
  }
  return TensorAccess::make(*std::move(made));
}

DTensor assemble(absl::Span<const DTensor> parts, DType dtype, const Layout& layout,
                 const Shape& shape) {
  StatusOr<std::shared_ptr<TensorRep>> made = new_tensor(dtype, shape, layout);
  if (!made.ok()) return TensorAccess::failed(dtype, shape, layout, made.status());
  TensorRep& rep = **made;
  for (const MeshDevice& device : rep.devices) {
    std::shared_ptr<const Buffer> buffer;
    for (const DTensor& part : parts) {
      const TensorRep& from = TensorAccess::rep(part);
      if (!from.layout.has_value() ||
          !from.layout->mesh().position_of_device(device.device_id).has_value()) {
        continue;
      }
      buffer = from.error.ok() ? from.buffer_of(device.ordinal) : Buffer::failed(from.error);
    }
    if (buffer == nullptr) {
      buffer = Buffer::failed(
          absl::InternalError(absl::StrCat("no part is on device ", device.device_id)));
    }
    rep.buffers.push_back(std::move(buffer));
  }
  return TensorAccess::make(*std::move(made));
}

DTensor seen_by(const DTensor& tensor, const Mesh& mesh) {
  const TensorRep& from = TensorAccess::rep(tensor);
  if (!from.error.ok()) return tensor;
  const StatusOr<Layout> layout = from.layout->with_mesh(mesh);
  StatusOr<std::shared_ptr<TensorRep>> made = new_tensor(from.dtype, from.shape, layout);
  if (!made.ok()) return TensorAccess::failed(from.dtype, *from.shape, layout, made.status());
  TensorRep& rep = **made;
  for (const MeshDevice& device : rep.devices) {
    const auto there =
        std::find_if(from.devices.begin(), from.devices.end(),
                     [&](const MeshDevice& other) { return other.position == device.position; });
    rep.buffers.push_back(
        there != from.devices.end()
            ? from.buffer_of(there->ordinal)
            : Buffer::failed(absl::InternalError(absl::StrCat(
                  "position ", device.position, " is of another client on ", mesh.to_string()))));
  }
  return TensorAccess::make(*std::move(made));
}

StatusOr<RawShard> raw_shard(const DTensor& tensor, int local_device) {
  return TensorAccess::raw_shard(tensor, local_device);
}

}  // namespace tessera::internal
