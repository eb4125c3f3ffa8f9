// SPDX-License-Identifier: Apache-2.0
//
// convert: tensors that restore() can read, written as whole tensors in another format.
//
//   convert("run/step-0000000100", "model.safetensors", {.to = Format::kSafetensors})
//     model.safetensors.5d0f6a7b8c9d0e1f.partial    while it is written
//     model.safetensors                             afterwards
//
// Invariants:
//   1. the target appears under its name when it is whole, a folder with all its files; killed
//      before, the program leaves a .partial, which may be removed;
//   2. the source is not changed, and nothing that is there is written over;
//   3. memory does not depend on the sizes of tensors: TensorReader has two buffers.
#ifndef TESSERA_TOOLS_CKPT_TOOL_CONVERT_H_
#define TESSERA_TOOLS_CKPT_TOOL_CONVERT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "tools/ckpt_tool/conversion.h"

namespace tessera::ckpt_tool {

struct Converted {
  int64_t num_tensors = 0;
  int64_t tensor_bytes = 0;
  std::vector<std::string> files;  // paths
};

// Before a byte is written: the errors of open_source() and plan_conversion(), AlreadyExists where
// the target is there, and InvalidArgument for a target inside of the source. Then DataLoss for
// damage in the source, and the errors of the system; the target does not appear.
StatusOr<Converted> convert(const std::string& from, const std::string& to,
                            const ConvertOptions& options);

}  // namespace tessera::ckpt_tool

#endif  // TESSERA_TOOLS_CKPT_TOOL_CONVERT_H_
