// SPDX-License-Identifier: Apache-2.0
//
// Files that count as left by a dead saver. The rows of whole jobs are in tests/checkpoint.
#include "checkpoint/leftovers.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "checkpoint/info.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"
#include "checkpoint/saver_mark.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "job/environment/file_descriptor.h"
#include "tests/support/folder.h"
#include "tests/support/matchers.h"

namespace tessera::checkpoint::internal {
namespace {

using tessera::testing::IsOk;
using tessera::testing::IsOkAndHolds;
using tessera::testing::write_bytes;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kId[] = "0123456789abcdef";

class LeftoversTest : public ::testing::Test {
 protected:
  // The folder of a save, made.
  std::string folder_of_step(int step) {
    const std::string folder = join_path(root_, step_name(step));
    mkdir(folder.c_str(), 0777);
    return folder;
  }
  // The names that would be removed, all folders together.
  std::vector<std::string> names() {
    std::vector<std::string> result;
    const StatusOr<std::vector<Leftover>> found = find_leftovers(root_);
    EXPECT_THAT(found, IsOk());
    for (const Leftover& leftover : *found) {
      result.insert(result.end(), leftover.names.begin(), leftover.names.end());
    }
    return result;
  }

  const tessera::testing::Folder folder_;
  const std::string& root_ = folder_.path();
};

TEST_F(LeftoversTest, AMarkIsWholeFromTheStart) {
  const std::string folder = folder_of_step(1);
  // Killed before the mark had its name.
  write_bytes(join_path(folder, absl::StrCat(mark_name(kId), kPartialSuffix)), "");
  EXPECT_THAT(names(), ElementsAre(absl::StrCat(mark_name(kId), kPartialSuffix)));
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<Leftover> leftovers, find_leftovers(root_));
  EXPECT_THAT(remove_leftover(leftovers[0]), IsOk());
  EXPECT_FALSE(std::filesystem::exists(folder));
}

// The pid of a mark from another container means another process here, or none.
TEST_F(LeftoversTest, ALockedMarkIsOfALivingSaver) {
  const std::string folder = folder_of_step(1);
  const std::string data = data_file_name(0, kId);
  write_bytes(join_path(folder, data), "x");
  TESSERA_ASSERT_OK_AND_ASSIGN(FileDescriptor own, write_mark(folder, kId));
  EXPECT_THAT(names(), IsEmpty());
  const std::string mark = join_path(folder, mark_name(kId));
  std::ifstream file(mark);
  std::string text, line;
  while (std::getline(file, line)) {
    absl::StrAppend(&text, line.substr(0, 3) == "pid" ? "pid 999999999" : line, "\n");
  }
  write_bytes(mark, text);
  EXPECT_THAT(names(), IsEmpty());
  own.close();
  EXPECT_THAT(names(), ElementsAre(mark_name(kId), data));
}

// Another process cleans the root while saves become complete.
TEST_F(LeftoversTest, ASaveThatBecomesCompleteStays) {
  constexpr int kNumSaves = 300;
  const auto id_of = [](int step) {
    return absl::StrCat(absl::Hex(0x1234'5678'9abc'0000 + step, absl::kZeroPad16));
  };
  std::thread saver([&] {
    for (int step = 0; step < kNumSaves; ++step) {
      const std::string folder = folder_of_step(step);
      // The folder is empty for an instant, in which it may be removed.
      StatusOr<FileDescriptor> mark = write_mark(folder, id_of(step));
      while (!mark.ok()) mark = write_mark(folder_of_step(step), id_of(step));
      Info info;
      info.save_id = id_of(step);
      info.time = absl::UnixEpoch();
      info.num_clients = 1;
      info.files.push_back({data_file_name(0, info.save_id), 1, {0}});
      write_bytes(join_path(folder, info.files[0].name), "x");
      const std::string partial = join_path(folder, partial_manifest_name(info.save_id));
      write_bytes(partial, format_manifest(info));
      rename(partial.c_str(), join_path(folder, kManifestName).c_str());
      remove_mark(folder, info.save_id);
    }
  });
  std::vector<Leftover> leftovers;
  while (!std::filesystem::exists(
      join_path(join_path(root_, step_name(kNumSaves - 1)), kManifestName))) {
    TESSERA_ASSERT_OK_AND_ASSIGN(leftovers, find_leftovers(root_));
    for (const Leftover& leftover : leftovers) EXPECT_THAT(remove_leftover(leftover), IsOk());
  }
  saver.join();
  for (int step = 0; step < kNumSaves; ++step) {
    const std::string folder = join_path(root_, step_name(step));
    EXPECT_THAT(names_in(folder),
                IsOkAndHolds(ElementsAre(data_file_name(0, id_of(step)), kManifestName)));
  }
}

}  // namespace
}  // namespace tessera::checkpoint::internal
