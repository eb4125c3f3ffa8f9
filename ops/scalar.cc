// SPDX-License-Identifier: Apache-2.0
#include "ops/scalar.h"

#include <cstring>
#include <variant>

#include "ops/kernels/pointwise.h"
#include "ops/op.h"

namespace tessera::ops {

StatusOr<ElementBytes> element_of(const char* name, const Scalar& scalar, DType dtype) {
  ElementBytes element = {};
  const bool is_real = std::holds_alternative<double>(scalar.value());
  const bool is_integer_dtype = dtype != DType::kBool && !is_floating_point(dtype);
  if (is_real) {
    const double value = std::get<double>(scalar.value());
    std::array<std::byte, 8> real = {};
    std::memcpy(real.data(), &value, sizeof value);
    kernels::cast(DType::kFloat64, dtype, real.data(), element.data(), 1);
    double back = 0;
    kernels::cast(dtype, DType::kFloat64, element.data(), reinterpret_cast<std::byte*>(&back), 1);
    if (is_integer_dtype && back != value) {
      return refusal(name, "the scalar ", value, " is no ", dtype_name(dtype),
                     "; cast() the tensor");
    }
    return element;
  }
  const int64_t value = std::get<int64_t>(scalar.value());
  kernels::cast(DType::kInt64, dtype, reinterpret_cast<const std::byte*>(&value), element.data(),
                1);
  int64_t back = 0;
  kernels::cast(dtype, DType::kInt64, element.data(), reinterpret_cast<std::byte*>(&back), 1);
  if (is_integer_dtype && back != value) {
    return refusal(name, "the scalar ", value, " is no ", dtype_name(dtype), "; cast() the tensor");
  }
  return element;
}

ElementBytes rounded_element(double value, DType dtype) {
  ElementBytes element = {};
  kernels::cast(DType::kFloat64, dtype, reinterpret_cast<const std::byte*>(&value), element.data(),
                1);
  return element;
}

Scalar rounded_scalar(const Scalar& scalar, DType dtype) {
  const double value =
      std::visit([](auto number) { return static_cast<double>(number); }, scalar.value());
  const ElementBytes element = rounded_element(value, dtype);
  double rounded = 0;
  kernels::cast(dtype, DType::kFloat64, element.data(), reinterpret_cast<std::byte*>(&rounded), 1);
  return rounded;
}

std::array<int64_t, 2> scalar_attributes(const Scalar& scalar) {
  if (std::holds_alternative<int64_t>(scalar.value())) {
    return {0, std::get<int64_t>(scalar.value())};
  }
  return {1, attribute_of(std::get<double>(scalar.value()))};
}

}  // namespace tessera::ops
