// SPDX-License-Identifier: Apache-2.0
#include "dtensor/device_update.h"

#include <memory>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "device/buffer.h"
#include "device/local_device.h"
#include "dtensor/runtime.h"
#include "dtensor/taken_streams.h"
#include "dtensor/tensor_access.h"
#include "dtensor/tensor_rep.h"

namespace tessera::internal {
namespace {

constexpr size_t kInlineUpdated = 8;
// As in device_op.cc.
constexpr int64_t kMostBytesOfUpdate = 32 << 10;

// One device's part of a call.
struct UpdatePart {
  int ordinal;
  int64_t num_elements;
  std::shared_ptr<const Buffer> input;
  absl::InlinedVector<std::shared_ptr<const Buffer>, kInlineUpdated> from;
  absl::InlinedVector<std::shared_ptr<Buffer>, kInlineUpdated> to;
};
using UpdateParts = absl::InlinedVector<UpdatePart, kInlineLocalDevices>;

Status compute_update(LocalDevice& device, const UpdateKernel& kernel, UpdatePart& part) {
  TESSERA_RETURN_IF_ERROR(device.use(*part.input));
  for (const std::shared_ptr<const Buffer>& from : part.from) {
    TESSERA_RETURN_IF_ERROR(device.use(*from));
  }
  absl::InlinedVector<const std::byte*, kInlineUpdated> from;
  absl::InlinedVector<std::byte*, kInlineUpdated> to;
  for (size_t k = 0; k < part.from.size(); ++k) {
    from.push_back(part.from[k]->data());
    if (!part.to[k]->take_memory_of(part.from[k])) {
      TESSERA_RETURN_IF_ERROR(part.to[k]->take_memory());
    }
    to.push_back(part.to[k]->mutable_data());
  }
  return kernel(device.engine(), {part.input->data(), from, to, part.num_elements});
}

Status run_update(LocalDevice& device, const UpdateKernel& kernel, UpdatePart& part) {
  Status status = compute_update(device, kernel, part);
  device.finish(part.to, status);
  return status;
}

// Small work, on this thread, if the inputs are ready and the devices idle. Requires a turn.
bool update_here(const Runtime& runtime, const UpdateKernel& kernel, UpdateParts& parts) {
  if (!runtime.devices().uses_host_memory()) return false;
  int64_t bytes = 0;
  TakenStreams streams;
  for (const UpdatePart& part : parts) {
    bytes += part.input->size_bytes() * static_cast<int64_t>(1 + 2 * part.from.size());
    if (bytes > kMostBytesOfUpdate || !part.input->ready().done()) return false;
    for (const std::shared_ptr<const Buffer>& from : part.from) {
      if (!from->ready().done()) return false;
    }
  }
  for (const UpdatePart& part : parts) {
    if (!streams.take(runtime.device(part.ordinal).stream())) return false;
  }
  for (UpdatePart& part : parts)
    run_update(runtime.device(part.ordinal), kernel, part).IgnoreError();
  return true;
}

}  // namespace

Status update_on_devices(const char* label, absl::Span<DTensor* const> state, const DTensor& input,
                         UpdateKernel kernel) {
  const TensorRep& first = TensorAccess::rep(*state[0]);
  const std::shared_ptr<Runtime> runtime = first.runtime;
  TESSERA_ASSIGN_OR_RETURN(const Turn turn, runtime->turns().take());
  UpdateParts parts;
  for (size_t d = 0; d < first.devices.size(); ++d) {
    UpdatePart& part = parts.emplace_back();
    part.ordinal = first.devices[d].ordinal;
    part.num_elements = first.box_of(first.devices[d]).num_elements();
    part.input = TensorAccess::rep(input).buffers[d];
  }
  // The tensors are replaced before anything runs, so that the parts hold their memory alone.
  for (DTensor* const tensor : state) {
    const TensorRep& old = TensorAccess::rep(*tensor);
    auto made = std::make_shared<TensorRep>();
    TensorRep& rep = *made;
    rep.dtype = old.dtype;
    rep.shape = old.shape;
    rep.layout = old.layout;
    rep.runtime = runtime;
    rep.devices = old.devices;
    for (size_t d = 0; d < parts.size(); ++d) {
      parts[d].from.push_back(old.buffers[d]);
      parts[d].to.push_back(Buffer::deferred(runtime->device(parts[d].ordinal).memory(),
                                             parts[d].num_elements * dtype_size(old.dtype)));
      rep.buffers.push_back(parts[d].to.back());
    }
    *tensor = TensorAccess::make(std::move(made));
  }
  if (update_here(*runtime, kernel, parts)) return absl::OkStatus();
  for (UpdatePart& part : parts) {
    LocalDevice& device = runtime->device(part.ordinal);
    device.stream().enqueue(label, [&device, kernel, part = std::move(part)]() mutable {
      return run_update(device, kernel, part);
    });
  }
  return absl::OkStatus();
}

}  // namespace tessera::internal
