// SPDX-License-Identifier: Apache-2.0
//
// The checkpoints that a reader finds after a save that was killed, or that had an error.
//
//   EXPECT_THAT(read_root(root), IsOkAndHolds(Complete{{100, 100}}));
//   EXPECT_THAT(clean_root(root, {{100, 100}}), IsOk());
#ifndef TESSERA_TESTS_CHECKPOINT_READER_H_
#define TESSERA_TESTS_CHECKPOINT_READER_H_

#include <cstdint>
#include <map>
#include <string>

#include "base/status.h"

namespace tessera::testing {

// The base (saved_values.h) of each complete checkpoint, by step.
using Complete = std::map<int64_t, int64_t>;

// The complete checkpoints of a root, in a job of one client. Each must restore with the values of
// one save, which its metadata names; verify() and read_info() must succeed, and latest() be
// the highest. A folder of a step must be listed as complete or as FailedPrecondition, and then
// have no manifest for read_info(). Everything else is an error.
StatusOr<Complete> read_root(const std::string& root);

// Opens the root by a Checkpointer twice, in a job of one client: after each time no file is left
// that a manifest does not name, no folder without a manifest, and read_root() is as before.
Status clean_root(const std::string& root, const Complete& before);

// The base of the array in a .npy file, or of the tensors in a safetensors file.
StatusOr<int64_t> read_file(const std::string& path);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_CHECKPOINT_READER_H_
