// SPDX-License-Identifier: Apache-2.0
#include "compute/cpu/nn.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "Eigen/Core"
#include "compute/cpu/image.h"
#include "compute/cpu/index.h"

namespace tessera::kernels {
namespace {

int64_t count_taps(const Windows& windows, int64_t row, int64_t column, Range rows, Range columns) {
  int64_t count = 0;
  windows.for_each_tap_in(row, column, rows, columns, [&](int64_t, int64_t, int64_t) { ++count; });
  return count;
}

template <class T>
void avg_pool2d_of(const BoxArray& x, const Windows& windows, const Box& out_box, T* out) {
  const Image<T> image(x);
  std::vector<Wide<T>> sums(image.channels);
  for_each_place(out_box, [&](int64_t b, int64_t row, int64_t column) {
    std::fill(sums.begin(), sums.end(), Wide<T>(0));
    windows.for_each_tap_in(row, column, image.rows, image.columns,
                            [&](int64_t, int64_t i, int64_t j) {
                              const T* const pixel = image.pixel(b, i, j);
                              for (int64_t k = 0; k < image.channels; ++k) {
                                sums[k] += static_cast<Wide<T>>(pixel[k]);
                              }
                            });
    const auto count =
        static_cast<Wide<T>>(count_taps(windows, row, column, image.rows, image.columns));
    for (const Wide<T> sum : sums) *out++ = static_cast<T>(sum / count);
  });
}

template <class T>
void avg_pool2d_by_x_of(const BoxArray& c, const Windows& windows, int64_t rows, int64_t columns,
                        const Box& out_box, std::byte* out) {
  const Image<T> cotangent(c);
  Sums<T> sums(out_box);
  for_each_place(c.box, [&](int64_t b, int64_t row, int64_t column) {
    const T* const from = cotangent.pixel(b, row, column);
    const auto count =
        static_cast<Wide<T>>(count_taps(windows, row, column, {0, rows}, {0, columns}));
    windows.for_each_tap_in(row, column, rows_of(out_box), columns_of(out_box),
                            [&](int64_t, int64_t i, int64_t j) {
                              Wide<T>* const to = sums.at(b, i, j);
                              for (int64_t k = 0; k < cotangent.channels; ++k) {
                                to[k] += static_cast<Wide<T>>(from[k]) / count;
                              }
                            });
  });
  sums.write(out);
}

// Calls fn(batch, row, column, channel, row and column of the largest element) for each window
// whose result is at a place of the box; the last two are -1 where the window sees nothing.
template <class T, class Fn>
void for_each_largest(const BoxArray& x, const Windows& windows, const Box& places, Fn fn) {
  const Image<T> image(x);
  for_each_place(places, [&](int64_t b, int64_t row, int64_t column) {
    for (int64_t k = 0; k < image.channels; ++k) {
      int64_t best_row = -1;
      int64_t best_column = -1;
      auto best = std::numeric_limits<Wide<T>>::quiet_NaN();
      bool is_first = true;
      const auto look = [&](int64_t, int64_t i, int64_t j) {
        const auto value = static_cast<Wide<T>>(image.pixel(b, i, j)[k]);
        // A comparison with NaN is false.
        if (!is_first && !(value > best || (best != best && value == value))) return;
        is_first = false;
        best = value;
        best_row = i;
        best_column = j;
      };
      windows.for_each_tap_in(row, column, image.rows, image.columns, look);
      fn(b, row, column, k, best_row, best_column);
    }
  });
}

}  // namespace

void avg_pool2d(DType dtype, const BoxArray& x, const Window& height, const Window& width,
                const Box& out_box, std::byte* out) {
  visit_float(dtype, [&]<class T>() {
    avg_pool2d_of<T>(x, {height, width}, out_box, reinterpret_cast<T*>(out));
  });
}

void avg_pool2d_by_x(DType dtype, const BoxArray& c, const Window& height, const Window& width,
                     int64_t rows, int64_t columns, const Box& out_box, std::byte* out) {
  visit_float(dtype, [&]<class T>() {
    avg_pool2d_by_x_of<T>(c, {height, width}, rows, columns, out_box, out);
  });
}

void max_pool2d(DType dtype, const BoxArray& x, const BoxArray& values, const Window& height,
                const Window& width, const Box& out_box, std::byte* out) {
  visit_float(dtype, [&]<class T>() {
    const Image<T> image(values);
    T* to = reinterpret_cast<T*>(out);
    for_each_largest<T>(x, {height, width}, out_box,
                        [&](int64_t b, int64_t, int64_t, int64_t k, int64_t i, int64_t j) {
                          *to++ = i < 0 ? static_cast<T>(-std::numeric_limits<float>::infinity())
                                        : image.pixel(b, i, j)[k];
                        });
  });
}

void max_pool2d_by_values(DType dtype, const BoxArray& x, const BoxArray& c, const Window& height,
                          const Window& width, const Box& out_box, std::byte* out) {
  visit_float(dtype, [&]<class T>() {
    const Image<T> cotangent(c);
    Sums<T> sums(out_box);
    for_each_largest<T>(
        x, {height, width}, c.box,
        [&](int64_t b, int64_t row, int64_t column, int64_t k, int64_t i, int64_t j) {
          const Range rows = rows_of(out_box);
          const Range columns = columns_of(out_box);
          if (i < rows.begin || i >= rows.end || j < columns.begin || j >= columns.end) return;
          sums.at(b, i, j)[k] += static_cast<Wide<T>>(cotangent.pixel(b, row, column)[k]);
        });
    sums.write(out);
  });
}

void mask_later(DType dtype, const std::byte* in, const Box& box, int64_t shift, std::byte* out) {
  if (box.is_empty()) return;
  visit_float(dtype, [&]<class T>() {
    const T* from = reinterpret_cast<const T*>(in);
    T* to = reinterpret_cast<T*>(out);
    const T masked = -std::numeric_limits<T>::infinity();
    const int64_t keys = box.sizes[3];
    for (int64_t line = 0; line < box.sizes[0] * box.sizes[1]; ++line) {
      for (int64_t q = 0; q < box.sizes[2]; ++q, from += keys, to += keys) {
        const int64_t last = box.offsets[2] + q + shift - box.offsets[3];
        const int64_t seen = std::clamp<int64_t>(last + 1, 0, keys);
        std::copy_n(from, seen, to);
        std::fill(to + seen, to + keys, masked);
      }
    }
  });
}

Status pick(DType dtype, const std::byte* in, const Box& box, const DimPart& part,
            const Indices& indices, std::byte* out) {
  const int64_t element_bytes = dtype_size(dtype);
  const int64_t columns = box.sizes.back();
  for (int64_t i = 0; i < indices.count; ++i) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t index, checked_index(indices, i, part));
    const int64_t place = index - part.first;
    if (place < 0 || place >= columns) {
      std::memset(out + i * element_bytes, 0, element_bytes);
    } else {
      std::memcpy(out + i * element_bytes, in + (i * columns + place) * element_bytes,
                  element_bytes);
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::kernels
