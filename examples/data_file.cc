// SPDX-License-Identifier: Apache-2.0
#include "examples/data_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera::examples {

StatusOr<std::string> find_data(absl::string_view program, absl::string_view name) {
  const std::string path = absl::StrCat("examples/data/", name);
  std::vector<std::string> places = {path};
  for (const char* variable : {"RUNFILES_DIR", "TEST_SRCDIR"}) {
    if (const char* folder = std::getenv(variable)) {
      places.push_back(absl::StrCat(folder, "/tessera/", path));
    }
  }
  places.push_back(absl::StrCat(program, ".runfiles/tessera/", path));
  for (const std::string& place : places) {
    if (access(place.c_str(), R_OK) == 0) return place;
  }
  return absl::NotFoundError(
      absl::StrCat(name, " is not in any of ", absl::StrJoin(places, ", "),
                   "; run from the root of the repository or give its path with --data"));
}

StatusOr<std::string> read_data(const std::string& path, absl::string_view usual) {
  const auto failure = [&](absl::string_view what) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("cannot ", what, " \"", path, "\"; give a file like examples/data/",
                            usual, " with --data"));
  };
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (file == nullptr) return failure("open");
  std::string text;
  char chunk[1 << 16];
  while (const size_t count = std::fread(chunk, 1, sizeof chunk, file.get())) {
    text.append(chunk, count);
  }
  if (std::ferror(file.get())) return failure("read");
  return text;
}

}  // namespace tessera::examples
