// SPDX-License-Identifier: Apache-2.0
//
// Source: tensors in files, as restore() reads them, whatever wrote the files.
//
//   path                              Info of
//   folder with manifest.json         the manifest
//   model.safetensors                 the header: each tensor is one piece
//   folder of .safetensors files      the headers, of the files that model.safetensors.index.json
//                                     names if it is there. Tensors of several files are put
//                                     together by DCP_SHARDING_INFO
//   x.npy                             the header: one tensor, "x"
//
// A Source is a value; client 0 opens it and sends it to the others as text, so that all clients
// read by one description even where a file system shows them different states. Safe to call from
// any thread. Internal to checkpoint/.
#ifndef TESSERA_CHECKPOINT_SOURCE_H_
#define TESSERA_CHECKPOINT_SOURCE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "checkpoint/info.h"
#include "files/npy.h"
#include "files/random_access_file.h"

namespace tessera::checkpoint::internal {

struct Source {
  // The names of its files are relative to `folder`.
  std::shared_ptr<const Info> info;
  std::string folder;
  // Whether a manifest describes the files.
  bool is_checkpoint = false;
  // The header, for a .npy file.
  std::optional<files::NpyHeader> npy;

  std::string path_of(int file) const;
};

// Reads the manifest, or the headers. Does not look at the data files of a checkpoint.
//   NotFound            nothing is there, or a folder without manifest.json in which a checkpoint
//                       was begun
//   InvalidArgument     a malformed file; a folder without tensors
//   DataLoss, Unimplemented, ResourceExhausted   as of parse_manifest() and the readers of headers
// Messages begin with the path of the file.
StatusOr<Source> open_source(const std::string& path);

// Opens a file. DataLoss where it is missing, naming the tensors in it, or has another size than
// the source says; InvalidArgument for a link in a checkpoint, and for what is no regular file.
StatusOr<std::shared_ptr<const files::RandomAccessFile>> open_file(const Source& source, int file);
// Whether open_file() failed because the file is not there any more.
bool is_missing_file(const Status& status);

// "\"w\", \"b\" and 3 more": the tensors with a byte in [begin, end) of the file.
std::string tensors_in(const Info& info, int file, int64_t begin, int64_t end);

// The source as text, and back. InvalidArgument for another text.
std::string encode_source(const Source& source);
StatusOr<Source> decode_source(absl::string_view text);

}  // namespace tessera::checkpoint::internal

#endif  // TESSERA_CHECKPOINT_SOURCE_H_
