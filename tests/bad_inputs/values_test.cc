// SPDX-License-Identifier: Apache-2.0
//
// The table of bad inputs, part 1: meshes, layouts and plans, which are values. Each row is one
// input and the whole message that it must give, with InvalidArgument where no code is named.
#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tessera/tessera.h"
#include "tests/support/bad_inputs.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

// The values that most rows need.
struct Bench {
  Mesh mesh;    // {x=4, y=2}
  Layout rows;  // [x, -] on {x=4}

  static StatusOr<Bench> create() {
    TESSERA_ASSIGN_OR_RETURN(const Mesh line, Mesh::parse("{x=4}"));
    TESSERA_ASSIGN_OR_RETURN(const Layout rows, Layout::parse(line, "[x, -]"));
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::parse("{x=4, y=2}"));
    return Bench{mesh, rows};
  }
  // A plan from `rows`.
  Status plan(absl::string_view to, const Shape& shape, const PlanOptions& options = {}) const {
    return plan_relayout(rows, Layout::parse(rows.mesh(), to), shape, DType::kFloat32, options)
        .status();
  }
};
using Row = BadInput<Bench>;

struct TextRow {
  const char* name;
  const char* text;
  const char* message;

  friend std::ostream& operator<<(std::ostream& out, const TextRow& row) { return out << row.name; }
};

const TextRow kMeshTexts[] = {
    {"empty", "", "mesh \"\" ends where \"{\" should follow"},
    {"brace_alone", "{", "mesh \"{\" ends where the name of an axis should follow"},
    {"closing_brace_alone", "}", "mesh \"}\" has \"}\" at character 1, where \"{\" should be"},
    {"no_axis", "{}", "mesh {} has no axis; a mesh needs an axis, as in {x=4}"},
    {"no_equals", "{x}", "mesh \"{x}\" has \"}\" at character 3, where \"=\" should be"},
    {"no_size", "{x=}",
     "mesh \"{x=}\" has \"}\" at character 4, where the size of the axis should be"},
    {"not_closed", "{x=2", "mesh \"{x=2\" ends where \",\" or \"}\" should follow"},
    {"closed_twice", "{x=2}}",
     "mesh \"{x=2}}\" has \"}\" at character 6, where the end or \"on\" and device ids should be"},
    {"negative_size", "{x=-2}", "mesh {x=-2} has size -2 for axis \"x\"; a size is 1 or more"},
    {"on_nothing", "{x=2} on",
     "mesh \"{x=2} on\" ends where a device id (0 to 2147483647) should follow"},
    {"one_id_of_two", "{x=2} on 1",
     "mesh {x=2} has 2 devices, 1 id was given; give one id per device"},
    {"an_id_twice", "{x=2} on 1,1",
     "mesh {x=2} names device 1 twice, at positions 0 and 1; a device has one place in a mesh"},
    {"ids_of_letters", "{x=2} on a,b",
     "mesh \"{x=2} on a,b\" has \"a\" at character 10, where a device id (0 to 2147483647) should "
     "be"},
    {"size_past_64_bits", "{x=99999999999999999999}",
     "mesh \"{x=99999999999999999999}\" has \"99999999999999999999\" at character 4, where the "
     "size of the axis should be; the number is too large for 64 bits, use a smaller one"},
    {"a_comma_more", "{x=2,}",
     "mesh \"{x=2,}\" has \"}\" at character 6, where the name of an axis should be"},
    {"no_braces", "x=2", "mesh \"x=2\" has \"x\" at character 1, where \"{\" should be"},
    {"a_comma_after_the_ids", "{x=2} on 1,2,",
     "mesh \"{x=2} on 1,2,\" ends where a device id (0 to 2147483647) should follow"},
};

// On {x=4, y=2}.
const TextRow kLayoutTexts[] = {
    {"empty", "", "layout \"\" ends where \"[\" should follow"},
    {"bracket_alone", "[", "layout \"[\" ends where an axis, \"-\" or \"(\" should follow"},
    {"closing_bracket_alone", "]", "layout \"]\" has \"]\" at character 1, where \"[\" should be"},
    {"not_closed", "[x", "layout \"[x\" ends where \",\" or \"]\" should follow"},
    {"closed_twice", "[x]]",
     "layout \"[x]]\" has \"]\" at character 4, where a reduction or the end should be"},
    {"no_brackets", "x", "layout \"x\" has \"x\" at character 1, where \"[\" should be"},
    {"pre_of_0", "[x:(0)2]",
     "layout \"[x:(0)2]\" names sub-axis \"x:(0)2\" in dim 0 with a factor of 0; factors are 1 or "
     "more"},
    {"size_of_0", "[x:(1)0]",
     "layout \"[x:(1)0]\" names sub-axis \"x:(1)0\" in dim 0 with a factor of 0; factors are 1 or "
     "more"},
    {"negative_pre", "[x:(-1)2]",
     "layout \"[x:(-1)2]\" names sub-axis \"x:(-1)2\" in dim 0 with a factor of -1; factors are 1 "
     "or more"},
    {"pre_past_64_bits", "[x:(99999999999999999999)2]",
     "layout \"[x:(99999999999999999999)2]\" has \"99999999999999999999\" at character 5, where "
     "the pre of a sub-axis, as in x:(2)2, should be; the number is too large for 64 bits, use a "
     "smaller one"},
    {"sub_axis_too_large", "[x:(2)4]",
     "layout \"[x:(2)4]\" names sub-axis \"x:(2)4\" in dim 0; axis \"x\" has size 4, which 2*4 "
     "does not divide; use factors whose product divides 4"},
    {"pre_does_not_divide", "[x:(3)2]",
     "layout \"[x:(3)2]\" names sub-axis \"x:(3)2\" in dim 0; axis \"x\" has size 4, which 3*2 "
     "does not divide; use factors whose product divides 4"},
    {"product_past_64_bits", "[x:(4611686018427387904)4]",
     "layout \"[x:(4611686018427387904)4]\" names sub-axis \"x:(4611686018427387904)4\" in dim 0; "
     "axis \"x\" has size 4, which 4611686018427387904*4 does not divide; use factors whose "
     "product divides 4"},
    {"parentheses_of_one", "[(x)]",
     "layout \"[(x)]\" has \")\" at character 4, where \",\" (one axis is written without "
     "parentheses) should be"},
    {"parentheses_of_none", "[()]",
     "layout \"[()]\" has \")\" at character 3, where an axis should be"},
    {"a_comma_alone", "[,]",
     "layout \"[,]\" has \",\" at character 2, where an axis, \"-\" or \"(\" should be"},
    {"a_comma_more", "[x,]",
     "layout \"[x,]\" has \"]\" at character 4, where an axis, \"-\" or \"(\" should be"},
    {"sum_of_nothing", "[x] sum{}",
     "layout \"[x] sum{}\" has the empty list sum{}; name the partial axes, or leave the reduction "
     "out"},
    {"unknown_reduction", "[x] foo{y}",
     "layout \"[x] foo{y}\" has reduction \"foo\"; a reduction is sum, prod, min, max or avg"},
    {"split_and_partial", "[x] sum{x}",
     "layout \"[x] sum{x}\" names axis \"x\" both in dim 0 and as partial; an axis splits a dim or "
     "is partial, not both"},
    {"two_reductions", "[x] sum{y} max{y}",
     "layout \"[x] sum{y} max{y}\" has a second reduction \"max\"; a layout has one reduction, "
     "over all its partial axes"},
    {"reduction_not_closed", "[x] sum{y",
     "layout \"[x] sum{y\" ends where \",\" or \"}\" should follow"},
    {"another_mesh", "[x] on {x=4}",
     "layout \"[x] on {x=4}\" is on {x=4}, and is to be read on {x=4, y=2}; leave the mesh out or "
     "give the same"},
    {"an_axis_twice", "[x, x]",
     "layout \"[x, x]\" names axis \"x\" in dims 0 and 1; an axis splits one dim, once"},
    {"upper_case", "[X]",
     "layout \"[X]\" names axis \"X\" in dim 0; mesh {x=4, y=2} has \"x\", \"y\"; did you mean "
     "\"x\""},
    {"mistyped", "[xx]",
     "layout \"[xx]\" names axis \"xx\" in dim 0; mesh {x=4, y=2} has \"x\", \"y\"; did you mean "
     "\"x\""},
    {"no_comma", "[x y]",
     "layout \"[x y]\" has \"y\" at character 4, where \",\" or \"]\" should be"},
    {"partial_twice", "[-] sum{y,y}",
     "layout \"[-] sum{y,y}\" names axis \"y\" twice as partial; name it once"},
    {"colon_alone", "[x:]",
     "layout \"[x:]\" has \"]\" at character 4, where \"(\" of a sub-axis, as in x:(2)2, should "
     "be"},
    {"sub_axis_without_size", "[x:(1)]",
     "layout \"[x:(1)]\" has \"]\" at character 7, where the size of a sub-axis, as in x:(2)2, "
     "should be"},
    {"pre_without_parentheses", "[x:1(2)]",
     "layout \"[x:1(2)]\" has \"1\" at character 4, where \"(\" of a sub-axis, as in x:(2)2, "
     "should be"},
    {"dash_in_parentheses", "[(x,-)]",
     "layout \"[(x,-)]\" has \"-\" at character 5, where an axis should be"},
};

const Row kMeshRows[] = {
    {"no_axes", kInvalid, "mesh {} has no axis; a mesh needs an axis, as in {x=4}",
     [](Bench&) { return Mesh::create({}).status(); }},
    {"size_0", kInvalid, "mesh {x=0} has size 0 for axis \"x\"; a size is 1 or more",
     [](Bench&) {
       return Mesh::create({{"x", 0}}).status();
     }},
    {"size_minus_4", kInvalid, "mesh {x=-4} has size -4 for axis \"x\"; a size is 1 or more",
     [](Bench&) {
       return Mesh::create({{"x", -4}}).status();
     }},
    {"empty_name", kInvalid,
     "mesh {=2} has axis name \"\"; a name is a letter or _, then letters, digits or _ "
     "([A-Za-z_][A-Za-z0-9_]*)",
     [](Bench&) {
       return Mesh::create({{"", 2}}).status();
     }},
    {"name_that_begins_with_a_digit", kInvalid,
     "mesh {2x=2} has axis name \"2x\"; a name is a letter or _, then letters, digits or _ "
     "([A-Za-z_][A-Za-z0-9_]*)",
     [](Bench&) {
       return Mesh::create({{"2x", 2}}).status();
     }},
    {"name_with_a_blank", kInvalid,
     "mesh {a b=2} has axis name \"a b\"; a name is a letter or _, then letters, digits or _ "
     "([A-Za-z_][A-Za-z0-9_]*)",
     [](Bench&) {
       return Mesh::create({{"a b", 2}}).status();
     }},
    {"name_beyond_ascii", kInvalid,
     "mesh {gr\u00f6\u00dfe=2} has axis name \"gr\u00f6\u00dfe\"; a name is a letter or _, then "
     "letters, "
     "digits or _ ([A-Za-z_][A-Za-z0-9_]*)",
     [](Bench&) {
       return Mesh::create({{"gr\u00f6\u00dfe", 2}}).status();
     }},
    {"name_twice", kInvalid,
     "mesh {x=2, x=2} names axis \"x\" twice; give each axis a name of its own",
     [](Bench&) {
       return Mesh::create({{"x", 2}, {"x", 2}}).status();
     }},
    {"product_past_64_bits", kInvalid,
     "mesh {x=1099511627776, y=1099511627776} has more than 2147483647 devices; use smaller sizes",
     [](Bench&) {
       return Mesh::create({{"x", int64_t{1} << 40}, {"y", int64_t{1} << 40}}).status();
     }},
    {"two_to_the_31", kInvalid,
     "mesh {x=2147483648} has more than 2147483647 devices; use smaller sizes",
     [](Bench&) {
       return Mesh::create({{"x", int64_t{1} << 31}}).status();
     }},
    {"id_minus_one", kInvalid, "mesh {x=2} names device -1 at position 1; device ids are 0 or more",
     [](Bench&) {
       return Mesh::create({{"x", 2}}, {0, -1}).status();
     }},
    {"too_few_ids", kInvalid, "mesh {x=4} has 4 devices, 2 ids were given; give one id per device",
     [](Bench&) {
       return Mesh::create({{"x", 4}}, {0, 1}).status();
     }},
    {"no_ids", kInvalid, "mesh {x=4} has 4 devices, 0 ids were given; give one id per device",
     [](Bench&) {
       return Mesh::create({{"x", 4}}, {}).status();
     }},
    {"size_of_another_axis", kInvalid, "mesh {x=4, y=2} has no axis \"z\"; it has \"x\", \"y\"",
     [](Bench& b) { return b.mesh.axis_size("z").status(); }},
    {"group_over_another_axis", kInvalid, "mesh {x=4, y=2} has no axis \"q\"; it has \"x\", \"y\"",
     [](Bench& b) { return b.mesh.group(5, {"q"}).status(); }},
    {"slice_past_the_end", kInvalid,
     "a slice of mesh {x=4, y=2} fixes axis \"x\" at 4; coordinates of it are 0 to 3",
     [](Bench& b) {
       return b.mesh.slice({{"x", 4}}).status();
     }},
    {"slice_of_every_axis", kInvalid,
     "a slice of mesh {x=4, y=2} fixes every axis; leave at least one free",
     [](Bench& b) {
       return b.mesh.slice({{"x", 1}, {"y", 1}}).status();
     }},
};

const Row kLayoutRows[] = {
    {"rank_minus_one", kInvalid, "a replicated layout has rank -1; a rank is 0 to 254",
     [](Bench& b) { return Layout::replicated(b.mesh, -1).status(); }},
    {"rank_of_a_million", kInvalid, "a replicated layout has rank 1000000; a rank is 0 to 254",
     [](Bench& b) { return Layout::replicated(b.mesh, 1000000).status(); }},
    {"largest_rank", kInvalid, "a replicated layout has rank 2147483647; a rank is 0 to 254",
     [](Bench& b) { return Layout::replicated(b.mesh, std::numeric_limits<int>::max()).status(); }},
    {"dim_2_of_2", kInvalid,
     "a layout of rank 2 has no dim 2 to split by axis \"x\"; dims are 0 to 1",
     [](Bench& b) { return Layout::batch_sharded(b.mesh, "x", 2, 2).status(); }},
    {"dim_minus_one", kInvalid,
     "a layout of rank 2 has no dim -1 to split by axis \"x\"; dims are 0 to 1",
     [](Bench& b) { return Layout::batch_sharded(b.mesh, "x", 2, -1).status(); }},
    {"batch_of_a_scalar", kInvalid,
     "a layout of rank 0 has no dim to split by axis \"x\"; give it one",
     [](Bench& b) { return Layout::batch_sharded(b.mesh, "x", 0).status(); }},
    {"inner_dim_of_a_scalar", kInvalid,
     "a layout of rank 0 has no dim to split by axis \"x\"; give it one",
     [](Bench& b) { return Layout::inner_sharded(b.mesh, "x", 0).status(); }},
    {"inner_dim_along_another_axis", kInvalid,
     "layout \"[-, q]\" names axis \"q\" in dim 1; mesh {x=4, y=2} has \"x\", \"y\"",
     [](Bench& b) { return Layout::inner_sharded(b.mesh, "q", 2).status(); }},
    {"an_empty_axis", kInvalid,
     "layout \"[]\", dim 0 (empty where it is not split): axis \"\" ends where the name of an axis "
     "should follow",
     [](Bench& b) { return Layout::create(b.mesh, {{""}}).status(); }},
    {"a_dash_as_an_axis", kInvalid,
     "layout \"[-]\", dim 0 (empty where it is not split): axis \"-\" has \"-\" at character 1, "
     "where "
     "the name of an axis should be",
     [](Bench& b) { return Layout::create(b.mesh, {{"-"}}).status(); }},
    {"half_a_sub_axis", kInvalid,
     "layout \"[x:]\", dim 0 (empty where it is not split): axis \"x:\" ends where \"(\" of a "
     "sub-axis, as in x:(2)2, should follow",
     [](Bench& b) { return Layout::create(b.mesh, {{"x:"}}).status(); }},
    {"two_axes_in_one_entry", kInvalid,
     "layout \"[x,y]\", dim 0 (empty where it is not split): axis \"x,y\" has \",\" at character "
     "2, "
     "where the end (one entry names one axis or sub-axis, as in x:(2)2) should be",
     [](Bench& b) { return Layout::create(b.mesh, {{"x,y"}}).status(); }},
    {"dims_300", kInvalid, "a layout has rank 300; a rank is 0 to 254",
     [](Bench& b) { return Layout::create(b.mesh, std::vector<DimSharding>(300)).status(); }},
    {"partial_over_nothing", kInvalid,
     "layout [x, -] is given an empty list of partial axes for sum; name one, or use "
     "without_partial()",
     [](Bench& b) { return b.rows.with_partial({}).status(); }},
    {"partial_over_a_split_axis", kInvalid,
     "layout \"[x, -] sum{x}\" names axis \"x\" both in dim 0 and as partial; an axis splits a dim "
     "or "
     "is partial, not both",
     [](Bench& b) { return b.rows.with_partial({"x"}).status(); }},
    {"partial_by_no_reduction", kInvalid,
     "layout [x, -]: ReduceOp(17) is not a reduction; use an enumerator of ReduceOp, kSum (0) to "
     "kAvg (4)",
     [](Bench& b) { return b.rows.with_partial({"x"}, static_cast<ReduceOp>(17)).status(); }},
    {"text_of_a_megabyte", kInvalid,
     "layout \"aaaa...\" (1000000 bytes) has \"aaaa...\" (1000000 bytes) at character 1, where "
     "\"[\" should be",
     [](Bench& b) { return Layout::parse(b.mesh, std::string(1000000, 'a')).status(); }},
    {"text_of_300001_dims", kInvalid, "a layout has rank 300001; a rank is 0 to 254",
     [](Bench& b) {
       std::string text = "[";
       for (int i = 0; i < 300000; ++i) text += "-,";
       return Layout::parse(b.mesh, text + "-]").status();
     }},
    {"text_of_100000_parentheses", kInvalid,
     "layout \"[((((...\" (100001 bytes) has \"(\" at character 3, where an axis should be",
     [](Bench& b) { return Layout::parse(b.mesh, "[" + std::string(100000, '(')).status(); }},
    {"text_with_a_zero_byte", kInvalid,
     "layout \"[x\\x00]\" has \"\\x00\" at character 3, where \",\" or \"]\" should be",
     [](Bench& b) { return Layout::parse(b.mesh, absl::string_view("[x\0]", 4)).status(); }},
    {"shape_of_another_rank", kInvalid,
     "layout [x, -] has 2 dims, shape [8] has 1; give one entry per dim",
     [](Bench& b) { return b.rows.validate_shape({8}); }},
    {"negative_shape", kInvalid, "shape [8, -6] has size -6 in dim 1; a size is 0 or more",
     [](Bench& b) {
       return b.rows.validate_shape({8, -6});
     }},
};

const Row kPlanRows[] = {
    {"negative_size", kInvalid, "shape [-1, 4] has size -1 in dim 0; a size is 0 or more",
     [](Bench& b) {
       return b.plan("[-, x]", {-1, 4});
     }},
    {"elements_past_64_bits", kInvalid,
     "shape [1099511627776, 1099511627776] has more elements than a 64-bit integer counts; use "
     "smaller sizes",
     [](Bench& b) {
       return b.plan("[-, x]", {int64_t{1} << 40, int64_t{1} << 40});
     }},
    {"bytes_past_64_bits", kInvalid,
     "shape [2305843009213693952, 1] of f32 has more than 2^63 - 1 bytes; give it fewer elements",
     [](Bench& b) {
       return b.plan("[-, x]", {int64_t{1} << 61, 1});
     }},
    {"another_rank", kInvalid,
     "relayout to [x]: the layout has 1 dim, the tensor under [x, -] has 2; relayout keeps the "
     "rank",
     [](Bench& b) {
       return b.plan("[x]", {64, 64});
     }},
    {"shape_of_another_rank", kInvalid,
     "layout [x, -] has 2 dims, shape [64] has 1; give one entry per dim",
     [](Bench& b) { return b.plan("[-, x]", {64}); }},
    {"target_with_an_error", kInvalid, "layout \"[nope\" ends where \",\" or \"]\" should follow",
     [](Bench& b) {
       return b.plan("[nope", {64, 64});
     }},
    {"average_of_integers", kInvalid,
     "layout [x, -] avg{y}: avg is not defined for integers, and the dtype is i32; use sum, or a "
     "floating-point dtype",
     [](Bench& b) {
       const auto from = Layout::parse(b.mesh, "[x, -] avg{y}");
       return plan_relayout(*from, Layout::parse(b.mesh, "[x, -]"), {8, 6}, DType::kInt32).status();
     }},
    {"cap_of_0", kExhausted,
     "relayout [x, -] -> [-, x] on {x=4}, f32 [64, 64]: all_to_all{x} needs 8192 bytes on a "
     "device, "
     "the memory cap is 0 bytes; the least feasible cap is 8192",
     [](Bench& b) {
       return b.plan("[-, x]", {64, 64}, {.memory_cap_bytes = 0});
     }},
    {"cap_minus_one", kExhausted,
     "relayout [x, -] -> [-, x] on {x=4}, f32 [64, 64]: all_to_all{x} needs 8192 bytes on a "
     "device, "
     "the memory cap is -1 bytes; the least feasible cap is 8192",
     [](Bench& b) {
       return b.plan("[-, x]", {64, 64}, {.memory_cap_bytes = -1});
     }},
    {"cap_one_byte_short", kExhausted,
     "relayout [x, -] -> [-, x] on {x=4}, f32 [64, 64]: all_to_all{x} needs 8192 bytes on a "
     "device, "
     "the memory cap is 8191 bytes; the least feasible cap is 8192",
     [](Bench& b) {
       return b.plan("[-, x]", {64, 64}, {.memory_cap_bytes = 8191});
     }},
};

class BadInputTest : public ::testing::TestWithParam<Row> {};

TEST_P(BadInputTest, IsRefused) {
  TESSERA_ASSERT_OK_AND_ASSIGN(Bench bench, Bench::create());
  EXPECT_THAT(expect_refused(GetParam(), GetParam().call(bench)), IsOk());
}
INSTANTIATE_TEST_SUITE_P(Meshes, BadInputTest, ::testing::ValuesIn(kMeshRows),
                         bad_input_name<Bench>);
INSTANTIATE_TEST_SUITE_P(Layouts, BadInputTest, ::testing::ValuesIn(kLayoutRows),
                         bad_input_name<Bench>);
INSTANTIATE_TEST_SUITE_P(Plans, BadInputTest, ::testing::ValuesIn(kPlanRows),
                         bad_input_name<Bench>);

std::string text_row_name(const ::testing::TestParamInfo<TextRow>& info) { return info.param.name; }

class BadMeshTextTest : public ::testing::TestWithParam<TextRow> {};

TEST_P(BadMeshTextTest, IsRefused) {
  EXPECT_THAT(Mesh::parse(GetParam().text), StatusIs(kInvalid, GetParam().message));
}
INSTANTIATE_TEST_SUITE_P(Rows, BadMeshTextTest, ::testing::ValuesIn(kMeshTexts), text_row_name);

class BadLayoutTextTest : public ::testing::TestWithParam<TextRow> {};

TEST_P(BadLayoutTextTest, IsRefused) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Bench bench, Bench::create());
  EXPECT_THAT(Layout::parse(bench.mesh, GetParam().text), StatusIs(kInvalid, GetParam().message));
}
INSTANTIATE_TEST_SUITE_P(Rows, BadLayoutTextTest, ::testing::ValuesIn(kLayoutTexts), text_row_name);

}  // namespace
}  // namespace tessera::testing
