// SPDX-License-Identifier: Apache-2.0
//
// Scalar: a C++ number beside tensors.
#ifndef TESSERA_OPS_SCALAR_H_
#define TESSERA_OPS_SCALAR_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <variant>

#include "base/dtype.h"
#include "base/public.h"
#include "base/status.h"

namespace TESSERA_PUBLIC tessera {
namespace ops {

// A C++ number beside a tensor: it takes the tensor's dtype, rounded once. InvalidArgument where it
// is not exact in an integer dtype.
class Scalar {
 public:
  template <class T>
  requires std::is_arithmetic_v<T> Scalar(T value) {  // NOLINT: callers write numbers
    if constexpr (std::is_floating_point_v<T>) {
      value_ = static_cast<double>(value);
    } else if (value > T(0) && static_cast<uint64_t>(value) >> 63 != 0) {
      value_ = static_cast<uint64_t>(value);
    } else {
      value_ = static_cast<int64_t>(value);
    }
  }
  // uint64_t only for numbers beyond int64_t.
  const std::variant<int64_t, double, uint64_t>& value() const { return value_; }

 private:
  std::variant<int64_t, double, uint64_t> value_;
};

// Internal: the scalar as an element of the dtype.
struct alignas(8) ElementBytes : std::array<std::byte, 8> {};
std::string scalar_text(const Scalar& scalar);
// Whether a is above b; true where either is NaN.
bool is_above(const Scalar& a, const Scalar& b);
StatusOr<ElementBytes> element_of(const char* name, const Scalar& scalar, DType dtype);
// The number, rounded to the dtype.
ElementBytes rounded_element(double value, DType dtype);
// The rounded element as a scalar. Requires a dtype of floats.
Scalar rounded_scalar(const Scalar& scalar, DType dtype);

}  // namespace ops
}  // namespace tessera

#endif  // TESSERA_OPS_SCALAR_H_
