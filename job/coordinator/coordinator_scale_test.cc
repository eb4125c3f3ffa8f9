// SPDX-License-Identifier: Apache-2.0
//
// The state machine of a coordinator with 10,000 clients, in one process: each call is answered
// right, and the memory is bounded. The answers to each client are bounded too.
// coordinator_state_benchmark prints the times, coordinator_steps_test bounds the work.
#include <sys/resource.h>

#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "job/coordinator/coordinator.h"
#include "job/coordinator/member_list.h"
#include "job/coordinator/testing/simulated_job.h"
#include "tests/support/sanitizers.h"

namespace tessera {
namespace {

TEST(CoordinatorScaleTest, TenThousandClientsInLessThan200Megabytes) {
  double total = 0;
  for (const auto& part : testing::SimulatedJob(10'000).run()) {
    EXPECT_TRUE(part.is_right) << part.name;
    total += part.cost;
  }
  rusage used = {};
  ASSERT_EQ(getrusage(RUSAGE_SELF, &used), 0);
  std::printf("%.3f s, %ld MB\n", total, used.ru_maxrss / 1024);
  // The memory of the whole process, at its peak.
  if (!testing::kSanitized) {
    EXPECT_LT(used.ru_maxrss, 200 * 1024);
  }
}

// Members with the names and ids that hosts have.
std::vector<MemberInfo> members_of_hosts(int num_clients, int clients_per_host) {
  std::mt19937_64 random(7);
  std::vector<MemberInfo> members;
  std::string host_id;
  for (int i = 0; i < num_clients; ++i) {
    const int host = i / clients_per_host;
    if (i % clients_per_host == 0) host_id = absl::StrCat(absl::Hex(random()), "-", 4026531840);
    members.push_back({i, absl::StrCat("node-", host, ".cluster"), host_id,
                       static_cast<int64_t>(random() % 4'194'304), random(), 8, "cuda",
                       "avx2, openblas", ""});
  }
  return members;
}

// Every client gets the list of all, so each byte of a member is sent N times.
TEST(CoordinatorScaleTest, MemberTakesFewBytesOfTheList) {
  for (const int num_clients : {1'000, 10'000}) {
    const auto bytes_of_member = [&](int clients_per_host) {
      return encode_members(members_of_hosts(num_clients, clients_per_host)).size() / num_clients;
    };
    EXPECT_LE(bytes_of_member(1), 67);
    EXPECT_LE(bytes_of_member(8), 27);
  }
}

TEST(CoordinatorScaleTest, ListOfMembersIsReadAsItWasWritten) {
  const std::vector<MemberInfo> members = members_of_hosts(100, 8);
  const std::string bytes = encode_members(members);
  const auto read = decode_members(bytes, 100);
  ASSERT_TRUE(read.has_value());
  for (int i = 0; i < 100; ++i) {
    const MemberInfo& a = (*read)[i];
    const MemberInfo& b = members[i];
    EXPECT_EQ(a.to_string(), b.to_string());
    EXPECT_EQ(a.host_id, b.host_id);
    EXPECT_EQ(a.incarnation, b.incarnation);
    EXPECT_EQ(a.num_local_devices, b.num_local_devices);
    EXPECT_EQ(a.device_type, b.device_type);
    EXPECT_EQ(a.arithmetic, b.arithmetic);
  }
  EXPECT_FALSE(decode_members(bytes, 99).has_value());
  EXPECT_FALSE(decode_members("nonsense", 100).has_value());
}

}  // namespace
}  // namespace tessera
