// SPDX-License-Identifier: Apache-2.0
//
// Reads at offsets, and the paths that are no regular files.
#include "files/random_access_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/folder.h"
#include "tests/support/matchers.h"

namespace tessera::files {
namespace {

using absl::StatusCode;
using testing::Folder;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::IsOkAndHolds;
using testing::StatusIs;
using testing::write_bytes;

TEST(RandomAccessFileTest, ReadsAtOffsets) {
  const Folder folder;
  const std::string path = folder / "letters";
  write_bytes(path, "abcdef");
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto file, RandomAccessFile::open(path));
  EXPECT_EQ(file->path(), path);
  EXPECT_EQ(file->size(), 6);
  std::string text(2, ' ');
  const auto out = absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), text.size());
  EXPECT_THAT(file->read(3, out), IsOk());
  EXPECT_EQ(text, "de");
  EXPECT_THAT(file->read_some(5, out), IsOkAndHolds(1u));
  EXPECT_EQ(text, "fe");
  EXPECT_THAT(file->read_some(9, out), IsOkAndHolds(0u));
  EXPECT_THAT(file->read(6, {}), IsOk());
  EXPECT_THAT(file->read_front(3), IsOkAndHolds("abc"));
  EXPECT_THAT(file->read_front(INT64_MAX), IsOkAndHolds("abcdef"));
  EXPECT_THAT(file->read(5, out),
              StatusIs(StatusCode::kDataLoss,
                       HasSubstr(absl::StrCat("file \"", path,
                                              "\": it has no bytes 5 to 7: it ends at 6, and had 6 "
                                              "bytes when it was opened"))));
}

TEST(RandomAccessFileTest, AFileThatHasBecomeShorter) {
  const Folder folder;
  const std::string path = folder / "shrinks";
  write_bytes(path, "abcdef");
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto file, RandomAccessFile::open(path));
  ASSERT_EQ(truncate(path.c_str(), 2), 0);
  EXPECT_THAT(file->read_front(4),
              StatusIs(StatusCode::kDataLoss,
                       HasSubstr("it ends at 2, and had 6 bytes when it was opened")));
}

TEST(RandomAccessFileTest, PathsThatAreNoFiles) {
  const Folder folder;
  const std::string target = folder / "target", pipe = folder / "pipe";
  const std::string link = folder / "link", loop = folder / "loop";
  write_bytes(target, "abc");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);  // opened without a writer
  ASSERT_EQ(symlink(target.c_str(), link.c_str()), 0);
  ASSERT_EQ(symlink(loop.c_str(), loop.c_str()), 0);
  EXPECT_THAT(RandomAccessFile::open(link), IsOk());
  EXPECT_THAT(RandomAccessFile::open(target, Links::kRefuse), IsOk());
  struct Case {
    const char* name;
    std::string path;
    Links links;
    StatusCode code;
    const char* message;
  };
  const Case cases[] = {
      {"missing", folder / "missing", Links::kFollow, StatusCode::kNotFound, "cannot open file"},
      {"folder", folder.path(), Links::kFollow, StatusCode::kInvalidArgument,
       "is not a regular file"},
      {"pipe", pipe, Links::kFollow, StatusCode::kInvalidArgument, "is not a regular file"},
      {"device", "/dev/null", Links::kFollow, StatusCode::kInvalidArgument,
       "is not a regular file"},
      {"link", link, Links::kRefuse, StatusCode::kInvalidArgument, "it is a symbolic link"},
      {"zero", target + std::string(1, '\0'), Links::kFollow, StatusCode::kInvalidArgument,
       "a path has no byte 00"},
      {"empty", "", Links::kFollow, StatusCode::kNotFound, "cannot open file \"\""},
  };
  for (const Case& row : cases) {
    SCOPED_TRACE(row.name);
    EXPECT_THAT(RandomAccessFile::open(row.path, row.links),
                StatusIs(row.code, HasSubstr(row.message)));
  }
  const auto looped = RandomAccessFile::open(loop);
  EXPECT_FALSE(looped.ok());
  EXPECT_THAT(std::string(looped.status().message()), HasSubstr(loop));
}

}  // namespace
}  // namespace tessera::files
