// SPDX-License-Identifier: Apache-2.0
#include "collectives/shared.h"

#include <algorithm>
#include <cstring>

namespace tessera {

uint64_t stable_hash(absl::string_view bytes, uint64_t seed) {
  // As FNV-1a, with words instead of bytes. Low bits of a product know nothing of high ones, so
  // those come down.
  uint64_t hash = 0xcbf29ce484222325 ^ seed ^ bytes.size();
  for (size_t at = 0; at < bytes.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min<size_t>(8, bytes.size() - at));
    hash = (hash ^ word) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace tessera
