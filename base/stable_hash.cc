// SPDX-License-Identifier: Apache-2.0
#include "base/stable_hash.h"

#include <algorithm>
#include <cstring>

namespace tessera {
namespace {

uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15;
  // The low bits of a product do not depend on the high bits of its factors.
  return hash ^ hash >> 32;
}

}  // namespace

uint64_t stable_hash(absl::string_view bytes, uint64_t seed) {
  // The last word is filled up with zeros, so that the size tells texts apart that end in zeros.
  uint64_t hash = mix(0xcbf29ce484222325 ^ seed, bytes.size());
  for (size_t at = 0; at < bytes.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min<size_t>(8, bytes.size() - at));
    hash = mix(hash, word);
  }
  return hash;
}

}  // namespace tessera
