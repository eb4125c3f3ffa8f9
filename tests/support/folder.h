// SPDX-License-Identifier: Apache-2.0
//
// Folder: a folder that a test fills, copies and looks into. It goes with the object.
//
//   const Folder folder;                                         made before run_clients
//   EXPECT_THAT(save(client, folder / "a", ...), IsOk());
//   EXPECT_THAT(names_of(folder / "a"), ElementsAre(...));
#ifndef TESSERA_TESTS_SUPPORT_FOLDER_H_
#define TESSERA_TESTS_SUPPORT_FOLDER_H_

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tessera::testing {

// A new folder in that of the test; its path has no symbolic links. Clients that are forked have
// copies: the process that made it removes it, with all that is in it.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  // Makes the folder again, as a copy of `from`.
  void copy(const Folder& from);
  void clear();

  const std::string& path() const { return path_; }
  std::string operator/(absl::string_view name) const;
  // The paths of all files and folders in it, relative to it and sorted.
  std::vector<std::string> files() const;

 private:
  const pid_t owner_;
  const std::string path_;
};

// The names in a folder, sorted; none where there is no folder.
std::vector<std::string> names_of(const std::string& folder);

// These fail the test where the file cannot be read or written.
std::string read_bytes(const std::string& path);
void write_bytes(const std::string& path, absl::string_view bytes);
void flip_bit(const std::string& path, size_t byte);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_FOLDER_H_
