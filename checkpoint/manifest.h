// SPDX-License-Identifier: Apache-2.0
//
// The manifest of a checkpoint, manifest.json: an Info as text.
//
//   {"format": "tessera.checkpoint", "version": 1, "save_id": "7c9e6679a1b2c3d4", "step": 100,
//    "time": "2026-11-22T13:05:00Z", "clients": 4, "metadata": {"lr": "0.01"},
//    "block_bytes": 4194304,
//    "files": [{"name": "data-00000-7c9e6679a1b2c3d4.safetensors", "bytes": 4192,
//               "blocks": ["9d1c000000000000"]}],
//    "tensors": [{"name": "w", "dtype": "f32", "shape": [4, 6], "layout": "[x, -] on {x=4}",
//                 "pieces": [[0, 4096, [0, 0], [4, 6]]]}],
//    "xxh3": "99aa06d3014798d86001c324468d497f"}
//
// A piece is [file, offset in the file, offsets of the box, sizes of the box]. A block checksum is
// 16 lower-case hexadecimal digits. Numbers are integers of 64 bits.
//
// The member "xxh3" is the last one. Its value is checksum128_hex() of all bytes of the text before
// the quotation mark that begins the member, so the comma and the blanks before it count. The text
// from there on is exactly `"xxh3": "<32 digits>"}` and a newline.
//
// Internal to checkpoint/. Pure; safe to call from any thread.
#ifndef TESSERA_CHECKPOINT_MANIFEST_H_
#define TESSERA_CHECKPOINT_MANIFEST_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "base/math.h"
#include "base/status.h"
#include "checkpoint/info.h"

namespace tessera::checkpoint::internal {

inline constexpr absl::string_view kManifestName = "manifest.json";
// Bytes of the file that one block checksum covers.
inline constexpr int64_t kBlockBytes = int64_t{4} << 20;
// The number of blocks, and of block checksums, of a file of so many bytes.
constexpr int64_t num_blocks(int64_t file_bytes) {
  return ceil_mul_div(1, file_bytes, kBlockBytes);
}
// The header of a data file, with the 8 bytes before it, is padded to a multiple of this many
// bytes.
inline constexpr int64_t kDataAlignment = 4096;
inline constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;
// Entries of the metadata of a data file: the id of its save, and the offsets of its boxes, by
// which torch places them.
inline constexpr absl::string_view kSaveIdKey = "tessera.save_id";
inline constexpr absl::string_view kShardingKey = "DCP_SHARDING_INFO";
inline constexpr size_t kSaveIdDigits = 16;

// Whether `text` is kSaveIdDigits lower-case hexadecimal digits.
bool is_save_id(absl::string_view text);
// Whether `name` can be a file in the directory of a checkpoint: not empty, not "." or "..", and
// without "/" and NUL.
bool is_file_name(absl::string_view name);

// ResourceExhausted for a manifest of more than kMaxManifestBytes; asked before it is read.
Status check_manifest_size(int64_t bytes);

// The text, with a right checksum. Info::path is not part of it. Requires an Info that
// check_info() accepts, with strings in UTF-8.
std::string format_manifest(const Info& info);

// The Info of a text, with an empty path. Checks the manifest against itself. Errors, in this
// order; the caller adds the path:
// - ResourceExhausted for a text of more than kMaxManifestBytes;
// - DataLoss where the checksum is missing or wrong: the text was cut or changed;
// - InvalidArgument for a text that is no JSON object, has a member twice, or is another format;
// - Unimplemented for another version;
// - InvalidArgument for members that are missing or of another kind; unknown members are ignored;
// - InvalidArgument by check_info().
// Takes time about linear in the text.
StatusOr<Info> parse_manifest(absl::string_view text);

// Checks the rules for an Info in a manifest. InvalidArgument names the file, or the tensor with
// its boxes and numbers:
// - file names are distinct and pass is_file_name(); a file has one checksum for each block;
// - names of tensors are distinct and pass check_tensor_name();
// - a dtype has a known size; a shape passes validate_shape() with it;
// - the pieces of a tensor tile its shape (check_tiling());
// - the bytes of a piece are in its file, at kDataAlignment or later, as the header is before them;
// - no byte belongs to two pieces.
Status check_info(const Info& info);

// The rule for the name of a tensor to save: UTF-8, 1 to 1024 bytes, no control characters, and not
// "__metadata__". InvalidArgument names it.
Status check_tensor_name(absl::string_view name);

}  // namespace tessera::checkpoint::internal

#endif  // TESSERA_CHECKPOINT_MANIFEST_H_
