// SPDX-License-Identifier: Apache-2.0
//
// Groups of GPUs of one client under the conformance suite of collectives: on the double, and on a
// GPU where there is one.
#include "collectives/conformance.h"

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "collectives/cuda/cuda_job.h"
#include "device/cuda/double/cuda_double.h"
#include "device/cuda/open_api.h"
#include "gtest/gtest.h"
#include "tests/support/deadline.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitizers.h"

namespace tessera::cuda {
namespace {

using conformance::Case;
using conformance::MemberBody;
using testing::IsOk;

struct Setting {
  const char* name;
  int num_gpus;
};

Status run_on_double(int num_gpus, int num_members, const MemberBody& body) {
  const auto api = CudaDouble::create({.num_gpus = num_gpus, .most_yields = 2});
  {
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<CudaJob> job,
                             CudaJob::create(api, num_gpus, num_members));
    TESSERA_RETURN_IF_ERROR(job->run(body));
  }
  if (!api->misuses().empty()) return absl::InternalError(api->misuses()[0]);
  if (api->allocated_bytes() > 0) return absl::InternalError("memory of the GPU was left behind");
  return absl::OkStatus();
}

class ConformanceTest : public ::testing::TestWithParam<std::tuple<Setting, Case>> {};

TEST_P(ConformanceTest, HoldsOnTheDouble) {
  const auto& [setting, c] = GetParam();
  const testing::TestDeadline deadline(absl::Seconds(60), absl::StrCat(setting.name, " ", c.name));
  EXPECT_THAT(run_on_double(setting.num_gpus, c.num_members, c.body), IsOk());
}

std::vector<Case> cases() {
  std::vector<Case> all = conformance::all_cases();
  all.push_back(conformance::random_ops_case(4, 300, 20251121));
  all.push_back(conformance::many_members_case(32));
  // The sweeps of large groups take most of the time, and order their streams as small ones do.
  std::erase_if(all, [](const Case& c) {
    const bool is_sweep =
        absl::StartsWith(c.name, "reductions_") || absl::StartsWith(c.name, "moves_");
    return testing::kSanitized && is_sweep && c.num_members != 3;
  });
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

std::string name_of(const ::testing::TestParamInfo<std::tuple<Setting, Case>>& info) {
  return absl::StrCat(std::get<0>(info.param).name, "_", std::get<1>(info.param).name);
}

INSTANTIATE_TEST_SUITE_P(OneGpu, ConformanceTest,
                         ::testing::Combine(::testing::Values(Setting{"one_gpu", 1}),
                                            ::testing::ValuesIn(cases())),
                         name_of);
INSTANTIATE_TEST_SUITE_P(ThreeGpus, ConformanceTest,
                         ::testing::Combine(::testing::Values(Setting{"three_gpus", 3}),
                                            ::testing::ValuesIn(short_cases())),
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
                               CudaJob::create(*api, 1, GetParam().num_members));
  EXPECT_THAT(job->run(GetParam().body), IsOk());
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ConformanceOnGpuTest);
INSTANTIATE_TEST_SUITE_P(Cuda, ConformanceOnGpuTest, ::testing::ValuesIn(cases_if_there_is_a_gpu()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::cuda
