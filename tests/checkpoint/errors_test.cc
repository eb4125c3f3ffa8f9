// SPDX-License-Identifier: Apache-2.0
//
// Saves in which one call to the system fails (EIO, no room, no permission) or writes less than it
// was asked to. Each call of an undisturbed save fails in turn.
//
// Invariants:
//   1. the save returns an error with the path and the reason, the same on all clients; or OK where
//      the fault does no harm, and then all values are there;
//   2. an earlier checkpoint, or the old file, is as it was;
//   3. no file of the failed save is left, unless the fault was in removing it;
//   4. the same process saves again, successfully.
//
// CI takes a sample, which TESSERA_TEST_SEED repeats; TESSERA_CHECKPOINT_POINTS=all (tools/soak
// checkpoints) takes all.
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/checkpoint/reader.h"
#include "tests/checkpoint/saver_run.h"
#include "tests/support/folder.h"
#include "tests/support/matchers.h"
#include "tests/support/seed.h"

namespace tessera::testing {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kPointsInCi = 4;  // of each save

struct Reason {
  const char* action;
  int error;
  absl::StatusCode code;
};
constexpr Reason kReasons[] = {
    {"EIO", EIO, absl::StatusCode::kDataLoss},
    {"ENOSPC", ENOSPC, absl::StatusCode::kResourceExhausted},
    {"EDQUOT", EDQUOT, absl::StatusCode::kResourceExhausted},
    {"EACCES", EACCES, absl::StatusCode::kPermissionDenied},
};

// The faults that a call may have.
std::vector<std::string> actions_of(const Call& call) {
  if (call.name == "write") return {"EIO", "ENOSPC", "EDQUOT", "short"};
  if (call.name == "create" || call.name == "mkdir") return {"EIO", "ENOSPC", "EDQUOT", "EACCES"};
  if (call.name == "open" || call.name == "unlink" || call.name == "rmdir")
    return {"EIO", "EACCES"};
  return {"EIO", "ENOSPC"};
}

// Whether the save may return OK although this call failed.
bool may_be_harmless(const Call& call) {
  static const auto& names =
      *new std::set<std::string>{"sync_file_range", "open", "unlink", "rmdir"};
  return call.fault == "short" || names.count(call.name) == 1;
}

// The status of the failed save, which all clients share.
void expect_one_error(const SaverRun& run, const Call& call, const std::string& folder,
                      int num_clients) {
  ASSERT_EQ(static_cast<int>(run.first.size()), num_clients);
  const Status& status = run.first.begin()->second.status;
  for (const auto& [client, returned] : run.first) {
    EXPECT_EQ(returned.status, status) << "client " << client;
  }
  if (status.ok()) {
    EXPECT_TRUE(may_be_harmless(call)) << "the save returned OK";
    return;
  }
  EXPECT_NE(call.fault, "short") << status;
  for (const Reason& reason : kReasons) {
    if (call.fault != reason.action) continue;
    // DataLoss: the manifest is there, and may be lost by a power cut.
    EXPECT_THAT(status, StatusIs(AnyOf(reason.code, absl::StatusCode::kDataLoss),
                                 HasSubstr(strerror(reason.error))));
  }
  // A rename may name either path.
  const std::string path = call.path == "." ? folder : absl::StrCat(folder, "/", call.path);
  EXPECT_THAT(std::string(status.message()),
              AnyOf(HasSubstr(path), HasSubstr(absl::StrCat(folder, "/", call.other))));
}

// Fails calls of an undisturbed run. `check(run, call)` judges what is there after the second save.
template <class Reset, class Check>
void sweep(SaverJob job, const std::string& folder, const Reset& reset, const Check& check) {
  const uint64_t seed = test_seed();
  reset();
  const SaverRun clean = run_saver(job, folder);
  ASSERT_EQ(clean.exit_code, 0) << clean.error_output;
  std::vector<Fault> faults;
  for (const Call& call : clean.calls) {
    for (const std::string& action : actions_of(call)) {
      faults.push_back({.client = call.client, .n = call.number, .action = action});
    }
  }
  job.again = true;
  for (const int64_t point :
       sample_of_points(static_cast<int64_t>(faults.size()), kPointsInCi, seed)) {
    const Fault& fault = faults[static_cast<size_t>(point)];
    reset();
    const SaverRun run = run_saver(job, folder, fault);
    const std::optional<Call> call = run.fault();
    ASSERT_TRUE(call.has_value()) << fault << run.error_output;
    SCOPED_TRACE(absl::StrCat(fault.to_string(), ", ", call->name, " ", call->path));
    EXPECT_EQ(run.exit_code, 0) << run.error_output;
    expect_one_error(run, *call, folder, job.num_clients);
    EXPECT_EQ(static_cast<int>(run.again.size()), job.num_clients);
    for (const auto& [client, returned] : run.again) EXPECT_THAT(returned.status, IsOk());
    check(run, *call);
  }
}

bool is_removal(const Call& call) { return call.name == "unlink" || call.name == "rmdir"; }

void expect_nothing_partial(const Folder& folder, const Call& call) {
  if (is_removal(call)) return;
  EXPECT_THAT(folder.files(), Not(Contains(AnyOf(HasSubstr("partial"), HasSubstr(".writing")))));
}

struct Job {
  const char* name;
  const char* verb;
  int num_clients;
};
std::ostream& operator<<(std::ostream& out, const Job& job) { return out << job.name; }

class SaveErrorsTest : public ::testing::TestWithParam<Job> {};

TEST_P(SaveErrorsTest, EachCallFails) {
  const bool is_overwrite = std::string(GetParam().verb) == "overwrite";
  const Folder prepared;
  ASSERT_EQ(run_saver({.verb = "save", .path = prepared.path(), .step = 100, .base = 100},
                      prepared.path())
                .exit_code,
            0);
  Folder root;
  const SaverJob job = {.verb = GetParam().verb,
                        .path = root.path(),
                        .step = is_overwrite ? 100 : 200,
                        .base = is_overwrite ? 101 : 200,
                        .num_clients = GetParam().num_clients};
  sweep(
      job, root.path(), [&] { root.copy(prepared); },
      [&](const SaverRun& run, const Call& call) {
        expect_nothing_partial(root, call);
        const StatusOr<Complete> found = read_root(root.path());
        // The second save has added 100 to the base, and to the step of a save.
        if (is_overwrite) {
          EXPECT_THAT(found, IsOkAndHolds(Complete{{100, 201}}));
          return;
        }
        const Complete with_200 = {{100, 100}, {200, 200}, {300, 300}};
        const Complete without = {{100, 100}, {300, 300}};
        ASSERT_THAT(found, IsOkAndHolds(AnyOf(with_200, without)));
        if (run.is_acknowledged()) {
          EXPECT_EQ(*found, with_200);
        }
        if (*found == without && !is_removal(call)) {
          EXPECT_THAT(root.files(), Not(Contains(HasSubstr("step-0000000200/"))));
        }
      });
}

INSTANTIATE_TEST_SUITE_P(Jobs, SaveErrorsTest,
                         ::testing::Values(Job{"Save", "save", 1}, Job{"SaveByTwo", "save", 2},
                                           Job{"Overwrite", "overwrite", 1}),
                         [](const auto& info) { return std::string(info.param.name); });

class FileErrorsTest : public ::testing::TestWithParam<Job> {};

TEST_P(FileErrorsTest, EachCallFails) {
  const Folder prepared;
  const std::string verb = GetParam().verb;
  const std::string name = verb == "write_npy" ? "/x.npy" : "/x.safetensors";
  ASSERT_EQ(run_saver({.verb = verb, .path = prepared.path() + name, .base = 100}, prepared.path())
                .exit_code,
            0);
  Folder folder;
  const std::string path = folder.path() + name;
  sweep(
      {.verb = verb, .path = path, .base = 101, .num_clients = GetParam().num_clients},
      folder.path(), [&] { folder.copy(prepared); },
      [&](const SaverRun&, const Call& call) {
        EXPECT_THAT(read_file(path), IsOkAndHolds(201));
        if (is_removal(call)) return;
        EXPECT_EQ(folder.files(), prepared.files());
      });
}

INSTANTIATE_TEST_SUITE_P(Files, FileErrorsTest,
                         ::testing::Values(Job{"Npy", "write_npy", 1},
                                           Job{"NpyByTwo", "write_npy", 2},
                                           Job{"Safetensors", "write_safetensors", 2}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tessera::testing
