// SPDX-License-Identifier: Apache-2.0
//
// ClientOptions::backend on GPUs of several clients, on the doubles of CUDA and NCCL: who adds the
// terms of a partial layout, and how near the sums are.
#include <cmath>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "collectives/nccl/double/nccl_double.h"
#include "device/cuda/double/cuda_double.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
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
};
void PrintTo(const BackendCase& c, std::ostream* out) { *out << backend_name(c.backend); }

class NcclBackendTest : public ::testing::TestWithParam<BackendCase> {};

TEST_P(NcclBackendTest, SaysWhoAdds) {
  const auto cuda = cuda::CudaDouble::create({.num_gpus = 4});
  const auto nccl = nccl::NcclDouble::create(cuda);
  ClientOptions options;
  options.device_type = DeviceType::kCuda;
  options.backend = GetParam().backend;
  options.cuda = cuda;
  options.nccl = nccl;
  const auto body = [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4}"));
    std::vector<HostTensor<float>> terms;
    for (const int own : {0, 1}) {
      terms.push_back({{8}, std::vector<float>(8, kTerms[2 * client.client_id() + own])});
    }
    const DTensor sum = from_shards<float>({8}, Layout::parse(mesh, "[-] sum{x}"), terms);
    float ordered = kTerms[0];
    for (int k = 1; k < 4; ++k) ordered += kTerms[k];
    // Whole, by all_reduce, and in parts, by reduce_scatter.
    for (const char* layout : {"[-]", "[x]"}) {
      TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> result,
                               relayout(sum, Layout::parse(mesh, layout)).to_host<float>());
      for (const float value : result.data) {
        // 4 ulp of the sum of all magnitudes.
        const float bound = GetParam().nccl_adds ? 4 * 0x1p-23f * 2.1e8f : 0;
        TESSERA_REQUIRE(std::fabs(value - ordered) <= bound, layout, ": ", value, " is not ",
                        ordered);
      }
    }
    // Of all clients.
    TESSERA_RETURN_IF_ERROR(mesh.barrier("added"));
    for (const char* function : {"all_reduce", "reduce_scatter"}) {
      const int num_calls = nccl->num_calls(function);
      TESSERA_REQUIRE(num_calls == (GetParam().nccl_adds ? 4 : 0), function, ": ", num_calls);
    }
    // Tensors live in memory that NCCL uses directly.
    TESSERA_REQUIRE(nccl->num_registered_operations() > 0);
    for (const std::vector<std::string>& misuses : {cuda->misuses(), nccl->misuses()}) {
      TESSERA_REQUIRE(misuses.empty(), misuses[0]);
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(run_clients({.num_clients = 2, .devices_per_client = 2, .options = options}, body),
              IsOk());
}

INSTANTIATE_TEST_SUITE_P(Backends, NcclBackendTest,
                         ::testing::Values(BackendCase{Backend::kAuto, false},
                                           BackendCase{Backend::kNccl, true}),
                         [](const auto& info) {
                           return std::string(backend_name(info.param.backend));
                         });

}  // namespace
}  // namespace tessera::testing
