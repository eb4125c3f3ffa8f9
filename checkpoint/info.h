// SPDX-License-Identifier: Apache-2.0
//
// Info: what a checkpoint holds, as its manifest says: files, tensors, and where in the files the
// boxes of each tensor are.
//
//   w, f32 [13, 6], saved under [x, -] on {x=4}        data-00000-...    data-00001-...    ...
//
//     rows 0 to 3    piece 0: file 0, offset 4096       | header | rows 0-3 |
//     rows 4 to 6    piece 1: file 1, offset 4096                         | header | rows 4-6 |
//     ...
//
// The pieces of a tensor hold each of its elements once. The layout is a comment: readers use the
// boxes of the pieces alone.
//
// Values without invariants of their own: read_info() and the functions that take an Info say what
// they check.
#ifndef TESSERA_CHECKPOINT_INFO_H_
#define TESSERA_CHECKPOINT_INFO_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/public.h"
#include "base/shape.h"

namespace TESSERA_PUBLIC tessera {
namespace checkpoint {

// A box of a tensor, row-major and dense in a file.
struct Piece {
  Box box;
  int file;        // Index in Info::files.
  int64_t offset;  // The first byte, counted from the start of the file.

  friend bool operator==(const Piece& a, const Piece& b) = default;
};

struct TensorInfo {
  std::string name;
  // "f32", ... as dtype_name() says; of a dtype that Tessera does not have, the name that
  // safetensors has for it, in lower case: "u16", "f8_e4m3".
  std::string dtype;
  Shape shape;
  // "[x, -] on {x=4}": the layout that was saved. Empty where it is not known, as in files of other
  // tools.
  std::string layout;
  std::vector<Piece> pieces;

  // The bytes of all elements; 0 for a dtype of an unknown size.
  int64_t bytes() const;

  friend bool operator==(const TensorInfo& a, const TensorInfo& b) = default;
};

struct FileInfo {
  std::string name;  // In the directory of the checkpoint.
  int64_t bytes;
  // XXH3-64 of each 4 MiB of the file, its header included; the last block may be shorter. Empty
  // where there are no checksums, as for files of other tools.
  std::vector<uint64_t> block_checksums;

  friend bool operator==(const FileInfo& a, const FileInfo& b) = default;
};

struct Info {
  std::string path;
  // 16 hexadecimal digits, different for each save.
  std::string save_id;
  int64_t step = 0;
  absl::Time time;  // When the save began.
  int num_clients = 0;
  std::map<std::string, std::string> metadata;
  std::vector<TensorInfo> tensors;
  std::vector<FileInfo> files;

  friend bool operator==(const Info& a, const Info& b) = default;
};

}  // namespace checkpoint
}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_INFO_H_
