// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checksum.h"

#include "absl/strings/str_cat.h"

// All functions of the library are static in this file.
#define XXH_INLINE_ALL
#include "xxhash.h"

namespace tessera::checkpoint::internal {

struct Checksum64::State {
  XXH3_state_t hash;
};

uint64_t checksum64(absl::Span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

uint64_t checksum64(absl::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

Checksum64::Checksum64() : state_(std::make_unique<State>()) { reset(); }
Checksum64::~Checksum64() = default;
Checksum64::Checksum64(Checksum64&&) noexcept = default;
Checksum64& Checksum64::operator=(Checksum64&&) noexcept = default;

void Checksum64::add(absl::Span<const std::byte> bytes) {
  XXH3_64bits_update(&state_->hash, bytes.data(), bytes.size());
}

uint64_t Checksum64::value() const { return XXH3_64bits_digest(&state_->hash); }

void Checksum64::reset() { XXH3_64bits_reset(&state_->hash); }

std::string checksum128_hex(absl::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return absl::StrCat(absl::Hex(hash.high64, absl::kZeroPad16),
                      absl::Hex(hash.low64, absl::kZeroPad16));
}

}  // namespace tessera::checkpoint::internal
