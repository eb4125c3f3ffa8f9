// SPDX-License-Identifier: Apache-2.0
//
// The bodies of images: one element of a result. Part of math_bodies.h.
#ifndef TESSERA_COMPUTE_CUDA_IMAGE_BODIES_H_
#define TESSERA_COMPUTE_CUDA_IMAGE_BODIES_H_

#include <cstdint>

#include "compute/cuda/body_types.h"
#include "compute/cuda/math.h"
#include "device/kernel_body.h"

namespace tessera::cuda {

// The index that a tap of the window at result index `at` sees, -1 where it is not in the part
// [first, first + size) of the image.
TESSERA_KERNEL_BODY int64_t seen_index(const ImageWindow& window, int64_t at, int64_t tap,
                                       int64_t first, int64_t size) {
  const int64_t index = at * window.stride - window.before + tap * window.dilation;
  return index >= first && index < first + size ? index : -1;
}
// The result index whose window sees `index` by a tap, -1 where it is not in the part of the
// result.
TESSERA_KERNEL_BODY int64_t seeing_index(const ImageWindow& window, int64_t index, int64_t tap,
                                         int64_t first, int64_t size) {
  const int64_t reach = index + window.before - tap * window.dilation;
  if (reach < 0 || reach % window.stride != 0) return -1;
  const int64_t at = reach / window.stride;
  return at >= first && at < first + size ? at : -1;
}
TESSERA_KERNEL_BODY int64_t num_seen(const ImageWindow& window, int64_t at, int64_t first,
                                     int64_t size) {
  int64_t count = 0;
  for (int64_t tap = 0; tap < window.size; ++tap) {
    count += seen_index(window, at, tap, first, size) >= 0 ? 1 : 0;
  }
  return count;
}
TESSERA_KERNEL_BODY int64_t at4(const int64_t* sizes, int64_t i, int64_t j, int64_t k, int64_t l) {
  return ((i * sizes[1] + j) * sizes[2] + k) * sizes[3] + l;
}
// Rows and columns are those of the image, the others of the part.
template <class T>
TESSERA_KERNEL_BODY Computed<T> pixel(const ImagePart& part, int64_t n, int64_t row, int64_t column,
                                      int64_t k) {
  return load<T>(part.data, at4(part.sizes, n, row - part.offsets[1], column - part.offsets[2], k));
}

// Calls fn(row tap, column tap, row, column) for what the windows of the result at (i, j) see of a
// part of an image.
template <class Fn>
TESSERA_KERNEL_BODY void for_each_seen(const Image& image, int64_t i, int64_t j,
                                       const ImagePart& part, Fn fn) {
  for (int64_t r = 0; r < image.height.size; ++r) {
    const int64_t row = seen_index(image.height, i, r, part.offsets[1], part.sizes[1]);
    for (int64_t c = 0; row >= 0 && c < image.width.size; ++c) {
      const int64_t column = seen_index(image.width, j, c, part.offsets[2], part.sizes[2]);
      if (column >= 0) fn(r, c, row, column);
    }
  }
}
// As above, for the results of a part whose windows see the image at (i, j).
template <class Fn>
TESSERA_KERNEL_BODY void for_each_seeing(const Image& image, int64_t i, int64_t j,
                                         const ImagePart& part, Fn fn) {
  for (int64_t r = 0; r < image.height.size; ++r) {
    const int64_t row = seeing_index(image.height, i, r, part.offsets[1], part.sizes[1]);
    for (int64_t c = 0; row >= 0 && c < image.width.size; ++c) {
      const int64_t column = seeing_index(image.width, j, c, part.offsets[2], part.sizes[2]);
      if (column >= 0) fn(r, c, row, column);
    }
  }
}

template <class T>
struct ImageBody {
  using W = Computed<T>;

  static TESSERA_KERNEL_BODY void item(const Image& image, int64_t i) {
    int64_t at[4];
    int64_t rest = i;
    for (int dim = 3; dim >= 0; --dim) {
      const Divided divided_by = divided(rest, image.out_sizes[dim]);
      at[dim] = divided_by.remainder;
      rest = divided_by.quotient;
    }
    at[1] += image.out_offsets[1];
    at[2] += image.out_offsets[2];
    store<T>(image.out, i, value_of(image, at));
  }

  static TESSERA_KERNEL_BODY W value_of(const Image& image, const int64_t* at) {
    switch (image.function) {
      case ImageFunction::kConv:
        return convolution(image, at);
      case ImageFunction::kConvByX:
        return convolution_by_x(image, at);
      case ImageFunction::kConvByFilter:
        return convolution_by_filter(image, at);
      case ImageFunction::kAvgPool:
        return mean(image, at);
      case ImageFunction::kAvgPoolByX:
        return mean_by_x(image, at);
      case ImageFunction::kMaxPool: {
        const Largest largest = largest_of(image, at[0], at[1], at[2], at[3]);
        if (largest.row < 0) return -infinity<W>();
        return pixel<T>(image.b, at[0], largest.row, largest.column, at[3]);
      }
      default:
        return largest_by_values(image, at);
    }
  }

  static TESSERA_KERNEL_BODY W convolution(const Image& image, const int64_t* at) {
    W sum = 0;
    for_each_seen(image, at[1], at[2], image.a,
                  [&](int64_t r, int64_t c, int64_t row, int64_t column) {
                    for (int64_t k = 0; k < image.a.sizes[3]; ++k) {
                      sum += pixel<T>(image.a, at[0], row, column, k) *
                             load<T>(image.b.data, at4(image.b.sizes, r, c, k, at[3]));
                    }
                  });
    return sum;
  }

  static TESSERA_KERNEL_BODY W convolution_by_x(const Image& image, const int64_t* at) {
    W sum = 0;
    for_each_seeing(image, at[1], at[2], image.a,
                    [&](int64_t r, int64_t c, int64_t row, int64_t column) {
                      for (int64_t f = 0; f < image.a.sizes[3]; ++f) {
                        sum += pixel<T>(image.a, at[0], row, column, f) *
                               load<T>(image.b.data, at4(image.b.sizes, r, c, at[3], f));
                      }
                    });
    return sum;
  }

  // The result is a filter: [height, width, in, out].
  static TESSERA_KERNEL_BODY W convolution_by_filter(const Image& image, const int64_t* at) {
    W sum = 0;
    const int64_t r = at[0];
    const int64_t c = at[1] - image.out_offsets[1];
    const int64_t k = at[2] - image.out_offsets[2];
    for (int64_t n = 0; n < image.b.sizes[0]; ++n) {
      for (int64_t i = 0; i < image.b.sizes[1]; ++i) {
        const int64_t row = seen_index(image.height, image.b.offsets[1] + i, r, image.a.offsets[1],
                                       image.a.sizes[1]);
        for (int64_t j = 0; row >= 0 && j < image.b.sizes[2]; ++j) {
          const int64_t column = seen_index(image.width, image.b.offsets[2] + j, c,
                                            image.a.offsets[2], image.a.sizes[2]);
          if (column < 0) continue;
          sum += pixel<T>(image.a, n, row, column, k) *
                 load<T>(image.b.data, at4(image.b.sizes, n, i, j, at[3]));
        }
      }
    }
    return sum;
  }

  static TESSERA_KERNEL_BODY W mean(const Image& image, const int64_t* at) {
    W sum = 0;
    for_each_seen(image, at[1], at[2], image.a, [&](int64_t, int64_t, int64_t row, int64_t column) {
      sum += pixel<T>(image.a, at[0], row, column, at[3]);
    });
    return sum /
           static_cast<W>(num_seen(image.height, at[1], image.a.offsets[1], image.a.sizes[1]) *
                          num_seen(image.width, at[2], image.a.offsets[2], image.a.sizes[2]));
  }

  static TESSERA_KERNEL_BODY W mean_by_x(const Image& image, const int64_t* at) {
    W sum = 0;
    for_each_seeing(
        image, at[1], at[2], image.a, [&](int64_t, int64_t, int64_t row, int64_t column) {
          const W count = static_cast<W>(num_seen(image.height, row, 0, image.rows) *
                                         num_seen(image.width, column, 0, image.columns));
          sum += pixel<T>(image.a, at[0], row, column, at[3]) / count;
        });
    return sum;
  }

  // Where image a is largest in the window of a result; row -1 where the window sees nothing.
  struct Largest {
    int64_t row;
    int64_t column;
  };
  static TESSERA_KERNEL_BODY Largest largest_of(const Image& image, int64_t n, int64_t i, int64_t j,
                                                int64_t k) {
    Largest largest = {-1, -1};
    W best = quiet_nan<W>();
    bool is_first = true;
    for_each_seen(image, i, j, image.a, [&](int64_t, int64_t, int64_t row, int64_t column) {
      const W value = pixel<T>(image.a, n, row, column, k);
      // A comparison with NaN is false.
      if (!is_first && !(value > best || (best != best && value == value))) return;
      is_first = false;
      best = value;
      largest = {row, column};
    });
    return largest;
  }

  static TESSERA_KERNEL_BODY W largest_by_values(const Image& image, const int64_t* at) {
    W sum = 0;
    for_each_seeing(image, at[1], at[2], image.b,
                    [&](int64_t, int64_t, int64_t row, int64_t column) {
                      const Largest largest = largest_of(image, at[0], row, column, at[3]);
                      if (largest.row != at[1] || largest.column != at[2]) return;
                      sum += pixel<T>(image.b, at[0], row, column, at[3]);
                    });
    return sum;
  }
};

}  // namespace tessera::cuda

#endif  // TESSERA_COMPUTE_CUDA_IMAGE_BODIES_H_
