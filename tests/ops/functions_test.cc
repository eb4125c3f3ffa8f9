// SPDX-License-Identifier: Apache-2.0
//
// Operations that run functions of the caller: elementwise(), and local_map() with gradients.
#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/local_map.h"
#include "dtensor/relayout.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "ops/contract.h"
#include "ops/elementwise.h"
#include "ops/local_gradient.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/tape.h"
#include "tests/support/clients.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

class OpsFunctionsTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, OpsFunctionsTest, ::testing::Values(kJobForms[0], kJobForms[1]),
                         job_form_name);

// Element i is (7 i + 3) mod 11 - 5.
StatusOr<DTensor> sample(const Mesh& mesh, const Shape& shape, const char* layout) {
  std::vector<float> values(num_elements(shape));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((7 * i + 3) % 11) - 5;
  TESSERA_ASSIGN_OR_RETURN(const Layout to, Layout::parse(mesh, layout));
  TESSERA_ASSIGN_OR_RETURN(const Layout whole,
                           Layout::replicated(mesh, static_cast<int>(shape.size())));
  return relayout(from_host<float>(values, shape, whole), to);
}

Status expect_equal(const DTensor& a, const DTensor& b) {
  TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> x, a.to_host<float>());
  TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> y, b.to_host<float>());
  EXPECT_EQ(x.shape, y.shape);
  EXPECT_EQ(x.data, y.data);
  return absl::OkStatus();
}

TEST_P(OpsFunctionsTest, ElementwiseGivesWhatOperationsGive) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 4}, {"y", 2}}));
        for (const char* layout : {"[-, -]", "[x, y]", "[(x,y), -]", "[-, x] sum{y}"}) {
          TESSERA_ASSIGN_OR_RETURN(const DTensor x, sample(mesh, {7, 5}, layout));
          for (const Shape& shape : {Shape{7, 5}, Shape{5}, Shape{7, 1}, Shape{}}) {
            TESSERA_ASSIGN_OR_RETURN(const DTensor b, sample(mesh, shape,
                                                             shape.empty()       ? "[]"
                                                             : shape.size() == 1 ? "[y]"
                                                                                 : "[-, -]"));
            const float scale = 3;
            const auto fn = [scale](float u, float v) { return scale * u - v; };
            const DTensor expected = ops::sub(ops::mul(x, 3), b);
            TESSERA_RETURN_IF_ERROR(
                expect_equal(ops::elementwise<float, float, float>(fn, x, b), expected));
            TESSERA_RETURN_IF_ERROR(expect_equal(ops::elementwise<float>(fn, x, b), expected));
            TESSERA_RETURN_IF_ERROR(expect_equal(ops::elementwise(fn, x, b), expected));
          }
        }
        return absl::OkStatus();
      }),
      IsOk());
}

bool is_even(int64_t i) { return i % 2 == 0; }

TEST_P(OpsFunctionsTest, ElementwiseChangesTheType) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
                TESSERA_ASSIGN_OR_RETURN(const Layout rows, Layout::parse(mesh, "[x]"));
                const DTensor even = ops::elementwise(is_even, iota<int64_t>({11}, rows));
                EXPECT_EQ(even.dtype(), DType::kBool);
                EXPECT_EQ(even.layout().to_string(), "[x]");
                TESSERA_ASSIGN_OR_RETURN(const HostTensor<bool> host, even.to_host<bool>());
                for (size_t i = 0; i < host.data.size(); ++i) EXPECT_EQ(host.data[i], i % 2 == 0);
                // Under the layout that is asked for.
                const DTensor whole = ops::elementwise<bool, int64_t>(
                    is_even, iota<int64_t>({11}, rows), Layout::replicated(mesh, 1));
                EXPECT_EQ(whole.layout().to_string(), "[-]");
                return whole.await();
              }),
              IsOk());
}

// The captures of a lambda are a part of the key under which a decision is cached; a function that
// is not trivially copyable is not cached.
TEST_P(OpsFunctionsTest, ElementwiseCallsTheFunctionThatItIsGiven) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
        TESSERA_ASSIGN_OR_RETURN(const DTensor x, sample(mesh, {9}, "[x]"));
        for (const float by : {1.0f, 2.0f, 1.0f}) {
          const auto scaled = [by](float u) { return by * u; };
          TESSERA_RETURN_IF_ERROR(expect_equal(ops::elementwise(scaled, x), ops::mul(x, by)));
          const auto held = std::make_shared<float>(by);
          const std::function<float(float)> shared = [held](float u) { return *held * u; };
          TESSERA_RETURN_IF_ERROR(
              expect_equal(ops::elementwise<float, float>(shared, x), ops::mul(x, by)));
        }
        return absl::OkStatus();
      }),
      IsOk());
}

// The threads of the devices call the function, also for a few elements on idle devices: the thread
// that starts an operation must not, because it holds the client's turn.
TEST_P(OpsFunctionsTest, ElementwiseMayStartOperations) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
                TESSERA_ASSIGN_OR_RETURN(const DTensor x, sample(mesh, {9}, "[x]"));
                const auto negated = [x](float u) {
                  const DTensor started = ops::neg(x);
                  return started.shape() == x.shape() ? -u : u;
                };
                return expect_equal(ops::elementwise<float, float>(negated, x), ops::neg(x));
              }),
              IsOk());
}

// A decision about one result type must not be used for another one.
TEST_P(OpsFunctionsTest, ElementwiseGivesTheTypeThatItIsAskedFor) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
        TESSERA_ASSIGN_OR_RETURN(const DTensor x, sample(mesh, {9}, "[x]"));
        const auto twice = [](float u) { return 2 * u; };
        const DTensor doubled = ops::mul(x, 2);
        TESSERA_RETURN_IF_ERROR(expect_equal(ops::elementwise<float, float>(twice, x), doubled));
        const DTensor wide = ops::elementwise<double, float>(twice, x);
        TESSERA_REQUIRE(wide.dtype() == DType::kFloat64, dtype_name(wide.dtype()));
        return expect_equal(ops::cast(wide, DType::kFloat32), doubled);
      }),
      IsOk());
}

class ElementwiseOnGpusTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Cuda, ElementwiseOnGpusTest, ::testing::Values(cuda_forms()[0]),
                         job_form_name);

TEST_P(ElementwiseOnGpusTest, IsRefused) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
        TESSERA_ASSIGN_OR_RETURN(const DTensor x, sample(mesh, {9}, "[x]"));
        EXPECT_THAT(
            ops::elementwise([](float u) { return u; }, x).status(),
            StatusIs(absl::StatusCode::kUnimplemented,
                     HasSubstr("elementwise: its function is called by threads of the host, "
                               "which do not reach memory of a GPU; use local_map()")));
        return absl::OkStatus();
      }),
      IsOk());
}

TEST_P(OpsFunctionsTest, ElementwiseRefusals) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
        TESSERA_ASSIGN_OR_RETURN(const DTensor x, sample(mesh, {9}, "[x]"));
        TESSERA_ASSIGN_OR_RETURN(const DTensor other, sample(mesh, {8}, "[x]"));
        const auto sum = [](float u, float v) { return u + v; };
        EXPECT_THAT(ops::elementwise(sum, x, other).status(),
                    StatusIs(absl::StatusCode::kInvalidArgument,
                             HasSubstr("elementwise: shapes [9] and [8] do not broadcast")));
        EXPECT_THAT(
            ops::elementwise(sum, x).status(),
            StatusIs(absl::StatusCode::kInvalidArgument,
                     HasSubstr("elementwise: the function takes 2 elements, and 1 tensors")));
        EXPECT_THAT(ops::elementwise(sum, x, ops::cast<double>(x)).status(),
                    StatusIs(absl::StatusCode::kInvalidArgument,
                             HasSubstr("takes f32 of operand 1, which is f64; cast() it")));
        const std::function<float(float)> none;
        EXPECT_THAT((ops::elementwise<float, float>(none, x).status()),
                    StatusIs(absl::StatusCode::kInvalidArgument,
                             HasSubstr("elementwise: the function is empty")));
        const auto raises = [](float) -> float {
          std::rethrow_exception(std::make_exception_ptr(std::runtime_error("no such value")));
        };
        EXPECT_THAT(ops::elementwise(raises, x).await(),
                    StatusIs(absl::StatusCode::kUnknown,
                             HasSubstr("elementwise: the function raised an exception: no such")));
        const auto raises_number = [](float) -> float {
          std::rethrow_exception(std::make_exception_ptr(3));
        };
        EXPECT_THAT(ops::elementwise(raises_number, x).await(),
                    StatusIs(absl::StatusCode::kUnknown, HasSubstr("is not a std::exception")));
        Tape tape;
        const DTensor watched = tape.watch(x);
        const DTensor loss = ops::sum(ops::elementwise(sum, watched, watched));
        EXPECT_THAT(tape.gradient(loss, {watched})[0].status(),
                    StatusIs(absl::StatusCode::kInvalidArgument,
                             HasSubstr("gradient: elementwise has no gradient of its function")));
        return absl::OkStatus();
      }),
      IsOk());
}

// y = x^2 w by element; the gradient of x has its own layout, the gradient of w is partial.
struct Scaled {
  Layout rows;
  Layout terms;

  DTensor operator()(const DTensor& x, const DTensor& w) const {
    const auto forward = [](LocalContext& local) {
      const auto value = local.input<float>(0).data;
      const auto scale = local.input<float>(1).data;
      const auto out = local.output<float>().data;
      for (size_t i = 0; i < out.size(); ++i) out[i] = value[i] * value[i] * scale[0];
    };
    const auto by_x = [](LocalContext& local) {
      const auto value = local.input<float>(0).data;
      const auto scale = local.input<float>(1).data;
      const auto cotangent = local.input<float>(3).data;
      const auto out = local.output<float>().data;
      for (size_t i = 0; i < out.size(); ++i) out[i] = 2 * value[i] * scale[0] * cotangent[i];
    };
    const auto by_w = [](LocalContext& local) {
      const auto value = local.input<float>(0).data;
      const auto cotangent = local.input<float>(3).data;
      float sum = 0;
      for (size_t i = 0; i < value.size(); ++i) sum += value[i] * value[i] * cotangent[i];
      local.output<float>().data[0] = sum;
    };
    return local_map(rows, x.shape(), DType::kFloat32, {x, w}, forward,
                     {LocalGradient{rows, by_x}, LocalGradient{terms, by_w}});
  }
};

TEST_P(OpsFunctionsTest, LocalMapHasTheGradientsThatItIsGiven) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
                TESSERA_ASSIGN_OR_RETURN(const DTensor values, sample(mesh, {11}, "[x]"));
                TESSERA_ASSIGN_OR_RETURN(const DTensor weight, sample(mesh, {1}, "[-]"));
                TESSERA_ASSIGN_OR_RETURN(const Layout rows, Layout::parse(mesh, "[x]"));
                TESSERA_ASSIGN_OR_RETURN(const Layout terms, Layout::parse(mesh, "[-] sum{x}"));
                Tape tape;
                const DTensor x = tape.watch(values);
                const DTensor w = tape.watch(weight);
                const DTensor by_hand = ops::sum(ops::sin(Scaled{rows, terms}(x, w)));
                const std::vector<DTensor> found = tape.gradient(by_hand, {x, w});
                const DTensor by_ops = ops::sum(ops::sin(ops::mul(ops::square(x), w)));
                const std::vector<DTensor> expected = tape.gradient(by_ops, {x, w});
                for (size_t i = 0; i < 2; ++i) {
                  EXPECT_EQ(found[i].layout(), expected[i].layout());
                  TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> a, found[i].to_host<float>());
                  TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> b, expected[i].to_host<float>());
                  for (size_t k = 0; k < a.data.size(); ++k) {
                    EXPECT_NEAR(a.data[k], b.data[k], 1e-4 * (1 + std::abs(b.data[k])));
                  }
                }
                return absl::OkStatus();
              }),
              IsOk());
}

// a = x x and b = 3 x, of one run; the gradient of x is of both.
TEST_P(OpsFunctionsTest, LocalMapOfSeveralOutputsHasGradients) {
  const auto forward = [](LocalContext& local) {
    const auto x = local.input<float>(0).data;
    for (size_t i = 0; i < x.size(); ++i) {
      local.output<float>(0).data[i] = x[i] * x[i];
      local.output<float>(1).data[i] = 3 * x[i];
      local.output<int32_t>(2).data[i] = 1;
    }
  };
  const auto by_x = [](LocalContext& local) -> Status {
    TESSERA_REQUIRE(local.num_inputs() == 7, local.num_inputs());
    const auto x = local.input<float>(0).data;
    const auto a = local.input<float>(1).data;
    const auto of_a = local.input<float>(4).data;
    const auto of_b = local.input<float>(5).data;
    const auto of_count = local.input<int32_t>(6).data;
    const auto out = local.output<float>().data;
    for (size_t i = 0; i < x.size(); ++i) {
      TESSERA_REQUIRE(a[i] == x[i] * x[i] && of_count[i] == 0);
      out[i] = 2 * x[i] * of_a[i] + 3 * of_b[i];
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(
      run([&](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
        TESSERA_ASSIGN_OR_RETURN(const DTensor values, sample(mesh, {11}, "[x]"));
        TESSERA_ASSIGN_OR_RETURN(const Layout rows, Layout::parse(mesh, "[x]"));
        Tape tape;
        const DTensor x = tape.watch(values);
        const LocalOutput output = {rows, x.shape(), DType::kFloat32};
        const LocalOutput count = {rows, x.shape(), DType::kInt32};
        const std::vector<DTensor> out =
            local_map({output, output, count}, {x}, forward,
                      std::vector<std::optional<LocalGradient>>{LocalGradient{rows, by_x}});
        struct Row {
          DTensor target;
          float square, linear;
        };
        const Row targets[] = {
            {ops::sum(out[0]), 1, 0}, {ops::sum(out[1]), 0, 1}, {ops::sum(out[0] * out[1]), 0, 0}};
        TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> at, values.to_host<float>());
        for (const Row& row : targets) {
          const std::vector<DTensor> found = tape.gradient(row.target, {x}, {.keep = true});
          TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> by, found[0].to_host<float>());
          for (size_t i = 0; i < at.data.size(); ++i) {
            const float v = at.data[i];
            const bool is_product = row.square == 0 && row.linear == 0;
            EXPECT_EQ(by.data[i], is_product ? 9 * v * v : 2 * v * row.square + 3 * row.linear);
          }
        }
        // No gradient of x, and one that is given to no input.
        const std::vector<DTensor> failed =
            local_map({output, count}, {x}, forward, std::vector<std::optional<LocalGradient>>{});
        for (const DTensor& each : failed) {
          EXPECT_THAT(each.status(), StatusIs(absl::StatusCode::kInvalidArgument,
                                              HasSubstr("local_map: 0 gradients for 1 inputs")));
        }
        return absl::OkStatus();
      }),
      IsOk());
}

TEST_P(OpsFunctionsTest, LocalMapRefusesGradientsThatDoNotFit) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
                TESSERA_ASSIGN_OR_RETURN(const Layout rows, Layout::parse(mesh, "[x]"));
                const DTensor x = iota<float>({8}, rows);
                const DTensor index = iota<int32_t>({8}, rows);
                const auto fn = [](LocalContext&) {};
                EXPECT_THAT(local_map(rows, {8}, DType::kFloat32, {x, index}, fn,
                                      std::vector<std::optional<LocalGradient>>{std::nullopt})
                                .status(),
                            StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr("local_map: 1 gradients for 2 inputs")));
                EXPECT_THAT(
                    local_map(rows, {8}, DType::kFloat32, {x, index}, fn,
                              {std::nullopt, LocalGradient{rows, fn}})
                        .status(),
                    StatusIs(absl::StatusCode::kInvalidArgument,
                             HasSubstr("local_map: input 1 is i32, which has no gradient")));
                return absl::OkStatus();
              }),
              IsOk());
}

}  // namespace
}  // namespace tessera::testing
