// SPDX-License-Identifier: Apache-2.0
//
// Any bytes read as a safetensors file are refused, or:
//
// - the tensors tile the data of the file;
// - the header that is written of them reads back as the same tensors;
// - the file is refused as DataLoss wherever it is cut off.
//
// Input: 0, then a file; or 1, a number of data bytes, then a header, of which a file is made. So
// the header can change without its length.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "files/safetensors.h"
#include "fuzz/fuzz.h"

namespace tessera::files {
namespace {

using fuzz::require;

std::string file_of(absl::string_view header, size_t data_bytes) {
  std::string file;
  for (int i = 0; i < 8; ++i) file.push_back(static_cast<char>(header.size() >> (8 * i) & 0xff));
  return absl::StrCat(file, header, std::string(data_bytes, '\0'));
}

StatusOr<SafetensorsHeader> parse(absl::string_view file) {
  return parse_safetensors(file, static_cast<int64_t>(file.size()));
}

void check(absl::string_view file) {
  const StatusOr<SafetensorsHeader> header = parse(file);
  if (!header.ok()) {
    return require(absl::IsInvalidArgument(header.status()) || absl::IsDataLoss(header.status()),
                   header.status().ToString());
  }
  int64_t end = header->data_begin;
  std::vector<SafetensorsEntry> entries = header->entries;
  for (SafetensorsEntry& entry : entries) {
    require(entry.begin == end && entry.end >= entry.begin, "the tensors tile the data");
    end = entry.end;
    const StatusOr<DType> dtype = dtype_of_safetensors(entry.dtype);
    require(dtype.ok() ? num_bytes(entry.shape, *dtype) == entry.end - entry.begin
                       : absl::IsUnimplemented(dtype.status()),
            "a tensor has the bytes of its shape");
    entry.begin -= header->data_begin;
    entry.end -= header->data_begin;
  }
  require(end == static_cast<int64_t>(file.size()), "the tensors end where the file does");

  const StatusOr<std::string> front = format_safetensors_header(entries, header->metadata);
  require(front.ok(), front.status().ToString());
  const StatusOr<SafetensorsHeader> again =
      parse(absl::StrCat(*front, file.substr(static_cast<size_t>(header->data_begin))));
  require(again.ok(), again.status().ToString());
  require(again->entries.size() == entries.size() && again->metadata == header->metadata, *front);
  for (size_t i = 0; i < entries.size(); ++i) {
    entries[i].begin += again->data_begin;
    entries[i].end += again->data_begin;
    require(again->entries[i] == entries[i], *front);
  }

  for (size_t size = 0; size < file.size(); ++size) {
    require(absl::IsDataLoss(parse(file.substr(0, size)).status()), "a cut file is DataLoss");
  }
}

}  // namespace
}  // namespace tessera::files

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const bool is_file = data[0] % 2 == 0;
  tessera::files::check(is_file ? std::string(bytes.substr(1))
                                : tessera::files::file_of(bytes.substr(2), data[1]));
  return 0;
}
