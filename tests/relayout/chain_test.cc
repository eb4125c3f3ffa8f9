// SPDX-License-Identifier: Apache-2.0
//
// Chains of 20 random relayouts on real devices, through five meshes, sub-axes and partial layouts:
// integers stay exact, and floats have the same bits in every run, however the devices are
// distributed over clients.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "mesh/mesh_runtime.h"
#include "relayout/testing/small_relayouts.h"
#include "tests/support/clients.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitizers.h"
#include "tests/support/seed.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

constexpr int kLength = 20;
constexpr int kChains = kSanitized ? 4 : 20;
const Shape kShape = {17, 5};

// Flat, nested, with another order of devices, and over some of the devices.
constexpr const char* kMeshes[] = {"{x=8}", "{x=2, y=2, z=2}", "{a=4, b=2} on 7,2,5,0,3,6,1,4",
                                   "{x=2, y=3} on 6,1,4,3,0,7", "{x=3} on 2,7,4"};

// The layouts that a chain goes through, the same on every client.
class Chains {
 public:
  static StatusOr<Chains> create(const Client& client, const std::vector<ReduceOp>& ops) {
    Chains chains;
    for (const char* text : kMeshes) {
      TESSERA_ASSIGN_OR_RETURN(const Mesh abstract, Mesh::parse(text));
      const Mesh mesh = internal::with_runtime(abstract, internal::mesh_runtime_of(client));
      chains.layouts_.push_back(every_layout(mesh, static_cast<int>(kShape.size()), ops));
    }
    return chains;
  }

  std::vector<Layout> draw(std::mt19937_64& random) const {
    std::vector<Layout> chain;
    for (int i = 0; i < kLength; ++i) {
      // Not std::uniform_int_distribution: its numbers differ between libraries.
      const std::vector<Layout>& layouts = layouts_[random() % layouts_.size()];
      chain.push_back(layouts[random() % layouts.size()]);
    }
    return chain;
  }

 private:
  std::vector<std::vector<Layout>> layouts_;  // by mesh
};

std::string chain_text(const std::vector<Layout>& chain) {
  std::string text;
  for (const Layout& layout : chain) absl::StrAppend(&text, " -> ", layout.to_string_with_mesh());
  return text;
}

class RelayoutChainTest : public JobFormTest {};

INSTANTIATE_TEST_SUITE_P(Forms, RelayoutChainTest, ::testing::ValuesIn(kJobForms), job_form_name);
INSTANTIATE_TEST_SUITE_P(Hosts, RelayoutChainTest, ::testing::Values(kTwoHosts), job_form_name);
INSTANTIATE_TEST_SUITE_P(Cuda, RelayoutChainTest, ::testing::ValuesIn(cuda_forms()), job_form_name);

TEST_P(RelayoutChainTest, IntegersStayExact) {
  const uint64_t seed = test_seed();
  EXPECT_THAT(run([&](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(
                    const Chains chains,
                    Chains::create(client, {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMax}));
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                std::mt19937_64 random(seed);
                for (int i = 0; i < kChains; ++i) {
                  const std::vector<Layout> chain = chains.draw(random);
                  DTensor tensor = iota<int64_t>(kShape, Layout::parse(mesh, "[x, -]"));
                  for (const Layout& layout : chain) tensor = relayout(tensor, layout);
                  tensor = relayout(tensor, Layout::parse(mesh, "[-, x]"));
                  TESSERA_RETURN_IF_ERROR(with_context(
                      expect_iota<int64_t>(tensor),
                      absl::StrCat("TESSERA_TEST_SEED=", seed, ", chain ", i, chain_text(chain))));
                }
                return absl::OkStatus();
              }),
              IsOk());
}

// A term of a float sum whose bits depend on the order of addition.
float float_term(int device, int64_t i) {
  const float sign = (device + i) % 2 == 0 ? 1.0F : -1.0F;
  return sign * std::ldexp(1.0F + 0.1F * static_cast<float>(i), 24 - 3 * device);
}

StatusOr<DTensor> float_terms(const Client& client, const Layout& layout) {
  std::vector<HostTensor<float>> shards;
  for (const Device& device : client.local_devices()) {
    HostTensor<float>& shard = shards.emplace_back();
    shard.shape = kShape;
    for (int64_t i = 0; i < num_elements(kShape); ++i) {
      shard.data.push_back(float_term(device.id, i));
    }
  }
  return from_shards<float>(kShape, layout, shards);
}

// The bits of the values that all chains end in, in hexadecimal digits.
StatusOr<std::string> bits_of_chains(const Client& client, uint64_t seed) {
  TESSERA_ASSIGN_OR_RETURN(const Chains chains,
                           Chains::create(client, {ReduceOp::kSum, ReduceOp::kAvg}));
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
  std::mt19937_64 random(seed);
  std::string bits;
  for (int i = 0; i < kChains; ++i) {
    TESSERA_ASSIGN_OR_RETURN(const Layout terms, Layout::parse(mesh, "[-, -] sum{x}"));
    TESSERA_ASSIGN_OR_RETURN(DTensor tensor, float_terms(client, terms));
    for (const Layout& layout : chains.draw(random)) tensor = relayout(tensor, layout);
    tensor = relayout(tensor, Layout::parse(mesh, "[-, -]"));
    TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> value, tensor.to_host<float>());
    for (const float element : value.data) {
      uint32_t word;
      std::memcpy(&word, &element, sizeof word);
      absl::StrAppend(&bits, absl::Hex(word, absl::kZeroPad8));
    }
  }
  return bits;
}

TEST(RelayoutChainBitsTest, FloatsHaveTheSameBitsInEveryRunAndDistribution) {
  const uint64_t seed = test_seed();
  std::vector<std::string> bits_of_runs;
  for (const JobForm& form : kJobForms) {
    SCOPED_TRACE(form.name);
    // The body runs in another process: what it found comes back in a file of its own.
    const std::string path = absl::StrCat(::testing::TempDir(), "/bits_", form.name);
    const auto body = [&](Client& client) -> Status {
      TESSERA_ASSIGN_OR_RETURN(const std::string first, bits_of_chains(client, seed));
      TESSERA_ASSIGN_OR_RETURN(const std::string second, bits_of_chains(client, seed));
      TESSERA_REQUIRE(first == second, "two runs of one job differ");
      if (client.client_id() == 0) std::ofstream(path) << first;
      return absl::OkStatus();
    };
    ASSERT_THAT(run_clients({.setting = form.setting,
                             .num_clients = form.num_clients,
                             .devices_per_client = form.devices_per_client},
                            body),
                IsOk());
    std::ifstream file(path);
    std::string& bits = bits_of_runs.emplace_back();
    file >> bits;
    EXPECT_EQ(static_cast<int64_t>(bits.size()), kChains * num_elements(kShape) * 8);
    EXPECT_EQ(bits, bits_of_runs.front());
  }
}

}  // namespace
}  // namespace tessera::testing
