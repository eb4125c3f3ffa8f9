// SPDX-License-Identifier: Apache-2.0
//
// Conversion: the files that a conversion writes, before a byte of a tensor is read.
//
//   --to safetensors                      model.safetensors
//   --to safetensors --max-file-bytes N   model-00001-of-00002.safetensors, ... and
//                                         model.safetensors.index.json, as transformers names them
//   --to npy                              one file; into a folder, a file for each tensor
//   --to tessera                          data-00000-<save id>.safetensors and manifest.json
//
// In a safetensors file wider dtypes are first, then names, which is the order of the reference
// library. A tensor is in one piece. Tensors fill a file in the order of the source; a tensor that
// alone exceeds the limit has a file of its own.
//
// Pure: depends on its arguments alone.
#ifndef TESSERA_TOOLS_CKPT_TOOL_CONVERSION_H_
#define TESSERA_TOOLS_CKPT_TOOL_CONVERSION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/info.h"
#include "tools/ckpt_tool/arguments.h"

namespace tessera::ckpt_tool {

struct ConvertOptions {
  Format to = Format::kTessera;
  int64_t max_file_bytes = 0;                        // 0: no limit
  std::optional<std::string> tensor = std::nullopt;  // a pattern of names; none: all
  int64_t buffer_bytes = int64_t{16} << 20;
};

struct PlacedTensor {
  int tensor;      // index in Info::tensors of the source
  int64_t offset;  // in the file
};

struct PlannedFile {
  std::string name;
  std::string front;  // all bytes before the first tensor
  std::vector<PlacedTensor> tensors;
  int64_t bytes;  // of the whole file
};

struct Conversion {
  // False: there is one file, which gets the name of the target.
  bool is_folder = true;
  std::vector<PlannedFile> files;
  // The text of model.safetensors.index.json; empty: none.
  std::string index;
  // --to tessera: the manifest, without block checksums.
  std::optional<checkpoint::Info> manifest;
  int64_t num_tensors = 0;
  int64_t tensor_bytes = 0;
};

// Plans the conversion of tensors of `source` to the path `target`. `save_id` is that of the new
// checkpoint.
// - NotFound where the pattern matches no tensor;
// - InvalidArgument for several tensors in one .npy file, bf16 in any, a name that the format does
//   not allow, and a header over the cap of safetensors;
// - Unimplemented for a dtype that Tessera lacks.
StatusOr<Conversion> plan_conversion(const checkpoint::Info& source, const ConvertOptions& options,
                                     const std::string& target, const std::string& save_id);

}  // namespace tessera::ckpt_tool

#endif  // TESSERA_TOOLS_CKPT_TOOL_CONVERSION_H_
