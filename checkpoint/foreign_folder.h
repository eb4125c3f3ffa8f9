// SPDX-License-Identifier: Apache-2.0
//
// Files of safetensors that no manifest describes: those of other tools, as an Info without
// checksums. Safe to call from any thread. Internal to checkpoint/.
//
//   model.safetensors                       tensors "a", "b": one piece each
//   shard-1-....safetensors   "w" [2, 4]    saved_offsets [0, 0]  --+  one tensor "w" [4, 4] of
//   shard-2-....safetensors   "w" [2, 4]    saved_offsets [2, 0]  --+  two pieces
//
// torch's distributed checkpoints have the offsets of a piece in the metadata entry
// DCP_SHARDING_INFO of its file. The shape is the smallest that holds all pieces, which must tile
// it.
#ifndef TESSERA_CHECKPOINT_FOREIGN_FOLDER_H_
#define TESSERA_CHECKPOINT_FOREIGN_FOLDER_H_

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "checkpoint/info.h"

namespace tessera::checkpoint::internal {

// The Info of one file; its name is the last part of the path.
StatusOr<Info> read_foreign_file(const std::string& path);
// The Info of a folder with these names: of the files that model.safetensors.index.json names, or
// of all .safetensors files. InvalidArgument where the index names a file outside of the folder or
// a tensor that its file lacks, and where two files have a tensor that is not cut into pieces.
StatusOr<Info> read_foreign_folder(const std::string& folder, absl::Span<const std::string> names);

}  // namespace tessera::checkpoint::internal

#endif  // TESSERA_CHECKPOINT_FOREIGN_FOLDER_H_
