// SPDX-License-Identifier: Apache-2.0
#include "tests/checkpoint/test_folder.h"

#include <stdlib.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

std::string new_folder() {
  const char* const parent = std::getenv("TEST_TMPDIR");
  std::string path =
      absl::StrCat(fs::canonical(parent != nullptr ? parent : "/tmp").string(), "/run-XXXXXX");
  EXPECT_NE(mkdtemp(path.data()), nullptr);
  return path;
}

}  // namespace

TestFolder::TestFolder() : path_(new_folder()) {}

TestFolder::~TestFolder() {
  std::error_code error;
  fs::remove_all(path_, error);
}

void TestFolder::copy(const TestFolder& from) {
  fs::remove_all(path_);
  fs::copy(from.path(), path_, fs::copy_options::recursive);
}

void TestFolder::clear() {
  fs::remove_all(path_);
  fs::create_directory(path_);
}

std::vector<std::string> TestFolder::files() const {
  std::vector<std::string> paths;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path_)) {
    paths.push_back(fs::relative(entry.path(), path_).string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace tessera::testing
