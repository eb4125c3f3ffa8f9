// SPDX-License-Identifier: Apache-2.0
#include "ops/scalar.h"

#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "compute/cpu/pointwise.h"
#include "device/number_math.h"
#include "ops/refusal.h"

namespace tessera::ops {

namespace {

// The number as f64, from which the dtype is rounded once; f64 itself is rounded here.
double real_of(const Scalar& scalar, DType dtype) {
  return std::visit(
      [dtype]<class T>(T value) {
        if constexpr (std::is_same_v<T, double>) {
          return value;
        } else {
          return dtype == DType::kFloat64 ? static_cast<double>(value) : kernels::odd_double(value);
        }
      },
      scalar.value());
}

// Whether the integer dtype has the number.
bool is_held(const Scalar& scalar, DType dtype) {
  return std::visit(
      [dtype]<class N>(N value) {
        return visit_dtype(dtype, [value]<class T>() {
          using Limits = std::numeric_limits<T>;
          if constexpr (!std::is_integral_v<T> || std::is_same_v<T, bool>) {
            return true;
          } else if constexpr (std::is_same_v<N, double>) {
            // 2^63 is the first f64 beyond i64.
            const double beyond = 2 * static_cast<double>(Limits::max() / 2 + 1);
            return value == std::trunc(value) && value < beyond &&
                   value >= static_cast<double>(Limits::min());
          } else {
            return std::in_range<T>(value);
          }
        });
      },
      scalar.value());
}

}  // namespace

StatusOr<ElementBytes> element_of(const char* name, const Scalar& scalar, DType dtype) {
  if (!is_held(scalar, dtype)) {
    return refusal(name, "the scalar ", scalar_text(scalar), " is not a value of ",
                   dtype_name(dtype), "; cast() the tensor");
  }
  if (const int64_t* value = std::get_if<int64_t>(&scalar.value());
      value != nullptr && !is_floating_point(dtype)) {
    ElementBytes element = {};
    kernels::cast(DType::kInt64, dtype, reinterpret_cast<const std::byte*>(value), element.data(),
                  1);
    return element;
  }
  return rounded_element(real_of(scalar, dtype), dtype);
}

ElementBytes rounded_element(double value, DType dtype) {
  ElementBytes element = {};
  kernels::cast(DType::kFloat64, dtype, reinterpret_cast<const std::byte*>(&value), element.data(),
                1);
  return element;
}

Scalar rounded_scalar(const Scalar& scalar, DType dtype) {
  const ElementBytes element = rounded_element(real_of(scalar, dtype), dtype);
  double rounded = 0;
  kernels::cast(dtype, DType::kFloat64, element.data(), reinterpret_cast<std::byte*>(&rounded), 1);
  return rounded;
}

bool is_above(const Scalar& a, const Scalar& b) {
  return std::visit(
      []<class A, class B>(A x, B y) {
        if constexpr (std::is_same_v<A, double> || std::is_same_v<B, double>) {
          return !(static_cast<double>(x) <= static_cast<double>(y));
        } else {
          return std::cmp_greater(x, y);
        }
      },
      a.value(), b.value());
}

std::string scalar_text(const Scalar& scalar) {
  return std::visit([](auto value) { return absl::StrCat(value); }, scalar.value());
}

}  // namespace tessera::ops
