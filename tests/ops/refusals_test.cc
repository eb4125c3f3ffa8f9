// SPDX-License-Identifier: Apache-2.0
//
// Calls that operations refuse beside the rows of the table of facts: each message, on every
// client. And errors of operands and of indices.
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/dtype.h"
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
#include "ops/creation.h"
#include "ops/nn.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/shapes.h"
#include "tests/support/clients.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

struct Refusal {
  DTensor result;
  const char* text;
};

class OpsRefusalsTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, OpsRefusalsTest, ::testing::Values(kJobForms[0], kJobForms[1]),
                         job_form_name);
INSTANTIATE_TEST_SUITE_P(Cuda, OpsRefusalsTest, ::testing::ValuesIn(cuda_forms()), job_form_name);

Status check(const std::vector<Refusal>& refusals) {
  std::string failures;
  for (const Refusal& refusal : refusals) {
    const Status status = refusal.result.status();
    if (absl::IsInvalidArgument(status) && absl::StrContains(status.message(), refusal.text)) {
      continue;
    }
    absl::StrAppend(&failures, "no \"", refusal.text, "\" in ", status.ToString(), "\n");
  }
  return failures.empty() ? absl::OkStatus() : absl::InternalError(failures);
}

TEST_P(OpsRefusalsTest, Messages) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
        const auto of = [&](const Shape& shape) {
          return zeros<float>(shape, Layout::replicated(mesh, static_cast<int>(shape.size())));
        };
        const DTensor x = of({4, 3});
        const DTensor image = of({1, 4, 4, 2});
        const DTensor filter = of({3, 3, 2, 1});
        const DTensor flags = ops::cast<bool>(x);
        const DTensor counts = ops::cast<int32_t>(x);
        const DTensor scalar = of({});
        const std::vector<DTensor> pair = {x, x};
        return check({
            {ops::matmul(flags, flags), "matmul: takes numbers, not bool"},
            {ops::einsum("ab->a->b", {x}), "equation \"ab->a->b\": there are 2 arrows"},
            {ops::einsum("a...", {x}), "\"...\" is not supported"},
            {ops::einsum("a1->a", {x}), "\"1\" is not a letter"},
            {ops::einsum("a\x1b->a", {x}), "\"\\x1b\" is not a letter"},
            {ops::einsum("aa->a", {x}), "'a' is twice in \"aa\""},
            {ops::einsum("ab,bc->ac", {x}), "the equation has 2 operands, and 1 are given"},
            {ops::einsum("->", {}), "einsum: of no tensors"},
            {ops::conv2d(image, filter, {.strides = {0, 1}}), "conv2d: window 3, stride 0"},
            {ops::conv2d(of({1, 2, 4, 2}), filter),
             "reaches over 3 elements does not fit a dim of 2"},
            {ops::conv2d(ops::cast<int32_t>(image), filter), "floating-point numbers, not i32"},
            {ops::conv2d(image, of({3, 3})), "the filter is [height, width, in, out]"},
            {ops::max_pool2d(x), "max_pool2d: x is [batch, height, width, channels]"},
            {ops::scatter_add(flags, counts, flags, 0), "scatter_add: takes numbers, not bool"},
            {ops::scatter_add(x, counts, x, 0), "indices have rank 2, not 1"},
            {ops::one_hot(counts, -1), "one_hot: depth -1 is negative"},
            {ops::pad(x, {-1, 0}, {0, 0}), "pad: [-1, 0] has a negative entry"},
            {ops::tile(x, {2}), "tile: [2] has 1 entries for a tensor of rank 2"},
            {ops::tile(x, {2, -1}), "tile: [2, -1] has a negative entry"},
            {ops::concat({}, 0), "concat: of no tensors"},
            {ops::stack({}), "stack: of no tensors"},
            {ops::softmax(scalar, 0), "softmax: dim 0 is out of range for a tensor of rank 0"},
            {ops::softmax_cross_entropy(scalar, scalar), "logits have rank 0"},
            {ops::attention(x, x, x), "and one has rank 2"},
            {ops::attention(image, of({1, 3, 4, 2}), of({1, 3, 4, 2})),
             "[1, 4, 4, 2], [1, 3, 4, 2] and [1, 3, 4, 2] do not fit"},
            {ops::layer_norm(scalar, scalar, scalar, 0), "layer_norm: of rank 0"},
            {ops::layer_norm(x, of({3}), of({3}), -1), "epsilon -1 is negative"},
            {ops::neg(flags), "neg: takes numbers, not bool; cast() first"},
            {ops::div(counts, counts), "use floor_div, or cast() first"},
            {ops::clip(flags, 0, 1), "clip: takes numbers, not bool"},
            {ops::add(counts, 0.5), "add: the scalar 0.5 is not a value of i32; cast() the tensor"},
            {ops::add(counts, int64_t{1} << 40), "the scalar 1099511627776 is not a value of i32"},
            {ops::argmax(flags, 0), "argmax: takes numbers, not bool; use any or all"},
            {ops::var(counts), "var: takes floating-point numbers, not i32"},
            {ops::any(x), "any: takes bool, not f32"},
            {ops::min(of({0})), "min: of no elements: [0]"},
            {ops::slice(x, {0}, {4, 3}), "slice: [0] has 1 entries for a tensor of rank 2"},
            {ops::flip(x, {0, -2}), "flip: dim 0 is given twice"},
            {ops::narrow(x, 1, 1, 3), "narrow: dim 1 from 1, 3 elements: not in a dim of 3"},
            {ops::narrow(x, 1, -1, 1), "narrow: dim 1 from -1, 1 elements: not in a dim of 3"},
            {ops::full_like(counts, 0.5), "full_like: the scalar 0.5 is not a value of i32"},
            {ops::triu(of({3})),
             "triu: takes matrices in the last two dims, not a tensor of rank 1"},
            {ops::tril(flags + flags), "add: takes numbers"},
            {ops::reshape(x, {5, -1}), "[4, 3] has 12 elements, [5, 2] has 10"},
            {ops::expand_dims(x, 4), "expand_dims: dim 4 is out of range for a tensor of rank 3"},
            {ops::neg(flags + flags), "add: takes numbers"},  // the first error
            {ops::neg(x, Layout::parse(mesh, "[y, -]")), "names axis \"y\" in dim 0"},
        });
      }),
      IsOk());
}

TEST_P(OpsRefusalsTest, MessagesOfCreation) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
        const StatusOr<Layout> row = Layout::parse(mesh, "[x]");
        const StatusOr<Layout> matrix = Layout::parse(mesh, "[x, -]");
        const double infinity = std::numeric_limits<double>::infinity();
        return check({
            {arange<float>(0, 3, 0, row), "arange: from 0 to 3 by 0: step 0 reaches no limit"},
            {arange<int64_t>(0, 3, 0, row), "arange: from 0 to 3 by 0: step 0 reaches no limit"},
            {arange<int8_t>(0, 300, 1, row),
             "arange: from 0 to 300 by 1: 299 is not a value of i8"},
            {arange<double>(0, infinity, 1, row), "by 1: the numbers should be finite"},
            {arange<double>(0, 1e300, 1e-3, row), "arange: dim 0 would have more than 2^63 - 1"},
            {arange<float>(3, matrix), "layout [x, -] has 2 dims, shape [3] has 1"},
            {linspace<float>(0, 1, -2, row), "linspace: of -2 numbers; it should be 0 or more"},
            {linspace<float>(0, infinity, 3, row),
             "linspace: from 0 to inf; the numbers and their distance should be finite"},
            {eye<float>(-1, 2, matrix), "eye: "},
            {eye<float>(2, 2, row), "layout [x] has 1 dim, shape [2, 2] has 2"},
        });
      }),
      IsOk());
}

TEST_P(OpsRefusalsTest, IndicesOutOfRangeFailTheResult) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 8}}));
        const DTensor table = ones<float>({11, 2}, Layout::parse(mesh, "[x, -]"));
        const DTensor indices = full<int32_t>({3}, 11, Layout::replicated(mesh, 1));
        const DTensor logits = ones<float>({3, 5}, Layout::replicated(mesh, 2));
        const std::function<Status(const DTensor&)> fails = [](const DTensor& tensor) -> Status {
          const Status status = tensor.await();
          TESSERA_REQUIRE(absl::IsOutOfRange(status) &&
                              absl::StrContains(status.message(), "index 11, number 0"),
                          status.ToString());
          return absl::OkStatus();
        };
        const DTensor taken = ops::take(table, indices, 0);
        TESSERA_RETURN_IF_ERROR(fails(taken));
        // Tensors computed from it fail, here and after it was sent, on all clients.
        const DTensor next = ops::neg(ops::take(table, indices, 0)) + 1;
        TESSERA_RETURN_IF_ERROR(fails(relayout(next, Layout::parse(mesh, "[-, x]"))));
        TESSERA_RETURN_IF_ERROR(fails(next));
        const Status host = next.to_host<float>().status();
        TESSERA_REQUIRE(absl::IsOutOfRange(host), host.ToString());
        const DTensor other = ops::neg(table);
        TESSERA_RETURN_IF_ERROR(other.await());
        TESSERA_RETURN_IF_ERROR(fails(
            ops::scatter_add(table, indices, ones<float>({3, 2}, Layout::replicated(mesh, 2)), 0)));
        return fails(ops::softmax_cross_entropy(logits, indices));
      }),
      IsOk());
}

}  // namespace
}  // namespace tessera::testing
