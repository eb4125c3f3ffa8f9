// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/nn.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "Eigen/Core"
#include "absl/strings/str_cat.h"

namespace tessera::kernels {
namespace {

template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Calls fn for the floats.
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

// Calls fn(tap, index) for each tap of the window of result index `at` that is inside the dim.
template <class Fn>
void for_each_tap(const Window& window, int64_t at, int64_t size, Fn fn) {
  const int64_t first = at * window.stride - window.before;
  for (int64_t tap = 0; tap < window.size; ++tap) {
    const int64_t index = first + tap * window.dilation;
    if (index >= 0 && index < size) fn(tap, index);
  }
}

// Calls fn(batch, row, column) for the places of the box, and moves on by its channels.
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

// An image in memory, [batch, rows, columns, channels], of which a box is there.
template <class T>
struct Image {
  explicit Image(const BoxArray& array)
      : data(reinterpret_cast<const T*>(array.data)),
        rows(array.box.sizes[1]),
        columns(array.box.sizes[2]),
        channels(array.box.sizes[3]) {}
  const T* pixel(int64_t b, int64_t row, int64_t column) const {
    return data + ((b * rows + row) * columns + column) * channels;
  }

  const T* data;
  int64_t rows;
  int64_t columns;
  int64_t channels;
};

// Two windows over an image.
struct Windows {
  const Window& height;
  const Window& width;

  // Calls fn(number of the tap, row, column) for the taps inside an image of this size.
  template <class Fn>
  void for_each_tap_of(int64_t row, int64_t column, int64_t rows, int64_t columns, Fn fn) const {
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

  // Null where the place is outside the box.
  Wide<T>* at(int64_t b, int64_t row, int64_t column) {
    const int64_t i = row - box_.offsets[1];
    const int64_t j = column - box_.offsets[2];
    if (i < 0 || i >= box_.sizes[1] || j < 0 || j >= box_.sizes[2]) return nullptr;
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

template <class T>
void conv2d_of(const BoxArray& x, const BoxArray& filter, const Windows& windows,
               const Box& out_box, T* out) {
  const Image<T> image(x);
  const T* const taps = reinterpret_cast<const T*>(filter.data);
  const int64_t features = out_box.sizes[3];
  std::vector<Wide<T>> sums(features);
  for_each_place(out_box, [&](int64_t b, int64_t row, int64_t column) {
    std::fill(sums.begin(), sums.end(), Wide<T>(0));
    const auto add = [&](int64_t tap, int64_t i, int64_t j) {
      const T* const pixel = image.pixel(b, i, j);
      const T* weights = taps + tap * image.channels * features;
      for (int64_t k = 0; k < image.channels; ++k, weights += features) {
        const auto value = static_cast<Wide<T>>(pixel[k]);
        for (int64_t f = 0; f < features; ++f) sums[f] += value * static_cast<Wide<T>>(weights[f]);
      }
    };
    windows.for_each_tap_of(row, column, image.rows, image.columns, add);
    for (int64_t f = 0; f < features; ++f) *out++ = static_cast<T>(sums[f]);
  });
}

template <class T>
void conv2d_by_x_of(const BoxArray& c, const BoxArray& filter, const Windows& windows,
                    const Box& out_box, std::byte* out) {
  const Image<T> cotangent(c);
  const T* const taps = reinterpret_cast<const T*>(filter.data);
  const int64_t channels = out_box.sizes[3];
  const int64_t features = cotangent.channels;
  Sums<T> sums(out_box);
  for_each_place(c.box, [&](int64_t b, int64_t row, int64_t column) {
    const T* const from = cotangent.pixel(b, row, column);
    const auto add = [&](int64_t tap, int64_t i, int64_t j) {
      Wide<T>* const to = sums.at(b, i, j);
      if (to == nullptr) return;
      const T* weights = taps + tap * channels * features;
      for (int64_t k = 0; k < channels; ++k, weights += features) {
        for (int64_t f = 0; f < features; ++f) {
          to[k] += static_cast<Wide<T>>(from[f]) * static_cast<Wide<T>>(weights[f]);
        }
      }
    };
    // Every place of the box is a place of the image.
    windows.for_each_tap_of(row, column, out_box.offsets[1] + out_box.sizes[1],
                            out_box.offsets[2] + out_box.sizes[2], add);
  });
  sums.write(out);
}

template <class T>
void conv2d_by_filter_of(const BoxArray& x, const BoxArray& c, const Windows& windows,
                         const Box& out_box, std::byte* out) {
  const Image<T> image(x);
  const Image<T> cotangent(c);
  Sums<T> sums(out_box);
  for_each_place(c.box, [&](int64_t b, int64_t row, int64_t column) {
    const T* const from = cotangent.pixel(b, row, column);
    const auto add = [&](int64_t tap, int64_t i, int64_t j) {
      const T* const pixel = image.pixel(b, i, j);
      Wide<T>* to = sums.data() + tap * image.channels * cotangent.channels;
      for (int64_t k = 0; k < image.channels; ++k, to += cotangent.channels) {
        const auto value = static_cast<Wide<T>>(pixel[k]);
        for (int64_t f = 0; f < cotangent.channels; ++f) {
          to[f] += value * static_cast<Wide<T>>(from[f]);
        }
      }
    };
    windows.for_each_tap_of(row, column, image.rows, image.columns, add);
  });
  sums.write(out);
}

template <class T>
int64_t num_taps(const Windows& windows, int64_t row, int64_t column, int64_t rows,
                 int64_t columns) {
  int64_t count = 0;
  windows.for_each_tap_of(row, column, rows, columns, [&](int64_t, int64_t, int64_t) { ++count; });
  return count;
}

template <class T>
void avg_pool2d_of(const BoxArray& x, const Windows& windows, const Box& out_box, T* out) {
  const Image<T> image(x);
  std::vector<Wide<T>> sums(image.channels);
  for_each_place(out_box, [&](int64_t b, int64_t row, int64_t column) {
    std::fill(sums.begin(), sums.end(), Wide<T>(0));
    windows.for_each_tap_of(row, column, image.rows, image.columns,
                            [&](int64_t, int64_t i, int64_t j) {
                              const T* const pixel = image.pixel(b, i, j);
                              for (int64_t k = 0; k < image.channels; ++k) {
                                sums[k] += static_cast<Wide<T>>(pixel[k]);
                              }
                            });
    const auto count =
        static_cast<Wide<T>>(num_taps<T>(windows, row, column, image.rows, image.columns));
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
    const auto count = static_cast<Wide<T>>(num_taps<T>(windows, row, column, rows, columns));
    windows.for_each_tap_of(row, column, rows, columns, [&](int64_t, int64_t i, int64_t j) {
      Wide<T>* const to = sums.at(b, i, j);
      for (int64_t k = 0; to != nullptr && k < cotangent.channels; ++k) {
        to[k] += static_cast<Wide<T>>(from[k]) / count;
      }
    });
  });
  sums.write(out);
}

// Calls fn(batch, row, column, channel, row and column of the largest element) for each window
// whose result is at a place of the box.
template <class T, class Fn>
void for_each_largest(const BoxArray& x, const Windows& windows, const Box& places, Fn fn) {
  const Image<T> image(x);
  for_each_place(places, [&](int64_t b, int64_t row, int64_t column) {
    for (int64_t k = 0; k < image.channels; ++k) {
      int64_t best_row = 0;
      int64_t best_column = 0;
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
      windows.for_each_tap_of(row, column, image.rows, image.columns, look);
      fn(b, row, column, k, best_row, best_column);
    }
  });
}

}  // namespace

void conv2d(DType dtype, const BoxArray& x, const BoxArray& filter, const Window& height,
            const Window& width, const Box& out_box, std::byte* out) {
  visit_float(dtype, [&]<class T>() {
    conv2d_of<T>(x, filter, {height, width}, out_box, reinterpret_cast<T*>(out));
  });
}

void conv2d_by_x(DType dtype, const BoxArray& c, const BoxArray& filter, const Window& height,
                 const Window& width, const Box& out_box, std::byte* out) {
  visit_float(dtype, [&]<class T>() {
    conv2d_by_x_of<T>(c, filter, {height, width}, out_box, out);
  });
}

void conv2d_by_filter(DType dtype, const BoxArray& x, const BoxArray& c, const Window& height,
                      const Window& width, const Box& out_box, std::byte* out) {
  visit_float(dtype, [&]<class T>() {
    conv2d_by_filter_of<T>(x, c, {height, width}, out_box, out);
  });
}

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
                          *to++ = image.pixel(b, i, j)[k];
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
          Wide<T>* const to = sums.at(b, i, j);
          if (to != nullptr) to[k] += static_cast<Wide<T>>(cotangent.pixel(b, row, column)[k]);
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
