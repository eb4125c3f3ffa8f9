// SPDX-License-Identifier: Apache-2.0
#include "distribute/packs.h"

#include <map>

namespace tessera::distribute::internal {

std::vector<std::vector<int>> make_packs(absl::Span<const PackItem> items, int64_t bytes_per_pack) {
  const int64_t limit = bytes_per_pack == 0 ? kDefaultPackBytes : bytes_per_pack;
  struct Open {
    size_t pack;
    int64_t bytes;
  };
  std::vector<std::vector<int>> packs;
  std::map<DType, Open> open;
  for (size_t i = 0; i < items.size(); ++i) {
    const PackItem& item = items[i];
    const auto found = open.find(item.dtype);
    if (found == open.end() || found->second.bytes + item.bytes > limit) {
      open[item.dtype] = {packs.size(), item.bytes};
      packs.push_back({static_cast<int>(i)});
      continue;
    }
    packs[found->second.pack].push_back(static_cast<int>(i));
    found->second.bytes += item.bytes;
  }
  return packs;
}

}  // namespace tessera::distribute::internal
