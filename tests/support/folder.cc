// SPDX-License-Identifier: Apache-2.0
#include "tests/support/folder.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <ios>
#include <iterator>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

std::string new_folder() {
  std::string path = fs::canonical(::testing::TempDir()) / "folder_XXXXXX";
  EXPECT_NE(mkdtemp(path.data()), nullptr) << path;
  return path;
}

}  // namespace

Folder::Folder() : owner_(getpid()), path_(new_folder()) {}

Folder::~Folder() {
  std::error_code ignored;
  if (getpid() == owner_) fs::remove_all(path_, ignored);
}

void Folder::copy(const Folder& from) {
  fs::remove_all(path_);
  fs::copy(from.path(), path_, fs::copy_options::recursive);
}

void Folder::clear() {
  fs::remove_all(path_);
  fs::create_directory(path_);
}

std::string Folder::operator/(absl::string_view name) const {
  return absl::StrCat(path_, "/", name);
}

std::vector<std::string> Folder::files() const {
  std::vector<std::string> paths;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path_)) {
    paths.push_back(fs::relative(entry.path(), path_).string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<std::string> names_of(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write_bytes(const std::string& path, absl::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  file.close();
  EXPECT_TRUE(file.good()) << path;
}

void flip_bit(const std::string& path, size_t byte) {
  std::string bytes = read_bytes(path);
  bytes.at(byte) = static_cast<char>(bytes[byte] ^ 1);
  write_bytes(path, bytes);
}

}  // namespace tessera::testing
