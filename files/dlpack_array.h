// SPDX-License-Identifier: Apache-2.0
//
// check_dlpack: an array of another library, checked before any of its elements is read. Internal
// to files/.
//
//   data ---byte_offset---> first       shape [2, 3], strides [-3, 1] of f32:
//                                       element (1, 2) is at first - 12 + 8
//
// Pure: a structure in, a StridedArray or an error out. Only the structure itself, its shape and
// its strides are read. Nothing can check that the elements exist: copy_dense() trusts the
// producer.
#ifndef TESSERA_FILES_DLPACK_ARRAY_H_
#define TESSERA_FILES_DLPACK_ARRAY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "files/dlpack.h"

namespace tessera::files {

// Elements in memory of the host.
//
// Invariants of the results of check_dlpack():
//   1. validate_shape(shape, dtype) is OK;
//   2. a stride of a dim of size 1 is 0, and without elements all strides are 0 and first is null;
//   3. the bytes of all elements are within a range of less than 2^63 bytes of the address space.
struct StridedArray {
  DType dtype = DType::kFloat32;
  Shape shape;
  std::vector<int64_t> strides_bytes;
  const std::byte* first = nullptr;  // the element with index 0, ..., 0
};

DLDataType dlpack_dtype(DType dtype);

// The dtype of an array. Reads the version first: InvalidArgument where it is not 1, and no other
// field is read. InvalidArgument for what is no dtype of DLPack, more than one lane, or a bool that
// has not 8 bits; Unimplemented names a dtype that is no DType.
StatusOr<DType> check_dlpack_dtype(const DLManagedTensorVersioned& managed);

// Checks all fields. `cuda_ordinal`: the GPU for which the array is given, if it is for one. Errors
// as above; InvalidArgument for other wrong values, Unimplemented for memory of a GPU that is given
// for a GPU.
StatusOr<StridedArray> check_dlpack(const DLManagedTensorVersioned& managed,
                                    std::optional<int> cuda_ordinal);

// Writes the elements, dense and row-major; each byte of kBool as 0 or 1. `out` need not be
// aligned.
void copy_dense(const StridedArray& array, std::byte* out);

}  // namespace tessera::files

#endif  // TESSERA_FILES_DLPACK_ARRAY_H_
