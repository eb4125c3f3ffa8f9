// SPDX-License-Identifier: Apache-2.0
//
// That processes which share a GPU give NCCL different hosts, keep what the user has set, and that
// the real library listens on the loopback interface then. Whether it takes two ranks on one GPU is
// //tests:gpu_clients_test's to see, where there is one.
#include "collectives/nccl/gpu_sharing.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "collectives/nccl/open_api.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera::nccl {
namespace {

using testing::IsOk;
using ::testing::StartsWith;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// What a forked child makes of it: the environment of the test stays as it is.
std::string in_child(const std::function<std::string()>& body) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t pid = fork();
  if (pid == 0) {
    const std::string result = body();
    (void)!write(ends[1], result.data(), result.size());
    _exit(0);
  }
  close(ends[1]);
  std::string result;
  char buffer[256];
  for (ssize_t count; (count = read(ends[0], buffer, sizeof buffer)) > 0;) {
    result.append(buffer, static_cast<size_t>(count));
  }
  close(ends[0]);
  waitpid(pid, nullptr, 0);
  return result;
}

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

TEST(GpuSharingTest, AForkIsAnotherHostAndASecondCallChangesNothing) {
  const std::string both = in_child([] {
    share_gpus_among_processes();
    const std::string first = variable("NCCL_HOSTID");
    share_gpus_among_processes();
    if (variable("NCCL_HOSTID") != first) return std::string("changed");
    return first + " " + in_child([] {
             share_gpus_among_processes();
             return variable("NCCL_HOSTID");
           });
  });
  const std::string first = both.substr(0, both.find(' '));
  EXPECT_THAT(first, StartsWith("tessera-"));
  EXPECT_THAT(both.substr(first.size() + 1), StartsWith("tessera-"));
  EXPECT_NE(both, first + " " + first);
}

TEST(GpuSharingTest, KeepsWhatTheUserHasSetButForTheHost) {
  EXPECT_THAT(in_child([] {
                setenv("NCCL_PROTO", "LL", 1);
                setenv("NCCL_HOSTID", "mine", 1);
                share_gpus_among_processes();
                return variable("NCCL_PROTO") + " " + variable("NCCL_ALGO") + " " +
                       variable("NCCL_HOSTID");
              }),
              StartsWith("LL Ring tessera-"));
}

// The library that the build found, without a GPU: where its unique ids say that it listens. An id
// begins with a random number, then an address as bind() takes it.
TEST(GpuSharingTest, NcclListensOnTheLoopbackInterface) {
  const char* const library = std::getenv("TESSERA_NCCL_LIBRARY");
  if (library == nullptr) GTEST_SKIP() << "no NCCL";
  EXPECT_EQ(in_child([library]() -> std::string {
              share_gpus_among_processes();
              const StatusOr<std::shared_ptr<Api>> api = open_api(library);
              if (!api.ok()) return api.status().ToString();
              const StatusOr<UniqueId> id = (*api)->get_unique_id();
              if (!id.ok()) return id.status().ToString();
              sockaddr_in address;
              sockaddr_in6 address6;
              std::memcpy(&address, id->data() + sizeof(uint64_t), sizeof address);
              std::memcpy(&address6, id->data() + sizeof(uint64_t), sizeof address6);
              const bool is_loopback = address.sin_family == AF_INET6
                                           ? IN6_IS_ADDR_LOOPBACK(&address6.sin6_addr)
                                           : ntohl(address.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
              return is_loopback ? "loopback" : "another interface";
            }),
            "loopback");
}

}  // namespace
}  // namespace tessera::nccl
