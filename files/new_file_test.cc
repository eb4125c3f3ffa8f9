// SPDX-License-Identifier: Apache-2.0
//
// Files that appear whole: names, contents and what is left after an error.
#include "files/new_file.h"

#include <unistd.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/folder.h"
#include "tests/support/matchers.h"

namespace tessera::files {
namespace {

using absl::StatusCode;
using tessera::testing::IsOk;
using tessera::testing::read_bytes;
using tessera::testing::StatusIs;
using tessera::testing::write_bytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class NewFileTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_ / name; }
  static bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }
  static absl::Span<const std::byte> bytes(const std::string& text) {
    return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
  }

  const tessera::testing::Folder folder_;
};

TEST_F(NewFileTest, AppearsWhenItIsWhole) {
  TESSERA_ASSERT_OK_AND_ASSIGN(NewFile file, NewFile::create(path("x"), path("x.partial"), 6));
  TESSERA_ASSERT_OK_AND_ASSIGN(NewFile other, NewFile::join(path("x"), path("x.partial")));
  EXPECT_THAT(file.write(0, bytes("abc")), IsOk());
  EXPECT_THAT(other.write(3, bytes("def")), IsOk());
  EXPECT_THAT(other.sync(), IsOk());
  EXPECT_THAT(file.sync(), IsOk());
  EXPECT_FALSE(exists(path("x")));
  EXPECT_THAT(file.commit(NewFile::Replace::kNo), IsOk());
  EXPECT_EQ(read_bytes(path("x")), "abcdef");
  EXPECT_FALSE(exists(path("x.partial")));
  EXPECT_THAT(sync_folder(folder_.path()), IsOk());
}

TEST_F(NewFileTest, KeepsWhatIsThere) {
  write_bytes(path("x"), "old");
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(NewFile file, NewFile::create(path("x"), path("p"), 0));
    EXPECT_THAT(NewFile::create(path("x"), path("p"), 0),
                StatusIs(StatusCode::kAlreadyExists, HasSubstr(path("p"))));
    EXPECT_THAT(file.write(0, bytes("new")), IsOk());
    EXPECT_THAT(file.commit(NewFile::Replace::kNo),
                StatusIs(StatusCode::kAlreadyExists, HasSubstr(path("x"))));
    EXPECT_EQ(read_bytes(path("x")), "old");
  }
  EXPECT_FALSE(exists(path("p")));
  TESSERA_ASSERT_OK_AND_ASSIGN(NewFile file, NewFile::create(path("x"), path("p"), 0));
  EXPECT_THAT(file.write(0, bytes("new")), IsOk());
  EXPECT_THAT(file.commit(NewFile::Replace::kYes), IsOk());
  EXPECT_EQ(read_bytes(path("x")), "new");
}

TEST_F(NewFileTest, IsRemovedByItsOwnerAlone) {
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(NewFile file, NewFile::create(path("x"), path("p"), 0));
    { TESSERA_ASSERT_OK_AND_ASSIGN(NewFile other, NewFile::join(path("x"), path("p"))); }
    EXPECT_TRUE(exists(path("p")));
    std::optional<NewFile> moved(std::move(file));
    EXPECT_TRUE(exists(path("p")));
    moved.reset();
    EXPECT_FALSE(exists(path("p")));
  }
  EXPECT_FALSE(exists(path("x")));
}

TEST_F(NewFileTest, NoRoom) {
  EXPECT_THAT(NewFile::create(path("x"), path("p"), int64_t{1} << 55),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr(path("p"))));
  EXPECT_FALSE(exists(path("p")));
  EXPECT_THAT(NewFile::create(path("a/x"), path("a/p"), 0), StatusIs(StatusCode::kNotFound));
}

TEST_F(NewFileTest, FolderOfAPath) {
  for (const char* path : {"a/b", "a/b/", "a/b//"}) EXPECT_EQ(folder_of(path), "a");
  for (const char* path : {"b", "b/", "."}) EXPECT_EQ(folder_of(path), ".");
  for (const char* path : {"/", "//", "/b", "/b/"}) EXPECT_EQ(folder_of(path), "/");
}

TEST_F(NewFileTest, MakeFolders) {
  EXPECT_THAT(make_folders(path("a/b")),
              tessera::testing::IsOkAndHolds(ElementsAre(path("a"), path("a/b"))));
  EXPECT_THAT(make_folders(path("a/b")), tessera::testing::IsOkAndHolds(IsEmpty()));
  write_bytes(path("file"), "x");
  EXPECT_THAT(make_folders(path("file")), StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(make_folders(path("file/b")), StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(make_folders(path("c/d/")),
              tessera::testing::IsOkAndHolds(ElementsAre(path("c"), path("c/d"))));
  // A name that is too long, below a folder that was made for it.
  EXPECT_THAT(make_folders(absl::StrCat(path("e/f/"), std::string(300, 'x'))),
              StatusIs(StatusCode::kInvalidArgument));
  EXPECT_FALSE(exists(path("e")));
}

}  // namespace
}  // namespace tessera::files
