// SPDX-License-Identifier: Apache-2.0
//
// Folder: a folder of a test, which goes with the object. A test makes it before its clients.
//
//   const Folder folder;
//   EXPECT_THAT(save(client, folder / "a", ...), IsOk());
#ifndef TESSERA_TESTS_CHECKPOINT_FOLDER_H_
#define TESSERA_TESTS_CHECKPOINT_FOLDER_H_

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "gtest/gtest.h"

namespace tessera::testing {

class Folder {
 public:
  Folder() : owner_(getpid()), path_(::testing::TempDir() + "/checkpoint_XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << "mkdtemp " << path_;
  }
  // Clients that are forked have copies.
  ~Folder() {
    std::error_code ignored;
    if (getpid() == owner_) std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  const pid_t owner_;
  std::string path_;
};

inline std::vector<std::string> names_of(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

inline std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline void flip_bit(const std::string& path, size_t byte) {
  std::string bytes = read_bytes(path);
  bytes.at(byte) = static_cast<char>(bytes[byte] ^ 1);
  write_bytes(path, bytes);
}

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_CHECKPOINT_FOLDER_H_
