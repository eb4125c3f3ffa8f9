// SPDX-License-Identifier: Apache-2.0
//
// safetensors: the header of a file of named tensors, read and written.
//
//   bytes      0 .. 8        8 .. 8+N                                  8+N ..
//              N, u64, LE    {"w":{"dtype":"F32","shape":[2,3],        data: 24 bytes of w
//                             "data_offsets":[0,24]}} and blanks
//
// Invariants of a header that was read:
//   1. N is 1 to kMaxSafetensorsHeaderBytes, and the file has that many bytes;
//   2. the header is an object of strict JSON (json_reader.h), and no name is there twice;
//   3. a tensor has as many bytes as its dtype and shape say, and its rank is at most kMaxRank;
//   4. the tensors tile the data: no byte of it belongs to two tensors or to none;
//   5. an empty tensor begins where another tensor begins or ends.
//
// Data begins at any address, and so does a tensor: some writers do not pad. Elements are copied,
// never read through a pointer of their type.
//
// Errors: InvalidArgument; DataLoss where the file ends before its header or its tensors do. They
// name the tensor and the bytes. Nothing is allocated from a number that was not compared with the
// size of the file. Dtypes that Tessera lacks are listed: dtype_of_safetensors() refuses them.
//
// Equivalent: safetensors of Hugging Face, 0.8; its reader accepts duplicate names, a blank before
// the header, and ranks above 254, which are refused here.
#ifndef TESSERA_FILES_SAFETENSORS_H_
#define TESSERA_FILES_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "files/random_access_file.h"

namespace tessera::files {

struct SafetensorsEntry {
  std::string name;   // any text: also empty, with slashes, with a byte 00
  std::string dtype;  // "F32"
  Shape shape;
  int64_t begin, end;  // bytes from the start of the file

  friend bool operator==(const SafetensorsEntry&, const SafetensorsEntry&) = default;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the order of their bytes: by begin, end, name
  std::map<std::string, std::string> metadata;
  int64_t data_begin;
};

inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// Reads the header of a file of `file_bytes`. `front` is its beginning: 8 bytes and the header, or
// more, or the whole of a file that is shorter. The caller adds the name of the file to an error.
StatusOr<SafetensorsHeader> parse_safetensors(absl::string_view front, int64_t file_bytes);

// Reads the header of `file`; errors begin with its path. Allocates at most as many bytes as the
// file has before the header is parsed.
StatusOr<SafetensorsHeader> read_safetensors_header(const RandomAccessFile& file);

// The dtype of a name such as "F32". Unimplemented, with the name, for a dtype of the format that
// Tessera lacks: U16, F8_E4M3. InvalidArgument for every other text.
StatusOr<DType> dtype_of_safetensors(absl::string_view dtype);
absl::string_view safetensors_name(DType dtype);
// The bits of an element of any dtype of the format, by its name; nothing for every other text.
std::optional<int64_t> bits_of_safetensors(absl::string_view dtype);

// The 8 bytes and the header of a file that holds `tensors`, in this order, padded with blanks so
// that the data begins at a multiple of `alignment`. begin and end of the tensors count from the
// data. The bytes equal those of the reference library, if `alignment` is 8 and the order is its
// own: by descending alignment of the dtype, then by name.
//
// InvalidArgument for a name or a metadata text that is no UTF-8, for a name that is there twice or
// is "__metadata__", and for a header over kMaxSafetensorsHeaderBytes. Requires that the tensors
// tile the data.
StatusOr<std::string> format_safetensors_header(absl::Span<const SafetensorsEntry> tensors,
                                                const std::map<std::string, std::string>& metadata,
                                                int64_t alignment = 8);

}  // namespace tessera::files

#endif  // TESSERA_FILES_SAFETENSORS_H_
