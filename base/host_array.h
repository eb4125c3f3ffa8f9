// SPDX-License-Identifier: Apache-2.0
//
// HostArray: a dense array of any element type in the memory of this process.
//
//   HostArray pixels = HostArray::of<uint8_t>(values, {28, 28});
//   absl::Span<const uint8_t> view = pixels.view<uint8_t>();
//
// An array whose type is known at run time: an element of a data set, an argument of a function on
// another client. For a type that the compiler knows use HostTensor<T> (dtensor/dtensor.h).
#ifndef TESSERA_BASE_HOST_ARRAY_H_
#define TESSERA_BASE_HOST_ARRAY_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/public.h"
#include "base/shape.h"
#include "base/status.h"

namespace TESSERA_PUBLIC tessera {

struct HostArray {
  DType dtype = DType::kFloat32;
  Shape shape = {0};
  // The elements, row-major. Aligned for every element type.
  std::vector<std::byte> bytes;

  // Copies the values. The array is valid if there are as many as the shape has elements.
  template <HasDType T>
  static HostArray of(absl::Span<const T> values, Shape shape) {
    const std::byte* const first = reinterpret_cast<const std::byte*>(values.data());
    return {dtype_of<T>(), std::move(shape),
            std::vector<std::byte>(first, first + values.size() * sizeof(T))};
  }
  template <HasDType T>
  static HostArray scalar(T value) {
    return of<T>(absl::MakeConstSpan(&value, 1), {});
  }

  // The elements. Throws std::invalid_argument where T is not the dtype, because a span cannot
  // carry an error. In a function of a data set, a worker or a local_map() the exception becomes
  // the error of the function.
  template <HasDType T>
  absl::Span<const T> view() const {
    if (dtype != dtype_of<T>()) refuse_view(dtype_of<T>());
    return absl::MakeConstSpan(reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T));
  }
  template <HasDType T>
  absl::Span<T> view() {
    if (dtype != dtype_of<T>()) refuse_view(dtype_of<T>());
    return absl::MakeSpan(reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T));
  }

  // InvalidArgument unless the dtype and the shape are valid and `bytes` holds the elements.
  Status validate() const;

  friend bool operator==(const HostArray& a, const HostArray& b) {
    return a.dtype == b.dtype && a.shape == b.shape && a.bytes == b.bytes;
  }

 private:
  [[noreturn]] void refuse_view(DType asked) const;
};

}  // namespace tessera

#endif  // TESSERA_BASE_HOST_ARRAY_H_
