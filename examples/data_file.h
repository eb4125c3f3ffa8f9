// SPDX-License-Identifier: Apache-2.0
//
// Finds and reads the files of examples/data.
#ifndef TESSERA_EXAMPLES_DATA_FILE_H_
#define TESSERA_EXAMPLES_DATA_FILE_H_

#include <string>

#include "absl/strings/string_view.h"
#include "tessera/tessera.h"

namespace tessera::examples {

// The path of examples/data/NAME: below the current folder, or in the runfiles that Bazel put
// beside `program` (argv[0]). NotFound lists the places that were searched.
StatusOr<std::string> find_data(absl::string_view program, absl::string_view name);

// Reads a file. If it cannot be read, returns NotFound or PermissionDenied with the system's reason
// and a suggestion: `usual`, the default file of --data.
StatusOr<std::string> read_data(const std::string& path, absl::string_view usual);

}  // namespace tessera::examples

#endif  // TESSERA_EXAMPLES_DATA_FILE_H_
