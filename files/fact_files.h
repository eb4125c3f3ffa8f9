// SPDX-License-Identifier: Apache-2.0
//
// The small files of testdata/checkpoint_files.tsv, each with the answer that a reader must give
// (tests/facts/files.md).
#ifndef TESSERA_FILES_FACT_FILES_H_
#define TESSERA_FILES_FACT_FILES_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tessera::files {

struct FactFile {
  std::string name;
  std::string answer;  // "OK", "InvalidArgument", "DataLoss", "Unimplemented"
  std::string bytes;
};

// The files of a kind, "safetensors" or "npy", in the order of the table. Requires that the table
// is there, as it is in tests that depend on this target.
std::vector<FactFile> fact_files(absl::string_view kind);

// Writes a file into the folder of the test and returns its path.
std::string write_test_file(absl::string_view name, absl::string_view bytes);

}  // namespace tessera::files

#endif  // TESSERA_FILES_FACT_FILES_H_
