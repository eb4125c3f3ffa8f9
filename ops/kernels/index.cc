// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/index.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "Eigen/Core"
#include "device/cpu/kernels.h"

namespace tessera::kernels {
namespace {

int64_t index_at(const Indices& indices, int64_t k) {
  if (indices.dtype == DType::kInt32) return reinterpret_cast<const int32_t*>(indices.data)[k];
  return reinterpret_cast<const int64_t*>(indices.data)[k];
}

// f16 and bf16 are added in f32 and rounded each time; integers wrap.
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
