// SPDX-License-Identifier: Apache-2.0
//
// Finds and reads files of examples/data, and checks the messages for missing files.
#include "examples/data_file.h"

#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera::examples {
namespace {

using ::tessera::testing::IsOk;
using ::tessera::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::StrEq;

TEST(DataFileTest, AFileOfTheTreeIsFoundAndRead) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string path, find_data("data_file_test", "digits.csv"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string text, read_data(path, "digits.csv"));
  EXPECT_THAT(text, StartsWith("0,0,5,13,9,1,0,0,"));
}

TEST(DataFileTest, NowhereToBeFoundListsThePlaces) {
  const std::string elsewhere = absl::StrCat(std::getenv("TEST_TMPDIR"), "/elsewhere");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::create_directory(elsewhere);
  std::filesystem::current_path(elsewhere);
  ASSERT_EQ(setenv("RUNFILES_DIR", "/no/runfiles", 1), 0);
  const char* sources = std::getenv("TEST_SRCDIR");
  const std::string saved = sources == nullptr ? "" : sources;
  unsetenv("TEST_SRCDIR");
  EXPECT_THAT(find_data("bin/03_digits", "digits.csv"),
              StatusIs(absl::StatusCode::kNotFound,
                       StrEq("digits.csv is not in any of examples/data/digits.csv, "
                             "/no/runfiles/tessera/examples/data/digits.csv, "
                             "bin/03_digits.runfiles/tessera/examples/data/digits.csv; run from "
                             "the root of the repository or give its path with --data")));
  unsetenv("RUNFILES_DIR");
  if (sources != nullptr) setenv("TEST_SRCDIR", saved.c_str(), 1);
  std::filesystem::current_path(before);
}

TEST(DataFileTest, AFileThatIsNotThereIsNotFound) {
  EXPECT_THAT(read_data("no/such/file.csv", "digits.csv"),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("cannot open \"no/such/file.csv\""),
                             HasSubstr("give a file like examples/data/digits.csv with --data"),
                             HasSubstr("No such file"))));
}

TEST(DataFileTest, AFolderCannotBeRead) {
  const char* folder = std::getenv("TEST_TMPDIR");
  ASSERT_NE(folder, nullptr);
  const StatusOr<std::string> text = read_data(folder, "digits.csv");
  ASSERT_FALSE(text.ok());
  EXPECT_THAT(std::string(text.status().message()),
              AllOf(HasSubstr("cannot read \""), HasSubstr("directory")));
}

}  // namespace
}  // namespace tessera::examples
