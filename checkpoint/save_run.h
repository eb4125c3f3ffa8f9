// SPDX-License-Identifier: Apache-2.0
//
// run_save: the phases of a save, which all clients run at the same time.
//
//   round 1   do all clients save the same?         client 0 makes the folder and marks the save
//   round 2   every client has made its files, with room for all bytes
//   local     write, sync and rename the files
//   round 3   client 0 has all checksums            it writes the manifest: the checkpoint exists
//
// Invariants:
//   1. no file is written over: all names have the id of the save, and the manifest appears by
//      rename, after all files that it names;
//   2. after an error each client removes its files, and client 0 the folders that it made. Only
//      where a client cannot know whether the manifest has appeared do its files stay.
//
// Internal to checkpoint/.
#ifndef TESSERA_CHECKPOINT_SAVE_RUN_H_
#define TESSERA_CHECKPOINT_SAVE_RUN_H_

#include <atomic>
#include <cstdint>

#include "base/status.h"
#include "checkpoint/save_request.h"
#include "dtensor/rounds.h"

namespace tessera::checkpoint::internal {

using tessera::internal::Rounds;

// `number`: the place of the save among all saves of the job. `stopping`: true ends the save as
// Cancelled.
Status run_save(const SaveRequest& request, uint32_t number, Rounds& rounds,
                const std::atomic<bool>& stopping);

}  // namespace tessera::checkpoint::internal

#endif  // TESSERA_CHECKPOINT_SAVE_RUN_H_
