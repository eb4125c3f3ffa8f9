// SPDX-License-Identifier: Apache-2.0
//
// The notations of Slurm: rows of tests/facts/cluster.md.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/cluster/cluster.h"
#include "tests/support/matchers.h"

namespace tessera::cluster {
namespace {

using testing::StatusIs;
using ::testing::ValuesIn;

struct ListCase {
  const char* name;
  const char* text;
  const char* expected;  // entries, or "refused: MESSAGE"
};

template <class Case>
std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  return info.param.name;
}

// clang-format off
const ListCase kNodeLists[] = {
    {"nodes_n1", "n1", "n1"},
    {"nodes_n1_n2", "n1,n2", "n1, n2"},
    {"nodes_n_1_3", "n[1-3]", "n1, n2, n3"},
    {"nodes_n_1_2_m5_o_3_4_6_7_9", "n[1-2],m5,o[3-4,6,7-9]", "n1, n2, m5, o3, o4, o6, o7, o8, o9"},
    {"nodes_n_01_03", "n[01-03]", "n01, n02, n03"},
    {"nodes_n_08_11", "n[08-11]", "n08, n09, n10, n11"},
    {"nodes_n_098_101", "n[098-101]", "n098, n099, n100, n101"},
    {"nodes_n_1_03", "n[1-03]", "n1, n2, n3"},
    {"nodes_n_3_1_2", "n[3,1,2]", "n3, n1, n2"},
    {"nodes_n_5_5", "n[5-5]", "n5"},
    {"nodes_n_0_0", "n[0-0]", "n0"},
    {"nodes_n_9_10", "n[9-10]", "n9, n10"},
    {"nodes_n_1_3_4_07", "n[1,3-4,07]", "n1, n3, n4, n07"},
    {"nodes_gpu_a_001_003_cpu9", "gpu-a[001-003],cpu9", "gpu-a001, gpu-a002, gpu-a003, cpu9"},
    {"nodes_host_1_example_com", "host-1.example.com", "host-1.example.com"},
    {"nodes_10_0_0_1_3", "10.0.0.[1-3]", "10.0.0.1, 10.0.0.2, 10.0.0.3"},
    {"nodes_n1_n1", "n1,n1", "n1, n1"},
    {"nodes_n_1_2_n_2_3", "n[1-2],n[2-3]", "n1, n2, n2, n3"},
    {"nodes_rack_1_2_node_1_2", "rack[1-2]node[1-2]", "rack1node1, rack1node2, rack2node1, rack2node2"},
    {"nodes_rack_1_2_node_01_02", "rack[1-2]node[01-02]", "rack1node01, rack1node02, rack2node01, rack2node02"},
    {"nodes_r_1_2_1_2", "r[1-2][1-2]", "r11, r12, r21, r22"},
    {"nodes_r_01_02_n_1_3_4_m7", "r[01-02]n[1,3-4],m7", "r01n1, r01n3, r01n4, r02n1, r02n3, r02n4, m7"},
    {"nodes_a_1_2_b_2_c_3_4", "a[1-2]b[2]c[3-4]", "a1b2c3, a1b2c4, a2b2c3, a2b2c4"},
    {"nodes_a_0_1_b_0_1_c_0_1", "a[0-1]b[0-1]c[0-1]", "a0b0c0, a0b0c1, a1b0c0, a1b0c1, a0b1c0, a0b1c1, a1b1c0, a1b1c1"},
    {"nodes_n_1_2", "n{1-2}", "n{1-2}"},
    {"nodes_refused_1", "", "refused: node list \"\" names no node; give names, as in n[1-3,7]"},
    {"nodes_refused_2", "n[1-2]-ib", "refused: node list \"n[1-2]-ib\" has the text \"-ib\" after a range; a name with ranges ends in one"},
    {"nodes_refused_3", "n[1-2].cluster", "refused: node list \"n[1-2].cluster\" has the text \".cluster\" after a range; a name with ranges ends in one"},
    {"nodes_refused_4", "n[3-1]", "refused: node list \"n[3-1]\" has the range \"3-1\", which runs backwards; give the lower number first"},
    {"nodes_refused_5", "n1,", "refused: node list \"n1,\" has an empty name; give names between commas"},
    {"nodes_refused_6", "n1,,n2", "refused: node list \"n1,,n2\" has an empty name; give names between commas"},
    {"nodes_refused_7", ",n1", "refused: node list \",n1\" has an empty name; give names between commas"},
    {"nodes_refused_8", "n[1-2", "refused: node list \"n[1-2\" ends while a bracket is open; close it"},
    {"nodes_refused_9", "n1-2]", "refused: node list \"n1-2]\" has a bracket too many, \"]\"; remove it"},
    {"nodes_refused_10", "n[]", "refused: node list \"n[]\" has an empty range; give numbers, as in n[1-3,7]"},
    {"nodes_refused_11", "n[a-c]", "refused: node list \"n[a-c]\" has a range of no numbers, \"a-c\"; give numbers, as in n[1-3,7]"},
    {"nodes_refused_12", "n[1-2-3]", "refused: node list \"n[1-2-3]\" has \"1-2-3\", which is not a range; give numbers, as in n[1-3,7]"},
    {"nodes_refused_13", "n[[1-2]]", "refused: node list \"n[[1-2]]\" has brackets in brackets; a range has numbers only"},
    {"nodes_refused_14", "n[1-2,]", "refused: node list \"n[1-2,]\" has an empty range; give numbers, as in n[1-3,7]"},
    {"nodes_refused_15", "n[1-]", "refused: node list \"n[1-]\" has \"1-\", which is not a range; give numbers, as in n[1-3,7]"},
    {"nodes_refused_16", "n[-1]", "refused: node list \"n[-1]\" has \"-1\", which is not a range; give numbers, as in n[1-3,7]"},
    {"nodes_refused_17", "n[+1-2]", "refused: node list \"n[+1-2]\" has \"+1-2\", which is not a range; give numbers, as in n[1-3,7]"},
    {"nodes_refused_18", "n[1 - 2]", "refused: node list \"n[1 - 2]\" has a blank; separate names by commas alone"},
    {"nodes_refused_19", " n1 , n2", "refused: node list \" n1 , n2\" has a blank; separate names by commas alone"},
    {"nodes_refused_20", "(null)", "refused: node list \"(null)\" is not a list; Slurm has not set it"},
    {"nodes_refused_21", "n[1-70000]", "refused: node list \"n[1-70000]\" has more than 65536 nodes by 70000; shorten the list"},
    // No rows of the page.
    {"nodes_refused_product", "a[1-300]b[1-300]", "refused: node list \"a[1-300]b[1-300]\" has more than 65536 nodes by all its ranges; shorten the list"},
    {"nodes_refused_beyond_64_bits", "n[1-99999999999999999999]", "refused: node list \"n[1-99999999999999999999]\" has more than 65536 nodes by 99999999999999999999; shorten the list"},
    {"nodes_refused_sum", "n[1-65536],m", "refused: node list \"n[1-65536],m\" has more than 65536 nodes by all its ranges; shorten the list"},
};

const ListCase kTasksPerNode[] = {
    {"tasks_1", "1", "1"},
    {"tasks_4", "4", "4"},
    {"tasks_2_x3", "2(x3)", "2, 2, 2"},
    {"tasks_3_x2_2_1", "3(x2),2,1", "3, 3, 2, 1"},
    {"tasks_1_x2_4_x1_2", "1(x2),4(x1),2", "1, 1, 4, 2"},
    {"tasks_1_2_3", "1,2,3", "1, 2, 3"},
    {"tasks_refused_1", "", "refused: list of tasks per node \"\" has no number; give tasks of each node, as in 2(x3),1"},
    {"tasks_refused_2", "0", "refused: list of tasks per node \"0\" has 0 tasks on a node; a node of a step has 1 to 1000000"},
    {"tasks_refused_3", "0(x2)", "refused: list of tasks per node \"0(x2)\" has 0 tasks on a node; a node of a step has 1 to 1000000"},
    {"tasks_refused_4", "2(x0)", "refused: list of tasks per node \"2(x0)\" has \"2(x0)\", which stands for no node; drop it"},
    {"tasks_refused_5", "2,", "refused: list of tasks per node \"2,\" has an empty part; give numbers between commas"},
    {"tasks_refused_6", "2(3)", "refused: list of tasks per node \"2(3)\" has \"(3)\" after 2; give the count of nodes once, as in 2(x3)"},
    {"tasks_refused_7", "2(x)", "refused: list of tasks per node \"2(x)\" has \"(x)\" after 2; give the count of nodes once, as in 2(x3)"},
    {"tasks_refused_8", "2 (x3)", "refused: list of tasks per node \"2 (x3)\" has a blank; separate numbers by commas alone"},
    {"tasks_refused_9", "(x3)", "refused: list of tasks per node \"(x3)\" has \"(x3)\", where \"\" is not a number; give tasks of a node, as in 2(x3)"},
    {"tasks_refused_10", "-1", "refused: list of tasks per node \"-1\" has \"-1\", where \"-1\" is not a number; give tasks of a node, as in 2(x3)"},
    {"tasks_refused_11", "1.5", "refused: list of tasks per node \"1.5\" has \"1.5\", where \"1.5\" is not a number; give tasks of a node, as in 2(x3)"},
    {"tasks_refused_12", "2(X3)", "refused: list of tasks per node \"2(X3)\" has \"(X3)\" after 2; give the count of nodes once, as in 2(x3)"},
    {"tasks_refused_13", "2(x3)(x2)", "refused: list of tasks per node \"2(x3)(x2)\" has \"(x3)(x2)\" after 2; give the count of nodes once, as in 2(x3)"},
    {"tasks_refused_14", "x", "refused: list of tasks per node \"x\" has \"x\", where \"x\" is not a number; give tasks of a node, as in 2(x3)"},
    // No rows of the page.
    {"tasks_refused_beyond", "1000001", "refused: list of tasks per node \"1000001\" has 1000001 tasks on a node; a node of a step has 1 to 1000000"},
    {"tasks_refused_nodes", "1(x65537)", "refused: list of tasks per node \"1(x65537)\" has more than 65536 nodes by 65537; shorten the list"},
};
// clang-format on

template <class Entry>
void expect_list(const StatusOr<std::vector<Entry>>& list, const std::string& expected) {
  constexpr absl::string_view kRefused = "refused: ";
  if (expected.substr(0, kRefused.size()) == kRefused) {
    EXPECT_THAT(list, StatusIs(absl::StatusCode::kInvalidArgument,
                               ::testing::Eq(expected.substr(kRefused.size()))));
    return;
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<Entry> entries, list);
  EXPECT_EQ(absl::StrJoin(entries, ", "), expected);
}

class NodeListTest : public ::testing::TestWithParam<ListCase> {};
INSTANTIATE_TEST_SUITE_P(Facts, NodeListTest, ValuesIn(kNodeLists), name_of<ListCase>);

TEST_P(NodeListTest, IsExpanded) {
  expect_list(expand_node_list(GetParam().text), GetParam().expected);
}

class TasksPerNodeTest : public ::testing::TestWithParam<ListCase> {};
INSTANTIATE_TEST_SUITE_P(Facts, TasksPerNodeTest, ValuesIn(kTasksPerNode), name_of<ListCase>);

TEST_P(TasksPerNodeTest, IsExpanded) {
  expect_list(expand_tasks_per_node(GetParam().text), GetParam().expected);
}

TEST(SlurmListsTest, tasks_16_x128) {
  EXPECT_EQ(*expand_tasks_per_node("16(x128)"), std::vector<int>(128, 16));
}

TEST(SlurmListsTest, TheGreatestListHas65536Entries) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> nodes,
                               expand_node_list("n[00001-65536]"));
  ASSERT_EQ(nodes.size(), 65536u);
  EXPECT_EQ(nodes.front(), "n00001");
  EXPECT_EQ(nodes.back(), "n65536");
  EXPECT_EQ(expand_node_list("a[1-256]b[1-256]")->size(), 65536u);
  EXPECT_EQ(expand_tasks_per_node("1(x65536)")->size(), 65536u);
}

// The order of up to 4 ranges against numbers that are counted up: of digit d the weight is the
// product of the sizes of the faster ones, the last digit is the fastest, then the first, ...
TEST(SlurmListsTest, RangesRunInTheOrderOfSlurm) {
  for (const std::vector<int>& sizes : std::vector<std::vector<int>>{
           {2}, {3, 2}, {2, 3}, {2, 3, 4}, {4, 1, 2}, {2, 3, 2, 3}, {1, 1, 1, 1}}) {
    std::string text;
    for (const int size : sizes) absl::StrAppend(&text, "x[0-", size - 1, "]");
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> nodes, expand_node_list(text));
    size_t count = 1;
    for (const int size : sizes) count *= static_cast<size_t>(size);
    ASSERT_EQ(nodes.size(), count) << text;
    const size_t last = sizes.size() - 1;
    for (size_t i = 0; i < count; ++i) {
      std::vector<size_t> digits(sizes.size());
      digits[last] = i % static_cast<size_t>(sizes[last]);
      size_t rest = i / static_cast<size_t>(sizes[last]);
      for (size_t d = 0; d < last; ++d) {
        digits[d] = rest % static_cast<size_t>(sizes[d]);
        rest /= static_cast<size_t>(sizes[d]);
      }
      EXPECT_EQ(nodes[i], absl::StrCat("x", absl::StrJoin(digits, "x"))) << text;
    }
  }
}

}  // namespace
}  // namespace tessera::cluster
