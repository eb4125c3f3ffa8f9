// SPDX-License-Identifier: Apache-2.0
#include "files/fact_files.h"

#include <cstdlib>
#include <fstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"

namespace tessera::files {

std::vector<FactFile> fact_files(absl::string_view kind) {
  std::ifstream table("files/testdata/checkpoint_files.tsv");
  std::vector<FactFile> result;
  for (std::string line; std::getline(table, line);) {
    const std::vector<std::string> fields = absl::StrSplit(line, '\t');
    TESSERA_CHECK(fields.size() == 4, "a row of the table has 4 fields");
    if (fields[1] != kind) continue;
    result.push_back({fields[0], fields[2], absl::HexStringToBytes(fields[3])});
  }
  TESSERA_CHECK(!result.empty(), "the table has files of this kind");
  return result;
}

std::string write_test_file(absl::string_view name, absl::string_view bytes) {
  const char* const folder = std::getenv("TEST_TMPDIR");
  const std::string path = absl::StrCat(folder == nullptr ? "/tmp" : folder, "/", name);
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.flush();
  TESSERA_CHECK(file.good(), "the file is written");
  return path;
}

}  // namespace tessera::files
