// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints and files that tests make by hand, with values that are known.
//
//   write_checkpoint("run/a", {.step = 100}, {{"w", DType::kInt32, {4, 6}, kColumns}})
//
// Byte i of a tensor is (167 i + seed) mod 251, or of a bool i mod 2, whatever its pieces are.
#ifndef TESSERA_TOOLS_CKPT_TOOL_MADE_FILES_H_
#define TESSERA_TOOLS_CKPT_TOOL_MADE_FILES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "base/shape.h"

namespace tessera::ckpt_tool {

struct MadeTensor {
  std::string name;
  DType dtype;
  Shape shape;
  // A file for each box; none: one file with all.
  std::vector<Box> boxes = {};
  std::string layout = "";
};

struct MadeCheckpoint {
  int64_t step = 0;
  std::string save_id = "00112233445566aa";
  std::map<std::string, std::string> metadata = {};
};

// The row-major bytes of the tensor.
std::string bytes_of(const MadeTensor& tensor);

// These fail the test where a file cannot be written.
void write_checkpoint(const std::string& folder, const MadeCheckpoint& checkpoint,
                      const std::vector<MadeTensor>& tensors);
void write_safetensors_file(const std::string& path, const std::vector<MadeTensor>& tensors,
                            const std::map<std::string, std::string>& metadata = {});
void make_folder(const std::string& path);
bool exists(const std::string& path);

// The bytes of each tensor that open_source() finds at the path, with "NAME dtype shape" as key.
// The values are read element by element.
std::map<std::string, std::string> tensors_at(const std::string& path);
// The bytes of made tensors, by the same keys.
std::map<std::string, std::string> tensors_of(const std::vector<MadeTensor>& tensors);

}  // namespace tessera::ckpt_tool

#endif  // TESSERA_TOOLS_CKPT_TOOL_MADE_FILES_H_
