// SPDX-License-Identifier: Apache-2.0
//
// Any bytes read as a .npy file are refused, or:
//
// - the array is in the file;
// - the header that is written of it reads back as the same array;
// - the file is refused as DataLoss wherever the header or the array is cut off.
//
// Input: 0, then a file; or a version of 1 to 3, a number of data bytes, then the text of a header,
// of which a file is made. So the text can change without its length.
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "files/npy.h"
#include "fuzz/fuzz.h"

namespace tessera::files {
namespace {

using fuzz::require;

std::string file_of(int version, absl::string_view text, size_t data_bytes) {
  std::string file("\x93NUMPY", 6);
  file.push_back(static_cast<char>(version));
  file.push_back('\0');
  const int length_bytes = version == 1 ? 2 : 4;
  for (int i = 0; i < length_bytes; ++i) {
    file.push_back(static_cast<char>(text.size() >> (8 * i) & 0xff));
  }
  return absl::StrCat(file, text, std::string(data_bytes, '\0'));
}

StatusOr<NpyHeader> parse(absl::string_view file) {
  return parse_npy(file, static_cast<int64_t>(file.size()));
}

void check(absl::string_view file) {
  const StatusOr<NpyHeader> header = parse(file);
  if (!header.ok()) {
    return require(absl::IsInvalidArgument(header.status()) || absl::IsDataLoss(header.status()) ||
                       absl::IsUnimplemented(header.status()),
                   header.status().ToString());
  }
  require(validate_shape(header->shape, header->dtype).ok(), "a shape");
  const int64_t bytes = num_bytes(header->shape, header->dtype);
  const auto size = static_cast<int64_t>(file.size());
  require(header->data_offset <= size && bytes <= size - header->data_offset,
          "the array is in the file");

  const std::string front = format_npy_header(header->dtype, header->shape);
  const StatusOr<NpyHeader> again =
      parse(absl::StrCat(front, std::string(static_cast<size_t>(bytes), '\0')));
  require(again.ok(), again.status().ToString());
  require(again->dtype == header->dtype && again->shape == header->shape && !again->is_fortran &&
              !again->is_big_endian && again->data_offset == static_cast<int64_t>(front.size()),
          front);

  for (int64_t cut = 0; cut < header->data_offset + bytes; ++cut) {
    require(absl::IsDataLoss(parse(file.substr(0, static_cast<size_t>(cut))).status()),
            "a cut file is DataLoss");
  }
}

}  // namespace
}  // namespace tessera::files

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const int version = data[0] % 4;
  tessera::files::check(version == 0 ? std::string(bytes.substr(1))
                                     : tessera::files::file_of(version, bytes.substr(2), data[1]));
  return 0;
}
