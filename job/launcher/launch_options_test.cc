// SPDX-License-Identifier: Apache-2.0
//
// The options that tessera_run refuses, with each message and exit code, and its help.
#include "job/launcher/launch_options.h"

#include <cstdlib>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/environment/build.h"
#include "job/testing/launcher_run.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using testing::IsOk;
using ::testing::StartsWith;
using testing::StatusIs;

struct RefusalCase {
  const char* name;
  std::vector<std::string> arguments;
  int exit_code;
  const char* message;  // a regular expression
};

void PrintTo(const RefusalCase& row, std::ostream* out) { *out << row.name; }

class RefusalTest : public ::testing::TestWithParam<RefusalCase> {};

TEST_P(RefusalTest, SaysWhatIsWrong) {
  unsetenv("TESSERA_TOKEN");
  LauncherRun run(GetParam().arguments);
  EXPECT_EQ(run.wait(), GetParam().exit_code);
  EXPECT_EQ(run.output(), "");
  EXPECT_THAT(run.error(),
              ContainsRegex(absl::StrCat("^tessera_run: ", GetParam().message, "\n$")));
}

const RefusalCase kRefusals[] = {
    {"no_such_name",
     {"--clients", "2", "no_such_program"},
     127,
     "program \"no_such_program\" cannot be started: No such file or directory; give the path of "
     "a program, or a name that is on PATH"},
    {"no_such_path",
     {"--clients", "2", "./no/such"},
     127,
     "program \"./no/such\" cannot be started: No such file or directory; give .*"},
    {"not_executable",
     {"--clients", "2", "/proc/self/status"},
     126,
     "program \"/proc/self/status\" cannot be started: Permission denied; it should be a file "
     "that this user may execute"},
    {"directory",
     {"--clients", "2", "/proc"},
     126,
     "program \"/proc\" cannot be started: Permission denied; it should be .*"},
    {"nothing",
     {},
     2,
     "--clients is 0; it should be at least 1, as in tessera_run --clients 4 ./train"},
    {"no_program",
     {"--clients", "2"},
     2,
     "no program is given; put it after the flags, as in tessera_run --clients 4 ./train"},
    {"clients_after_the_program",
     {"./train", "--clients", "2"},
     2,
     "--clients comes after the program \"./train\" and so belongs to it; put it before, as in "
     "tessera_run --clients 4 ./train"},
    {"clients_with_a_value_after_the_program",
     {"./train", "--clients=2"},
     2,
     "--clients comes after the program .*"},
    {"no_value",
     {"--clients"},
     2,
     "--clients has no value; it should be a whole number up to 2147483647"},
    {"not_true_or_false", {"--check=maybe"}, 2, "--check is \"maybe\"; it should be true or false"},
    {"not_a_number",
     {"--clients=two", "true"},
     2,
     "--clients is \"two\"; it should be a whole number up to 2147483647"},
    {"not_a_time",
     {"--clients=2", "--timeout", "10", "true"},
     2,
     "--timeout is \"10\"; it should be a time such as 90s, 10m or 1h30m"},
    {"unknown_flag",
     {"--client", "2", "true"},
     2,
     "there is no flag \"--client\"; see tessera_run --help, and put the flags of the program "
     "after the program"},
    {"log_dir_is_a_file",
     {"--clients=1", "--log-dir=/proc/self/status", "true"},
     2,
     "--log-dir is \"/proc/self/status\", .* cannot be made: .*"},
    {"no_token",
     {"--clients=1", "--nodes=2", "--coordinator=a:1", "true"},
     2,
     "TESSERA_TOKEN is not set; with --nodes 2 it should hold one random text, the same on every "
     "host"},
};

INSTANTIATE_TEST_SUITE_P(Rows, RefusalTest, ::testing::ValuesIn(kRefusals),
                         [](const auto& info) { return info.param.name; });

LauncherOptions with(const std::function<void(LauncherOptions&)>& change) {
  LauncherOptions options;
  options.num_clients = 4;
  options.command = {"true"};
  change(options);
  return options;
}

TEST(LauncherOptionsTest, RefusesEachBadValue) {
  struct Row {
    const char* message;
    std::function<void(LauncherOptions&)> change;
  };
  const Row rows[] = {
      {"--clients is -1; it should be at least 1", [](auto& o) { o.num_clients = -1; }},
      {"--devices-per-client is 0; it should be at least 1",
       [](auto& o) { o.devices_per_client = 0; }},
      {"--max-restarts is -1; it should be at least 0", [](auto& o) { o.max_restarts = -1; }},
      {"--timeout is 0; it should be a positive time such as 90s or 10m",
       [](auto& o) { o.timeout = absl::ZeroDuration(); }},
      {"--grace is -1s; it should be a positive time",
       [](auto& o) { o.grace = -absl::Seconds(1); }},
      {"--settle is -1s; it should be a positive time",
       [](auto& o) { o.settle = -absl::Seconds(1); }},
      {"--nodes is 0; it should be at least 1", [](auto& o) { o.num_nodes = 0; }},
      {"--node-id is 2; it should be from 0 to 1 with --nodes 2",
       [](auto& o) { o.num_nodes = o.node_id = 2; }},
      {"--nodes is 250001; it should be fewer with --clients 4: a job has at most 1000000 clients",
       [](auto& o) { o.num_nodes = 250'001; }},
      {"--coordinator is not given; with --nodes 2 it should be HOST:PORT",
       [](auto& o) { o.num_nodes = 2; }},
      {"--max-restarts is 1; it should be 0 with --nodes",
       [](auto& o) {
         o.num_nodes = 2;
         o.coordinator = "a:1";
         o.max_restarts = 1;
       }},
      {"--coordinator is \"a\"; it should be HOST:PORT", [](auto& o) { o.coordinator = "a"; }},
      {"--coordinator is \"a:65536\"; it should be HOST:PORT",
       [](auto& o) { o.coordinator = "a:65536"; }},
      {"--hosts is \"a,\"; it should be names of hosts",
       [](auto& o) {
         o.hosts = {"a", ""};
       }},
      {"--hosts is \"-x\"; it should be names of hosts", [](auto& o) { o.hosts = {"-x"}; }},
      {"--hosts is \"a\"; it should be without --nodes and --node-id",
       [](auto& o) {
         o.hosts = {"a"};
         o.num_nodes = 2;
       }},
      {"--max-restarts is 1; it should be 0 with --hosts",
       [](auto& o) {
         o.hosts = {"a"};
         o.max_restarts = 1;
       }},
      {"--ssh is empty; it should be a program",
       [](auto& o) {
         o.hosts = {"a"};
         o.ssh = " ";
       }},
      {"--coordinator is \"a\"; it should be HOST:PORT",
       [](auto& o) {
         o.hosts = {"a"};
         o.coordinator = "a";
       }},
      {"--clients is 1000000000; it should be at most 1000000",
       [](auto& o) { o.num_clients = 1'000'000'000; }},
      {"no program is given", [](auto& o) { o.command.clear(); }},
  };
  for (const Row& row : rows) {
    EXPECT_THAT(with(row.change).validate(),
                StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(row.message)));
  }
  EXPECT_THAT(with([](auto&) {}).validate(), IsOk());
}

TEST(LauncherTest, MoreClientsThanTheLimitsAllowAreRefusedAtOnce) {
  LauncherRun run =
      LauncherRun::program({"sh", "-c", "ulimit -n 100; exec job/tessera_run --clients 1000 true"});
  EXPECT_EQ(run.wait(), 1);
  EXPECT_EQ(run.error(),
            "tessera_run: --clients is 1000, for which tessera_run needs 5000 descriptors, and the "
            "limit is 100 (ulimit -n); start fewer clients on this host, or raise the limit\n");
}

TEST(LauncherTest, HelpListsEveryFlag) {
  LauncherRun run({"--help"});
  EXPECT_EQ(run.wait(), 0);
  for (const char* flag :
       {"--clients N", "--devices-per-client D", "--timeout TIME", "--max-restarts R",
        "--log-dir DIR", "--grace TIME  (5s)", "--settle TIME", "--nodes M", "--node-id K",
        "--coordinator HOST:PORT", "--hosts A,B", "--ssh COMMAND"}) {
    EXPECT_THAT(run.output(), HasSubstr(flag));
  }
}

TEST(LauncherTest, VersionIsPrinted) {
  LauncherRun run({"--version"});
  EXPECT_EQ(run.wait(), 0);
  EXPECT_EQ(run.output(), version_text("tessera_run"));
}

}  // namespace
}  // namespace tessera
