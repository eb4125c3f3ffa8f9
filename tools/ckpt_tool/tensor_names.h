// SPDX-License-Identifier: Apache-2.0
//
// Names of tensors: patterns that select them, and the names of .npy files that hold them.
//
//   "layers.*.w"  matches  "layers.0.w", "layers.0.attention.w"
//   "layers.0.w"  is in    layers.0.w.npy
//   "../x"        is in    %2E.%2Fx.npy: a name is no path
#ifndef TESSERA_TOOLS_CKPT_TOOL_TENSOR_NAMES_H_
#define TESSERA_TOOLS_CKPT_TOOL_TENSOR_NAMES_H_

#include <string>

#include "absl/strings/string_view.h"
#include "base/status.h"

namespace tessera::ckpt_tool {

// Whether the whole name matches: "*" stands for any bytes, also none and "/"; "?" for one byte;
// every other byte for itself. O(bytes of the pattern x bytes of the name).
bool matches_pattern(absl::string_view pattern, absl::string_view name);

// The name of the .npy file of a tensor in a folder, different for each name: letters, digits, "_",
// "-" and "." are kept, except a "." at the beginning; another byte is "%" and two hexadecimal
// digits. InvalidArgument, naming the tensor, for an empty name and for a file name of more than
// 255 bytes.
StatusOr<std::string> npy_file_name(absl::string_view tensor);

}  // namespace tessera::ckpt_tool

#endif  // TESSERA_TOOLS_CKPT_TOOL_TENSOR_NAMES_H_
