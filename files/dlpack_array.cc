// SPDX-License-Identifier: Apache-2.0
#include "files/dlpack_array.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "layout/layout.h"

namespace tessera::files {

namespace {

struct DTypeRow {
  DType dtype;
  uint8_t code;
  uint8_t bits;
};
constexpr DTypeRow kDTypes[] = {
    {DType::kBool, kDLBool, 8},        {DType::kInt8, kDLInt, 8},
    {DType::kUint8, kDLUInt, 8},       {DType::kInt32, kDLInt, 32},
    {DType::kInt64, kDLInt, 64},       {DType::kFloat16, kDLFloat, 16},
    {DType::kBFloat16, kDLBfloat, 16}, {DType::kFloat32, kDLFloat, 32},
    {DType::kFloat64, kDLFloat, 64},
};

// The names of DLPack's codes, by code.
struct CodeRow {
  absl::string_view name;
  bool is_sized;  // the number of bits completes the name
};
constexpr std::array<CodeRow, 18> kCodes = {{
    {"i", true},
    {"u", true},
    {"f", true},
    {"opaque handle", false},
    {"bf", true},
    {"complex", true},
    {"bool", false},
    {"float8_e3m4", false},
    {"float8_e4m3", false},
    {"float8_e4m3b11fnuz", false},
    {"float8_e4m3fn", false},
    {"float8_e4m3fnuz", false},
    {"float8_e5m2", false},
    {"float8_e5m2fnuz", false},
    {"float8_e8m0fnu", false},
    {"float6_e2m3fn", false},
    {"float6_e3m2fn", false},
    {"float4_e2m1fn", false},
}};

StatusOr<DType> dtype_of(const DLDataType& given) {
  const auto describe = [&](absl::string_view what) {
    return absl::StrCat("dtype (code ", int{given.code}, ", bits ", int{given.bits}, ", lanes ",
                        given.lanes, ") ", what);
  };
  if (given.lanes != 1) {
    return absl::InvalidArgumentError(
        describe(absl::StrCat("has lanes ", given.lanes, "; an element has 1 lane")));
  }
  for (const DTypeRow& row : kDTypes) {
    if (row.code == given.code && row.bits == given.bits) return row.dtype;
  }
  if (given.code >= kCodes.size()) {
    return absl::InvalidArgumentError(
        describe(absl::StrCat("has code ", int{given.code}, ", which DLPack 1 does not define")));
  }
  if (given.code == kDLBool) {
    return absl::InvalidArgumentError(
        describe(absl::StrCat("is a bool of ", int{given.bits}, " bits; a bool has 8 bits")));
  }
  const CodeRow& code = kCodes[given.code];
  const std::string name =
      code.is_sized ? absl::StrCat(code.name, int{given.bits}) : std::string(code.name);
  return absl::UnimplementedError(describe(
      absl::StrCat("is ", name, "; supported are bool, i8, u8, i32, i64, f16, bf16, f32 and f64")));
}

Status check_version(const DLPackVersion& version) {
  if (version.major == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("DLPack version ", version.major, ".", version.minor, "; give version 1"));
}

Status check_device(const DLDevice& device, std::optional<int> cuda_ordinal) {
  if (device.device_type == kDLCPU || device.device_type == kDLCUDAHost) return absl::OkStatus();
  const std::string what = absl::StrCat("device (", device.device_type, ", ", device.device_id,
                                        "); give memory of the host, device (1, 0)");
  return device.device_type == kDLCUDA && cuda_ordinal.has_value()
             ? absl::UnimplementedError(what)
             : absl::InvalidArgumentError(what);
}

StatusOr<Shape> shape_of(const DLTensor& tensor, DType dtype) {
  if (tensor.ndim < 0 || tensor.ndim > kMaxRank) {
    return absl::InvalidArgumentError(
        absl::StrCat("ndim ", tensor.ndim, "; a rank is 0 to ", kMaxRank));
  }
  if (tensor.ndim > 0 && tensor.shape == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape is null with ndim ", tensor.ndim, "; give as many sizes"));
  }
  Shape shape(tensor.shape, tensor.shape + tensor.ndim);
  TESSERA_RETURN_IF_ERROR(validate_shape(shape, dtype));
  return shape;
}

// The strides of dims with several elements, in bytes, and 0 for the others. Invariant 3 must hold:
// all sums are made with 128 bits. They do not overflow, as the sizes of a valid shape, less 1
// each, add up to no more than its number of elements.
Status set_strides(const DLTensor& tensor, StridedArray& array) {
  const int64_t element_bytes = dtype_size(array.dtype);
  __int128 low = reinterpret_cast<uintptr_t>(tensor.data);
  low += tensor.byte_offset;
  __int128 high = low + element_bytes;
  int64_t dense = 1;  // the stride of a row-major array
  for (size_t dim = array.shape.size(); dim-- > 0;) {
    const int64_t size = array.shape[dim];
    if (size == 1) continue;
    const int64_t stride = tensor.strides == nullptr ? dense : tensor.strides[dim];
    dense *= size;
    const __int128 bytes = static_cast<__int128>(stride) * element_bytes;
    (bytes < 0 ? low : high) += bytes * (size - 1);
    // Wraps only where the check below fails.
    array.strides_bytes[dim] = static_cast<int64_t>(bytes);
  }
  if (low >= 0 && high <= std::numeric_limits<uintptr_t>::max() &&
      high - low <= std::numeric_limits<int64_t>::max()) {
    return absl::OkStatus();
  }
  const absl::Span<const int64_t> strides(tensor.strides, tensor.strides ? array.shape.size() : 0);
  return absl::InvalidArgumentError(absl::StrCat(
      "byte_offset ", tensor.byte_offset, " and strides [", absl::StrJoin(strides, ", "),
      "] of shape ", shape_to_string(array.shape), " reach outside of the address space"));
}

bool is_dense(const StridedArray& array) {
  int64_t dense = dtype_size(array.dtype);
  for (size_t dim = array.shape.size(); dim-- > 0;) {
    if (array.shape[dim] == 1) continue;
    if (array.strides_bytes[dim] != dense) return false;
    dense *= array.shape[dim];
  }
  return true;
}

// Copies the elements of dims `dim` and later that begin at `from`; returns the end of the copies.
// Requires a dim.
template <size_t kElementBytes>
std::byte* copy_dims(const StridedArray& array, size_t dim, const std::byte* from, std::byte* out) {
  const int64_t size = array.shape[dim];
  const int64_t stride = array.strides_bytes[dim];
  if (dim + 1 < array.shape.size()) {
    for (int64_t i = 0; i < size; ++i) {
      out = copy_dims<kElementBytes>(array, dim + 1, from + i * stride, out);
    }
    return out;
  }
  for (int64_t i = 0; i < size; ++i) {
    std::memcpy(out + i * kElementBytes, from + i * stride, kElementBytes);
  }
  return out + size * kElementBytes;
}

}  // namespace

DLDataType dlpack_dtype(DType dtype) {
  const DTypeRow* row = std::find_if(std::begin(kDTypes), std::end(kDTypes),
                                     [&](const DTypeRow& r) { return r.dtype == dtype; });
  return {.code = row->code, .bits = row->bits, .lanes = 1};
}

StatusOr<DType> check_dlpack_dtype(const DLManagedTensorVersioned& managed) {
  TESSERA_RETURN_IF_ERROR(check_version(managed.version));
  return dtype_of(managed.dl_tensor.dtype);
}

StatusOr<StridedArray> check_dlpack(const DLManagedTensorVersioned& managed,
                                    std::optional<int> cuda_ordinal) {
  StridedArray array;
  TESSERA_ASSIGN_OR_RETURN(array.dtype, check_dlpack_dtype(managed));
  const DLTensor& tensor = managed.dl_tensor;
  TESSERA_RETURN_IF_ERROR(check_device(tensor.device, cuda_ordinal));
  TESSERA_ASSIGN_OR_RETURN(array.shape, shape_of(tensor, array.dtype));
  array.strides_bytes.assign(array.shape.size(), 0);
  const int64_t count = num_elements(array.shape);
  if (count == 0) return array;
  if (tensor.data == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("data is null, and shape ",
                                                   shape_to_string(array.shape), " has ", count,
                                                   " elements; give memory that holds them"));
  }
  TESSERA_RETURN_IF_ERROR(set_strides(tensor, array));
  array.first = static_cast<const std::byte*>(tensor.data) + tensor.byte_offset;
  return array;
}

void copy_dense(const StridedArray& array, std::byte* out) {
  const int64_t count = num_elements(array.shape);
  if (count == 0) return;
  if (is_dense(array)) {
    std::memcpy(out, array.first, count * dtype_size(array.dtype));
  } else {
    switch (dtype_size(array.dtype)) {
      case 1:
        copy_dims<1>(array, 0, array.first, out);
        break;
      case 2:
        copy_dims<2>(array, 0, array.first, out);
        break;
      case 4:
        copy_dims<4>(array, 0, array.first, out);
        break;
      default:
        copy_dims<8>(array, 0, array.first, out);
    }
  }
  if (array.dtype != DType::kBool) return;
  std::transform(out, out + count, out, [](std::byte b) { return std::byte{b != std::byte{0}}; });
}

}  // namespace tessera::files
