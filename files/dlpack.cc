// SPDX-License-Identifier: Apache-2.0
#include "files/dlpack.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "device/buffer.h"
#include "dtensor/local_shards.h"
#include "files/dlpack_array.h"

namespace tessera {

namespace {

constexpr int64_t kAlignment = 64;

// A structure that to_dlpack() has given, with what its pointers need. Its deleter destroys it.
struct GivenArray {
  DLManagedTensorVersioned managed = {};
  Shape shape;
  std::vector<int64_t> strides;
  std::shared_ptr<const Buffer> buffer;
};

void delete_given_array(DLManagedTensorVersioned* self) {
  delete static_cast<GivenArray*>(self->manager_ctx);
}

// The strides of a row-major array, in elements.
std::vector<int64_t> dense_strides(const Shape& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t dim = shape.size(); dim-- > 0;) {
    strides[dim] = stride;
    stride *= shape[dim];
  }
  return strides;
}

// The arrays of a call of from_dlpack(), for the places of their shards.
StatusOr<std::vector<files::StridedArray>> check_arrays(
    absl::Span<DLManagedTensorVersioned* const> local,
    absl::Span<const internal::ShardPlace> places) {
  std::vector<files::StridedArray> arrays;
  for (size_t i = 0; i < local.size(); ++i) {
    const internal::ShardPlace& place = places[i];
    if (local[i] == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(place.subject, " is null; give a structure for each local device"));
    }
    StatusOr<files::StridedArray> array = files::check_dlpack(*local[i], place.cuda_ordinal);
    if (!array.ok()) return with_context(array.status(), place.subject);
    if (i > 0 && array->dtype != arrays[0].dtype) {
      return absl::InvalidArgumentError(absl::StrCat(
          place.subject, " is ", dtype_name(array->dtype), ", and that of device ",
          places[0].device_id, " is ", dtype_name(arrays[0].dtype), "; give arrays of one dtype"));
    }
    if (array->shape != place.box.sizes) {
      return absl::InvalidArgumentError(
          absl::StrCat(place.subject, " has shape ", shape_to_string(array->shape), "; its box ",
                       place.box.to_string(), " needs ", shape_to_string(place.box.sizes)));
    }
    arrays.push_back(*std::move(array));
  }
  return arrays;
}

}  // namespace

StatusOr<DLManagedTensorVersioned*> to_dlpack(const DTensor& tensor, int local_device) {
  TESSERA_ASSIGN_OR_RETURN(internal::DeviceShard shard,
                           internal::device_shard("to_dlpack", tensor, local_device, kAlignment));
  auto given = std::make_unique<GivenArray>();
  given->buffer = std::move(shard.buffer);
  const bool is_empty = shard.box.is_empty();
  given->shape = std::move(shard.box.sizes);
  given->strides = dense_strides(given->shape);
  // The structure has no pointer to const; kDLFlagReadOnly says it.
  auto* const data = const_cast<std::byte*>(is_empty ? nullptr : given->buffer->data());
  given->managed = {
      .version = {.major = 1, .minor = 0},
      .manager_ctx = given.get(),
      .deleter = delete_given_array,
      .flags = kDLFlagReadOnly | (shard.is_copy ? kDLFlagIsCopied : 0),
      .dl_tensor = {.data = data,
                    .device = shard.cuda_ordinal.has_value()
                                  ? DLDevice{kDLCUDA, *shard.cuda_ordinal}
                                  : DLDevice{kDLCPU, 0},
                    .ndim = static_cast<int32_t>(given->shape.size()),
                    .dtype = files::dlpack_dtype(tensor.dtype()),
                    .shape = given->shape.data(),
                    .strides = given->strides.data(),
                    .byte_offset = 0},
  };
  return &given.release()->managed;
}

DTensor from_dlpack(const Shape& shape, const LayoutArg& layout,
                    absl::Span<DLManagedTensorVersioned* const> local) {
  // A structure that is given for two devices has one deleter to call.
  const std::set<DLManagedTensorVersioned*> structures(local.begin(), local.end());
  const absl::Cleanup call_deleters = [&] {
    for (DLManagedTensorVersioned* structure : structures) {
      if (structure != nullptr && structure->deleter != nullptr) structure->deleter(structure);
    }
  };
  // A refused array may still say the dtype of the tensor, which must be equal on all clients for
  // the error to reach them.
  DType dtype = DType::kFloat32;
  for (const DLManagedTensorVersioned* structure : local) {
    if (structure == nullptr) continue;
    if (const StatusOr<DType> said = files::check_dlpack_dtype(*structure); said.ok()) {
      dtype = *said;
      break;
    }
  }
  std::vector<files::StridedArray> arrays;
  return internal::from_given_shards(
      dtype, shape, layout,
      {.function = "from_dlpack",
       .count = local.size(),
       .check = [&](absl::Span<const internal::ShardPlace> places) -> Status {
         TESSERA_ASSIGN_OR_RETURN(arrays, check_arrays(local, places));
         return absl::OkStatus();
       },
       .write = [&](size_t i, std::byte* out) { files::copy_dense(arrays[i], out); }});
}

}  // namespace tessera
