// SPDX-License-Identifier: Apache-2.0
//
// Layout: factories, queries, identity, and one row for each refusal.
#include "layout/layout.h"

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/reduce_op.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::tessera::testing::IsOk;
using ::tessera::testing::IsOkAndHolds;
using ::tessera::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ValuesIn;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

template <class Row>
std::string row_name(const ::testing::TestParamInfo<Row>& info) {
  return info.param.name;
}

Mesh mesh_of(absl::string_view text) {
  const StatusOr<Mesh> mesh = Mesh::parse(text);
  EXPECT_THAT(mesh, IsOk());
  return *mesh;
}

TEST(LayoutTest, AnswersQueries) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout layout, Layout::create(mesh_of("{x=4, y=2, z=3}"),
                                                                   {{"z", "x:(1)2"}, {}, {"y"}}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout partial,
                               layout.with_partial({"x:(2)2"}, ReduceOp::kMax));
  EXPECT_EQ(partial.mesh(), mesh_of("{x=4, y=2, z=3}"));
  EXPECT_EQ(partial.rank(), 3);
  EXPECT_THAT(partial.dims(),
              ElementsAre(DimSharding{"z", "x:(1)2"}, DimSharding{}, DimSharding{"y"}));
  EXPECT_THAT(partial.dim_axes()[0], ElementsAre(SubAxis{2, 1, 3}, SubAxis{0, 1, 2}));
  EXPECT_THAT(partial.dim_axes()[1], IsEmpty());
  EXPECT_THAT(partial.partial_axes(), ElementsAre(SubAxis{0, 2, 2}));
  EXPECT_EQ(partial.partial_op(), ReduceOp::kMax);
  EXPECT_EQ(partial.num_partial_terms(), 2);
  EXPECT_EQ(partial.num_shards(0), 6);
  EXPECT_EQ(partial.num_shards(1), 1);
  EXPECT_EQ(partial.num_shards(2), 2);
  EXPECT_TRUE(partial.is_partial());
  EXPECT_FALSE(partial.is_fully_replicated());
  EXPECT_EQ(partial.to_string(), "[(z,x:(1)2), -, y] max{x:(2)2}");
  EXPECT_EQ(partial.to_string_with_mesh(), "[(z,x:(1)2), -, y] max{x:(2)2} on {x=4, y=2, z=3}");
  // Position 17 is x = 2, y = 1, z = 2.
  EXPECT_EQ(partial.shard_index(0, 17), 2 * 2 + 1);
  EXPECT_EQ(partial.shard_index(1, 17), 0);
  EXPECT_EQ(partial.shard_index(2, 17), 1);
  EXPECT_EQ(partial.partial_index(17), 0);
  EXPECT_EQ(partial.partial_index(23), 1);
}

TEST(LayoutTest, PartialTermsAreNumberedInMeshOrder) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout layout,
                               Layout::parse(mesh_of("{x=2, y=2, z=2}"), "[y] sum{z,x}"));
  EXPECT_EQ(layout.num_partial_terms(), 4);
  for (int64_t x = 0; x < 2; ++x) {
    for (int64_t y = 0; y < 2; ++y) {
      for (int64_t z = 0; z < 2; ++z) {
        EXPECT_EQ(layout.partial_index(*layout.mesh().position({x, y, z})), 2 * x + z);
      }
    }
  }
}

TEST(LayoutTest, NumShardsMultiplies) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout layout,
                               Layout::parse(mesh_of("{x=4, y=2}"), "[(x,y), -]"));
  EXPECT_EQ(layout.num_shards(0), 8);
  EXPECT_EQ(layout.num_shards(1), 1);
}

TEST(LayoutTest, ReplicatedKeepsEveryDimWhole) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout two, Layout::replicated(mesh_of("{batch=2, x=2}"), 2));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout none, Layout::replicated(mesh_of("{batch=2, x=2}"), 0));
  EXPECT_EQ(two.to_string(), "[-, -]");
  EXPECT_EQ(none.to_string(), "[]");
  EXPECT_TRUE(two.is_fully_replicated());
  EXPECT_TRUE(none.is_fully_replicated());
  EXPECT_FALSE(two == none);
}

TEST(LayoutTest, ShardedFactoriesSplitOneDim) {
  const Mesh mesh = mesh_of("{batch=2, x=2}");
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout inner, Layout::inner_sharded(mesh, "x", 2));
  EXPECT_EQ(inner.to_string(), "[-, x]");
  EXPECT_EQ(inner.num_shards(0), 1);
  EXPECT_EQ(inner.num_shards(1), 2);
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout outer, Layout::batch_sharded(mesh, "batch", 3));
  EXPECT_EQ(outer.to_string(), "[batch, -, -]");
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout middle, Layout::batch_sharded(mesh, "x", 3, 1));
  EXPECT_EQ(middle.to_string(), "[-, x, -]");
}

TEST(LayoutTest, WithPartialReplacesTheReduction) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout sum,
                               Layout::parse(mesh_of("{x=2, y=2, z=2}"), "[x] sum{y}"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout avg, sum.with_partial({"z"}, ReduceOp::kAvg));
  EXPECT_EQ(avg.to_string(), "[x] avg{z}");
  EXPECT_EQ(avg.without_partial().to_string(), "[x]");
  EXPECT_EQ(avg.without_partial().partial_op(), std::nullopt);
  EXPECT_EQ(avg.without_partial(), sum.without_partial());
  EXPECT_FALSE(avg.without_partial().is_partial());
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout by_default, sum.with_partial({"z", "y"}));
  EXPECT_EQ(by_default.to_string(), "[x] sum{y,z}");
}

TEST(LayoutTest, WithMeshMovesToOtherDevices) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout layout, Layout::parse(mesh_of("{x=2}"), "[x]"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout moved, layout.with_mesh(mesh_of("{x=2} on 5,3")));
  EXPECT_EQ(moved.to_string_with_mesh(), "[x] on {x=2} on 5,3");
  EXPECT_FALSE(moved == layout);
  EXPECT_THAT(Layout::parse(moved.mesh(), moved.to_string_with_mesh()), IsOkAndHolds(moved));
}

TEST(LayoutTest, EqualityAndHashGoByContent) {
  std::vector<Layout> layouts;
  for (const char* text :
       {"[x, -]", "[-, x]", "[x:(1)2, -]", "[x]", "[-, -]", "[(x,y), -]", "[(y,x), -]",
        "[-, -] sum{x}", "[-, -] min{x}", "[-, -] sum{y}", "[(x:(1)2,x:(2)2), -]"}) {
    for (const char* mesh : {"{x=4, y=2}", "{x=4, y=2} on 7,6,5,4,3,2,1,0"}) {
      TESSERA_ASSERT_OK_AND_ASSIGN(Layout layout, Layout::parse(mesh_of(mesh), text));
      layouts.push_back(layout);
    }
  }
  for (const Layout& a : layouts) {
    for (const Layout& b : layouts) {
      const bool equal = a.to_string_with_mesh() == b.to_string_with_mesh();
      EXPECT_EQ(a == b, equal) << a << " and " << b;
      EXPECT_EQ(absl::Hash<Layout>()(a) == absl::Hash<Layout>()(b), equal) << a << " and " << b;
    }
  }
}

TEST(LayoutTest, ValidatesShapes) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout layout,
                               Layout::parse(mesh_of("{batch=4, model=2}"), "[batch, -]"));
  EXPECT_THAT(layout.validate_shape({10, 6}), IsOk());
  EXPECT_THAT(layout.validate_shape({0, 6}), IsOk());
  EXPECT_THAT(
      layout.validate_shape({10}),
      StatusIs(kInvalid, "layout [batch, -] has 2 dims, shape [10] has 1; give one entry per dim"));
  EXPECT_THAT(layout.without_partial().validate_shape({10, -1}),
              StatusIs(kInvalid, HasSubstr("-1")));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout one, Layout::parse(layout.mesh(), "[-]"));
  EXPECT_THAT(one.validate_shape({}),
              StatusIs(kInvalid, "layout [-] has 1 dim, shape [] has 0; give one entry per dim"));
}

TEST(LayoutTest, WorksOnTheLargestMesh) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout layout,
                               Layout::parse(mesh_of("{a=65536, b=32767}"), "[b:(7)31, a]"));
  EXPECT_EQ(layout.num_shards(0), 31);
  EXPECT_EQ(layout.num_shards(1), 65536);
  const Box box = layout.box({31, 65536}, layout.mesh().size() - 1);
  EXPECT_THAT(box.offsets, ElementsAre(30, 65535));
  EXPECT_THAT(box.sizes, ElementsAre(1, 1));
}

struct RefusedText {
  const char* name;
  const char* mesh;
  const char* text;
  const char* message;
};
const RefusedText kRefusedTexts[] = {
    {"axis_in_two_dims", "{x=2, y=2}", "[x, x]",
     "layout \"[x, x]\" names axis \"x\" in dims 0 and 1; an axis splits one dim, once"},
    {"axis_in_two_dims_apart", "{x=2, y=2}", "[x, y, x]",
     "layout \"[x, y, x]\" names axis \"x\" in dims 0 and 2; an axis splits one dim, once"},
    {"axis_twice_in_one_dim", "{x=2, y=2}", "[(x,x), -]",
     "layout \"[(x,x), -]\" names axis \"x\" twice in dim 0; name it once"},
    {"axis_of_size_one_twice", "{x=1}", "[x, x]",
     "layout \"[x, x]\" names axis \"x\" in dims 0 and 1; an axis splits one dim, once"},
    {"axis_twice_as_partial", "{x=2, y=2}", "[-] sum{x,x}",
     "layout \"[-] sum{x,x}\" names axis \"x\" twice as partial; name it once"},
    {"sub_axis_does_not_divide", "{x=6}", "[x:(4)2]",
     "layout \"[x:(4)2]\" names sub-axis \"x:(4)2\" in dim 0; axis \"x\" has size 6, which 4*2 "
     "does "
     "not divide; use factors whose product divides 6"},
    {"sub_axis_larger_than_axis", "{x=6}", "[-, x:(1)12]",
     "layout \"[-, x:(1)12]\" names sub-axis \"x:(1)12\" in dim 1; axis \"x\" has size 6, which "
     "1*12 does not divide; use factors whose product divides 6"},
    {"sub_axis_product_past_64_bits", "{x=6}", "[x:(4611686018427387904)4]",
     "layout \"[x:(4611686018427387904)4]\" names sub-axis \"x:(4611686018427387904)4\" in dim 0; "
     "axis \"x\" has size 6, which 4611686018427387904*4 does not divide; use factors whose "
     "product "
     "divides 6"},
    {"sub_axis_pre_zero", "{x=6}", "[x:(0)2]",
     "layout \"[x:(0)2]\" names sub-axis \"x:(0)2\" in dim 0 with a factor of 0; factors are 1 or "
     "more"},
    {"sub_axis_size_negative", "{x=6}", "[-] sum{x:(1)-2}",
     "layout \"[-] sum{x:(1)-2}\" names sub-axis \"x:(1)-2\" as partial with a factor of -2; "
     "factors are 1 or more"},
    {"sub_axes_without_common_digits", "{x=6}", "[x:(1)2, x:(1)3]",
     "layout \"[x:(1)2, x:(1)3]\" names \"x:(1)2\" in dim 0 and \"x:(1)3\" in dim 1, which overlap "
     "or do not fit together on axis \"x\" of size 6; of two sub-axes, pre*size of the one must "
     "divide the pre of the other"},
    {"sub_axes_apart_without_common_digits", "{x=12}", "[(x:(1)2,x:(3)2)]",
     "layout \"[(x:(1)2,x:(3)2)]\" names \"x:(1)2\" in dim 0 and \"x:(3)2\" in dim 0, which "
     "overlap "
     "or do not fit together on axis \"x\" of size 12; of two sub-axes, pre*size of the one must "
     "divide the pre of the other"},
    {"axis_and_its_sub_axis", "{x=4}", "[x] sum{x:(2)2}",
     "layout \"[x] sum{x:(2)2}\" names \"x\" in dim 0 and \"x:(2)2\" as partial, which overlap or "
     "do not fit together on axis \"x\" of size 4; of two sub-axes, pre*size of the one must "
     "divide "
     "the pre of the other"},
    {"sub_axis_twice", "{x=4}", "[x:(2)2, x:(2)2]",
     "layout \"[x:(2)2, x:(2)2]\" names \"x:(2)2\" in dim 0 and \"x:(2)2\" in dim 1, which overlap "
     "or do not fit together on axis \"x\" of size 4; of two sub-axes, pre*size of the one must "
     "divide the pre of the other"},
    {"sharding_and_partial", "{x=2, y=2}", "[x, -] sum{x}",
     "layout \"[x, -] sum{x}\" names axis \"x\" both in dim 0 and as partial; an axis splits a dim "
     "or is partial, not both"},
    {"partial_without_axes", "{x=2}", "[-] sum{}",
     "layout \"[-] sum{}\" has the empty list sum{}; name the partial axes, or leave the reduction "
     "out"},
    {"unknown_reduction", "{x=2}", "[-] mean{x}",
     "layout \"[-] mean{x}\" has reduction \"mean\"; a reduction is sum, prod, min, max or avg"},
    {"two_reductions", "{x=2, y=2}", "[-] avg{x} sum{y}",
     "layout \"[-] avg{x} sum{y}\" has a second reduction \"sum\"; a layout has one reduction, "
     "over "
     "all its partial axes"},
    {"unknown_axis", "{x=2, y=2}", "[z, -]",
     "layout \"[z, -]\" names axis \"z\" in dim 0; mesh {x=2, y=2} has \"x\", \"y\""},
    {"misspelled_axis", "{batch=4, model=2}", "[modle, -]",
     "layout \"[modle, -]\" names axis \"modle\" in dim 0; mesh {batch=4, model=2} has \"batch\", "
     "\"model\"; did you mean \"model\""},
    {"axis_in_other_case", "{x=2}", "[-, X]",
     "layout \"[-, X]\" names axis \"X\" in dim 1; mesh {x=2} has \"x\"; did you mean \"x\""},
    {"partial_unknown_axis", "{x=2}", "[-] sum{q}",
     "layout \"[-] sum{q}\" names axis \"q\" as partial; mesh {x=2} has \"x\""},
    {"device_ids_stay_out_of_messages", "{x=2} on 9,8", "[q]",
     "layout \"[q]\" names axis \"q\" in dim 0; mesh {x=2} has \"x\""},
    {"empty_dim", "{x=2}", "[x, ]",
     "layout \"[x, ]\" has \"]\" at character 5, where an axis, \"-\" or \"(\" should be"},
    {"empty_text", "{x=2}", "", "layout \"\" ends where \"[\" should follow"},
    {"no_bracket", "{x=2}", "x, -",
     "layout \"x, -\" has \"x\" at character 1, where \"[\" should be"},
    {"not_closed", "{x=2}", "[x, -", "layout \"[x, -\" ends where \",\" or \"]\" should follow"},
    {"two_axes_without_comma", "{x=2}", "[x y]",
     "layout \"[x y]\" has \"y\" at character 4, where \",\" or \"]\" should be"},
    {"parentheses_of_none", "{x=2}", "[()]",
     "layout \"[()]\" has \")\" at character 3, where an axis should be"},
    {"parentheses_of_one", "{x=2}", "[(x)]",
     "layout \"[(x)]\" has \")\" at character 4, where \",\" (one axis is written without "
     "parentheses) should be"},
    {"parentheses_not_closed", "{x=2, y=2}", "[(x,y]",
     "layout \"[(x,y]\" has \"]\" at character 6, where \",\" or \")\" should be"},
    {"sub_axis_without_pre", "{x=4}", "[x:2]",
     "layout \"[x:2]\" has \"2\" at character 4, where \"(\" of a sub-axis, as in x:(2)2, should "
     "be"},
    {"sub_axis_pre_is_no_number", "{x=4}", "[x:(a)2]",
     "layout \"[x:(a)2]\" has \"a\" at character 5, where the pre of a sub-axis, as in x:(2)2, "
     "should be"},
    {"sub_axis_not_closed", "{x=4}", "[x:(2]",
     "layout \"[x:(2]\" has \"]\" at character 6, where \")\" of a sub-axis, as in x:(2)2, should "
     "be"},
    {"sub_axis_without_size", "{x=4}", "[x:(2)]",
     "layout \"[x:(2)]\" has \"]\" at character 7, where the size of a sub-axis, as in x:(2)2, "
     "should be"},
    {"text_after_dims", "{x=2}", "[x] {x}",
     "layout \"[x] {x}\" has \"{\" at character 5, where a reduction or the end should be"},
    {"reduction_without_brace", "{x=2}", "[-] sum(x)",
     "layout \"[-] sum(x)\" has \"(\" at character 8, where \"{\" should be"},
    {"partial_without_name", "{x=2}", "[-] sum{x,}",
     "layout \"[-] sum{x,}\" has \"}\" at character 11, where an axis should be"},
    {"partial_not_closed", "{x=2}", "[-] sum{x",
     "layout \"[-] sum{x\" ends where \",\" or \"}\" should follow"},
    {"on_without_mesh", "{x=2}", "[x] on", "layout \"[x] on\" ends where a mesh should follow"},
    {"on_bad_mesh", "{x=2}", "[x] on {x=0}",
     "layout \"[x] on {x=0}\": mesh {x=0} has size 0 for axis \"x\"; a size is 1 or more"},
    {"on_other_mesh", "{x=2}", "[x] on {x=4}",
     "layout \"[x] on {x=4}\" is on {x=4}, and is to be read on {x=2}; leave the mesh out or give "
     "the same"},
};
class LayoutRefusedTextTest : public ::testing::TestWithParam<RefusedText> {};

TEST_P(LayoutRefusedTextTest, NamesTheTokenAndTheFix) {
  const RefusedText& row = GetParam();
  EXPECT_THAT(Layout::parse(mesh_of(row.mesh), row.text), StatusIs(kInvalid, row.message));
}
INSTANTIATE_TEST_SUITE_P(Rows, LayoutRefusedTextTest, ValuesIn(kRefusedTexts),
                         row_name<RefusedText>);

struct RefusedDims {
  const char* name;
  std::vector<DimSharding> dims;
  const char* message;
};
const RefusedDims kRefusedDims[] = {
    // on mesh {batch=4, model=2}
    {"misspelled_axis",
     {{"modle"}, {}},
     "layout \"[modle, -]\" names axis \"modle\" in dim 0; mesh {batch=4, model=2} has \"batch\", "
     "\"model\"; did you mean \"model\""},
    {"repeated_axis",
     {{"batch"}, {"model", "batch"}},
     "layout \"[batch, (model,batch)]\" names axis \"batch\" in dims 0 and 1; an axis splits one "
     "dim, once"},
    {"dash_is_no_axis",
     {{}, {"-"}},
     "layout \"[-, -]\", dim 1 (empty where it is not split): axis \"-\" has \"-\" at character 1, "
     "where the name of an axis should be"},
    {"empty_name",
     {{""}},
     "layout \"[]\", dim 0 (empty where it is not split): axis \"\" ends where the name of an axis "
     "should follow"},
    {"two_axes_in_one_entry",
     {{"batch,model"}},
     "layout \"[batch,model]\", dim 0 (empty where it is not split): axis \"batch,model\" has "
     "\",\" at character 6, where the end (one entry names one axis or sub-axis, as in x:(2)2) "
     "should be"},
};
class LayoutRefusedDimsTest : public ::testing::TestWithParam<RefusedDims> {};

TEST_P(LayoutRefusedDimsTest, NamesTheTokenAndTheFix) {
  EXPECT_THAT(Layout::create(mesh_of("{batch=4, model=2}"), GetParam().dims),
              StatusIs(kInvalid, GetParam().message));
}
INSTANTIATE_TEST_SUITE_P(Rows, LayoutRefusedDimsTest, ValuesIn(kRefusedDims),
                         row_name<RefusedDims>);

TEST(LayoutTest, FactoriesRefuseBadRanksAndDims) {
  const Mesh mesh = mesh_of("{x=2}");
  EXPECT_THAT(Layout::replicated(mesh, -1),
              StatusIs(kInvalid, "a replicated layout has rank -1; a rank is 0 to 254"));
  EXPECT_THAT(Layout::replicated(mesh, 2147483647), StatusIs(kInvalid, HasSubstr("0 to 254")));
  EXPECT_THAT(Layout::replicated(mesh, 254), IsOk());
  EXPECT_THAT(Layout::create(mesh, std::vector<DimSharding>(255)),
              StatusIs(kInvalid, "a layout has rank 255; a rank is 0 to 254"));
  std::string text = "[-";
  for (int i = 0; i < 254; ++i) text += ",-";
  EXPECT_THAT(Layout::parse(mesh, text + "]"),
              StatusIs(kInvalid, "a layout has rank 255; a rank is 0 to 254"));
  EXPECT_THAT(Layout::batch_sharded(mesh, "x", -2),
              StatusIs(kInvalid, "a sharded layout has rank -2; a rank is 0 to 254"));
  EXPECT_THAT(Layout::batch_sharded(mesh, "x", 2, 2),
              StatusIs(kInvalid,
                       "a layout of rank 2 has no dim 2 to split by axis \"x\"; dims are 0 to 1"));
  EXPECT_THAT(Layout::batch_sharded(mesh, "x", 2, -1), StatusIs(kInvalid, HasSubstr("no dim -1")));
  EXPECT_THAT(
      Layout::inner_sharded(mesh, "x", 0),
      StatusIs(kInvalid, "a layout of rank 0 has no dim to split by axis \"x\"; give it one"));
  EXPECT_THAT(
      Layout::batch_sharded(mesh, "y", 2),
      StatusIs(kInvalid, "layout \"[y, -]\" names axis \"y\" in dim 0; mesh {x=2} has \"x\""));
}

// An accessor has a documented answer for arguments that do not exist, and no accessor aborts.
TEST(LayoutTest, AccessorsAreTotal) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout layout,
                               Layout::parse(mesh_of("{x=4, y=2}"), "[x, -] sum{y}"));
  for (const int dim : {-1, 2, std::numeric_limits<int>::max()}) {
    EXPECT_EQ(layout.num_shards(dim), 1);
    EXPECT_EQ(layout.shard_index(dim, 0), 0);
  }
  const Box none = {{0, 0}, {0, 0}};
  for (const int64_t position : {int64_t{-1}, int64_t{8}, std::numeric_limits<int64_t>::max()}) {
    EXPECT_EQ(layout.box({8, 6}, position), none);
    EXPECT_EQ(layout.shard_index(0, position), 0);
    EXPECT_EQ(layout.partial_index(position), 0);
  }
  EXPECT_EQ(layout.box({8}, 0), (Box{{0}, {0}}));
  EXPECT_EQ(layout.box({8, 6, 4}, 0), (Box{{0, 0, 0}, {0, 0, 0}}));
  EXPECT_EQ(layout.box({}, 0), (Box{{0}, {0}}));
  EXPECT_TRUE(layout.box({-8, 6}, 0).is_empty());
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout scalar, Layout::replicated(layout.mesh(), 0));
  EXPECT_TRUE(scalar.box({}, 8).is_empty());
  EXPECT_EQ(scalar.box({}, 7).num_elements(), 1);
  EXPECT_THAT(layout.with_mesh(mesh_of("{x=2}")),
              StatusIs(kInvalid,
                       "layout [x, -] sum{y} on {x=4, y=2} cannot move to mesh {x=2}; give it a "
                       "mesh with the same axes"));
}

TEST(LayoutTest, AMoveIsACopy) {
  TESSERA_ASSERT_OK_AND_ASSIGN(Layout layout, Layout::parse(mesh_of("{x=4}"), "[x, -]"));
  const Layout taken = std::move(layout);
  EXPECT_EQ(layout.to_string_with_mesh(),
            "[x, -] on {x=4}");  // NOLINT: tests an object that was moved from
  EXPECT_EQ(layout, taken);
}

TEST(LayoutTest, LongTextsAreShortenedInMessages) {
  const Status status = Layout::parse(mesh_of("{x=4}"), std::string(1000000, 'a')).status();
  EXPECT_THAT(status, StatusIs(kInvalid, HasSubstr("...\" (1000000 bytes) has")));
  EXPECT_LT(status.message().size(), 1000u);
}

TEST(LayoutTest, WithPartialRefuses) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout layout,
                               Layout::parse(mesh_of("{x=4, y=2}"), "[x:(1)2]"));
  EXPECT_THAT(layout.with_partial({}),
              StatusIs(kInvalid,
                       "layout [x:(1)2] is given an empty list of partial axes for sum; name one, "
                       "or use without_partial()"));
  EXPECT_THAT(
      layout.with_partial({"z"}, ReduceOp::kMin),
      StatusIs(kInvalid,
               "layout \"[x:(1)2] min{z}\" names axis \"z\" as partial; mesh {x=4, y=2} has "
               "\"x\", \"y\""));
  EXPECT_THAT(layout.with_partial({"x"}), StatusIs(kInvalid, AllOf(HasSubstr("\"x:(1)2\" in dim 0"),
                                                                   HasSubstr("\"x\" as partial"))));
  EXPECT_THAT(layout.with_partial({"y y"}),
              StatusIs(kInvalid,
                       "layout [x:(1)2], partial axes of sum: axis \"y y\" has \"y\" at character "
                       "3, where the end (one entry names one axis or sub-axis, as in x:(2)2) "
                       "should be"));
  EXPECT_THAT(layout.with_partial({"x:(2)2"}), IsOk());
  EXPECT_THAT(layout.with_partial({"x:(2)2"}, static_cast<ReduceOp>(17)),
              StatusIs(kInvalid,
                       "layout [x:(1)2]: ReduceOp(17) is not a reduction; use an enumerator of "
                       "ReduceOp, kSum (0) to kAvg (4)"));
}

TEST(LayoutTest, AnEmptyLayoutIsNoLayout) {
  const Layout empty;
  EXPECT_FALSE(empty.valid());
  EXPECT_EQ(empty.rank(), 0);
  EXPECT_FALSE(empty.mesh().valid());
  EXPECT_TRUE(empty.dims().empty());
  EXPECT_FALSE(empty.is_fully_replicated());
  EXPECT_TRUE(empty.box({4, 4}, 0).is_empty());
  EXPECT_TRUE(empty.box({}, 0).is_empty());
  EXPECT_EQ(empty.num_shards(0), 1);
  EXPECT_EQ(empty.to_string(), "");
  EXPECT_EQ(empty.to_string_with_mesh(), "");
  EXPECT_EQ(empty, Layout());
  EXPECT_EQ(empty.without_partial(), Layout());
  EXPECT_FALSE(equivalent(empty, empty, {}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::create({{"x", 2}}));
  TESSERA_ASSERT_OK_AND_ASSIGN(Layout layout, Layout::parse(mesh, "[]"));
  EXPECT_FALSE(layout == empty);
  const auto is_refused = [](const char* call, const char* type) {
    return StatusIs(absl::StatusCode::kFailedPrecondition,
                    HasSubstr(absl::StrCat("Layout::", call, "() of an empty ", type)));
  };
  EXPECT_THAT(empty.with_partial({"x"}), is_refused("with_partial", "Layout"));
  EXPECT_THAT(empty.with_mesh(mesh), is_refused("with_mesh", "Layout"));
  EXPECT_THAT(empty.validate_shape({}), is_refused("validate_shape", "Layout"));
  EXPECT_THAT(layout.with_mesh(Mesh()), is_refused("with_mesh", "Mesh"));
  EXPECT_THAT(Layout::create(Mesh(), {}), is_refused("create", "Mesh"));
  EXPECT_THAT(Layout::parse(Mesh(), "[x]"), is_refused("parse", "Mesh"));
  EXPECT_THAT(Layout::replicated(Mesh(), 2), is_refused("replicated", "Mesh"));
  EXPECT_THAT(Layout::batch_sharded(Mesh(), "x", 2), is_refused("batch_sharded", "Mesh"));
  layout = empty;
  EXPECT_FALSE(layout.valid());
}

TEST(LayoutArgTest, TakesLayoutsTheirErrorsAndText) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::create({{"x", 2}}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout rows, Layout::parse(mesh, "[x, -]"));
  const std::string text = "[x, -]";
  for (const LayoutArg& arg : {LayoutArg(rows), LayoutArg(Layout::parse(mesh, text))}) {
    EXPECT_THAT(arg.layout(), IsOkAndHolds(rows));
    EXPECT_THAT(arg.resolve(Mesh()), IsOkAndHolds(rows));
  }
  for (const LayoutArg& arg :
       {LayoutArg(text), LayoutArg("[x, -]"), LayoutArg(absl::string_view(text))}) {
    EXPECT_THAT(arg.resolve(mesh), IsOkAndHolds(rows));
    EXPECT_THAT(arg.layout(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "the layout \"[x, -]\" is text, and no argument names a mesh; use "
                         "Layout::parse(mesh, \"[x, -]\")"));
  }
  EXPECT_THAT(LayoutArg("[y]").resolve(mesh),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("names axis \"y\" in dim 0")));
  EXPECT_THAT(LayoutArg(Layout::parse(mesh, "[y]")).layout(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("names axis \"y\" in dim 0")));
  EXPECT_THAT(LayoutArg(absl::AbortedError("no")).resolve(mesh),
              StatusIs(absl::StatusCode::kAborted, "no"));
  EXPECT_THAT(LayoutArg(Layout()).layout(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "the layout is an empty Layout; make one with Layout::parse(mesh, ...)"));
}

TEST(LayoutArgTest, AListIsOfLayoutsOrText) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::create({{"x", 2}}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Layout rows, Layout::parse(mesh, "[x, -]"));
  const std::vector<Layout> two = {rows, rows};
  EXPECT_THAT(LayoutArgs(two).layouts(), IsOkAndHolds(two));
  const LayoutArgs mixed = {rows, "[x, -]"};
  EXPECT_THAT(mixed.resolve(mesh), IsOkAndHolds(two));
  EXPECT_THAT(mixed.layouts(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no argument names a mesh")));
}

}  // namespace
}  // namespace tessera
