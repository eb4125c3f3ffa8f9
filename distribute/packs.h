// SPDX-License-Identifier: Apache-2.0
//
// Packs: which tensors of one call travel together. Pure; internal to distribute/.
#ifndef TESSERA_DISTRIBUTE_PACKS_H_
#define TESSERA_DISTRIBUTE_PACKS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"

namespace tessera::distribute::internal {

struct PackItem {
  DType dtype;
  int64_t bytes;
};

// Indices of the items of each pack: of one dtype, in the order of the call, with at most
// `bytes_per_pack` bytes and at least one item. 0: as many bytes as it pays to copy into one
// message.
std::vector<std::vector<int>> make_packs(absl::Span<const PackItem> items, int64_t bytes_per_pack);

// The limit that 0 stands for. Copying a tensor to a pack and back costs twice its bytes of memory
// traffic, and a message of its own some 20 us of all devices: at 4 GB/s they are equal at 64 KiB.
inline constexpr int64_t kDefaultPackBytes = 64 << 10;

}  // namespace tessera::distribute::internal

#endif  // TESSERA_DISTRIBUTE_PACKS_H_
