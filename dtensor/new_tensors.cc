// SPDX-License-Identifier: Apache-2.0
//
// The functions of dtensor.h that make tensors: full(), iota(), from_host(), from_function().
// from_shards() is in local_shards.cc.
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/exception_status.h"
#include "device/cpu/kernels.h"
#include "device/local_device.h"
#include "dtensor/device_op.h"
#include "dtensor/dtensor.h"
#include "dtensor/tensor_access.h"
#include "dtensor/tensor_rep.h"

namespace tessera::internal {

namespace {

// Fills a buffer of one local device.
struct Filling {
  LocalDevice& device;
  const Box& box;
  const std::shared_ptr<Buffer>& buffer;
  // The value of the box in memory of the host, once it was written there for a device.
  std::shared_ptr<const Buffer>& staged;
};

// Fills a buffer with copies of an element.
void fill_whole(const Filling& filling, std::string label, DType dtype,
                const std::array<std::byte, 8>& element) {
  filling.device.produce(
      std::move(label), filling.buffer,
      [&device = filling.device, dtype, element, count = filling.box.num_elements()](
          std::byte* out) { return device.fill(dtype, element.data(), out, count); });
}

// Fills a buffer with what `write(out)` writes to memory of the host, once for each box. The error
// that `write` returns becomes the buffer's.
template <class Write>
void fill_from_host(const Filling& filling, Write write) {
  if (filling.staged == nullptr) {
    StatusOr<std::shared_ptr<Buffer>> staging = filling.device.new_staging(filling.buffer);
    if (!staging.ok()) return filling.device.finish(filling.buffer, staging.status());
    const Status written = write((*staging)->mutable_data());
    if (!written.ok()) return filling.device.finish(filling.buffer, written);
    filling.staged = *std::move(staging);
  }
  filling.device.upload(filling.staged, filling.buffer);
}

// The shared state of devices with one box that all hold the value, or all its identity.
struct Made {
  std::shared_ptr<const Buffer> shared;  // where they use memory of the host
  std::shared_ptr<const Buffer> staged;
};

// Makes the local buffers: one for each distinct pair of box and (value or identity), shared by
// the devices that hold equal ones, if they use memory of the host. `make` starts what fills a
// buffer of the value, on the stream of the first of those devices or at once; its error becomes
// the buffer's.
template <class Make>
DTensor create(DType dtype, const Shape& shape, const LayoutArg& layout_arg, Make make) {
  const StatusOr<Layout>& layout = layout_arg.layout();
  StatusOr<std::shared_ptr<TensorRep>> tensor = new_tensor(dtype, shape, layout);
  if (!tensor.ok()) return TensorAccess::failed(dtype, shape, layout, tensor.status());
  TensorRep& rep = **tensor;
  using BoxKey = std::pair<std::vector<int64_t>, std::vector<int64_t>>;
  std::map<std::pair<BoxKey, bool>, Made> all_made;
  for (const MeshDevice& place : rep.devices) {
    const Box box = rep.box_of(place);
    const bool is_value = holds_value(*rep.layout, place.position);
    LocalDevice& device = rep.runtime->device(place.ordinal);
    Made& made = all_made[{{box.offsets, box.sizes}, is_value}];
    if (made.shared == nullptr) {
      StatusOr<std::shared_ptr<Buffer>> buffer = device.new_buffer(num_bytes(box.sizes, dtype));
      if (!buffer.ok()) {
        rep.buffers.push_back(made.shared = Buffer::failed(buffer.status()));
        continue;
      }
      const Filling filling = {device, box, *buffer, made.staged};
      if (is_value) {
        make(filling);
      } else {
        const ReduceOp op = *layout->partial_op();
        fill_whole(filling, "identity", dtype, identity_element(op, dtype));
      }
      rep.buffers.push_back(*buffer);
      if (device.uses_host_memory()) made.shared = *std::move(buffer);
    } else {
      rep.buffers.push_back(made.shared);
    }
  }
  return TensorAccess::make(*std::move(tensor));
}

}  // namespace

DTensor full_raw(DType dtype, const Shape& shape, const LayoutArg& layout, const void* element) {
  std::array<std::byte, 8> value = {};
  std::memcpy(value.data(), element, dtype_size(dtype));
  return create(dtype, shape, layout,
                [&](const Filling& filling) { fill_whole(filling, "full", dtype, value); });
}

DTensor generate(const char* label, DType dtype, const Shape& shape, const LayoutArg& layout,
                 FillBox fill) {
  return create(dtype, shape, layout, [&](const Filling& filling) {
    filling.device.produce(label, filling.buffer,
                           [&device = filling.device, fill, box = filling.box](std::byte* out) {
                             return fill(device.engine(), box, out);
                           });
  });
}

DTensor iota_raw(DType dtype, const Shape& shape, const LayoutArg& layout) {
  return create(dtype, shape, layout, [&](const Filling& filling) {
    filling.device.produce(
        "iota", filling.buffer,
        [&device = filling.device, dtype, shape = Shape(shape), box = filling.box](std::byte* out) {
          return device.iota(dtype, shape, box, out);
        });
  });
}

DTensor from_host_raw(DType dtype, const std::byte* values, int64_t num_elements,
                      const Shape& shape, const LayoutArg& layout) {
  const Status shape_status = validate_shape(shape);
  if (shape_status.ok() && num_elements != tessera::num_elements(shape)) {
    return TensorAccess::failed(
        dtype, shape, layout.layout(),
        absl::InvalidArgumentError(absl::StrCat("from_host of shape ", shape_to_string(shape),
                                                " needs ", tessera::num_elements(shape),
                                                " elements, got ", num_elements)));
  }
  if (values == nullptr && num_elements > 0) {
    return TensorAccess::failed(dtype, shape, layout.layout(),
                                absl::InvalidArgumentError(absl::StrCat(
                                    "from_host of shape ", shape_to_string(shape),
                                    ": values is null and ", "its span has ", num_elements,
                                    " elements; pass memory that holds "
                                    "them")));
  }
  const Box whole = whole_box(shape);
  return create(dtype, shape, layout, [&](const Filling& filling) {
    fill_from_host(filling, [&](std::byte* out) {
      cpu::copy_box(filling.box, {values, whole}, {out, filling.box}, dtype_size(dtype));
      return absl::OkStatus();
    });
  });
}

DTensor from_function_raw(DType dtype, const Shape& shape, const LayoutArg& layout, RawFill fill) {
  return create(dtype, shape, layout, [&](const Filling& filling) {
    fill_from_host(filling, [&](std::byte* out) -> Status {
      if (filling.box.is_empty()) return absl::OkStatus();
      const Status filled = call_guarded<Status>([&] {
        fill(filling.box, out);
        return absl::OkStatus();
      });
      return with_context(filled, absl::StrCat("from_function: box ", filling.box.to_string()));
    });
  });
}

}  // namespace tessera::internal
