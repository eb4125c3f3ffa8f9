// SPDX-License-Identifier: Apache-2.0
//
// DLPack: local shards for other libraries of this process, and their arrays as shards.
//
//   TESSERA_ASSIGN_OR_RETURN(DLManagedTensorVersioned * shard, to_dlpack(x, 0));
//   ...                                      a library reads shard->dl_tensor
//   shard->deleter(shard);                   the library, when it is done
//
//   DTensor y = from_dlpack({8, 6}, Layout::parse(mesh, "[x, -]"), {array_0, array_1});
//
// The structures are those of DLPack 1.x, and dlpack.h need not be installed. They are in the
// namespace tessera, with the same memory layout: a program that also includes dlpack.h casts the
// pointer, reinterpret_cast<::DLManagedTensorVersioned*>(shard). DLManagedTensor of the versions
// before 1.0 is neither given nor taken, because it cannot say that memory is read-only.
//
// Python: a PyCapsule "dltensor_versioned" holds the pointer.
#ifndef TESSERA_FILES_DLPACK_H_
#define TESSERA_FILES_DLPACK_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "base/public.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/dtensor.h"
#include "layout/layout.h"

namespace TESSERA_PUBLIC tessera {

struct DLPackVersion {
  uint32_t major;
  uint32_t minor;
};

// DLDevice::device_type.
inline constexpr int32_t kDLCPU = 1;
inline constexpr int32_t kDLCUDA = 2;      // device_id: the CUDA ordinal
inline constexpr int32_t kDLCUDAHost = 3;  // pinned memory of the host

struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};

// DLDataType::code.
inline constexpr uint8_t kDLInt = 0;
inline constexpr uint8_t kDLUInt = 1;
inline constexpr uint8_t kDLFloat = 2;
inline constexpr uint8_t kDLBfloat = 4;
inline constexpr uint8_t kDLBool = 6;

struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

// An array: the element with index i, a tuple, begins at data + byte_offset + the sum of
// i[dim] * strides[dim] * bits / 8.
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null: row-major
  uint64_t byte_offset;
};

// DLManagedTensorVersioned::flags.
inline constexpr uint64_t kDLFlagReadOnly = 1;
inline constexpr uint64_t kDLFlagIsCopied = 2;
inline constexpr uint64_t kDLFlagIsSubbyteTypePadded = 4;

struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  // Releases the memory and the structure; null: there is nothing to release.
  void (*deleter)(DLManagedTensorVersioned* self);
  uint64_t flags;
  DLTensor dl_tensor;
};

static_assert(sizeof(DLTensor) == 48 && offsetof(DLTensor, data) == 0 &&
              offsetof(DLTensor, device) == 8 && offsetof(DLTensor, ndim) == 16 &&
              offsetof(DLTensor, dtype) == 20 && offsetof(DLTensor, shape) == 24 &&
              offsetof(DLTensor, strides) == 32 && offsetof(DLTensor, byte_offset) == 40);
static_assert(sizeof(DLManagedTensorVersioned) == 80 &&
              offsetof(DLManagedTensorVersioned, version) == 0 &&
              offsetof(DLManagedTensorVersioned, manager_ctx) == 8 &&
              offsetof(DLManagedTensorVersioned, deleter) == 16 &&
              offsetof(DLManagedTensorVersioned, flags) == 24 &&
              offsetof(DLManagedTensorVersioned, dl_tensor) == 32);

// The memory of a local shard, as DTensor::shard() numbers them; under a partial layout the term of
// that device. Waits for the shard. Local.
//
// - The memory lives until the deleter is called, also when the tensor and its Client are gone. The
//   deleter may be called from any thread. Call it when the work that reads the memory is done, on
//   a GPU as well.
// - Dense and row-major: strides are given, byte_offset is 0, data is aligned to 64 bytes, and null
//   where the shard has no elements. A shard that a relayout has made as a view of another one may
//   not be aligned; then the structure holds a copy, and kDLFlagIsCopied is set.
// - The device is (kDLCPU, 0), or (kDLCUDA, CUDA ordinal) for a device on a GPU.
// - kDLFlagReadOnly is always set: a tensor is immutable, and its replicas may share the memory.
//   numpy respects the flag. PyTorch ignores it and returns a tensor that can be written: copy that
//   tensor before you write to it, else the tensor here and its replicas change too.
//
// InvalidArgument for an index out of range; the error of the tensor.
StatusOr<DLManagedTensorVersioned*> to_dlpack(const DTensor& tensor, int local_device);

// The tensor whose shard on each local device, by ordinal, has the elements of an array of another
// library; as from_shards(). The elements are copied before the call returns, and the deleter of
// each structure has been called exactly once, also where the result is an error.
//
// - The arrays are in memory of the host: kDLCPU with any id, or kDLCUDAHost. The producer has
//   finished writing them. For a device on a GPU the elements are copied to it; arrays in memory of
//   a GPU are Unimplemented.
// - Strides of any sign, 0 as well, and any byte_offset are accepted; memory that they reach must
//   exist. Bytes of kBool other than 0 become 1.
// - Flags and minor versions that are not known here are accepted; a major version other than 1 is
//   InvalidArgument.
// - Shapes are those of the local boxes of the layout, and all arrays have the same dtype.
//   Unimplemented names a dtype of DLPack that is no DType.
// - The dtype of the tensor is that of the arrays. A client that gives none with a known dtype, for
//   instance because it has no device in the mesh, has kFloat32.
//
// An error of the layout or the shape is the same on all clients. Every other error is known to
// this client alone; the others get it with the next collective on the tensor.
DTensor from_dlpack(const Shape& shape, const LayoutArg& layout,
                    absl::Span<DLManagedTensorVersioned* const> local);

}  // namespace tessera

#endif  // TESSERA_FILES_DLPACK_H_
