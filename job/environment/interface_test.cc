// SPDX-License-Identifier: Apache-2.0
//
// The choice of the interface, in tables, and the errors where none can be chosen.
#include "job/environment/interface.h"

#include <sys/resource.h>

#include <string>
#include <vector>

#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::StatusIs;

std::vector<NetworkInterface> machine() {
  return {{"lo", {"127.0.0.1", "::1"}, true, true},
          {"eth0", {"10.1.0.7", "fd00:1::7"}, true, false},
          {"eth1", {"10.2.0.7"}, true, false},
          {"eth10", {"10.3.0.7"}, true, false},
          {"docker0", {"172.17.0.1"}, true, false},
          {"ib0", {"10.4.0.7"}, false, false},
          {"bond0", {}, true, false}};
}

struct Choice {
  std::string asked;
  std::string route;
  std::string chosen;
};

TEST(InterfaceTest, Choices) {
  const std::vector<Choice> choices = {
      {"", "10.1.0.7", "eth0"},       // the route to the coordinator
      {"", "fd00:1::7", "eth0"},      // by IPv6
      {"", "172.17.0.1", "docker0"},  // no name is left out
      {"", "127.0.0.1", "lo"},        //
      {"eth1", "10.1.0.7", "eth1"},   // the exact name, although eth10 begins with it
      {"eth10", "", "eth10"},         //
      {"10.2.0.0/16", "", "eth1"},    // a network
      {"10.2.0.7/32", "", "eth1"},    //
      {"10.0.0.0/8", "", "eth0"},     // the first of several
      {"0.0.0.0/0", "", "lo"},        //
      {"10.3.0.0/15", "", "eth1"},    // only the bits of the prefix count
      {"fd00:1::/64", "", "eth0"},    // IPv6
      {"::1/128", "10.1.0.7", "lo"},  //
  };
  for (const Choice& choice : choices) {
    const auto chosen = choose_interface(choice.asked, choice.route, machine());
    ASSERT_TRUE(chosen.ok()) << choice.asked << chosen.status();
    EXPECT_EQ(chosen->name, choice.chosen) << choice.asked << " " << choice.route;
  }
}

TEST(InterfaceTest, ErrorsListTheInterfaces) {
  const std::vector<std::vector<std::string>> cases = {
      {"eth2", "there is no such interface"},
      {"eth", "there is no such interface"},
      {"ib0", "that interface is down"},
      {"bond0", "that interface has no address"},
      {"10.9.0.0/16", "no interface that is up has an address of that network"},
      {"10.4.0.0/16", "no interface that is up has an address of that network"},
      {"10.1.0.0/33", "a network should be as in 10.1.0.0/16 or fd00::/64"},
      {"10.1.0.0/", "a network should be as in 10.1.0.0/16 or fd00::/64"},
      {"eth0/8", "a network should be as in 10.1.0.0/16 or fd00::/64"},
  };
  for (const std::vector<std::string>& one : cases) {
    EXPECT_THAT(choose_interface(one[0], "10.1.0.7", machine()),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("TESSERA_INTERFACE is \"" + one[0] + "\"; " + one[1]),
                               HasSubstr("eth0 (10.1.0.7, fd00:1::7)"),
                               HasSubstr("ib0 (10.4.0.7, down), bond0 (no address)"))));
  }
}

TEST(InterfaceTest, WithoutARouteTheVariableIsNamed) {
  EXPECT_THAT(choose_interface("", "", machine()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("no network interface leads to the coordinator; this host"),
                             HasSubstr("set TESSERA_INTERFACE"))));
  EXPECT_THAT(choose_interface("", "10.9.0.1", {}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("(from 10.9.0.1); this host has no network interface; set")));
}

TEST(InterfaceTest, FindsThoseOfThisHost) {
  const auto interfaces = list_interfaces();
  ASSERT_TRUE(interfaces.ok()) << interfaces.status();
  const auto loopback = choose_interface("", route_to("127.0.0.1:4000"), *interfaces);
  ASSERT_TRUE(loopback.ok()) << loopback.status();
  EXPECT_TRUE(loopback->is_loopback);
  EXPECT_TRUE(loopback->is_up);
}

// Listing them takes a socket.
TEST(InterfaceTest, WithoutDescriptorsTheReasonIsGiven) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const Status status = list_interfaces().status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(
      status,
      StatusIs(absl::StatusCode::kResourceExhausted,
               HasSubstr("cannot list the network interfaces of this host: Too many open")));
}

TEST(InterfaceTest, NoRouteToWhatIsNoAddress) {
  EXPECT_EQ(route_to("no_such_host.invalid:4000"), "");
  EXPECT_EQ(route_to("127.0.0.1"), "");
}

}  // namespace
}  // namespace tessera
