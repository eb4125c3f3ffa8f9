// SPDX-License-Identifier: Apache-2.0
//
// Groups of GPUs under the conformance suite of collectives: of one client, on the fake and on a
// GPU where there is one; of several clients on the fakes of CUDA and NCCL.
#include "collectives/testing/conformance.h"

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "collectives/cuda/testing/cuda_job.h"
#include "collectives/nccl/fake/fake_nccl.h"
#include "device/cuda/fake/fake_cuda.h"
#include "device/cuda/open_api.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/deadline.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitizers.h"

namespace tessera::cuda {
namespace {

using conformance::Case;
using conformance::MemberBody;
using nccl::FakeNccl;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

struct Setting {
  const char* name;
  int num_gpus;
  // More than one: each device has a GPU of its own.
  int num_clients = 1;
  nccl::Sums sums = nccl::Sums::kOrdered;
};

// The number of queues that cuda::open_api() asks CUDA for.
constexpr int kNumQueues = 32;

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
  const auto api =
      FakeCuda::create({.num_gpus = num_gpus, .most_yields = 2, .num_queues = kNumQueues});
  const auto nccl = FakeNccl::create(api);
  {
    TESSERA_ASSIGN_OR_RETURN(
        const std::unique_ptr<CudaJob> job,
        CudaJob::create(api, nccl, num_gpus, devices_by_client(num_members, setting.num_clients),
                        {.sums = setting.sums}));
    TESSERA_RETURN_IF_ERROR(job->run(body));
  }
  if (!api->misuses().empty()) return absl::InternalError(api->misuses()[0]);
  if (!nccl->misuses().empty()) return absl::InternalError(nccl->misuses()[0]);
  if (nccl->num_allocations() > 0) return absl::InternalError("memory of NCCL was left behind");
  if (nccl->num_communicators() > 0) return absl::InternalError("a communicator was left behind");
  if (api->allocated_bytes() > 0) return absl::InternalError("memory of the GPU was left behind");
  return absl::OkStatus();
}

class ConformanceTest : public ::testing::TestWithParam<std::tuple<Setting, Case>> {};

TEST_P(ConformanceTest, HoldsOnTheFake) {
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

// Several GPUs, unlike one, have peer access, and events of one on the streams of another:
// the sweeps over sizes and dtypes are left to one GPU.
std::vector<Case> short_cases() {
  std::vector<Case> some = conformance::fact_cases();
  for (Case& c : conformance::message_cases()) some.push_back(std::move(c));
  some.push_back(conformance::random_ops_case(4, 300, 20251122));
  return some;
}

std::vector<Case> cases_on_the_double() {
  std::vector<Case> some = cases();
  conformance::limit_sweeps(some, testing::kSanitized
                                      ? conformance::SweepLimits{.f32 = 3, .other_dtypes = 0}
                                      : conformance::SweepLimits{.other_dtypes = 4});
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

// NCCL adds: the table of numerics, and the facts that demand no order of addition. Operations that
// only move bytes are the same as without.
constexpr Setting kNcclSums = {"nccl_sums", 0, 3, nccl::Sums::kNccl};

std::vector<Case> cases_of_nccl_sums() {
  std::vector<Case> some = conformance::numerics_cases();
  // Bounds grow with the members: in the largest group two types are enough.
  std::erase_if(some, [](const Case& c) {
    const bool is_float = absl::StrContains(c.name, "_f16_") || absl::StrContains(c.name, "_f32_");
    return (c.num_members == 8 && !is_float) || (testing::kSanitized && c.num_members != 3);
  });
  for (const Case& c : conformance::fact_cases()) {
    if (!conformance::is_of_ascending_order(c)) some.push_back(c);
  }
  return some;
}
INSTANTIATE_TEST_SUITE_P(NcclSums, ConformanceTest,
                         ::testing::Combine(::testing::Values(kNcclSums),
                                            ::testing::ValuesIn(cases_of_nccl_sums())),
                         name_of);

// The fake adds in another order than we do: what demands ours is found.
TEST(NcclSumsTest, HaveNotTheBitsOfAscendingOrder) {
  const testing::TestDeadline deadline(absl::Seconds(60), "sums of NCCL");
  const std::vector<Case> facts = conformance::fact_cases();
  const auto sum =
      absl::c_find_if(facts, [](const Case& c) { return c.name == "sum_f64_ascending"; });
  ASSERT_NE(sum, facts.end());
  EXPECT_THAT(run_on_double(kNcclSums, sum->num_members, sum->body),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("expected 0.6")));
}

// Clients that disagree on which side adds (our kernels or NCCL) get the same error, before a byte
// moves.
TEST(NcclSumsTest, AreTheSameForAllClients) {
  const testing::TestDeadline deadline(absl::Seconds(60), "clients that disagree");
  const auto api = FakeCuda::create({.num_gpus = 3});
  const auto nccl = FakeNccl::create(api);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<CudaJob> job,
      CudaJob::create(api, nccl, 3, {1, 1, 1}, {.sums_of_client = {{2, nccl::Sums::kNccl}}}));
  EXPECT_THAT(job->run([](const conformance::Member& m) -> Status {
    const float in = 1;
    float out = 7;
    const Status status = m.group.all_reduce<float>({&in, 1}, {&out, 1}, ReduceOp::kSum).await();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("backend differs between clients: client 0 has "
                                           "\"auto\", client 2 has \"nccl\"; give all")));
    EXPECT_EQ(out, 7);
    return m.group.barrier().await();
  }),
              IsOk());
  EXPECT_EQ(nccl->num_calls("comm_init_rank"), 0);
}

// All devices share GPU 0.
class ConformanceOnGpuTest : public ::testing::TestWithParam<Case> {};

TEST_P(ConformanceOnGpuTest, Holds) {
  const StatusOr<std::shared_ptr<Api>> api = open_api();
  if (!api.ok()) GTEST_SKIP() << api.status().message();
  const testing::TestDeadline deadline(absl::Seconds(60), GetParam().name);
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<CudaJob> job,
                               CudaJob::create(*api, nullptr, 1, {GetParam().num_members}));
  EXPECT_THAT(job->run(GetParam().body), IsOk());
}

INSTANTIATE_TEST_SUITE_P(Cuda, ConformanceOnGpuTest, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::cuda
