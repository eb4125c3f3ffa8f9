// SPDX-License-Identifier: Apache-2.0
//
// TestFolder: a folder that a test fills, copies and looks into.
#ifndef TESSERA_TESTS_CHECKPOINT_TEST_FOLDER_H_
#define TESSERA_TESTS_CHECKPOINT_TEST_FOLDER_H_

#include <string>
#include <vector>

namespace tessera::testing {

// A new folder in $TEST_TMPDIR; its path has no symbolic links. Removed with all that is in it.
class TestFolder {
 public:
  TestFolder();
  ~TestFolder();
  TestFolder(const TestFolder&) = delete;
  // Makes the folder again, as a copy of `from`.
  void copy(const TestFolder& from);
  void clear();

  const std::string& path() const { return path_; }
  // The paths of all files and folders in it, relative to it and sorted.
  std::vector<std::string> files() const;

 private:
  const std::string path_;
};

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_CHECKPOINT_TEST_FOLDER_H_
