// SPDX-License-Identifier: Apache-2.0
//
// Tokens that clients of one host share by a file: the users that may read it, and what dead jobs
// leave behind.
#include "job/environment/token_file.h"

#include <dirent.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "job/environment/environment.h"
#include "job/environment/file_descriptor.h"
#include "job/environment/job_token.h"
#include "tests/support/forked.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::IsOkAndHolds;
using testing::run_isolated;
using testing::StatusIs;

constexpr char kAddress[] = "127.0.0.1:4711";
constexpr char kOtherAddress[] = "localhost:4712";

absl::Time soon() { return steady_now() + absl::Seconds(60); }

// A runtime folder of the test's own.
class TokenFileTest : public ::testing::Test {
 protected:
  TokenFileTest() {
    std::string folder = absl::StrCat(::testing::TempDir(), "/runtime_XXXXXX");
    runtime_ = mkdtemp(folder.data());
    setenv("XDG_RUNTIME_DIR", runtime_.c_str(), 1);
  }

  std::string folder() const { return absl::StrCat(runtime_, "/tessera"); }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    DIR* const entries = opendir(folder().c_str());
    while (const dirent* entry = entries == nullptr ? nullptr : readdir(entries)) {
      if (entry->d_type == DT_REG) names.push_back(entry->d_name);
    }
    if (entries != nullptr) closedir(entries);
    return names;
  }

  std::string runtime_;
};

TEST_F(TokenFileTest, OthersOfThisUserFindIt) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const TokenFile file, TokenFile::publish(kAddress, "secret"));
  EXPECT_THAT(await_token(kAddress, soon()), IsOkAndHolds("secret"));
  EXPECT_THAT(await_token("localhost:4711", soon()), IsOkAndHolds("secret"));
  EXPECT_THAT(
      run_isolated(absl::Seconds(60), [] { return await_token(kAddress, soon()).status(); }),
      IsOk());
}

TEST_F(TokenFileTest, OnlyThisUserMayReadIt) {
  umask(0);
  TESSERA_ASSERT_OK_AND_ASSIGN(const TokenFile file, TokenFile::publish(kAddress, "secret"));
  struct stat info = {};
  ASSERT_EQ(stat(folder().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700);
  ASSERT_EQ(files().size(), 1);
  ASSERT_EQ(stat(absl::StrCat(folder(), "/", files()[0]).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600);
}

TEST_F(TokenFileTest, WaitsUntilItIsPublished) {
  StatusOr<std::string> found = absl::UnknownError("");
  std::thread waiting([&] { found = await_token(kAddress, soon()); });
  TESSERA_ASSERT_OK_AND_ASSIGN(const TokenFile other, TokenFile::publish(kOtherAddress, "other"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const TokenFile file, TokenFile::publish(kAddress, "secret"));
  waiting.join();
  EXPECT_THAT(found, IsOkAndHolds("secret"));
}

// From now on inotify_init1 fails in this process, as where the user's instances are used up.
bool deny_inotify() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_inotify_init1, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EMFILE),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {static_cast<unsigned short>(std::size(filter)), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST_F(TokenFileTest, IsFoundWithoutInotify) {
  const Status status = run_isolated(absl::Seconds(60), []() -> Status {
    TESSERA_REQUIRE(deny_inotify());
    TESSERA_REQUIRE(inotify_init1(0) == -1);
    StatusOr<std::string> found = absl::UnknownError("");
    std::thread waiting([&] { found = await_token(kAddress, soon()); });
    const StatusOr<TokenFile> file = TokenFile::publish(kAddress, "secret");
    waiting.join();
    TESSERA_RETURN_IF_ERROR(file.status());
    TESSERA_RETURN_IF_ERROR(found.status());
    TESSERA_REQUIRE(*found == "secret");
    TESSERA_REQUIRE(absl::IsDeadlineExceeded(
        await_token(kOtherAddress, steady_now() + absl::Milliseconds(50)).status()));
    return absl::OkStatus();
  });
  EXPECT_THAT(status, IsOk());
}

TEST_F(TokenFileTest, DeadlineNamesTheFolderAndTheRemedy) {
  EXPECT_THAT(await_token(kAddress, steady_now()),
              StatusIs(StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("the coordinator at 127.0.0.1:4711 has left no job token"),
                             HasSubstr(folder()), HasSubstr("TESSERA_TOKEN"))));
}

TEST_F(TokenFileTest, EndOfTheObjectRemovesIt) {
  { TESSERA_ASSERT_OK_AND_ASSIGN(const TokenFile file, TokenFile::publish(kAddress, "secret")); }
  EXPECT_THAT(files(), ::testing::IsEmpty());
  EXPECT_THAT(await_token(kAddress, steady_now()), StatusIs(StatusCode::kDeadlineExceeded));
}

TEST_F(TokenFileTest, SecondProcessAtThePortIsRefused) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const TokenFile file, TokenFile::publish(kAddress, "secret"));
  EXPECT_THAT(TokenFile::publish(kAddress, "other"),
              StatusIs(StatusCode::kUnavailable,
                       AllOf(HasSubstr(absl::StrCat("the process ", getpid(), " of this user")),
                             HasSubstr("port 4711; use a free port"))));
  EXPECT_THAT(await_token(kAddress, soon()), IsOkAndHolds("secret"));
}

// A process that is killed leaves its file behind: it is no token, does not stand in the way, and
// goes away when the next token is published, whatever the port.
TEST_F(TokenFileTest, FilesOfDeadProcessesDoNoHarm) {
  EXPECT_THAT(run_isolated(absl::Seconds(60),
                           []() -> Status {
                             StatusOr<TokenFile> file = TokenFile::publish(kAddress, "old");
                             TESSERA_REQUIRE(file.ok(), file.status().ToString());
                             kill(getpid(), SIGKILL);
                             return absl::OkStatus();
                           }),
              StatusIs(StatusCode::kAborted));
  ASSERT_EQ(files().size(), 1);
  EXPECT_THAT(await_token(kAddress, steady_now()), StatusIs(StatusCode::kDeadlineExceeded));
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(const TokenFile file, TokenFile::publish(kOtherAddress, "new"));
    EXPECT_EQ(files().size(), 1);
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(const TokenFile file, TokenFile::publish(kAddress, "new"));
  EXPECT_THAT(await_token(kAddress, soon()), IsOkAndHolds("new"));
}

// The id of a dead process may already belong to another process.
TEST_F(TokenFileTest, FileOfAnEarlierProcessOfThisIdIsNoToken) {
  std::string name;
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(const TokenFile file, TokenFile::publish(kAddress, "secret"));
    name = files()[0];
  }
  const std::string path = absl::StrCat(folder(), "/", name);
  std::ofstream(path) << getpid() << " 12345 old\n";
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  EXPECT_THAT(await_token(kAddress, steady_now()), StatusIs(StatusCode::kDeadlineExceeded));
}

// With every number of descriptors from none to enough, publish() fails or succeeds; it never
// removes or replaces the file of a living process.
TEST_F(TokenFileTest, LackOfDescriptorsRemovesNoFileOfALivingProcess) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const TokenFile file, TokenFile::publish(kAddress, "secret"));
  const auto publish_with_few = [](int num_free, const char* address) -> Status {
    const FileDescriptor lowest_free(dup(STDERR_FILENO));
    TESSERA_REQUIRE(lowest_free.is_open());
    const auto most = static_cast<rlim_t>(lowest_free.get() + 1 + num_free);
    const rlimit limit = {most, most};
    TESSERA_REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    return TokenFile::publish(address, "other").status();
  };
  int num_free = 0;
  bool is_enough = false;
  for (; num_free < 100 && !is_enough; ++num_free) {
    SCOPED_TRACE(num_free);
    const auto few = [&](const char* address) {
      return run_isolated(absl::Seconds(60), [&] { return publish_with_few(num_free, address); });
    };
    const Status told = few(kOtherAddress);
    is_enough = told.ok();
    EXPECT_TRUE(is_enough || absl::StrContains(told.message(), "Too many open files")) << told;
    EXPECT_FALSE(few(kAddress).ok());
    EXPECT_THAT(await_token(kAddress, steady_now()), IsOkAndHolds("secret"));
  }
  EXPECT_TRUE(is_enough);
  EXPECT_GT(num_free, 2);
}

TEST_F(TokenFileTest, ForkedChildLeavesItAlone) {
  TESSERA_ASSERT_OK_AND_ASSIGN(TokenFile file, TokenFile::publish(kAddress, "secret"));
  EXPECT_THAT(run_isolated(absl::Seconds(60),
                           [&] {
                             { const TokenFile taken = std::move(file); }
                             return absl::OkStatus();
                           }),
              IsOk());
  EXPECT_THAT(await_token(kAddress, soon()), IsOkAndHolds("secret"));
}

// A folder that others may write is not used; the next choice is /tmp/tessera-UID.
TEST_F(TokenFileTest, FolderOfOthersIsNotUsed) {
  ASSERT_EQ(chmod(runtime_.c_str(), 0777), 0);
  TESSERA_ASSERT_OK_AND_ASSIGN(const TokenFile file, TokenFile::publish(kAddress, "secret"));
  EXPECT_THAT(files(), ::testing::IsEmpty());
  EXPECT_THAT(await_token(kAddress, soon()), IsOkAndHolds("secret"));
  ASSERT_EQ(chmod(runtime_.c_str(), 0700), 0);
  ASSERT_EQ(mkdir(folder().c_str(), 0755), 0);
  ASSERT_EQ(chmod(folder().c_str(), 0755), 0);
  EXPECT_THAT(
      TokenFile::publish(kAddress, "secret"),
      StatusIs(StatusCode::kFailedPrecondition,
               AllOf(HasSubstr(folder()), HasSubstr("mode 0700"), HasSubstr("TESSERA_TOKEN"))));
}

TEST(AddressTest, OfThisHostOrNot) {
  for (const char* address :
       {"127.0.0.1:1", "127.0.0.1:0", "localhost:1", "[::1]:1", "0.0.0.0:1"}) {
    EXPECT_TRUE(is_address_of_this_host(address)) << address;
  }
  for (const char* address : {"192.0.2.1:1", ":1", "", "no.such.host.invalid:1"}) {
    EXPECT_FALSE(is_address_of_this_host(address)) << address;
  }
}

// Rows token_one_host and token_two_hosts of tests/facts/cluster.md.
TEST_F(TokenFileTest, OneHostNeedsNoToken) {
  JobEnvironment job = {.coordinator = kAddress, .client_id = 0, .num_clients = 2};
  TESSERA_ASSERT_OK_AND_ASSIGN(const JobToken made, find_job_token(job, soon()));
  EXPECT_EQ(made.text.size(), 32);
  job.client_id = 1;
  TESSERA_ASSERT_OK_AND_ASSIGN(const JobToken found, find_job_token(job, soon()));
  EXPECT_EQ(found.text, made.text);
  // A service that no client hosts makes the token of client 0 too.
  job.client_id = 0;
  job.coordinator_is_hosted = true;
  TESSERA_ASSERT_OK_AND_ASSIGN(const JobToken of_client_0, find_job_token(job, soon()));
  EXPECT_EQ(of_client_0.text, made.text);
  job.token = "mine";
  EXPECT_EQ(find_job_token(job, soon())->text, "mine");
  EXPECT_EQ(find_job_token({.num_clients = 1}, soon())->text, "");
}

TEST_F(TokenFileTest, SeveralHostsAreRefusedWithoutAToken) {
  JobEnvironment job = {.coordinator = "192.0.2.1:4711", .client_id = 1, .num_clients = 2};
  const auto refusal = StatusIs(StatusCode::kInvalidArgument,
                                AllOf(HasSubstr("a job over several hosts needs a token"),
                                      HasSubstr("set TESSERA_TOKEN to the same secret")));
  EXPECT_THAT(find_job_token(job, soon()), refusal);
  job = {.coordinator = kAddress, .client_id = 0, .num_clients = 2};
  job.on_one_host = false;
  EXPECT_THAT(find_job_token(job, soon()), refusal);
  EXPECT_THAT(files(), ::testing::IsEmpty());
}

}  // namespace
}  // namespace tessera
