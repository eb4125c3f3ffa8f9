// SPDX-License-Identifier: Apache-2.0
//
// Groups of GPUs under the conformance suite of collectives: of one client, on the double and on a
// GPU where there is one; of several clients on the doubles of CUDA and NCCL.
#include "collectives/conformance.h"

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "collectives/cuda/cuda_job.h"
#include "collectives/nccl/double/nccl_double.h"
#include "device/cuda/double/cuda_double.h"
#include "device/cuda/open_api.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/deadline.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitizers.h"

namespace tessera::cuda {
namespace {

using conformance::Case;
using conformance::MemberBody;
using nccl::NcclDouble;
using testing::IsOk;

struct Setting {
  const char* name;
  int num_gpus;
  // More than one: each device has a GPU of its own.
  int num_clients = 1;
};

// As even as may be, the larger ones last: 3 members over 2 clients are 1 and 2.
std::vector<int> devices_by_client(int num_members, int num_clients) {
  std::vector<int> devices;
  for (int client = 0; client < num_clients; ++client) {
    const int count = num_members * (client + 1) / num_clients - num_members * client / num_clients;
    if (count > 0) devices.push_back(count);
  }
  return devices;
}

Status run_on_double(const Setting& setting, int num_members, const MemberBody& body) {
  const int num_gpus = setting.num_clients > 1 ? num_members : setting.num_gpus;
  const auto api = CudaDouble::create({.num_gpus = num_gpus, .most_yields = 2});
  const auto nccl = NcclDouble::create(api);
  {
    TESSERA_ASSIGN_OR_RETURN(
        const std::unique_ptr<CudaJob> job,
        CudaJob::create(api, nccl, num_gpus, devices_by_client(num_members, setting.num_clients)));
    TESSERA_RETURN_IF_ERROR(job->run(body));
  }
  if (!api->misuses().empty()) return absl::InternalError(api->misuses()[0]);
  if (!nccl->misuses().empty()) return absl::InternalError(nccl->misuses()[0]);
  if (nccl->num_communicators() > 0) return absl::InternalError("a communicator was left behind");
  if (api->allocated_bytes() > 0) return absl::InternalError("memory of the GPU was left behind");
  return absl::OkStatus();
}

class ConformanceTest : public ::testing::TestWithParam<std::tuple<Setting, Case>> {};

TEST_P(ConformanceTest, HoldsOnTheDouble) {
  const auto& [setting, c] = GetParam();
  const testing::TestDeadline deadline(absl::Seconds(60), absl::StrCat(setting.name, " ", c.name));
  EXPECT_THAT(run_on_double(setting, c.num_members, c.body), IsOk());
}

std::vector<Case> cases() {
  std::vector<Case> all = conformance::all_cases();
  all.push_back(conformance::random_ops_case(4, 300, 20251121));
  all.push_back(conformance::many_members_case(32));
  return all;
}

// What several GPUs have beyond one is peer access, and events of one on the streams of another:
// the sweeps over sizes and dtypes are left to one GPU.
std::vector<Case> short_cases() {
  std::vector<Case> some = conformance::fact_cases();
  for (Case& c : conformance::message_cases()) some.push_back(std::move(c));
  some.push_back(conformance::random_ops_case(4, 300, 20251122));
  return some;
}

// On the double the sweeps of large groups are left to f32: bytes have no type on their way, and
// small groups add in every dtype.
std::vector<Case> cases_on_the_double() {
  std::vector<Case> some = cases();
  std::erase_if(some, [](const Case& c) {
    const bool is_sweep =
        absl::StartsWith(c.name, "reductions_") || absl::StartsWith(c.name, "moves_");
    const bool is_f32 = absl::StrContains(c.name, "_f32_");
    const bool taken =
        testing::kSanitized ? is_f32 && c.num_members == 3 : is_f32 || c.num_members <= 4;
    return is_sweep && !taken;
  });
  return some;
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<Setting, Case>>& info) {
  return absl::StrCat(std::get<0>(info.param).name, "_", std::get<1>(info.param).name);
}

INSTANTIATE_TEST_SUITE_P(OneGpu, ConformanceTest,
                         ::testing::Combine(::testing::Values(Setting{"one_gpu", 1}),
                                            ::testing::ValuesIn(cases_on_the_double())),
                         name_of);
INSTANTIATE_TEST_SUITE_P(ThreeGpus, ConformanceTest,
                         ::testing::Combine(::testing::Values(Setting{"three_gpus", 3}),
                                            ::testing::ValuesIn(short_cases())),
                         name_of);

INSTANTIATE_TEST_SUITE_P(ThreeClients, ConformanceTest,
                         ::testing::Combine(::testing::Values(Setting{"three_clients", 0, 3}),
                                            ::testing::ValuesIn(cases_on_the_double())),
                         name_of);

// All devices share GPU 0. Without one there are no cases.
class ConformanceOnGpuTest : public ::testing::TestWithParam<Case> {};

std::vector<Case> cases_if_there_is_a_gpu() {
  return open_api().ok() ? cases() : std::vector<Case>();
}

TEST_P(ConformanceOnGpuTest, Holds) {
  const StatusOr<std::shared_ptr<Api>> api = open_api();
  ASSERT_THAT(api, IsOk());
  const testing::TestDeadline deadline(absl::Seconds(60), GetParam().name);
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<CudaJob> job,
                               CudaJob::create(*api, nullptr, 1, {GetParam().num_members}));
  EXPECT_THAT(job->run(GetParam().body), IsOk());
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ConformanceOnGpuTest);
INSTANTIATE_TEST_SUITE_P(Cuda, ConformanceOnGpuTest, ::testing::ValuesIn(cases_if_there_is_a_gpu()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::cuda
