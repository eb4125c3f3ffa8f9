// SPDX-License-Identifier: Apache-2.0
//
// Checksums of checkpoints: XXH3 with 64 bits for blocks of data, with 128 bits for manifests.
// They find damage, not malice: bytes can be made for any checksum.
//
// https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md. Internal to checkpoint/.
#ifndef TESSERA_CHECKPOINT_CHECKSUM_H_
#define TESSERA_CHECKPOINT_CHECKSUM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tessera::checkpoint::internal {

// XXH3-64, seed 0.
uint64_t checksum64(absl::Span<const std::byte> bytes);
uint64_t checksum64(absl::string_view bytes);

// checksum64() of bytes that are added in parts. Used by one thread at a time.
class Checksum64 {
 public:
  Checksum64();
  ~Checksum64();
  Checksum64(Checksum64&&) noexcept;
  Checksum64& operator=(Checksum64&&) noexcept;

  void add(absl::Span<const std::byte> bytes);
  // The checksum of the bytes that were added since the last reset(). More may be added.
  uint64_t value() const;
  // Forgets all bytes.
  void reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// XXH3-128, seed 0, as 32 lower-case hexadecimal digits, the high half first (canonical order).
std::string checksum128_hex(absl::string_view bytes);

}  // namespace tessera::checkpoint::internal

#endif  // TESSERA_CHECKPOINT_CHECKSUM_H_
