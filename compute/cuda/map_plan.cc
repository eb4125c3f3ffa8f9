// SPDX-License-Identifier: Apache-2.0
#include "compute/cuda/map_plan.h"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "base/dtype.h"
#include "device/cuda/kernel_plan.h"

namespace tessera::cuda {

void plan_map(absl::Span<const int64_t> sizes, absl::Span<const absl::Span<const int64_t>> strides,
              Map* map) {
  const int64_t size = dtype_size(static_cast<DType>(map->type));
  const int64_t pack = map_pack(size);
  const int64_t run = sizes.empty() ? 1 : sizes.back();
  const auto outer = sizes.first(sizes.empty() ? 0 : sizes.size() - 1);
  // Stricter than a vector of bools needs, which has one byte for each element.
  const auto aligned = [&](const std::byte* array) {
    return reinterpret_cast<uintptr_t>(array) % static_cast<uint64_t>(pack * size) == 0;
  };
  map->is_packed = aligned(map->out) && (outer.empty() || run % pack == 0);
  map->num_outer = static_cast<int32_t>(outer.size());
  for (size_t k = 0; k < strides.size(); ++k) {
    MapOperand& in = map->in[k];
    if (in.data == nullptr) continue;
    in.run_stride = sizes.empty() ? 0 : strides[k].back();
    std::reverse_copy(strides[k].begin(), strides[k].begin() + map->num_outer, in.strides);
    if (in.run_stride == 0) continue;
    map->is_packed &= in.run_stride == 1 && aligned(in.data);
    for (int dim = 0; dim < map->num_outer; ++dim) map->is_packed &= in.strides[dim] % pack == 0;
  }
  // The elements of an item are so far apart that a warp has neighbours; in short runs less far, so
  // that fewer items have no elements.
  constexpr int64_t kWarp = 32;
  const int64_t packs = (run + pack - 1) / pack;
  const uint64_t spacing =
      map->is_packed ? 1 : std::bit_ceil(static_cast<uint64_t>(std::min(packs, kWarp)));
  map->spacing_log2 = std::countr_zero(spacing);
  map->run_elements = static_cast<uint32_t>(run);
  const int64_t groups = (run - 1) / (pack << map->spacing_log2) + 1;
  map->items_per_run = make_divisor(static_cast<uint32_t>(groups << map->spacing_log2));
  map->num_items = map->items_per_run.divisor;
  for (size_t dim = 0; dim < outer.size(); ++dim) {
    const auto extent = static_cast<uint32_t>(outer[outer.size() - 1 - dim]);
    map->outer[dim] = make_divisor(extent);
    map->num_items *= extent;
  }
}

}  // namespace tessera::cuda
