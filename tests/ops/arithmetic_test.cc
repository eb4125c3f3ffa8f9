// SPDX-License-Identifier: Apache-2.0
//
// Clients whose CPUs have different instruction sets hold the same bits: the bits of the least set.
#include "device/arithmetic.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/shape.h"
#include "base/stable_hash.h"
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
#include "tests/support/clients.h"
#include "tests/support/matchers.h"
#include "tests/support/shared.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

constexpr Arithmetic kBaseline = {InstructionSet::kBaseline, false};

// Different everywhere, and with roundings in sums.
DTensor numbers(const Mesh& mesh, const Shape& shape) {
  return from_function<float>(
      shape, Layout::replicated(mesh, static_cast<int>(shape.size())),
      [&](const Box& box, absl::Span<float> out) {
        size_t place = 0;
        for_each_element(box, [&](const std::vector<int64_t>& index, int64_t) {
          const int64_t i = flat_index(shape, index);
          out[place++] = static_cast<float>(i * 37 % 1009) / 1009 - 0.4f;
        });
      });
}

using BitsOfClients = std::array<uint64_t, 2>;

// A hash of what each of two clients has of results whose bits differ between instruction sets:
// vectors of functions of the math library, sums of products by Eigen and by OpenBLAS, sums of
// rows, a convolution.
StatusOr<BitsOfClients> bits_of_clients(const Arithmetic& first, const Arithmetic& second) {
  Shared<BitsOfClients> bits;
  JobSpec spec;
  spec.num_clients = 2;
  spec.hooks.arithmetic = {first, second};
  TESSERA_RETURN_IF_ERROR(run_clients(spec, [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}}));
    const DTensor wide = numbers(mesh, {4, 1024});
    const DTensor image = numbers(mesh, {1, 8, 8, 16});
    const DTensor filter = numbers(mesh, {3, 3, 16, 16});
    uint64_t hash = 0;
    for (const DTensor& result : {ops::exp(wide), ops::matmul(wide, numbers(mesh, {1024, 512})),
                                  ops::matmul(wide, numbers(mesh, {1024, 7})),
                                  ops::softmax(wide, 1), ops::conv2d(image, filter)}) {
      TESSERA_ASSIGN_OR_RETURN(const ShardView<float> shard, result.shard<float>(0));
      hash = stable_hash(
          {reinterpret_cast<const char*>(shard.data.data()), shard.data.size() * sizeof(float)},
          hash);
    }
    (*bits)[client.client_id()] = hash;
    return absl::OkStatus();
  }));
  return *bits;
}

TEST(OpsArithmeticTest, ReplicasOnMixedHostsHoldTheBitsOfTheLeast) {
  const Arithmetic best = Arithmetic::of_this_host();
  if (best == kBaseline) GTEST_SKIP() << "this CPU has one instruction set";
  const StatusOr<BitsOfClients> baseline = bits_of_clients(kBaseline, kBaseline);
  ASSERT_THAT(baseline, IsOk());
  const uint64_t bits = (*baseline)[0];
  EXPECT_EQ(*baseline, (BitsOfClients{bits, bits}));
  EXPECT_THAT(bits_of_clients(best, kBaseline), IsOkAndHolds(BitsOfClients{bits, bits}));
  const StatusOr<BitsOfClients> fast = bits_of_clients(best, best);
  ASSERT_THAT(fast, IsOk());
  EXPECT_EQ((*fast)[0], (*fast)[1]);
  EXPECT_NE((*fast)[0], bits) << "the sets do not differ, so this test shows nothing";
  if (!best.uses_openblas) return;
  const StatusOr<BitsOfClients> mixed = bits_of_clients(best, {best.set, false});
  ASSERT_THAT(mixed, IsOk());
  EXPECT_EQ((*mixed)[0], (*mixed)[1]);
  EXPECT_NE((*mixed)[0], (*fast)[0]) << "OpenBLAS computes the bits of Eigen";
}

}  // namespace
}  // namespace tessera::testing
