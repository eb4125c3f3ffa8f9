// SPDX-License-Identifier: Apache-2.0
//
// Numbers that operations take and give: C++ numbers beside tensors, NaN under layouts that are
// partial by max and min, bool along split dims, and sizes beyond 64 bits.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "Eigen/Core"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "ops/contract.h"
#include "ops/nn.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/scalar.h"
#include "ops/shapes.h"
#include "ops/tape.h"
#include "tests/support/clients.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();

class OpsNumbersTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, OpsNumbersTest, ::testing::Values(kJobForms[0], kJobForms[1]),
                         job_form_name);
INSTANTIATE_TEST_SUITE_P(Cuda, OpsNumbersTest, ::testing::ValuesIn(cuda_forms()), job_form_name);

Status expect_all(const DTensor& tensor, double expected) {
  TESSERA_ASSIGN_OR_RETURN(const HostTensor<double> host,
                           ops::cast<double>(tensor).to_host<double>());
  for (const double value : host.data) {
    TESSERA_REQUIRE(value == expected || (std::isnan(value) && std::isnan(expected)), value,
                    " instead of ", expected);
  }
  return absl::OkStatus();
}

Status expect_refused(const DTensor& tensor, const std::string& text) {
  TESSERA_REQUIRE(absl::IsInvalidArgument(tensor.status()) &&
                      absl::StrContains(tensor.status().message(), text),
                  tensor.status().ToString(), " instead of ", text);
  return absl::OkStatus();
}

// ---- C++ numbers

struct ScalarRow {
  DType dtype;
  ops::Scalar scalar;
  double expected;  // of 0 and the number
};

TEST_P(OpsNumbersTest, ScalarsAreRoundedOnce) {
  const ScalarRow rows[] = {
      {DType::kFloat16, 65519.999999, 65504},
      {DType::kFloat16, 65520.0, INFINITY},
      {DType::kFloat16, 1.00048828125 + 1e-12, 1.0009765625},
      {DType::kFloat16, 1.00048828125, 1},
      {DType::kFloat16, int64_t{2049}, 2048},
      {DType::kFloat16, int64_t{2051}, 2052},
      {DType::kBFloat16, 1.00390625 + 1e-12, 1.0078125},
      {DType::kBFloat16, 16842753, 16908288},
      {DType::kBFloat16, (int64_t{1} << 40) + (int64_t{1} << 32) + 1, 0x1p40 + 0x1p33},
      {DType::kBFloat16, ~uint64_t{0}, 0x1p64},
      {DType::kFloat32, (int64_t{1} << 53) + (int64_t{1} << 29) + 1, 0x1p53 + 0x1p30},
      {DType::kFloat32, ~uint64_t{0}, 0x1p64},
      {DType::kFloat32, (uint64_t{1} << 63) + (uint64_t{1} << 39) + 1, 0x1p63 + 0x1p40},
      {DType::kFloat64, (uint64_t{1} << 63) + 1025, 0x1p63 + 2048},
      {DType::kFloat64, kMost, 0x1p63},
      {DType::kInt64, kMost, 0x1p63},
      {DType::kInt64, -0x1p63, -0x1p63},
      {DType::kInt8, -128.0, -128},
      {DType::kUint8, uint64_t{255}, 255},
  };
  EXPECT_THAT(run([&](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
                const auto layout = Layout::parse(mesh, "[x]");
                for (const ScalarRow& row : rows) {
                  const DTensor zero = ops::cast(zeros<float>({3}, layout), row.dtype);
                  TESSERA_RETURN_IF_ERROR(expect_all(ops::add(zero, row.scalar), row.expected));
                  const DTensor padded = ops::pad(zero, {1}, {0}, row.scalar);
                  TESSERA_RETURN_IF_ERROR(expect_all(ops::slice(padded, {0}, {1}), row.expected));
                }
                return absl::OkStatus();
              }),
              IsOk());
}

TEST_P(OpsNumbersTest, ScalarsThatAnIntegerDoesNotHoldAreRefused) {
  EXPECT_THAT(
      run([&](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
        const auto layout = Layout::parse(mesh, "[x]");
        const DTensor i64 = zeros<int64_t>({3}, layout);
        const DTensor i32 = zeros<int32_t>({3}, layout);
        const DTensor u8 = zeros<uint8_t>({3}, layout);
        TESSERA_RETURN_IF_ERROR(
            expect_refused(ops::add(i64, uint64_t{1} << 63),
                           "add: the scalar 9223372036854775808 is not a value of i64"));
        TESSERA_RETURN_IF_ERROR(expect_refused(
            ops::add(i64, 0x1p63), "add: the scalar 9.22337e+18 is not a value of i64"));
        TESSERA_RETURN_IF_ERROR(expect_refused(ops::mul(i32, ~uint64_t{0}),
                                               "18446744073709551615 is not a value of i32"));
        TESSERA_RETURN_IF_ERROR(expect_refused(ops::maximum(i32, 2147483648.0),
                                               "the scalar 2.14748e+09 is not a value of i32"));
        TESSERA_RETURN_IF_ERROR(
            expect_refused(ops::sub(i64, NAN), "the scalar nan is not a value of i64"));
        TESSERA_RETURN_IF_ERROR(
            expect_refused(ops::add(u8, -1), "the scalar -1 is not a value of u8"));
        TESSERA_RETURN_IF_ERROR(
            expect_refused(ops::add(u8, 256), "the scalar 256 is not a value of u8"));
        // Two numbers that are one in f64.
        return expect_refused(
            ops::clip(i64, (int64_t{1} << 53) + 1, int64_t{1} << 53),
            "clip: from 9007199254740993 to 9007199254740992; the first should not be above");
      }),
      IsOk());
}

// ---- NaN

// Elements that are NaN stay NaN, and other elements keep their values, under every layout.
template <class T>
Status check_nan(const Mesh& mesh, bool all_nan) {
  const T nan = std::numeric_limits<T>::quiet_NaN();
  const std::vector<T> values = {nan, all_nan ? nan : T(1), nan, all_nan ? nan : T(-2)};
  for (const char* from : {"[-]", "[x]", "[(x,y)]", "[y]"}) {
    const DTensor source = from_host<T>(values, {4}, Layout::parse(mesh, from));
    for (const char* to : {"[-]", "[x]", "[-] max{x}", "[-] min{x}", "[-] max{x, y}", "[y] max{x}",
                           "[x] min{y}", "[-] min{y}"}) {
      const DTensor moved = relayout(source, Layout::parse(mesh, to));
      for (const DTensor& found :
           {relayout(moved, Layout::parse(mesh, "[-]")), ops::neg(ops::neg(moved)),
            relayout(relayout(moved, Layout::parse(mesh, "[x]")), Layout::parse(mesh, to))}) {
        TESSERA_ASSIGN_OR_RETURN(const HostTensor<T> host, found.template to_host<T>());
        for (size_t i = 0; i < values.size(); ++i) {
          TESSERA_REQUIRE(
              host.data[i] == values[i] || (host.data[i] != host.data[i] && values[i] != values[i]),
              from, " to ", to, ": element ", i, " is ", static_cast<double>(host.data[i]));
        }
      }
      // The largest of the elements that are numbers, or NaN where none is.
      const T largest = all_nan ? nan : T(1);
      TESSERA_RETURN_IF_ERROR(with_context(
          expect_all(ops::max(moved), static_cast<double>(largest)), absl::StrCat("max of ", to)));
    }
  }
  return absl::OkStatus();
}

TEST_P(OpsNumbersTest, NanStaysUnderPartialMaxAndMin) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 4}, {"y", 2}}));
        for (const bool all_nan : {false, true}) {
          TESSERA_RETURN_IF_ERROR(check_nan<float>(mesh, all_nan));
          TESSERA_RETURN_IF_ERROR(check_nan<double>(mesh, all_nan));
          TESSERA_RETURN_IF_ERROR(check_nan<Eigen::half>(mesh, all_nan));
          TESSERA_RETURN_IF_ERROR(check_nan<Eigen::bfloat16>(mesh, all_nan));
        }
        return absl::OkStatus();
      }),
      IsOk());
}

// ---- Bool

TEST_P(OpsNumbersTest, TakeOfBoolAlongASplitDim) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 4}, {"y", 2}}));
        const bool flags[] = {true, false, false, true, true};
        const int32_t places[] = {4, 0, 1, 1, 3, 2};
        const DTensor indices = from_host<int32_t>(places, {6}, Layout::parse(mesh, "[y]"));
        for (const char* layout :
             {"[-]", "[x]", "[(x,y)]", "[-] max{x}", "[-] min{x}", "[y] max{x}", "[x] min{y}"}) {
          const DTensor x = from_host<bool>(flags, {5}, Layout::parse(mesh, layout));
          TESSERA_ASSIGN_OR_RETURN(const HostTensor<bool> host,
                                   ops::take(x, indices, 0).to_host<bool>());
          for (size_t i = 0; i < 6; ++i) {
            TESSERA_REQUIRE(host.data[i] == flags[places[i]], layout, " ", i);
          }
        }
        return absl::OkStatus();
      }),
      IsOk());
}

// ---- Sizes beyond 64 bits

TEST_P(OpsNumbersTest, SizesBeyondInt64AreRefused) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
        const auto of = [&](const Shape& shape) {
          return zeros<float>(shape, Layout::replicated(mesh, static_cast<int>(shape.size())));
        };
        const DTensor x = of({2, 3});
        const DTensor none = of({0, kMost});
        const std::vector<DTensor> pair = {none, none};
        struct Refusal {
          DTensor result;
          const char* text;
        };
        const Refusal refusals[] = {
            {ops::pad(x, {kMost, 0}, {kMost, 0}),
             "pad: dim 0 would have more than 2^63 - 1 elements: low [9223372036854775807, 0]"},
            {ops::pad(x, {kMost - 2, 0}, {0, 0}), "pad: shape [9223372036854775807, 3] has more"},
            {ops::tile(x, {(int64_t{1} << 62) + 1, 1}),
             "tile: dim 0 would have more than 2^63 - 1 elements: repeats [4611686018427387905, "
             "1]"},
            {ops::tile(none, {1, 2}), "tile: dim 1 would have more than 2^63 - 1 elements"},
            {ops::concat(pair, 1), "concat: dim 1 would have more than 2^63 - 1 elements"},
            {ops::split(x, {kMost, kMost, 4}, 0)[0], "split: sizes [9223372036854775807, "},
            {ops::split(x, {kMost, -kMost, 2}, 0)[0], "no size may be negative"},
            {ops::reshape(x, {kLeast, kLeast}), "reshape: shape [-9223372036854775808, "},
            {ops::reshape(x, {int64_t{1} << 32, int64_t{1} << 32}),
             "reshape: shape [4294967296, 4294967296] has more elements"},
            {ops::one_hot(ops::cast<int32_t>(x), kMost),
             "one_hot: shape [2, 3, 9223372036854775807]"},
            {ops::broadcast_to(x, {kMost, 2, 3}),
             "broadcast_to: shape [9223372036854775807, 2, 3]"},
            {ops::broadcast_to(of({1}), {-3}), "broadcast_to: "},
            {ops::matmul(of({int64_t{1} << 40, 0}), of({0, int64_t{1} << 40})),
             "matmul: shape [1099511627776, 1099511627776] has more elements"},
            {ops::slice(x, {0, 0}, {kMost, 3}), "slice: dim 0 from 0 to 9223372036854775807"},
            {ops::slice(x, {kLeast, 0}, {2, 3}), "slice: dim 0 from -9223372036854775808"},
            {ops::slice(x, {0, 0}, {2, 3}, {kLeast, 1}), "slice: stride -9223372036854775808"},
            {ops::top_k(x, kMost, 1).values, "top_k: k is 9223372036854775807"},
            {ops::top_k(x, kLeast, 1).values, "top_k: k is -9223372036854775808"},
            {ops::roll(x, 1, kLeast), "roll: dim -9223372036854775808 is out of range"},
            {ops::sum(x, {kMost}), "sum: dim 9223372036854775807 is out of range"},
            {ops::expand_dims(x, kMost), "expand_dims: dim 9223372036854775807 is out of range"},
            {ops::conv2d(of({1, 4, 4, 1}), of({3, 3, 1, 1}), {.dilation = {kMost, 1}}),
             "conv2d: 9223372036854775807 is more than 2^60"},
            {ops::max_pool2d(of({1, 4, 4, 1}), {.window = {kMost, 1}}),
             "max_pool2d: 9223372036854775807 is more than 2^60"},
            {ops::avg_pool2d(of({1, 4, 4, 1}),
                             {.window = {1, 1}, .padding = {{{kMost, kMost}, {0, 0}}}}),
             "avg_pool2d: 9223372036854775807 is more than 2^60"},
        };
        std::string failures;
        for (const Refusal& refusal : refusals) {
          const Status status = expect_refused(refusal.result, refusal.text);
          if (!status.ok()) absl::StrAppend(&failures, status.message(), "\n");
        }
        TESSERA_REQUIRE(failures.empty(), failures);
        return absl::OkStatus();
      }),
      IsOk());
}

TEST_P(OpsNumbersTest, LargeStridesAndShiftsAreTaken) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
        const float values[] = {0, 1, 2, 3, 4, 5, 6};
        for (const char* layout : {"[-]", "[x]"}) {
          Tape tape;
          const DTensor x = tape.watch(from_host<float>(values, {7}, Layout::parse(mesh, layout)));
          const DTensor first = ops::slice(x, {2}, {7}, {kMost});
          TESSERA_REQUIRE(first.shape() == Shape{1}, shape_to_string(first.shape()));
          TESSERA_RETURN_IF_ERROR(expect_all(first, 2));
          // -2^63 is 6 modulo 7.
          const DTensor rolled = ops::roll(x, kLeast, 0);
          TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> host, rolled.to_host<float>());
          for (int i = 0; i < 7; ++i) TESSERA_REQUIRE(host.data[i] == (i + 1) % 7, i);
          const DTensor loss = ops::add(ops::sum(first), ops::sum(ops::mul(rolled, rolled)));
          TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> gradient,
                                   tape.gradient(loss, {x})[0].to_host<float>());
          for (int i = 0; i < 7; ++i) {
            TESSERA_REQUIRE(gradient.data[i] == 2 * i + (i == 2 ? 1 : 0), i, " ", gradient.data[i]);
          }
        }
        return absl::OkStatus();
      }),
      IsOk());
}

}  // namespace
}  // namespace tessera::testing
