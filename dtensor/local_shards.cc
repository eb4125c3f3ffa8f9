// SPDX-License-Identifier: Apache-2.0
#include "dtensor/local_shards.h"

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "device/local_device.h"
#include "dtensor/tensor_access.h"
#include "dtensor/tensor_rep.h"

namespace tessera::internal {

namespace {

// A shard in memory of the host, on its way to its device.
struct StagedShard {
  std::shared_ptr<Buffer> buffer = nullptr;  // of the device
  std::shared_ptr<Buffer> staging =
      nullptr;  // its contents; null where there is no memory for them
  Status no_memory = absl::OkStatus();
};

std::vector<ShardPlace> places_of(const TensorRep& rep, absl::string_view function) {
  std::vector<ShardPlace> places;
  places.reserve(rep.devices.size());
  for (const MeshDevice& device : rep.devices) {
    places.push_back({.device_id = device.device_id,
                      .box = rep.box_of(device),
                      .cuda_ordinal = rep.runtime->device(device.ordinal).cuda_ordinal(),
                      .subject = absl::StrCat(function, ": the shard of device ", device.device_id,
                                              " under ", rep.layout->to_string())});
  }
  return places;
}

Status check_given(const TensorRep& rep, const GivenShards& given,
                   absl::Span<const ShardPlace> places) {
  if (given.count != places.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(given.function, " on client ", rep.runtime->job().client_id(), ": expected ",
                     places.size(), " shards, one for each local device of ",
                     rep.layout->mesh().to_string(), ", got ", given.count));
  }
  return given.check(places);
}

// Why the devices cannot use the caller's memory; empty where they can.
std::string why_copied(const Runtime& runtime) {
  if (!runtime.devices().uses_host_memory()) return "the devices are GPUs";
  if (const int clients = runtime.job().num_clients(); clients > 1) {
    return absl::StrCat(clients, " clients must map the memory");
  }
  return "";
}

// The caller's memory as a shard.
StagedShard wrapped(LocalDevice& device, int64_t size_bytes, const std::byte* data,
                    const std::shared_ptr<void>& owner) {
  std::shared_ptr<Buffer> buffer = Buffer::deferred(device.memory(), size_bytes);
  // Never written to: the buffer is immutable, and an update in place takes no such memory.
  buffer->share_memory(const_cast<std::byte*>(data), owner);
  return {.buffer = buffer, .staging = buffer};
}

StagedShard new_staged(LocalDevice& device, int64_t size_bytes) {
  StatusOr<std::shared_ptr<Buffer>> buffer = device.new_buffer(size_bytes);
  if (!buffer.ok()) return {.no_memory = buffer.status()};
  StatusOr<std::shared_ptr<Buffer>> staging = device.new_staging(*buffer);
  if (!staging.ok()) return {.no_memory = staging.status()};
  return {.buffer = *std::move(buffer), .staging = *std::move(staging)};
}

// InvalidArgument names the first shard that differs from an earlier one of the same box and term.
Status check_replicas(const TensorRep& rep, absl::Span<const ShardPlace> places,
                      absl::Span<const StagedShard> staged) {
  const auto term = [&](size_t i) { return rep.layout->partial_index(rep.devices[i].position); };
  for (size_t i = 0; i < staged.size(); ++i) {
    const int64_t size_bytes = num_bytes(places[i].box.sizes, rep.dtype);
    if (size_bytes == 0 || staged[i].staging == nullptr) continue;
    for (size_t j = 0; j < i; ++j) {
      if (staged[j].staging == nullptr || places[j].box != places[i].box || term(j) != term(i) ||
          std::memcmp(staged[i].staging->data(), staged[j].staging->data(), size_bytes) == 0) {
        continue;
      }
      return absl::InvalidArgumentError(absl::StrCat(
          places[i].subject, " differs from that of device ", places[j].device_id,
          ", and both hold the same box ", places[i].box.to_string(), "; replicas must be equal"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

DTensor from_given_shards(DType dtype, const Shape& shape, const LayoutArg& layout_arg,
                          const GivenShards& given) {
  const StatusOr<Layout>& layout = layout_arg.layout();
  StatusOr<std::shared_ptr<TensorRep>> made = new_tensor(dtype, shape, layout);
  if (!made.ok()) return TensorAccess::failed(dtype, shape, layout, made.status());
  TensorRep& rep = **made;
  const std::vector<ShardPlace> places = places_of(rep, given.function);
  Status wrong = check_given(rep, given, places);
  const std::string reason = given.memory == nullptr ? "" : why_copied(*rep.runtime);
  const bool is_wrapped = given.memory != nullptr && reason.empty();
  if (given.memory != nullptr) {
    rep.explanation = std::make_shared<const std::string>(
        is_wrapped ? absl::StrCat("made by ", given.function, "() over the caller's memory\n")
                   : absl::StrCat("made by ", given.function, "(), copied: ", reason, "\n"));
  }
  std::vector<StagedShard> staged;
  if (wrong.ok()) {
    for (size_t i = 0; i < places.size(); ++i) {
      const int64_t size_bytes = num_bytes(places[i].box.sizes, dtype);
      LocalDevice& device = rep.runtime->device(rep.devices[i].ordinal);
      if (is_wrapped) {
        staged.push_back(wrapped(device, size_bytes, given.memory[i].data, given.owner));
        continue;
      }
      staged.push_back(new_staged(device, size_bytes));
      if (staged[i].staging != nullptr && size_bytes > 0) {
        given.write(i, staged[i].staging->mutable_data());
      }
    }
    wrong = check_replicas(rep, places, staged);
  }
  for (size_t i = 0; i < places.size(); ++i) {
    if (!wrong.ok() || staged[i].staging == nullptr) {
      rep.buffers.push_back(Buffer::failed(wrong.ok() ? staged[i].no_memory : wrong));
      continue;
    }
    rep.runtime->device(rep.devices[i].ordinal)
        .upload(std::move(staged[i].staging), staged[i].buffer);
    rep.buffers.push_back(std::move(staged[i].buffer));
  }
  return TensorAccess::make(*std::move(made));
}

DTensor from_shards_raw(DType dtype, const Shape& shape, const LayoutArg& layout,
                        absl::Span<const RawHostShard> local) {
  const auto check = [&](absl::Span<const ShardPlace> places) -> Status {
    for (size_t i = 0; i < places.size(); ++i) {
      const ShardPlace& place = places[i];
      if (local[i].shape->size() != shape.size()) {
        return absl::InvalidArgumentError(absl::StrCat(place.subject, " has rank ",
                                                       local[i].shape->size(),
                                                       ", and the tensor has rank ", shape.size()));
      }
      if (*local[i].shape != place.box.sizes) {
        return absl::InvalidArgumentError(
            absl::StrCat(place.subject, " has shape ", shape_to_string(*local[i].shape),
                         "; expected ", shape_to_string(place.box.sizes)));
      }
      if (local[i].num_elements != place.box.num_elements()) {
        return absl::InvalidArgumentError(
            absl::StrCat(place.subject, " has ", local[i].num_elements, " elements; its shape ",
                         shape_to_string(place.box.sizes), " needs ", place.box.num_elements()));
      }
    }
    return absl::OkStatus();
  };
  const auto write = [&](size_t i, std::byte* out) {
    std::memcpy(out, local[i].data, local[i].num_elements * dtype_size(dtype));
  };
  return from_given_shards(
      dtype, shape, layout,
      {.function = "from_shards", .count = local.size(), .check = check, .write = write});
}

DTensor from_memory_raw(DType dtype, const Shape& shape, const LayoutArg& layout,
                        absl::Span<const RawMemory> local, std::shared_ptr<void> keep_alive) {
  const auto check = [&](absl::Span<const ShardPlace> places) -> Status {
    for (size_t i = 0; i < places.size(); ++i) {
      const int64_t needed = places[i].box.num_elements();
      if (local[i].num_elements != needed) {
        return absl::InvalidArgumentError(
            absl::StrCat(places[i].subject, " has ", local[i].num_elements, " elements; its box ",
                         places[i].box.to_string(), " needs ", needed));
      }
      if (local[i].data == nullptr && needed > 0) {
        return absl::InvalidArgumentError(absl::StrCat(places[i].subject, " is null and has ",
                                                       needed,
                                                       " elements; pass memory that holds them"));
      }
    }
    return absl::OkStatus();
  };
  const auto write = [&](size_t i, std::byte* out) {
    std::memcpy(out, local[i].data, local[i].num_elements * dtype_size(dtype));
  };
  return from_given_shards(dtype, shape, layout,
                           {.function = "from_memory",
                            .count = local.size(),
                            .check = check,
                            .write = write,
                            .memory = local.data(),
                            .owner = std::move(keep_alive)});
}

StatusOr<DeviceShard> device_shard(absl::string_view function, const DTensor& tensor,
                                   int local_device, int64_t alignment) {
  const TensorRep& rep = TensorAccess::rep(tensor);
  TESSERA_RETURN_IF_ERROR(rep.check_shard(function, local_device));
  LocalDevice& device = rep.runtime->device(rep.devices[local_device].ordinal);
  DeviceShard shard = {.box = rep.box_of(rep.devices[local_device]),
                       .buffer = rep.buffers[local_device],
                       .cuda_ordinal = device.cuda_ordinal()};
  TESSERA_RETURN_IF_ERROR(rep.await(*shard.buffer));
  const auto address = reinterpret_cast<uintptr_t>(shard.buffer->data());
  if (shard.box.is_empty() || address % alignment == 0) return shard;
  // Copied by way of the host, as no device has a function for this rare case.
  const std::shared_ptr<const Buffer> on_host = device.host_copy(shard.buffer);
  TESSERA_RETURN_IF_ERROR(rep.await(*on_host));
  StagedShard copy = new_staged(device, shard.buffer->size_bytes());
  TESSERA_RETURN_IF_ERROR(copy.no_memory);
  std::memcpy(copy.staging->mutable_data(), on_host->data(), on_host->size_bytes());
  device.upload(std::move(copy.staging), copy.buffer);
  TESSERA_RETURN_IF_ERROR(rep.await(*copy.buffer));
  shard.buffer = std::move(copy.buffer);
  shard.is_copy = true;
  return shard;
}

}  // namespace tessera::internal
