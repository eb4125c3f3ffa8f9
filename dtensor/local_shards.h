// SPDX-License-Identifier: Apache-2.0
//
// Local shards: tensors made from the shards that a client has for its own devices, and the memory
// of a local shard. Internal, for files/.
#ifndef TESSERA_DTENSOR_LOCAL_SHARDS_H_
#define TESSERA_DTENSOR_LOCAL_SHARDS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "device/buffer.h"
#include "dtensor/dtensor.h"
#include "layout/layout.h"

namespace tessera::internal {

// A local device for which a client gives a shard.
struct ShardPlace {
  int device_id = 0;
  Box box;
  // The GPU in whose memory the shard will be, by its CUDA ordinal; none for memory of the host.
  std::optional<int> cuda_ordinal;
  // "from_shards: the shard of device 2 under [x, -]", the subject of messages.
  std::string subject;
};

// The shards that a client gives for its devices in a mesh, by ordinal.
struct GivenShards {
  absl::string_view function;  // the public one, for messages
  size_t count = 0;
  // Returns the first error that the shards have for these places, of which there are `count`.
  absl::FunctionRef<Status(absl::Span<const ShardPlace> places)> check;
  // Writes the elements of shard i, dense and row-major, to memory of the host. Called once for
  // each shard with elements, if check() has found no error.
  absl::FunctionRef<void(size_t i, std::byte* out)> write;
  // The elements of the shards, dense and row-major. Where it is set and the devices can use the
  // caller's memory, the tensor keeps the memory by `owner` and copies nothing; explain() says
  // whether it does.
  const RawMemory* memory = nullptr;
  std::shared_ptr<void> owner = nullptr;
};

// The tensor of these shards. Local replicas that differ are an error. Errors that only this client
// knows go into the buffers of its devices, so that the next collective tells the others.
DTensor from_given_shards(DType dtype, const Shape& shape, const LayoutArg& layout,
                          const GivenShards& given);

// The memory of a local shard where its device has it.
struct DeviceShard {
  Box box;
  std::shared_ptr<const Buffer> buffer;  // ready; keeps the memory, not the client
  std::optional<int> cuda_ordinal;       // as of a ShardPlace
  bool is_copy = false;
};

// Waits for a local shard, as DTensor::shard() numbers them. Where its memory is not aligned to
// `alignment` bytes, as of a view, the result is a copy that is; at most 64 can be requested.
// `function` is the public one, for messages.
StatusOr<DeviceShard> device_shard(absl::string_view function, const DTensor& tensor,
                                   int local_device, int64_t alignment);

}  // namespace tessera::internal

#endif  // TESSERA_DTENSOR_LOCAL_SHARDS_H_
