// SPDX-License-Identifier: Apache-2.0
#include "compute/cpu/index.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "Eigen/Core"
#include "compute/cpu/loops.h"
#include "device/cpu/kernels.h"

namespace tessera::kernels {
namespace {

int64_t index_at(const Indices& indices, int64_t k) {
  if (indices.dtype == DType::kInt32) return reinterpret_cast<const int32_t*>(indices.data)[k];
  return reinterpret_cast<const int64_t*>(indices.data)[k];
}

// Integers wrap.
template <class T>
void add_slice(T* to, const T* from, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      using U = std::make_unsigned_t<T>;
      to[i] = static_cast<T>(static_cast<U>(static_cast<U>(to[i]) + static_cast<U>(from[i])));
    } else {
      to[i] = static_cast<T>(to[i] + from[i]);
    }
  }
}

template <class T>
constexpr bool kIsHalf = std::is_same_v<T, Eigen::half> || std::is_same_v<T, Eigen::bfloat16>;

// Updates of one place are added in f32, in the order of the indices, and rounded once.
template <class T>
void scatter_add_halves(T* out, const Lines& lines, const DimPart& part, const Indices& indices,
                        const T* updates) {
  constexpr HalfType kType =
      std::is_same_v<T, Eigen::half> ? HalfType::kFloat16 : HalfType::kBFloat16;
  const auto place_of = [&](int64_t k) { return index_at(indices, k) - part.first; };
  std::vector<int64_t> order;
  for (int64_t k = 0; k < indices.count; ++k) {
    if (place_of(k) >= 0 && place_of(k) < lines.size) order.push_back(k);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return place_of(a) < place_of(b); });
  const int64_t n = lines.inner;
  std::vector<float> sums(n);
  std::vector<float> update(n);
  const auto widen = [n](const T* from, std::vector<float>& to) {
    loops().widen(kType, reinterpret_cast<const uint16_t*>(from), to.data(), n);
  };
  for (int64_t o = 0; o < lines.outer; ++o) {
    for (size_t i = 0; i < order.size();) {
      const int64_t place = place_of(order[i]);
      T* const to = out + (o * lines.size + place) * n;
      widen(to, sums);
      for (; i < order.size() && place_of(order[i]) == place; ++i) {
        widen(updates + (o * indices.count + order[i]) * n, update);
        for (int64_t k = 0; k < n; ++k) sums[k] += update[k];
      }
      loops().narrow(kType, sums.data(), reinterpret_cast<uint16_t*>(to), n);
    }
  }
}

}  // namespace

StatusOr<int64_t> checked_index(const Indices& indices, int64_t k, const DimPart& part) {
  const int64_t index = index_at(indices, k);
  if (index >= 0 && index < part.whole) return index;
  return index_error(index, k, part.whole);
}

void place_box(int64_t element_bytes, const std::byte* in, const Box& in_box,
               const std::vector<int64_t>& begin, const Box& out_box, std::byte* out) {
  const Box placed = {begin, in_box.sizes};
  const Box common = intersect(placed, out_box);
  if (common.is_empty()) return;
  cpu::copy_box(common, {in, placed}, {out, out_box}, element_bytes);
}

void fill(DType dtype, const std::byte* element, std::byte* out, int64_t num_elements) {
  cpu::fill_elements(dtype, element, out, num_elements);
}

Status take(int64_t element_bytes, const std::byte* in, const Lines& lines, const DimPart& part,
            const Indices& indices, std::byte* out) {
  const int64_t slice = lines.inner * element_bytes;
  for (int64_t k = 0; k < indices.count; ++k) {
    TESSERA_RETURN_IF_ERROR(checked_index(indices, k, part).status());
  }
  for (int64_t o = 0; o < lines.outer; ++o) {
    for (int64_t k = 0; k < indices.count; ++k, out += slice) {
      const int64_t place = index_at(indices, k) - part.first;
      if (slice == 0) continue;  // memory may be null
      if (place < 0 || place >= lines.size) {
        std::memset(out, 0, slice);
      } else {
        std::memcpy(out, in + (o * lines.size + place) * slice, slice);
      }
    }
  }
  return absl::OkStatus();
}

Status scatter_add(DType dtype, std::byte* out, const Lines& lines, const DimPart& part,
                   const Indices& indices, const std::byte* updates) {
  for (int64_t k = 0; k < indices.count; ++k) {
    TESSERA_RETURN_IF_ERROR(checked_index(indices, k, part).status());
  }
  visit_dtype(dtype, [&]<class T>() {
    T* const to = reinterpret_cast<T*>(out);
    const T* from = reinterpret_cast<const T*>(updates);
    if constexpr (kIsHalf<T>) return scatter_add_halves(to, lines, part, indices, from);
    for (int64_t o = 0; o < lines.outer; ++o) {
      for (int64_t k = 0; k < indices.count; ++k, from += lines.inner) {
        const int64_t place = index_at(indices, k) - part.first;
        if (place < 0 || place >= lines.size) continue;
        add_slice(to + (o * lines.size + place) * lines.inner, from, lines.inner);
      }
    }
  });
  return absl::OkStatus();
}

void one_hot(const Indices& indices, int64_t depth, float* out) {
  std::fill_n(out, indices.count * depth, 0.0F);
  for (int64_t k = 0; k < indices.count; ++k) {
    const int64_t index = index_at(indices, k);
    if (index >= 0 && index < depth) out[k * depth + index] = 1;
  }
}

}  // namespace tessera::kernels
