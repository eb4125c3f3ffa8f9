// SPDX-License-Identifier: Apache-2.0
//
// The digits example over several hosts, as a user starts it: a tessera_run on each. The losses
// equal the losses of as many clients on one host, bit by bit: with one term of a sum from each
// host, sums by host have the order of sums on one host.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/environment/host.h"
#include "tests/hosts/hosts.h"
#include "tests/support/forked.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

using ::testing::Each;

constexpr absl::Duration kDeadline = absl::Seconds(200);

std::string temporary(const std::string& name) {
  return absl::StrCat(std::getenv("TEST_TMPDIR"), "/", name);
}

// The real path of the file: in a host the working directory is another.
std::string real_path(const std::string& path) { return std::filesystem::canonical(path).string(); }

// The losses of five epochs on so many hosts with so many clients each, as text.
std::string losses(const Hosts& hosts, int num_hosts, int clients_per_host) {
  const std::string file = temporary(absl::StrCat("losses_of_", num_hosts));
  const std::string data = temporary("digits.csv");
  std::filesystem::copy_file("examples/data/digits.csv", data,
                             std::filesystem::copy_options::skip_existing);
  const std::string token = random_token();
  EXPECT_THAT(
      run_forked(num_hosts, kDeadline,
                 [&](int host) {
                   return hosts.in_host(
                       host,
                       {"env", absl::StrCat("TESSERA_TOKEN=", token), real_path("job/tessera_run"),
                        absl::StrCat("--clients=", clients_per_host),
                        absl::StrCat("--nodes=", num_hosts), absl::StrCat("--node-id=", host),
                        "--coordinator=host-a:4000", real_path("examples/03_digits"), "--epochs=5",
                        "--data=" + data, "--loss_file=" + file});
                 }),
      Each(IsOk()));
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

struct Size {
  const char* name;
  int num_hosts;
  int clients_per_host;
};

class DigitsOnHostsTest : public ::testing::TestWithParam<Size> {};
INSTANTIATE_TEST_SUITE_P(Sizes, DigitsOnHostsTest,
                         ::testing::Values(Size{"TwoHostsOfTwo", 2, 2},
                                           Size{"ThreeHostsOfOne", 3, 1}),
                         [](const auto& info) { return info.param.name; });

TEST_P(DigitsOnHostsTest, LossesAreThoseOfOneHost) {
  const Size& size = GetParam();
  if (absl::StartsWith(real_path("examples/03_digits"), "/tmp/")) {
    GTEST_SKIP() << "the build is in /tmp, and hosts have a /tmp of their own";
  }
  TESSERA_MAKE_HOSTS(hosts, size.num_hosts);
  const std::string of_one_host = losses(hosts, 1, size.num_hosts * size.clients_per_host);
  EXPECT_FALSE(of_one_host.empty());
  EXPECT_EQ(losses(hosts, size.num_hosts, size.clients_per_host), of_one_host);
}

}  // namespace
}  // namespace tessera::testing
