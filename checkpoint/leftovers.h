// SPDX-License-Identifier: Apache-2.0
//
// The files that incomplete saves have left under a root, and their removal.
//
//   step-0000000200/ data-..., no manifest, no mark      the folder
//   step-0000000200/ data-..., no manifest, a mark       the folder, if the saver has ended
//   step-0000000100/ manifest.json, and files of another save    these files, if its saver has
//   ended
//
// Files of other names, folders that are symbolic links, and checkpoints whose manifest is damaged
// stay. Safe to call from any thread. Internal to checkpoint/.
#ifndef TESSERA_CHECKPOINT_LEFTOVERS_H_
#define TESSERA_CHECKPOINT_LEFTOVERS_H_

#include <string>
#include <vector>

#include "base/status.h"

namespace tessera::checkpoint::internal {

struct Leftover {
  std::string folder;
  std::vector<std::string> names;  // of files in it
  bool is_whole_folder = false;    // the folder goes too, if nothing else is in it
};

// NotFound where there is no root.
StatusOr<std::vector<Leftover>> find_leftovers(const std::string& root);
// Removes files that are there; the first error of the system.
Status remove_leftover(const Leftover& leftover);

// Removes a complete checkpoint: its manifest first, so that a reader never finds a part of it.
// With `sync`, the disk has no manifest before the first file goes.
enum class Sync { kNo, kYes };
Status remove_checkpoint(const std::string& folder, Sync sync);

}  // namespace tessera::checkpoint::internal

#endif  // TESSERA_CHECKPOINT_LEFTOVERS_H_
