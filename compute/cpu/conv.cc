// SPDX-License-Identifier: Apache-2.0
//
// Convolutions as products of matrices. A patch is the part of the image under a window, as a row
// of [taps, channels]; with the filter as [taps * channels, features]
//
//   the result                   patches filter
//   the gradient by the filter   patches^T cotangent
//   the gradient by the image    cotangent filter^T, whose rows are patches: added where they are
//   from
//
// Patches are made in blocks that fit the cache. So the order of sums depends on the sizes alone.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "compute/cpu/gemm.h"
#include "compute/cpu/image.h"
#include "compute/cpu/nn.h"
#include "compute/cpu/pointwise.h"

namespace tessera::kernels {
namespace {

constexpr int64_t kBlockBytes = 256 << 10;

// The places of a box, in blocks of rows of `patch` elements of type W.
template <class W>
class PatchBlocks {
 public:
  PatchBlocks(const Box& places, int64_t patch)
      : places_(places),
        patch_(patch),
        most_(std::max<int64_t>(
            1, kBlockBytes / static_cast<int64_t>(sizeof(W)) / std::max<int64_t>(1, patch))),
        patches_(std::min(most_, places.sizes[0] * places.sizes[1] * places.sizes[2]) * patch) {}

  W* patches() { return patches_.data(); }

  // Calls begin(row, place) for each place, with its row of patches(), and end(first, count) after
  // each block: the number of its first place in the box, and how many places it has.
  template <class Begin, class End>
  void for_each_block(Begin begin, End end) {
    int64_t first = 0;
    int64_t count = 0;
    for_each_place(places_, [&](int64_t b, int64_t row, int64_t column) {
      begin(patches_.data() + count * patch_, b, row, column);
      if (++count < most_) return;
      end(first, count);
      first += std::exchange(count, 0);
    });
    if (count > 0) end(first, count);
  }

 private:
  const Box& places_;
  const int64_t patch_;
  const int64_t most_;
  std::vector<W> patches_;
};

// Writes the patch of the window at a place; zeros outside the image.
template <class W>
void write_patch(const Image<W>& image, const Windows& windows, int64_t b, int64_t row,
                 int64_t column, W* patch) {
  std::fill_n(patch, windows.num_taps() * image.channels, W(0));
  windows.for_each_tap_in(
      row, column, image.rows, image.columns, [&](int64_t tap, int64_t i, int64_t j) {
        std::copy_n(image.pixel(b, i, j), image.channels, patch + tap * image.channels);
      });
}

template <class W>
void conv2d_of(const Arithmetic& arithmetic, const BoxArray& x, const W* filter,
               const Windows& windows, const Box& out_box, W* out) {
  const Image<W> image(x);
  const int64_t patch = windows.num_taps() * image.channels;
  const int64_t features = out_box.sizes[3];
  PatchBlocks<W> blocks(out_box, patch);
  blocks.for_each_block([&](W* to, int64_t b, int64_t row,
                            int64_t column) { write_patch(image, windows, b, row, column, to); },
                        [&](int64_t first, int64_t count) {
                          gemm(arithmetic, {count, features, patch}, {}, blocks.patches(), filter,
                               out + first * features);
                        });
}

template <class W>
void conv2d_by_x_of(const Arithmetic& arithmetic, const BoxArray& c, const W* filter,
                    const Windows& windows, const Box& out_box, W* out) {
  const W* const cotangent = reinterpret_cast<const W*>(c.data);
  const int64_t features = c.box.sizes[3];
  const int64_t channels = out_box.sizes[3];
  const int64_t patch = windows.num_taps() * channels;
  std::fill_n(out, out_box.num_elements(), W(0));
  struct Place {
    int64_t b, row, column;
  };
  std::vector<Place> places;
  PatchBlocks<W> blocks(c.box, patch);
  blocks.for_each_block(
      [&](W*, int64_t b, int64_t row, int64_t column) {
        places.push_back({b, row, column});
      },
      [&](int64_t first, int64_t count) {
        gemm(arithmetic, {count, patch, features}, {.is_b_transposed = true},
             cotangent + first * features, filter, blocks.patches());
        const W* from = blocks.patches();
        for (const Place& place : places) {
          windows.for_each_tap_in(
              place.row, place.column, rows_of(out_box), columns_of(out_box),
              [&](int64_t tap, int64_t i, int64_t j) {
                const int64_t line = place.b * out_box.sizes[1] + i - out_box.offsets[1];
                W* const to = out + (line * out_box.sizes[2] + j - out_box.offsets[2]) * channels;
                for (int64_t k = 0; k < channels; ++k) to[k] += from[tap * channels + k];
              });
          from += patch;
        }
        places.clear();
      });
}

template <class W>
void conv2d_by_filter_of(const Arithmetic& arithmetic, const BoxArray& x, const BoxArray& c,
                         const Windows& windows, const Box& out_box, W* out) {
  const Image<W> image(x);
  const W* const cotangent = reinterpret_cast<const W*>(c.data);
  const int64_t features = c.box.sizes[3];
  const int64_t patch = windows.num_taps() * image.channels;
  std::fill_n(out, out_box.num_elements(), W(0));
  PatchBlocks<W> blocks(c.box, patch);
  blocks.for_each_block([&](W* to, int64_t b, int64_t row,
                            int64_t column) { write_patch(image, windows, b, row, column, to); },
                        [&](int64_t first, int64_t count) {
                          gemm(arithmetic, {patch, features, count},
                               {.is_a_transposed = true, .adds = true}, blocks.patches(),
                               cotangent + first * features, out);
                        });
}

// Calls fn with arrays of f32 or f64 for `a`, `b` and the result: the arrays in memory, or for f16
// and bf16 copies.
template <class Fn>
void with_wide(DType dtype, const BoxArray& a, const BoxArray& b, const Box& out_box,
               std::byte* out, Fn fn) {
  if (out_box.is_empty()) return;
  if (dtype == DType::kFloat32) {
    return fn(a, reinterpret_cast<const float*>(b.data), b.box, reinterpret_cast<float*>(out));
  }
  if (dtype == DType::kFloat64) {
    return fn(a, reinterpret_cast<const double*>(b.data), b.box, reinterpret_cast<double*>(out));
  }
  const auto widen = [dtype](const BoxArray& array) {
    std::vector<float> wide(array.box.num_elements());
    cast(dtype, DType::kFloat32, array.data, reinterpret_cast<std::byte*>(wide.data()),
         array.box.num_elements());
    return wide;
  };
  const std::vector<float> left = widen(a);
  const std::vector<float> right = widen(b);
  std::vector<float> result(out_box.num_elements());
  fn(BoxArray{reinterpret_cast<const std::byte*>(left.data()), a.box}, right.data(), b.box,
     result.data());
  cast(DType::kFloat32, dtype, reinterpret_cast<const std::byte*>(result.data()), out,
       out_box.num_elements());
}

}  // namespace

void conv2d(const Arithmetic& arithmetic, DType dtype, const BoxArray& x, const BoxArray& filter,
            const Window& height, const Window& width, const Box& out_box, std::byte* out) {
  with_wide(dtype, x, filter, out_box, out,
            [&](const BoxArray& image, const auto* taps, const Box&, auto* to) {
              conv2d_of(arithmetic, image, taps, {height, width}, out_box, to);
            });
}

void conv2d_by_x(const Arithmetic& arithmetic, DType dtype, const BoxArray& c,
                 const BoxArray& filter, const Window& height, const Window& width,
                 const Box& out_box, std::byte* out) {
  with_wide(dtype, c, filter, out_box, out,
            [&](const BoxArray& cotangent, const auto* taps, const Box&, auto* to) {
              conv2d_by_x_of(arithmetic, cotangent, taps, {height, width}, out_box, to);
            });
}

void conv2d_by_filter(const Arithmetic& arithmetic, DType dtype, const BoxArray& x,
                      const BoxArray& c, const Window& height, const Window& width,
                      const Box& out_box, std::byte* out) {
  with_wide(dtype, x, c, out_box, out,
            [&](const BoxArray& image, const auto* cotangent, const Box& box, auto* to) {
              conv2d_by_filter_of(arithmetic, image,
                                  {reinterpret_cast<const std::byte*>(cotangent), box},
                                  {height, width}, out_box, to);
            });
}

}  // namespace tessera::kernels
