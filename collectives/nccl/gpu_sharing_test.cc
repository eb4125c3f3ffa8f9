// SPDX-License-Identifier: Apache-2.0
//
// Processes that share a GPU give NCCL different hosts and keep the user's settings, and the real
// library then listens on the loopback interface. //tests/gpu:clients_test checks whether it
// accepts two ranks on one GPU, where there is a GPU.
#include "collectives/nccl/gpu_sharing.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "collectives/nccl/open_api.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/forked.h"
#include "tests/support/matchers.h"

namespace tessera::nccl {
namespace {

using testing::IsOk;
using testing::run_isolated;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

constexpr absl::Duration kLimit = absl::Seconds(60);

TEST(GpuSharingTest, EveryProcessIsAHostOfItsOwn) {
  std::set<std::string> ids;
  for (int64_t pid = 1; pid <= 4; ++pid) {
    for (uint64_t nonce = 1; nonce <= 4; ++nonce) {
      ids.insert(gpu_sharing_variables(pid, nonce)[0].value);
    }
  }
  EXPECT_EQ(ids.size(), 16u);
  EXPECT_STREQ(gpu_sharing_variables(1, 1)[0].name, "NCCL_HOSTID");
}

// In forked children: the environment of the test stays as it is.
TEST(GpuSharingTest, AForkIsAnotherHostAndASecondCallChangesNothing) {
  EXPECT_THAT(run_isolated(kLimit,
                           []() -> Status {
                             share_gpus_among_processes();
                             const std::string first = variable("NCCL_HOSTID");
                             TESSERA_REQUIRE(absl::StartsWith(first, "tessera-"), first);
                             share_gpus_among_processes();
                             TESSERA_REQUIRE(variable("NCCL_HOSTID") == first);
                             return run_isolated(kLimit, [&]() -> Status {
                               share_gpus_among_processes();
                               const std::string second = variable("NCCL_HOSTID");
                               TESSERA_REQUIRE(absl::StartsWith(second, "tessera-"), second);
                               TESSERA_REQUIRE(second != first);
                               return absl::OkStatus();
                             });
                           }),
              IsOk());
}

TEST(GpuSharingTest, KeepsWhatTheUserHasSetButForTheHost) {
  EXPECT_THAT(run_isolated(kLimit,
                           []() -> Status {
                             setenv("NCCL_PROTO", "LL", 1);
                             setenv("NCCL_HOSTID", "mine", 1);
                             share_gpus_among_processes();
                             TESSERA_REQUIRE(variable("NCCL_PROTO") == "LL");
                             TESSERA_REQUIRE(variable("NCCL_ALGO") == "Ring");
                             TESSERA_REQUIRE(absl::StartsWith(variable("NCCL_HOSTID"), "tessera-"));
                             return absl::OkStatus();
                           }),
              IsOk());
}

// The library that the build found, without a GPU: where its unique ids say that it listens. An id
// begins with a random number, then an address as bind() takes it.
TEST(GpuSharingTest, NcclListensOnTheLoopbackInterface) {
  const char* const library = std::getenv("TESSERA_NCCL_LIBRARY");
  if (library == nullptr) GTEST_SKIP() << "no NCCL";
  EXPECT_THAT(
      run_isolated(kLimit,
                   [library]() -> Status {
                     share_gpus_among_processes();
                     TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Api> api, open_api(library));
                     TESSERA_ASSIGN_OR_RETURN(const UniqueId id, api->get_unique_id());
                     sockaddr_in address;
                     sockaddr_in6 address6;
                     std::memcpy(&address, id.data() + sizeof(uint64_t), sizeof address);
                     std::memcpy(&address6, id.data() + sizeof(uint64_t), sizeof address6);
                     TESSERA_REQUIRE(address.sin_family == AF_INET6
                                         ? IN6_IS_ADDR_LOOPBACK(&address6.sin6_addr)
                                         : ntohl(address.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET);
                     return absl::OkStatus();
                   }),
      IsOk());
}

}  // namespace
}  // namespace tessera::nccl
