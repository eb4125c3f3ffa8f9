// SPDX-License-Identifier: Apache-2.0
//
// ClientOptions::backend on GPUs of several clients, on the fakes of CUDA and NCCL: which member
// adds the terms of a partial layout, in which order, and whether NCCL uses the memory of tensors.
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "collectives/nccl/fake/fake_nccl.h"
#include "compute/cuda/fake/fake_math.h"
#include "device/cuda/fake/fake_cuda.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/clients.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

// The terms of four devices, whose sum depends on the order.
constexpr float kTerms[] = {1e8f, 1.5f, -1e8f, 0.1f};

struct BackendCase {
  Backend backend;
  bool nccl_adds;
  const char* name;
};
void PrintTo(const BackendCase& c, std::ostream* out) { *out << c.name; }

// The sum of all terms, one after another from this one on, as NCCL's ring adds them.
float sum_from(int first) {
  float sum = kTerms[first];
  for (int k = 1; k < 4; ++k) sum += kTerms[(first + k) % 4];
  return sum;
}

class NcclBackendTest : public ::testing::TestWithParam<BackendCase> {};

TEST_P(NcclBackendTest, SaysWhoAdds) {
  const auto cuda = cuda::FakeCuda::create({.num_gpus = 4});
  const auto nccl = nccl::FakeNccl::create(cuda);
  ClientOptions options;
  options.device_type = DeviceType::kCuda;
  options.backend = GetParam().backend;
  const auto body = [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4}"));
    std::vector<HostTensor<float>> terms;
    for (const int own : {0, 1}) {
      terms.push_back({{8}, std::vector<float>(8, kTerms[2 * client.client_id() + own])});
    }
    const DTensor sum = from_shards<float>({8}, Layout::parse(mesh, "[-] sum{x}"), terms);
    // Whole, by all_reduce, and in parts, by reduce_scatter.
    for (const char* layout : {"[-]", "[x]"}) {
      TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> result,
                               relayout(sum, Layout::parse(mesh, layout)).to_host<float>());
      // Our order begins with the first member. A ring begins after the owner of a chunk, which is
      // a quarter: each element is such a sum, and these differ by 1.5.
      for (size_t i = 0; i < result.data.size(); ++i) {
        const int first = GetParam().nccl_adds ? static_cast<int>(i / 2 + 1) % 4 : 0;
        TESSERA_REQUIRE(result.data[i] == sum_from(first), layout, ": element ", i, " is ",
                        result.data[i], " and not ", sum_from(first));
      }
    }
    // The calls of all clients are counted.
    TESSERA_RETURN_IF_ERROR(mesh.barrier("added"));
    for (const char* function : {"all_reduce", "reduce_scatter"}) {
      const int num_calls = nccl->num_calls(function);
      TESSERA_REQUIRE(num_calls == (GetParam().nccl_adds ? 4 : 0), function, ": ", num_calls);
    }
    for (const std::vector<std::string>& misuses : {cuda->misuses(), nccl->misuses()}) {
      TESSERA_REQUIRE(misuses.empty(), misuses[0]);
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(run_clients({.num_clients = 2,
                           .devices_per_client = 2,
                           .options = options,
                           .hooks = {.cuda = cuda::fake_libraries(cuda), .nccl = nccl}},
                          body),
              IsOk());
}

INSTANTIATE_TEST_SUITE_P(Backends, NcclBackendTest,
                         ::testing::Values(BackendCase{Backend::kAuto, false, "auto"},
                                           BackendCase{Backend::kNccl, true, "nccl"}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tessera::testing
