// SPDX-License-Identifier: Apache-2.0
//
// The names of the files of a checkpoint. Safe to call from any thread. Internal to checkpoint/.
//
//   manifest.json                               exists when the checkpoint does
//   data-00003-7c9e6679a1b2c3d4.safetensors     written by device 3 in save 7c9e6679a1b2c3d4
//   data-00003-7c9e6679a1b2c3d4.safetensors.partial, manifest.json.7c9e6679a1b2c3d4.partial,
//   .writing-7c9e6679a1b2c3d4.partial           not whole yet
//   .writing-7c9e6679a1b2c3d4                   names the process that saves (saver_mark.h)
#ifndef TESSERA_CHECKPOINT_NAMES_H_
#define TESSERA_CHECKPOINT_NAMES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/status.h"

namespace tessera::checkpoint::internal {

inline constexpr absl::string_view kPartialSuffix = ".partial";
inline constexpr absl::string_view kSafetensorsSuffix = ".safetensors";

std::string join_path(absl::string_view folder, absl::string_view name);
// The name in a path: "b" for "a/b" and "a/b/".
std::string last_part(absl::string_view path);

// The id of a new save: 16 random hexadecimal digits.
std::string new_save_id();
std::string data_file_name(int device, absl::string_view save_id);
std::string partial_manifest_name(absl::string_view save_id);
std::string mark_name(absl::string_view save_id);
// "step-0000000100".
std::string step_name(int64_t step);

// The id of the save that made a file of this name, a manifest apart; nothing for a name of another
// kind.
std::optional<std::string> save_id_of(absl::string_view file_name);
// Whether a save has begun in a folder with these names.
bool is_begun(absl::Span<const std::string> file_names);
// The step of a folder of this name; nothing for a name of another kind.
std::optional<int64_t> step_of(absl::string_view folder_name);

// Whether a folder is at `path`, and no link to a folder.
bool is_real_folder(const std::string& path);
// The names in a folder, sorted, without "." and "..". NotFound where there is no folder.
StatusOr<std::vector<std::string>> names_in(const std::string& folder);

}  // namespace tessera::checkpoint::internal

#endif  // TESSERA_CHECKPOINT_NAMES_H_
