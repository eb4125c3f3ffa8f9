// SPDX-License-Identifier: Apache-2.0
//
// Writing .npy files.
#include "examples/npy.h"

#include <bit>
#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera::examples {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kPreambleBytes = 10;  // magic, version and header length

}  // namespace

std::string npy_header(const Shape& shape) {
  // Python writes the tuple of one element as "(3,)".
  std::string header =
      absl::StrCat("{'descr': '<f4', 'fortran_order': False, 'shape': (",
                   absl::StrJoin(shape, ", "), shape.size() == 1 ? "," : "", "), }");
  const size_t unpadded = kPreambleBytes + header.size() + 1;
  header.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
  header.push_back('\n');
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes.push_back(static_cast<char>(header.size() & 0xff));
  bytes.push_back(static_cast<char>(header.size() >> 8));
  return bytes + header;
}

Status write_npy(const std::string& path, const HostTensor<float>& tensor) {
  static_assert(std::endian::native == std::endian::little,
                "elements are written as they are in memory");
  FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot create \"", path, "\""));
  }
  const std::string header = npy_header(tensor.shape);
  const bool written = std::fwrite(header.data(), 1, header.size(), file) == header.size() &&
                       std::fwrite(tensor.data.data(), sizeof(float), tensor.data.size(), file) ==
                           tensor.data.size() &&
                       std::fflush(file) == 0;
  const int error = errno;
  if (std::fclose(file) != 0 || !written) {
    return absl::ErrnoToStatus(written ? errno : error,
                               absl::StrCat("cannot write \"", path, "\""));
  }
  return absl::OkStatus();
}

}  // namespace tessera::examples
