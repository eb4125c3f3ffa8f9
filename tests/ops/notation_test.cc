// SPDX-License-Identifier: Apache-2.0
//
// What programs write first: operators of tensors, parts of tensors as x[{...}], layouts as text,
// dims, and empty variables.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/dims.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/index.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "ops/creation.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/shapes.h"
#include "ops/tape.h"
#include "ops/variable.h"
#include "tests/support/clients.h"
#include "tests/support/forked.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

class OpsNotationTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, OpsNotationTest, ::testing::Values(kJobForms[0], kJobForms[1]),
                         job_form_name);

template <class T>
Status expect_values(const DTensor& x, const std::vector<T>& values) {
  TESSERA_ASSIGN_OR_RETURN(const HostTensor<T> host, x.to_host<T>());
  EXPECT_EQ(host.data, values);
  return absl::OkStatus();
}

// ---- Operators

TEST_P(OpsNotationTest, Operators) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
                const StatusOr<Layout> layout = Layout::parse(mesh, "[x]");
                const DTensor x = iota<int32_t>({4}, layout);
                const DTensor y = full<int32_t>({4}, 2, layout);
                using Ints = std::vector<int32_t>;
                using Bools = std::vector<bool>;
                TESSERA_RETURN_IF_ERROR(expect_values<int32_t>(-x, {0, -1, -2, -3}));
                TESSERA_RETURN_IF_ERROR(expect_values<int32_t>(x % y, {0, 1, 0, 1}));
                TESSERA_RETURN_IF_ERROR(expect_values<int32_t>(-x % 3, {0, 2, 1, 0}));
                TESSERA_RETURN_IF_ERROR(expect_values<int32_t>(7 % (x + 1), {0, 1, 1, 3}));
                TESSERA_RETURN_IF_ERROR(expect_values(x == y, Bools{false, false, true, false}));
                TESSERA_RETURN_IF_ERROR(expect_values(x != 2, Bools{true, true, false, true}));
                TESSERA_RETURN_IF_ERROR(expect_values(2 == x, Bools{false, false, true, false}));
                TESSERA_RETURN_IF_ERROR(expect_values(x < y, Bools{true, true, false, false}));
                TESSERA_RETURN_IF_ERROR(expect_values(x <= 2, Bools{true, true, true, false}));
                TESSERA_RETURN_IF_ERROR(expect_values(2 > x, Bools{true, true, false, false}));
                TESSERA_RETURN_IF_ERROR(expect_values(x >= y, Bools{false, false, true, true}));
                TESSERA_REQUIRE((x < 1).dtype() == DType::kBool);

                // Another handle keeps the value.
                DTensor z = x;
                z += y;
                TESSERA_RETURN_IF_ERROR(expect_values(z, Ints{2, 3, 4, 5}));
                z -= 1;
                TESSERA_RETURN_IF_ERROR(expect_values(z, Ints{1, 2, 3, 4}));
                z *= z;
                TESSERA_RETURN_IF_ERROR(expect_values(z, Ints{1, 4, 9, 16}));
                TESSERA_RETURN_IF_ERROR(expect_values(x, Ints{0, 1, 2, 3}));
                DTensor f = ops::cast<float>(z);
                f /= 2;
                (f += 1) -= 0.5;
                return expect_values<float>(f, {1, 2.5, 5, 8.5});
              }),
              IsOk());
}

// ---- Slices

// The indices of NumPy's begin:end:step of a dim, by its definition: one by one.
std::vector<int64_t> indices_of(const Range& range, int64_t size) {
  const int64_t step = range.step;
  const int64_t least = step > 0 ? 0 : -1;
  const int64_t most = step > 0 ? size : size - 1;
  const auto limit = [&](std::optional<int64_t> given, int64_t otherwise) {
    if (!given.has_value()) return otherwise;
    return std::clamp(*given < 0 ? *given + size : *given, least, most);
  };
  const int64_t begin = limit(range.begin, step > 0 ? 0 : size - 1);
  const int64_t end = limit(range.end, step > 0 ? size : -1);
  std::vector<int64_t> indices;
  for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) indices.push_back(i);
  return indices;
}

std::string range_text(const Range& range) {
  const auto limit = [](std::optional<int64_t> given) {
    return given.has_value() ? absl::StrCat(*given) : "";
  };
  return absl::StrCat(limit(range.begin), ":", limit(range.end), ":", range.step);
}

TEST_P(OpsNotationTest, RangesAreThoseOfNumpy) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
                const std::optional<int64_t> limits[] = {{}, -7, -5, -2, -1, 0, 1, 3, 5, 6};
                for (const int64_t size : {0, 5}) {
                  const DTensor x = iota<int64_t>({size}, Layout::parse(mesh, "[x]"));
                  for (const std::optional<int64_t> begin : limits) {
                    for (const std::optional<int64_t> end : limits) {
                      for (const int64_t step : {1, 2, 7, -1, -2, -7}) {
                        const Range range = {begin, end, step};
                        SCOPED_TRACE(range_text(range));
                        TESSERA_RETURN_IF_ERROR(expect_values(x[{range}], indices_of(range, size)));
                      }
                    }
                  }
                }
                return absl::OkStatus();
              }),
              IsOk());
}

TEST_P(OpsNotationTest, IndicesDropDimsAndRangesKeepThem) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 4}, {"y", 2}}));
        const DTensor x = iota<int64_t>({4, 3, 2}, Layout::parse(mesh, "[x, -, y]"));
        const struct {
          const char* name;
          DTensor part;
          Shape shape;
          std::vector<int64_t> values;
        } rows[] = {
            {"one_integer", x[{1}], {3, 2}, {6, 7, 8, 9, 10, 11}},
            {"integers_in_each_dim", x[{-1, 2, 0}], {}, {22}},
            {"last_dim", x[{kAll, 0, -1}], {4}, {1, 7, 13, 19}},
            {"range_of_one", x[{Range{1, 2}, 0}], {1, 2}, {6, 7}},
            {"turned", x[{Range{.step = -2}, 1, 0}], {2}, {20, 8}},
            {"behind_an_integer", x[{0, Range{0, -1}, Range{1}}], {2, 1}, {1, 3}},
            {"empty", x[{kAll, Range{2, 1}}], {4, 0, 2}, {}},
            {"huge_step", x[{Range{0, {}, std::numeric_limits<int64_t>::max()}, 0, 0}], {1}, {0}},
            {"least_step",
             x[{Range{{}, {}, std::numeric_limits<int64_t>::min()}, 0, 0}],
             {1},
             {18}},
        };
        for (const auto& row : rows) {
          SCOPED_TRACE(row.name);
          EXPECT_EQ(row.part.shape(), row.shape);
          TESSERA_RETURN_IF_ERROR(expect_values(row.part, row.values));
        }
        EXPECT_EQ((x[{}].shape()), x.shape());
        // A dim that the index leaves whole stays split, and partial sums stay partial.
        EXPECT_EQ((x[{kAll, 1}].layout().to_string()), "[x, y]");
        const DTensor sums = ops::sum(x, 0);
        EXPECT_EQ((sums[{1}].layout().to_string()), "[y] sum{x}");
        return absl::OkStatus();
      }),
      IsOk());
}

TEST_P(OpsNotationTest, WrongIndicesAreErrors) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
                const DTensor x = iota<float>({4, 3}, Layout::parse(mesh, "[x, -]"));
                EXPECT_THAT((x[{0, 3}].status()),
                            StatusIs(absl::StatusCode::kOutOfRange,
                                     "index 3 of dim 1 is not in a dim of 3 elements"));
                EXPECT_THAT((x[{-5}].status()),
                            StatusIs(absl::StatusCode::kOutOfRange,
                                     "index -5 of dim 0 is not in a dim of 4 elements"));
                EXPECT_THAT((x[{0, 0, kAll}].status()),
                            StatusIs(absl::StatusCode::kInvalidArgument,
                                     "index: 3 indices for a tensor of rank 2; give one for each "
                                     "dim at most"));
                EXPECT_THAT((x[{Range{0, 2, 0}}].status()),
                            StatusIs(absl::StatusCode::kInvalidArgument,
                                     "index: step 0 in dim 0; it should be above or below 0"));
                // The first error stays.
                EXPECT_THAT((x[{9}][{9, 9}].status()),
                            StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("index 9 of dim 0")));
                return absl::OkStatus();
              }),
              IsOk());
}

TEST_P(OpsNotationTest, GradientsGoToTheElementsOfThePart) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
                Tape tape;
                const DTensor x = tape.watch(iota<float>({4, 3}, Layout::parse(mesh, "[x, -]")));
                const DTensor part = x[{Range{.step = -2}, 1}];
                const DTensor weights = iota<float>({2}, Layout::parse(mesh, "[-]")) + 1;
                const DTensor target = ops::sum(part * weights);
                return expect_values<float>(tape.gradient(target, {x})[0],
                                            {0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 1, 0});
              }),
              IsOk());
}

// ---- Layouts as text

TEST_P(OpsNotationTest, OutMayBeText) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 4}, {"y", 2}}));
        const DTensor x = iota<float>({4, 2}, Layout::parse(mesh, "[x, -]"));
        const char* const texts[] = {"[-, y]", "[x, y]", "[-, -]"};
        for (const char* const text : texts) {
          const DTensor sum = ops::add(x, x, text);
          EXPECT_EQ(sum.layout().to_string(), text);
          TESSERA_RETURN_IF_ERROR(expect_values<float>(sum, {0, 2, 4, 6, 8, 10, 12, 14}));
          EXPECT_EQ(ops::zeros_like(x, text).layout().to_string(), text);
          EXPECT_EQ(ops::tril(x, 0, text).layout().to_string(), text);
        }
        EXPECT_EQ(ops::sum(x, 0, ops::KeepDims::kNo, "[-]").layout().to_string(), "[-]");
        EXPECT_EQ(ops::var(x, 0, ops::KeepDims::kNo, "[y]").layout().to_string(), "[y]");
        EXPECT_THAT(
            ops::neg(x, "[z, -]").status(),
            StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("names axis \"z\" in dim 0")));
        // The first error is the operand's.
        EXPECT_THAT(ops::neg(x[{9}], "[z, -]").status(),
                    StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("index 9")));
        // No argument has a mesh.
        EXPECT_THAT(
            arange<float>(3, "[x]").status(),
            StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no argument names a mesh")));
        return absl::OkStatus();
      }),
      IsOk());
}

// ---- Empty handles

TEST(EmptyVariableTest, UseNamesTheCall) {
  Variable empty;
  EXPECT_FALSE(empty.valid());
  EXPECT_EQ(empty.name(), "");
  EXPECT_EQ(empty.shape(), Shape());
  EXPECT_EQ(empty, Variable());
  const auto refused = [](const char* call) {
    return StatusIs(absl::StatusCode::kFailedPrecondition,
                    HasSubstr(absl::StrCat("Variable::", call, "() of an empty Variable")));
  };
  const DTensor value = empty.value();
  EXPECT_THAT(value.status(), refused("value"));
  EXPECT_THAT(empty.assign(value), refused("assign"));
  EXPECT_THAT(empty.assign_add(value), refused("assign_add"));
  EXPECT_THAT(empty.assign_sub(value), refused("assign_sub"));
}

TEST_P(OpsNotationTest, EmptyVariablesTakeAnother) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
                Variable kept;
                kept = Variable("w", iota<float>({3}, Layout::parse(mesh, "[x]")));
                TESSERA_REQUIRE(kept.valid());
                return expect_values<float>(kept.value(), {0, 1, 2});
              }),
              IsOk());
}

// ---- Dims

TEST_P(OpsNotationTest, DimsAreOneAListOrAll) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
        const DTensor x = iota<float>({2, 3}, Layout::parse(mesh, "[x, -]"));
        const std::vector<int64_t> last = {-1};
        TESSERA_RETURN_IF_ERROR(expect_values<float>(ops::sum(x, 0), {3, 5, 7}));
        TESSERA_RETURN_IF_ERROR(expect_values<float>(ops::sum(x, last), {3, 12}));
        TESSERA_RETURN_IF_ERROR(expect_values<float>(ops::sum(x, {0, 1}), {15}));
        TESSERA_RETURN_IF_ERROR(expect_values<float>(ops::sum(x, kAllDims), {15}));
        TESSERA_RETURN_IF_ERROR(expect_values<float>(ops::sum(x), {15}));
        TESSERA_RETURN_IF_ERROR(expect_values<float>(ops::sum(x, {}), {0, 1, 2, 3, 4, 5}));
        TESSERA_RETURN_IF_ERROR(expect_values<float>(ops::flip(x, kAllDims), {5, 4, 3, 2, 1, 0}));
        return expect_values<float>(ops::transpose(x, kAllDims), {0, 1, 2, 3, 4, 5});
      }),
      IsOk());
}

}  // namespace
}  // namespace tessera::testing
