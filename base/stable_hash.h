// SPDX-License-Identifier: Apache-2.0
//
// stable_hash: a hash that is equal in every process, which absl::Hash is not.
//
// Clients compare such hashes: of meshes, topologies, plans, counts and texts. It is FNV-1a on
// words of 8 bytes instead of single bytes. Keys can be chosen so that they collide.
#ifndef TESSERA_BASE_STABLE_HASH_H_
#define TESSERA_BASE_STABLE_HASH_H_

#include <cstdint>
#include <type_traits>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tessera {

// `seed`: the hash of the values before `bytes`, so that a sequence of values has one hash.
uint64_t stable_hash(absl::string_view bytes, uint64_t seed = 0);

// The hash of the bytes of integers.
template <class Integer>
uint64_t stable_hash(absl::Span<const Integer> values, uint64_t seed = 0) {
  static_assert(std::is_integral_v<Integer>);
  return stable_hash(absl::string_view(reinterpret_cast<const char*>(values.data()),
                                       values.size() * sizeof(Integer)),
                     seed);
}

}  // namespace tessera

#endif  // TESSERA_BASE_STABLE_HASH_H_
