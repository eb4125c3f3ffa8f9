// SPDX-License-Identifier: Apache-2.0
//
// The properties that distinguish hosts.
#include "job/environment/host.h"

#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::tessera::testing::IsOk;
using ::tessera::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// Set for one test.
class HostId {
 public:
  explicit HostId(const std::string& id) { setenv("TESSERA_HOST_ID", id.c_str(), 1); }
  ~HostId() { unsetenv("TESSERA_HOST_ID"); }
};

TEST(HostTest, KernelAndNamespacesAreTheHost) {
  const MemberInfo info = describe_this_process();
  EXPECT_THAT(info.host_id, MatchesRegex("[-0-9a-f]+ net [0-9]+ pid [0-9]+"));
  EXPECT_EQ(info.host_id, describe_this_process().host_id);
  EXPECT_NE(info.incarnation, describe_this_process().incarnation);
  EXPECT_EQ(info.pid, getpid());
}

TEST(HostTest, TheVariableReplacesThem) {
  const HostId id("rack-7.node-3");
  EXPECT_EQ(describe_this_process().host_id, "rack-7.node-3");
  EXPECT_THAT(check_host_id(), IsOk());
}

TEST(HostTest, WrongIdsAreRefused) {
  EXPECT_THAT(check_host_id(), IsOk()) << "not set";
  const std::string longest(128, 'a');
  EXPECT_THAT(check_host_id(longest.c_str()), IsOk());
  for (const std::string& wrong : {std::string(), std::string("a b"), longest + "a"}) {
    EXPECT_THAT(check_host_id(wrong.c_str()),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("it should be 1 to 128 visible characters")));
  }
  const HostId id("");
  EXPECT_THAT(check_host_id(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "TESSERA_HOST_ID is \"\"; it should be 1 to 128 visible characters, the "
                       "same for all clients of a host"));
}

// A client of a host with this name and id.
MemberInfo client_of(const std::string& host, const std::string& host_id) {
  MemberInfo info;
  info.host = host;
  info.host_id = host_id;
  info.pid = 7;
  return info;
}

TEST(HostTest, HostsAreToldApartByTheirIdsAlone) {
  const MemberInfo client = client_of("node", "rack-1");
  EXPECT_TRUE(are_on_one_host(client, client_of("other-name", "rack-1")));
  EXPECT_FALSE(are_on_one_host(client, client_of("node", "rack-2")));
}

TEST(HostTest, LoopbackIsSharedInANetworkNamespaceAndMayBeUnderAGivenId) {
  const MemberInfo client = client_of("node", "1a net 5 pid 6");
  EXPECT_TRUE(may_share_loopback(client, client_of("pod", "1a net 5 pid 7")));
  EXPECT_TRUE(may_share_loopback(client, client_of("node", "rack-2")));
  EXPECT_FALSE(may_share_loopback(client, client_of("node", "1a net 4 pid 6")));
  EXPECT_FALSE(may_share_loopback(client, client_of("node", "2a net 5 pid 6")));
}

TEST(HostTest, HostsAreNumberedInTheOrderOfTheirFirstClients) {
  EXPECT_THAT(number_hosts({}), ElementsAre());
  EXPECT_THAT(number_hosts({client_of("a", "z"), client_of("a", "y"), client_of("b", "z"),
                            client_of("a", "x"), client_of("a", "y")}),
              ElementsAre(0, 1, 0, 2, 1));
}

}  // namespace
}  // namespace tessera
