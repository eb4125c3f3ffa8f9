// SPDX-License-Identifier: Apache-2.0
//
// Helpers of image kernels: parts of images in memory, and windows that move over them. Internal to
// kernels/.
//
// An image is [batch, rows, columns, channels]. A device holds a box of it, with every place inside
// the image that the windows of its result touch: a place outside the box is outside the image.
#ifndef TESSERA_COMPUTE_CPU_IMAGE_H_
#define TESSERA_COMPUTE_CPU_IMAGE_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "Eigen/Core"
#include "base/dtype.h"
#include "base/shape.h"
#include "compute/engine.h"

namespace tessera::kernels {

// The type that floats are computed in.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Calls fn for the type of a floating-point dtype.
template <class Fn>
void visit_float(DType dtype, Fn fn) {
  switch (dtype) {
    case DType::kFloat16:
      return fn.template operator()<Eigen::half>();
    case DType::kBFloat16:
      return fn.template operator()<Eigen::bfloat16>();
    case DType::kFloat32:
      return fn.template operator()<float>();
    default:
      return fn.template operator()<double>();
  }
}

// A part of a dim.
struct Range {
  int64_t begin;
  int64_t end;
};

// Calls fn(tap, index) for each tap of the window of result index `at` that is in the range.
template <class Fn>
void for_each_tap(const Window& window, int64_t at, Range range, Fn fn) {
  const int64_t first = at * window.stride - window.before;
  // The window may be far larger than the range.
  const int64_t before = range.begin > first ? range.begin - first : 0;
  for (int64_t tap = (before + window.dilation - 1) / window.dilation; tap < window.size; ++tap) {
    const int64_t index = first + tap * window.dilation;
    if (index >= range.end) return;
    fn(tap, index);
  }
}

// Calls fn(batch, row, column) for the places of the box, the batch counted from the box's.
template <class Fn>
void for_each_place(const Box& box, Fn fn) {
  if (box.is_empty()) return;
  for (int64_t b = 0; b < box.sizes[0]; ++b) {
    for (int64_t i = 0; i < box.sizes[1]; ++i) {
      for (int64_t j = 0; j < box.sizes[2]; ++j) {
        fn(b, box.offsets[1] + i, box.offsets[2] + j);
      }
    }
  }
}

inline Range rows_of(const Box& box) { return {box.offsets[1], box.offsets[1] + box.sizes[1]}; }
inline Range columns_of(const Box& box) { return {box.offsets[2], box.offsets[2] + box.sizes[2]}; }

// A part of an image in memory.
template <class T>
struct Image {
  explicit Image(const BoxArray& array)
      : data(reinterpret_cast<const T*>(array.data)),
        rows(rows_of(array.box)),
        columns(columns_of(array.box)),
        channels(array.box.sizes[3]) {}
  const T* pixel(int64_t b, int64_t row, int64_t column) const {
    const int64_t line = b * (rows.end - rows.begin) + row - rows.begin;
    return data + (line * (columns.end - columns.begin) + column - columns.begin) * channels;
  }

  const T* data;
  Range rows;
  Range columns;
  int64_t channels;
};

// Two windows over an image.
struct Windows {
  const Window& height;
  const Window& width;

  int64_t num_taps() const { return height.size * width.size; }
  // Calls fn(number of the tap, row, column) for the taps in these ranges.
  template <class Fn>
  void for_each_tap_in(int64_t row, int64_t column, Range rows, Range columns, Fn fn) const {
    for_each_tap(height, row, rows, [&](int64_t r, int64_t i) {
      for_each_tap(width, column, columns,
                   [&](int64_t c, int64_t j) { fn(r * width.size + c, i, j); });
    });
  }
};

// Sums of the elements of a box, which are rounded at the end. The box has all channels.
template <class T>
class Sums {
 public:
  explicit Sums(const Box& box) : box_(box), sums_(box.num_elements(), Wide<T>(0)) {}

  // Requires a place in the box.
  Wide<T>* at(int64_t b, int64_t row, int64_t column) {
    const int64_t i = row - box_.offsets[1];
    const int64_t j = column - box_.offsets[2];
    return &sums_[((b * box_.sizes[1] + i) * box_.sizes[2] + j) * box_.sizes[3]];
  }
  Wide<T>* data() { return sums_.data(); }
  void write(std::byte* out) const {
    T* const to = reinterpret_cast<T*>(out);
    for (size_t i = 0; i < sums_.size(); ++i) to[i] = static_cast<T>(sums_[i]);
  }

 private:
  const Box& box_;
  std::vector<Wide<T>> sums_;
};

}  // namespace tessera::kernels

#endif  // TESSERA_COMPUTE_CPU_IMAGE_H_
