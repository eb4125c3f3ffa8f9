// SPDX-License-Identifier: Apache-2.0
//
// Files of examples/data, which examples read.
#ifndef TESSERA_EXAMPLES_DATA_FILE_H_
#define TESSERA_EXAMPLES_DATA_FILE_H_

#include <string>

#include "absl/strings/string_view.h"
#include "tessera.h"

namespace tessera::examples {

// Where examples/data/NAME is: below the current folder, or in the runfiles that Bazel put beside
// `program` (argv[0]). NotFound lists the places.
StatusOr<std::string> find_data(absl::string_view program, absl::string_view name);

// The bytes of a file. NotFound or PermissionDenied, with the system's reason and what to give
// instead (`usual`, the file that --data is by default), if it cannot be read.
StatusOr<std::string> read_data(const std::string& path, absl::string_view usual);

}  // namespace tessera::examples

#endif  // TESSERA_EXAMPLES_DATA_FILE_H_
