// SPDX-License-Identifier: Apache-2.0
//
// Runs every program of this folder by the command in its first comment, and compares its output
// with the output in the comment.
#include <filesystem>
#include <string>
#include <vector>

#include "examples/head_comment.h"
#include "gtest/gtest.h"

namespace {

std::vector<std::string> programs() { return tessera::examples::programs_in("examples/groups"); }

class GroupsTest : public ::testing::TestWithParam<std::string> {};

TEST_P(GroupsTest, PrintsWhatItsCommentShows) {
  tessera::examples::expect_output_of_comment(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Programs, GroupsTest, ::testing::ValuesIn(programs()),
                         [](const auto& info) {
                           return std::filesystem::path(info.param).stem().string();
                         });

// The list comes from the runfiles, and an empty one would pass.
TEST(GroupsListTest, HasAllPrograms) { EXPECT_EQ(programs().size(), 17u); }

}  // namespace
