// SPDX-License-Identifier: Apache-2.0
//
// The host backend under the conformance suite: one client with all devices, and clients as
// threads. The settings with clients as processes are in tests/.
#include "collectives/testing/conformance.h"

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "collectives/host/testing/host_job.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/deadline.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitizers.h"

namespace tessera::host {
namespace {

using conformance::Case;
using conformance::MemberBody;
using testing::IsOk;

Status run_job(std::vector<int> devices_by_client, const MemberBody& body) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<HostJob> job, HostJob::create(devices_by_client));
  return job->run(body);
}

struct Setting {
  const char* name;
  conformance::MemberRunner run;
};

Setting one_client() {
  return {"one_client", [](int n, const MemberBody& body) { return run_job({n}, body); }};
}
Setting clients_of_one() {
  return {"clients_of_one",
          [](int n, const MemberBody& body) { return run_job(std::vector<int>(n, 1), body); }};
}
// A single member is one client; an odd one goes to the second.
Setting two_clients() {
  return {"two_clients", [](int n, const MemberBody& body) {
            return n == 1 ? run_job({1}, body) : run_job({n / 2, n - n / 2}, body);
          }};
}

class ConformanceTest : public ::testing::TestWithParam<std::tuple<Setting, Case>> {};

TEST_P(ConformanceTest, Holds) {
  const auto& [setting, c] = GetParam();
  const testing::TestDeadline deadline(absl::Seconds(30), absl::StrCat(setting.name, " ", c.name));
  EXPECT_THAT(setting.run(c.num_members, c.body), IsOk());
}

std::vector<Case> cases() {
  std::vector<Case> all = conformance::all_cases();
  const char* seed_text = std::getenv("TESSERA_TEST_SEED");
  const uint64_t seed = seed_text != nullptr ? std::strtoull(seed_text, nullptr, 10) : 20240607;
  all.push_back(conformance::random_ops_case(4, 1000, seed));
  all.push_back(conformance::many_members_case(64));
  return all;
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<Setting, Case>>& info) {
  return absl::StrCat(std::get<0>(info.param).name, "_", std::get<1>(info.param).name);
}

// The last is a mixture of the others.
std::vector<Setting> settings() {
  if (testing::kSanitized) return {two_clients()};
  return {one_client(), clients_of_one(), two_clients()};
}

INSTANTIATE_TEST_SUITE_P(Host, ConformanceTest,
                         ::testing::Combine(::testing::ValuesIn(settings()),
                                            ::testing::ValuesIn(cases())),
                         name_of);

}  // namespace
}  // namespace tessera::host
