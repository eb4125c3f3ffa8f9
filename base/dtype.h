// SPDX-License-Identifier: Apache-2.0
//
// DType: the element types of tensors, and their C++ types. Half types are Eigen's. To compute with
// them include tessera/eigen.h, or Eigen/Core.
#ifndef TESSERA_BASE_DTYPE_H_
#define TESSERA_BASE_DTYPE_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "base/public.h"
#include "base/status.h"

namespace Eigen {
struct half;
struct bfloat16;
}  // namespace Eigen

namespace TESSERA_PUBLIC tessera {

enum class DType : uint8_t {
  kBool,
  kInt8,
  kUint8,
  kInt32,
  kInt64,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
};
inline constexpr int kNumDTypes = 9;

// Bytes of one element; 0 for a value outside the enumeration.
int64_t dtype_size(DType dtype);
// "bool", "i8", "u8", "i32", "i64", "f16", "bf16", "f32", "f64"; else "unknown".
absl::string_view dtype_name(DType dtype);
bool is_floating_point(DType dtype);
// InvalidArgument for a value outside the enumeration, as a cast from another integer may
// give. Checked wherever a DType comes from a caller.
Status validate_dtype(DType dtype);

// dtype_of<float>() is DType::kFloat32; a type that is no element type does not compile.
template <class T>
struct DTypeOf;

#define TESSERA_DTYPES_(X)      \
  X(bool, kBool)                \
  X(int8_t, kInt8)              \
  X(uint8_t, kUint8)            \
  X(int32_t, kInt32)            \
  X(int64_t, kInt64)            \
  X(Eigen::half, kFloat16)      \
  X(Eigen::bfloat16, kBFloat16) \
  X(float, kFloat32)            \
  X(double, kFloat64)

#define TESSERA_DTYPE_OF_(type, name)            \
  template <>                                    \
  struct DTypeOf<type> {                         \
    static constexpr DType kValue = DType::name; \
  };
TESSERA_DTYPES_(TESSERA_DTYPE_OF_)
#undef TESSERA_DTYPE_OF_

template <class T>
concept HasDType = requires {
  DTypeOf<T>::kValue;
};

template <HasDType T>
constexpr DType dtype_of() {
  return DTypeOf<T>::kValue;
}

// Calls fn.template operator()<T>() with the C++ type of `dtype` and returns its result. Requires
// validate_dtype(dtype).ok().
//   visit_dtype(dtype, [&]<class T>() { return sizeof(T); })
template <class Fn>
decltype(auto) visit_dtype(DType dtype, Fn&& fn) {
  switch (dtype) {
#define TESSERA_VISIT_(type, name) \
  case DType::name:                \
    return fn.template operator()<type>();
    TESSERA_DTYPES_(TESSERA_VISIT_)
#undef TESSERA_VISIT_
  }
  __builtin_unreachable();
}

}  // namespace tessera

#endif  // TESSERA_BASE_DTYPE_H_
