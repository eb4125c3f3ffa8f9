// SPDX-License-Identifier: Apache-2.0
//
// Mesh: coordinates, groups, slices, text, identity, and one row for each refusal.
#include "mesh/mesh.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "mesh/mesh_runtime.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::tessera::testing::IsOk;
using ::tessera::testing::IsOkAndHolds;
using ::tessera::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Values;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

template <class Row>
std::string row_name(const ::testing::TestParamInfo<Row>& info) {
  return info.param.name;
}

TEST(MeshTest, AnswersQueries) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::create({{"batch", 2}, {"x", 2}}));
  EXPECT_EQ(mesh.size(), 4);
  EXPECT_EQ(mesh.rank(), 2);
  EXPECT_THAT(mesh.axis_size("x"), IsOkAndHolds(2));
  EXPECT_THAT(mesh.axis_index("x"), IsOkAndHolds(1));
  EXPECT_THAT(mesh.device_ids(), ElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(mesh.ids_are_positions());
  EXPECT_THAT(mesh.axis_size("y"),
              StatusIs(kInvalid, "mesh {batch=2, x=2} has no axis \"y\"; it has \"batch\", \"x\""));
  EXPECT_THAT(mesh.axis_index("bacth"), StatusIs(kInvalid, HasSubstr("; did you mean \"batch\"")));
  EXPECT_EQ(mesh.to_string(), "{batch=2, x=2}");
  EXPECT_THAT(Mesh::parse("{batch=2, x=2}"), IsOkAndHolds(mesh));
}

struct CoordinatesRow {
  const char* name;
  const char* mesh;
  int64_t position;
  std::vector<int64_t> coordinates;
};
class MeshCoordinatesTest : public ::testing::TestWithParam<CoordinatesRow> {};

TEST_P(MeshCoordinatesTest, AreRowMajor) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::parse(GetParam().mesh));
  EXPECT_EQ(mesh.coordinates(GetParam().position), GetParam().coordinates);
  EXPECT_THAT(mesh.position(GetParam().coordinates), IsOkAndHolds(GetParam().position));
}
INSTANTIATE_TEST_SUITE_P(
    Rows, MeshCoordinatesTest,
    Values(
        CoordinatesRow{"coordinates_2_4_2_first", "{a=2, b=4, c=2}", 0, {0, 0, 0}},
        CoordinatesRow{"coordinates_2_4_2_last_axis_is_fastest", "{a=2, b=4, c=2}", 1, {0, 0, 1}},
        CoordinatesRow{"coordinates_2_4_2_middle_axis", "{a=2, b=4, c=2}", 2, {0, 1, 0}},
        CoordinatesRow{"coordinates_2_4_2_first_axis_is_slowest", "{a=2, b=4, c=2}", 8, {1, 0, 0}},
        CoordinatesRow{"coordinates_2_4_2_last", "{a=2, b=4, c=2}", 15, {1, 3, 1}},
        CoordinatesRow{"coordinates_4_8_ten", "{x=4, batch=8}", 10, {1, 2}},
        CoordinatesRow{"coordinates_4_8_eighteen", "{x=4, batch=8}", 18, {2, 2}},
        CoordinatesRow{"coordinates_4_8_last", "{x=4, batch=8}", 31, {3, 7}},
        CoordinatesRow{"size_one_axes", "{a=1, b=3, c=1}", 2, {0, 2, 0}},
        CoordinatesRow{"not_the_ids", "{x=2, y=2} on 9,8,7,6", 2, {1, 0}},
        CoordinatesRow{"largest_mesh", "{a=2147483647}", 2147483646, {2147483646}}),
    row_name<CoordinatesRow>);

TEST(MeshTest, CoordinatesCountThroughEveryPosition) {
  int checked = 0;
  for (int a = 1; a <= 4; ++a) {
    for (int b = 1; b <= 4; ++b) {
      for (int c = 1; c <= 4; ++c) {
        TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::create({{"a", a}, {"b", b}, {"c", c}}));
        int64_t position = 0;
        for (int i = 0; i < a; ++i) {
          for (int j = 0; j < b; ++j) {
            for (int k = 0; k < c; ++k, ++position, ++checked) {
              ASSERT_THAT(mesh.coordinates(position), ElementsAre(i, j, k)) << mesh;
              ASSERT_THAT(mesh.position({i, j, k}), IsOkAndHolds(position)) << mesh;
            }
          }
        }
        EXPECT_EQ(position, mesh.size());
      }
    }
  }
  EXPECT_EQ(checked, 1000);  // (1 + 2 + 3 + 4)^3
}

struct GroupsRow {
  const char* name;
  const char* mesh;
  std::vector<std::string> axes;
  const char* groups;  // Device ids of each distinct group, in the order of their lowest positions.
};
class MeshGroupsTest : public ::testing::TestWithParam<GroupsRow> {};

TEST_P(MeshGroupsTest, HoldThePositionsThatDifferInTheirAxes) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::parse(GetParam().mesh));
  std::vector<std::string> groups;
  for (int64_t position = 0; position < mesh.size(); ++position) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto group, mesh.group(position, GetParam().axes));
    std::string text;
    bool has_position = false;
    for (int64_t member : group) {
      absl::StrAppend(&text, text.empty() ? "{" : ",", mesh.device_ids()[member]);
      has_position = has_position || member == position;
    }
    text += "}";
    EXPECT_TRUE(has_position) << position << " in " << text;
    if (std::find(groups.begin(), groups.end(), text) == groups.end()) groups.push_back(text);
  }
  std::string joined;
  for (const std::string& group : groups) {
    absl::StrAppend(&joined, joined.empty() ? "" : ", ", group);
  }
  EXPECT_EQ(joined, GetParam().groups);
}
INSTANTIATE_TEST_SUITE_P(
    Rows, MeshGroupsTest,
    Values(GroupsRow{"groups_x", "{x=2, y=2}", {"x"}, "{0,2}, {1,3}"},
           GroupsRow{"groups_y", "{x=2, y=2}", {"y"}, "{0,1}, {2,3}"},
           GroupsRow{"groups_both", "{x=2, y=2}", {"x", "y"}, "{0,1,2,3}"},
           GroupsRow{"order_of_names_is_free", "{x=2, y=2}", {"y", "x"}, "{0,1,2,3}"},
           GroupsRow{"groups_of_none", "{x=2, y=2}", {}, "{0}, {1}, {2}, {3}"},
           GroupsRow{"groups_outer_and_inner",
                     "{dp=2, pp=2, cp=2}",
                     {"dp", "cp"},
                     "{0,1,4,5}, {2,3,6,7}"},
           GroupsRow{"groups_of_reordered_mesh", "{x=2, y=2} on 3,2,1,0", {"x"}, "{3,1}, {2,0}"}),
    row_name<GroupsRow>);

struct SliceRow {
  const char* name;
  const char* mesh;
  std::vector<std::pair<std::string, int64_t>> fixed;
  const char* slice;
};
class MeshSliceTest : public ::testing::TestWithParam<SliceRow> {};

TEST_P(MeshSliceTest, KeepsTheOtherAxesInOrder) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::parse(GetParam().mesh));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh slice, mesh.slice(GetParam().fixed));
  EXPECT_EQ(slice.to_string(), GetParam().slice);
}
INSTANTIATE_TEST_SUITE_P(
    Rows, MeshSliceTest,
    Values(SliceRow{"slice_two_axes", "{dp=2, pp=2, cp=2}", {{"pp", 0}}, "{dp=2, cp=2} on 0,1,4,5"},
           SliceRow{"first_block_is_plain", "{a=2, b=3}", {{"a", 0}}, "{b=3}"},
           SliceRow{"second_block", "{a=2, b=3}", {{"a", 1}}, "{b=3} on 3,4,5"},
           SliceRow{"two_fixed", "{a=2, b=3, c=2}", {{"c", 1}, {"a", 1}}, "{b=3} on 7,9,11"},
           SliceRow{"nothing_fixed", "{a=2, b=3}", {}, "{a=2, b=3}"},
           SliceRow{"of_ids", "{x=2, y=2} on 3,2,1,0", {{"x", 1}}, "{y=2} on 1,0"}),
    row_name<SliceRow>);

TEST(MeshTest, IdsInAnyOrderAreAnotherMesh) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh plain, Mesh::create({{"x", 2}}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh swapped, Mesh::create({{"x", 2}}, {1, 0}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh spelled_out, Mesh::create({{"x", 2}}, {0, 1}));
  EXPECT_THAT(swapped.device_ids(), ElementsAre(1, 0));
  EXPECT_FALSE(plain == swapped);
  EXPECT_EQ(plain, spelled_out);
  EXPECT_EQ(swapped.to_string(), "{x=2} on 1,0");
  EXPECT_EQ(swapped.position_of_device(1), 0);
  EXPECT_EQ(swapped.position_of_device(0), 1);
}

TEST(MeshTest, FindsThePositionOfADevice) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::parse("{x=2, y=2} on 9,4,0,7"));
  EXPECT_EQ(mesh.position_of_device(9), 0);
  EXPECT_EQ(mesh.position_of_device(7), 3);
  EXPECT_EQ(mesh.position_of_device(5), std::nullopt);
  EXPECT_EQ(mesh.position_of_device(10), std::nullopt);
  EXPECT_EQ(mesh.position_of_device(-1), std::nullopt);
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh plain, Mesh::parse("{x=2}"));
  EXPECT_EQ(plain.position_of_device(1), 1);
  EXPECT_EQ(plain.position_of_device(2), std::nullopt);
  EXPECT_EQ(plain.position_of_device(-1), std::nullopt);
}

TEST(MeshTest, EqualityAndHashGoByAxesAndIds) {
  std::vector<Mesh> meshes;
  for (const char* text : {"{x=4}", "{y=4}", "{x=2, y=2}", "{y=2, x=2}", "{x=4} on 3,2,1,0",
                           "{x=4, y=1}", "{x=4}", "{x=2, y=2} on 3,2,1,0"}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(Mesh mesh, Mesh::parse(text));
    meshes.push_back(mesh);
  }
  for (size_t i = 0; i < meshes.size(); ++i) {
    for (size_t j = 0; j < meshes.size(); ++j) {
      const bool equal = meshes[i].to_string() == meshes[j].to_string();
      EXPECT_EQ(meshes[i] == meshes[j], equal) << meshes[i] << " and " << meshes[j];
      EXPECT_EQ(absl::Hash<Mesh>()(meshes[i]) == absl::Hash<Mesh>()(meshes[j]), equal)
          << meshes[i] << " and " << meshes[j];
    }
  }
}

TEST(MeshTest, TheLargestMeshCostsNoListOfItsDevices) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::parse("{a=2147483647}"));
  EXPECT_EQ(mesh.size(), 2147483647);
  EXPECT_EQ(mesh.position_of_device(2147483646), 2147483646);
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh copy, Mesh::create({{"a", 2147483647}}));
  EXPECT_EQ(mesh, copy);
}

TEST(MeshTest, AnyThreadMayAskForTheIdsFirst) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::parse("{x=64, y=64}"));
  std::vector<std::thread> threads;
  std::vector<int> last_ids(4);
  for (int& last_id : last_ids) {
    threads.emplace_back([&mesh, &last_id] { last_id = mesh.device_ids().back(); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(last_ids, ElementsAre(4095, 4095, 4095, 4095));
}

struct TextRow {
  const char* name;
  const char* written;
  const char* prints_as;
};
class MeshTextTest : public ::testing::TestWithParam<TextRow> {};

TEST_P(MeshTextTest, ParsesBackToAnEqualMesh) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::parse(GetParam().written));
  EXPECT_EQ(mesh.to_string(), GetParam().prints_as);
  EXPECT_EQ(axes_to_string(mesh.axes()),
            mesh.to_string().substr(0, mesh.to_string().find('}') + 1));
  EXPECT_THAT(Mesh::parse(mesh.to_string()), IsOkAndHolds(mesh));
}
INSTANTIATE_TEST_SUITE_P(Rows, MeshTextTest,
                         Values(TextRow{"plain", "{batch=4, model=2}", "{batch=4, model=2}"},
                                TextRow{"no_blanks", "{batch=4,model=2}", "{batch=4, model=2}"},
                                TextRow{"many_blanks", "  { batch = 4 ,\tmodel = 2 }  ",
                                        "{batch=4, model=2}"},
                                TextRow{"underscore_and_digits", "{_a1=1}", "{_a1=1}"},
                                TextRow{"ids", "{x=2} on 3,1", "{x=2} on 3,1"},
                                TextRow{"ids_with_blanks", "{x=2}on 3 , 1", "{x=2} on 3,1"},
                                TextRow{"ids_that_are_positions", "{x=2} on 0,1", "{x=2}"}),
                         row_name<TextRow>);

struct RefusedText {
  const char* name;
  const char* text;
  const char* message;
};
class MeshRefusedTextTest : public ::testing::TestWithParam<RefusedText> {};

TEST_P(MeshRefusedTextTest, SaysWhere) {
  EXPECT_THAT(Mesh::parse(GetParam().text), StatusIs(kInvalid, GetParam().message));
}
INSTANTIATE_TEST_SUITE_P(
    Rows, MeshRefusedTextTest,
    Values(
        RefusedText{"empty", "", "mesh \"\" ends where \"{\" should follow"},
        RefusedText{"no_brace", "x=2}",
                    "mesh \"x=2}\" has \"x\" at character 1, where \"{\" should be"},
        RefusedText{"not_closed", "{x=2", "mesh \"{x=2\" ends where \",\" or \"}\" should follow"},
        RefusedText{"no_equals", "{x 2}",
                    "mesh \"{x 2}\" has \"2\" at character 4, where \"=\" should be"},
        RefusedText{"no_size", "{x=}",
                    "mesh \"{x=}\" has \"}\" at character 4, where the size of the axis should "
                    "be"},
        RefusedText{"size_past_64_bits", "{x=9223372036854775808}",
                    "mesh \"{x=9223372036854775808}\" has \"9223372036854775808\" at character "
                    "4, where the size of the axis should be; the number is too large for 64 "
                    "bits, use a smaller one"},
        RefusedText{"no_name", "{x=2, }",
                    "mesh \"{x=2, }\" has \"}\" at character 7, where the name of an axis should "
                    "be"},
        RefusedText{"bad_name", "{2x=2}",
                    "mesh \"{2x=2}\" has \"2x\" at character 2, where the name of an axis should "
                    "be"},
        RefusedText{"trailing_text", "{x=2} of 0,1",
                    "mesh \"{x=2} of 0,1\" has \"of\" at character 7, where the end or \"on\" "
                    "and device ids should be"},
        RefusedText{"no_ids", "{x=2} on",
                    "mesh \"{x=2} on\" ends where a device id (0 to 2147483647) should follow"},
        RefusedText{"negative_id", "{x=1} on -1",
                    "mesh \"{x=1} on -1\" has \"-1\" at character 10, where a device id (0 to "
                    "2147483647) should be"},
        RefusedText{"id_past_int32", "{x=1} on 2147483648",
                    "mesh \"{x=1} on 2147483648\" has \"2147483648\" at character 10, where a "
                    "device id (0 to 2147483647) should be"},
        RefusedText{"id_past_64_bits", "{x=1} on -99999999999999999999",
                    "mesh \"{x=1} on -99999999999999999999\" has \"-99999999999999999999\" at "
                    "character 10, where a device id (0 to 2147483647) should be; the number is "
                    "too large for 64 bits, use a smaller one"},
        RefusedText{"text_after_ids", "{x=2} on 0,1 2",
                    "mesh \"{x=2} on 0,1 2\" has \"2\" at character 14, where \",\" or the end "
                    "should be"},
        RefusedText{"newline_is_escaped", "{\n",
                    "mesh \"{\\n\" ends where the name of an axis should follow"}),
    row_name<RefusedText>);

struct RefusedMesh {
  const char* name;
  std::vector<MeshAxis> axes;
  std::vector<int> ids;  // Empty: none given.
  const char* message;
};
class MeshRefusedTest : public ::testing::TestWithParam<RefusedMesh> {};

TEST_P(MeshRefusedTest, NamesTheTokenAndTheFix) {
  const RefusedMesh& row = GetParam();
  const auto mesh = row.ids.empty() ? Mesh::create(row.axes) : Mesh::create(row.axes, row.ids);
  EXPECT_THAT(mesh, StatusIs(kInvalid, row.message));
}
INSTANTIATE_TEST_SUITE_P(
    Rows, MeshRefusedTest,
    Values(RefusedMesh{"no_axis", {}, {}, "mesh {} has no axis; a mesh needs an axis, as in {x=4}"},
           RefusedMesh{"duplicate_axis",
                       {{"x", 2}, {"x", 2}},
                       {},
                       "mesh {x=2, x=2} names axis \"x\" twice; give each axis a name of its own"},
           RefusedMesh{
               "empty_name",
               {{"", 2}},
               {},
               "mesh {=2} has axis name \"\"; a name is a letter or _, then letters, digits "
               "or _ ([A-Za-z_][A-Za-z0-9_]*)"},
           RefusedMesh{"bad_name",
                       {{"2x", 2}},
                       {},
                       "mesh {2x=2} has axis name \"2x\"; a name is a letter or _, then letters, "
                       "digits or _ ([A-Za-z_][A-Za-z0-9_]*)"},
           RefusedMesh{"size_zero",
                       {{"x", 0}},
                       {},
                       "mesh {x=0} has size 0 for axis \"x\"; a size is 1 or more"},
           RefusedMesh{"size_negative",
                       {{"x", 4}, {"y", -2}},
                       {},
                       "mesh {x=4, y=-2} has size -2 for axis \"y\"; a size is 1 or more"},
           RefusedMesh{"too_many_devices",
                       {{"x", 65536}, {"y", 32768}},
                       {},
                       "mesh {x=65536, y=32768} has more than 2147483647 devices; use smaller "
                       "sizes"},
           RefusedMesh{"product_past_64_bits",
                       {{"x", 9223372036854775807}, {"y", 9223372036854775807}},
                       {},
                       "mesh {x=9223372036854775807, y=9223372036854775807} has more than "
                       "2147483647 devices; use smaller sizes"},
           RefusedMesh{"too_few_ids",
                       {{"x", 2}, {"y", 2}},
                       {0, 1, 2},
                       "mesh {x=2, y=2} has 4 devices, 3 ids were given; give one id per device"},
           RefusedMesh{"too_many_ids",
                       {{"x", 1}},
                       {0, 1},
                       "mesh {x=1} has 1 device, 2 ids were given; give one id per device"},
           RefusedMesh{"duplicate_id",
                       {{"x", 3}},
                       {5, 2, 5},
                       "mesh {x=3} names device 5 twice, at positions 0 and 2; a device has one "
                       "place in a mesh"},
           RefusedMesh{"negative_id",
                       {{"x", 2}},
                       {0, -1},
                       "mesh {x=2} names device -1 at position 1; device ids are 0 or more"}),
    row_name<RefusedMesh>);

TEST(MeshTest, RefusesGroups) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::parse("{batch=2, model=2}"));
  EXPECT_THAT(
      mesh.group(0, {"modle"}),
      StatusIs(kInvalid, AllOf(HasSubstr("\"modle\""), HasSubstr("did you mean \"model\""))));
  EXPECT_THAT(mesh.group(0, {"batch", "batch"}),
              StatusIs(kInvalid,
                       "a group of mesh {batch=2, model=2} names axis \"batch\" twice; name it "
                       "once"));
  EXPECT_THAT(
      mesh.group(4, {"batch"}),
      StatusIs(kInvalid, "position 4 is not in mesh {batch=2, model=2}; positions are 0 to 3"));
  EXPECT_THAT(mesh.group(-1, {"batch"}), StatusIs(kInvalid, HasSubstr("position -1")));
}

TEST(MeshTest, RefusesSlices) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::parse("{x=2, y=3}"));
  EXPECT_THAT(mesh.slice({{"z", 0}}), StatusIs(kInvalid, HasSubstr("has no axis \"z\"")));
  EXPECT_THAT(mesh.slice({{"x", 0}, {"x", 1}}),
              StatusIs(kInvalid, "a slice of mesh {x=2, y=3} fixes axis \"x\" twice; fix it once"));
  EXPECT_THAT(mesh.slice({{"y", 3}}),
              StatusIs(kInvalid,
                       "a slice of mesh {x=2, y=3} fixes axis \"y\" at 3; coordinates of it are 0 "
                       "to 2"));
  EXPECT_THAT(mesh.slice({{"y", -1}}), StatusIs(kInvalid, HasSubstr("at -1")));
  EXPECT_THAT(
      mesh.slice({{"x", 0}, {"y", 0}}),
      StatusIs(kInvalid, "a slice of mesh {x=2, y=3} fixes every axis; leave at least one free"));
}

// An accessor has a documented answer for arguments that do not exist, and no accessor aborts.
TEST(MeshTest, AccessorsAreTotal) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::parse("{x=2, y=3} on 9,8,7,6,5,4"));
  for (const int64_t position : {int64_t{-1}, int64_t{6}, std::numeric_limits<int64_t>::max()}) {
    EXPECT_THAT(mesh.coordinates(position), ElementsAre());
    EXPECT_EQ(mesh.device_at(position), std::nullopt);
  }
  EXPECT_EQ(mesh.device_at(5), 4);
  EXPECT_THAT(mesh.position({1, 3}),
              StatusIs(kInvalid,
                       "mesh {x=2, y=3} has no coordinate 3 on axis \"y\"; coordinates of it are "
                       "0 to 2"));
  EXPECT_THAT(mesh.position({-1, 0}), StatusIs(kInvalid, HasSubstr("no coordinate -1")));
  EXPECT_THAT(mesh.position({1}),
              StatusIs(kInvalid,
                       "mesh {x=2, y=3} has 2 axes, 1 coordinates were given; give one per axis"));
}

TEST(MeshTest, AMoveIsACopy) {
  TESSERA_ASSERT_OK_AND_ASSIGN(Mesh mesh, Mesh::parse("{x=2, y=3} on 9,8,7,6,5,4"));
  const Mesh taken = std::move(mesh);
  EXPECT_EQ(mesh.to_string(),
            "{x=2, y=3} on 9,8,7,6,5,4");  // NOLINT: tests an object that was moved from
  EXPECT_EQ(mesh, taken);
}

class RecordingRuntime : public MeshRuntime {
 public:
  Status barrier(const Mesh& mesh, absl::string_view name,
                 std::optional<absl::Duration> timeout) override {
    last = absl::StrCat(name, " on ", mesh.to_string(), " ",
                        absl::FormatDuration(timeout.value_or(absl::InfiniteDuration())));
    return absl::OkStatus();
  }
  std::string last;
};

TEST(MeshTest, BarrierGoesToTheRuntime) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh abstract_mesh, Mesh::parse("{x=2, y=2}"));
  EXPECT_THAT(abstract_mesh.barrier("epoch"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "barrier \"epoch\" on {x=2, y=2}: the mesh is abstract, no device stands "
                       "behind it; make a live one with create_mesh(client, axes)"));
  const auto runtime = std::make_shared<RecordingRuntime>();
  const Mesh live = internal::with_runtime(abstract_mesh, runtime);
  EXPECT_EQ(live, abstract_mesh);
  EXPECT_EQ(internal::runtime_of(live), runtime);
  EXPECT_EQ(internal::runtime_of(abstract_mesh), nullptr);
  EXPECT_THAT(live.barrier("epoch", absl::Seconds(3)), IsOk());
  EXPECT_EQ(runtime->last, "epoch on {x=2, y=2} 3s");

  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh slice, live.slice({{"x", 1}}));
  EXPECT_THAT(slice.barrier(), IsOk());
  EXPECT_EQ(runtime->last, " on {y=2} on 2,3 inf");
}

TEST(MeshTest, AnEmptyMeshIsNoMesh) {
  const Mesh empty;
  EXPECT_FALSE(empty.valid());
  EXPECT_EQ(empty.rank(), 0);
  EXPECT_EQ(empty.size(), 0);
  EXPECT_TRUE(empty.axes().empty());
  EXPECT_TRUE(empty.device_ids().empty());
  EXPECT_TRUE(empty.coordinates(0).empty());
  EXPECT_EQ(empty.device_at(0), std::nullopt);
  EXPECT_EQ(empty.position_of_device(0), std::nullopt);
  EXPECT_EQ(empty.to_string(), "");
  EXPECT_EQ(empty, Mesh());
  EXPECT_FALSE(empty == *Mesh::create({{"x", 1}}));
  const auto is_refused = [](const char* call) {
    return StatusIs(absl::StatusCode::kFailedPrecondition,
                    HasSubstr(absl::StrCat("Mesh::", call, "() of an empty Mesh")));
  };
  EXPECT_THAT(empty.axis_size("x"), is_refused("axis_size"));
  EXPECT_THAT(empty.axis_index("x"), is_refused("axis_index"));
  EXPECT_THAT(empty.position({}), is_refused("position"));
  EXPECT_THAT(empty.group(0, {}), is_refused("group"));
  EXPECT_THAT(empty.slice({}), is_refused("slice"));
  EXPECT_THAT(empty.barrier("end"), is_refused("barrier"));
}

}  // namespace
}  // namespace tessera
