// SPDX-License-Identifier: Apache-2.0
#include "tools/ckpt_tool/tensor_names.h"

#include <cstddef>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text.h"

namespace tessera::ckpt_tool {
namespace {

constexpr size_t kMaxFileNameBytes = 255;

bool is_kept(char c, bool is_first) {
  return absl::ascii_isalnum(c) || c == '_' || c == '-' || (c == '.' && !is_first);
}

}  // namespace

bool matches_pattern(absl::string_view pattern, absl::string_view name) {
  size_t p = 0;
  size_t n = 0;
  // The last "*", and the end of the bytes that it stands for. A mismatch after it makes them one
  // more; an earlier "*" need not change, as the last one can stand for whatever that would add.
  std::optional<size_t> star;
  size_t star_end = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_end = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star.has_value()) {
      p = *star + 1;
      n = ++star_end;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == absl::string_view::npos;
}

StatusOr<std::string> npy_file_name(absl::string_view tensor) {
  if (tensor.empty()) {
    return absl::InvalidArgumentError("tensor \"\" has no name, so that its .npy file has none");
  }
  std::string name;
  for (size_t i = 0; i < tensor.size(); ++i) {
    if (is_kept(tensor[i], i == 0)) {
      name += tensor[i];
    } else {
      absl::StrAppendFormat(&name, "%%%02X", static_cast<unsigned char>(tensor[i]));
    }
  }
  name += ".npy";
  if (name.size() > kMaxFileNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", in_quotes(tensor), " needs a file name of ", name.size(), " bytes, and ",
        kMaxFileNameBytes, " are possible; write it alone, or as safetensors"));
  }
  return name;
}

}  // namespace tessera::ckpt_tool
