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

template <class T>
void conv2d_of(const BoxArray& x, const BoxArray& filter, const Window& height, const Window& width,
               const Box& out_box, T* out) {
  const T* const image = reinterpret_cast<const T*>(x.data);
  const T* const taps = reinterpret_cast<const T*>(filter.data);
  const int64_t rows = x.box.sizes[1];
  const int64_t columns = x.box.sizes[2];
  const int64_t channels = x.box.sizes[3];
  const int64_t features = out_box.sizes[3];
  std::vector<Wide<T>> sums(features);
  for_each_place(out_box, [&](int64_t b, int64_t row, int64_t column) {
    std::fill(sums.begin(), sums.end(), Wide<T>(0));
    for_each_tap(height, row, rows, [&](int64_t r, int64_t i) {
      for_each_tap(width, column, columns, [&](int64_t c, int64_t j) {
        const T* const pixel = image + ((b * rows + i) * columns + j) * channels;
        const T* weights = taps + (r * width.size + c) * channels * features;
        for (int64_t k = 0; k < channels; ++k, weights += features) {
          const auto value = static_cast<Wide<T>>(pixel[k]);
          for (int64_t f = 0; f < features; ++f) {
            sums[f] += value * static_cast<Wide<T>>(weights[f]);
          }
        }
      });
    });
    for (int64_t f = 0; f < features; ++f) *out++ = static_cast<T>(sums[f]);
  });
}

template <class T>
void pool2d_of(bool is_max, const BoxArray& x, const Window& height, const Window& width,
               const Box& out_box, T* out) {
  const T* const image = reinterpret_cast<const T*>(x.data);
  const int64_t rows = x.box.sizes[1];
  const int64_t columns = x.box.sizes[2];
  const int64_t channels = x.box.sizes[3];
  std::vector<Wide<T>> sums(channels);
  for_each_place(out_box, [&](int64_t b, int64_t row, int64_t column) {
    std::fill(sums.begin(), sums.end(),
              is_max ? std::numeric_limits<Wide<T>>::quiet_NaN() : Wide<T>(0));
    int64_t count = 0;
    for_each_tap(height, row, rows, [&](int64_t, int64_t i) {
      for_each_tap(width, column, columns, [&](int64_t, int64_t j) {
        ++count;
        const T* const pixel = image + ((b * rows + i) * columns + j) * channels;
        for (int64_t k = 0; k < channels; ++k) {
          const auto value = static_cast<Wide<T>>(pixel[k]);
          // A comparison with NaN is false.
          sums[k] = !is_max ? sums[k] + value : sums[k] > value || value != value ? sums[k] : value;
        }
      });
    });
    const Wide<T> divisor = is_max ? Wide<T>(1) : static_cast<Wide<T>>(count);
    for (int64_t k = 0; k < channels; ++k) *out++ = static_cast<T>(sums[k] / divisor);
  });
}

}  // namespace

void conv2d(DType dtype, const BoxArray& x, const BoxArray& filter, const Window& height,
            const Window& width, const Box& out_box, std::byte* out) {
  visit_float(dtype, [&]<class T>() {
    conv2d_of<T>(x, filter, height, width, out_box, reinterpret_cast<T*>(out));
  });
}

void pool2d(bool is_max, DType dtype, const BoxArray& x, const Window& height, const Window& width,
            const Box& out_box, std::byte* out) {
  visit_float(dtype, [&]<class T>() {
    pool2d_of<T>(is_max, x, height, width, out_box, reinterpret_cast<T*>(out));
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
